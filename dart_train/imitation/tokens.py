"""From demonstrated episodes to the token sequences that a policy would have sampled.

Role: `EpisodeTokenizer` asks the policy's own prompts along a demonstration and writes its actions as answers. Rule: prompts, pictures and
token ids are those of a rollout of the same episode: the history continues the exact ids of the turns before it, pictures have the
model's size, and each place holder is repeated as the engine repeats it. There are no log-probs, because no policy sampled these tokens:
the steps may be imitated and never weighted by a ratio. Non-goals: which episodes (`dart_train.imitation.demonstrations`), losses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dart_agent.data_client.image_store import BlobStorage
from dart_agent.grounding.acting.targets import describe_target, find_targets
from dart_agent.prompts.builder import PromptBuilder, PromptSpec
from dart_agent.prompts.chat_template import render_chat
from dart_agent.prompts.exact_prefix import continues, prompt_ids
from dart_agent.types import FinishReason, SamplingParams, StepRecord, VersionSpan
from dart_envs.actions import action_to_dict
from dart_envs.errors import ActionError
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, Observation, RgbImage
from dart_train.imitation.demonstrations import (
    DemonstratedEpisode,
    DemonstratedTurn,
    DemonstrationsUnusableError,
    read_demonstrations,
)
from dart_train.imitation.settings import AnswerSettings, DemonstrationSettings
from dart_train.warmup.queries import CLICKS
from dart_train.warmup.screens import covers

DEMONSTRATED_VERSION = 0


@dataclass(frozen=True, slots=True)
class ImitatedEpisode:
    """An episode as token sequences.

    Attributes:
        name: What messages call it; no two episodes have the same.
        task_id: Its task.
        steps: The steps that are imitated; their log-probs are not used.
    """

    name: str
    task_id: str
    steps: tuple[StepRecord, ...]


class EpisodeTokenizer:
    """Writes episodes in the words of one policy.

    Args:
        processor: The policy's processor.
        image_token_id: Its place holder of images.
        spec: How it is asked.
        images: Where the pictures of prompts are kept.
        answers: In which words it answers.
    """

    def __init__(
        self,
        processor: Any,
        image_token_id: int,
        spec: PromptSpec,
        images: BlobStorage,
        answers: AnswerSettings = AnswerSettings(),
    ) -> None:
        self._processor = processor
        self._image_token_id = image_token_id
        self._images = images
        self._answers = answers
        self._builder = PromptBuilder(spec)
        self._end = self._encode(processor.tokenizer.eos_token)
        self._tokens_by_size: dict[tuple[int, int], int] = {}

    def steps(self, episode: DemonstratedEpisode) -> tuple[StepRecord, ...]:
        """Write an episode.

        Args:
            episode: The episode.

        Returns:
            Its steps; their log-probs are 0 and mean nothing.

        Raises:
            ActionError: The prompt has no words for an action.
            DemonstrationsUnusableError: A screen cannot be read.
        """
        history, written = self._builder.new_history(), list[StepRecord]()
        messages: tuple[Mapping[str, Any], ...] = ()
        hashes: list[str] = []
        sizes: dict[str, tuple[int, int]] = {}
        for index, turn in enumerate(episode.turns):
            screen = _read_screen(turn.screen)
            present = self._builder.model_image(screen)
            prompt = self._builder.build_from(Observation(screen, episode.instruction), present, history)
            action = on_grid(turn, prompt.points, self._answers.coordinate_step_px)
            text = self._answer(turn, action, prompt.points)
            sha256 = self._images.put(present)
            sizes[sha256] = present.shape[0], present.shape[1]
            hashes.append(sha256)
            shown = hashes[len(hashes) - len(prompt.images) :]
            last = written[-1] if written else None
            goes_on = last is not None and continues(prompt.messages, messages, shown, last.image_sha256)
            answer = (*self._encode(text), *self._end)
            written.append(
                StepRecord(
                    index=index,
                    prompt_ids_P=self._prompt(
                        prompt.messages, len(messages), last if goes_on else None, [sizes[each] for each in shown]
                    ),
                    token_ids_T=answer,
                    logprobs_T=(0.0,) * len(answer),
                    version_spans=(VersionSpan(DEMONSTRATED_VERSION, 0, len(answer)),),
                    image_sha256=tuple(shown),
                    image_hw=tuple(sizes[each] for each in shown),
                    text=text,
                    action=action_to_dict(action),
                    parse_error=None,
                    sampling=SamplingParams(max_tokens=len(answer)),
                    finish_reason=FinishReason.STOP,
                    model_s=0.0,
                    env_s=0.0,
                )
            )
            messages = prompt.messages
            history.add(present, text)
        return tuple(written)

    def _answer(self, turn: DemonstratedTurn, action: Action, points: PointMap) -> str:
        """The text of a step's action. Raises ActionError where there are no words for it."""
        answers, write = self._answers, self._builder.spec.write
        if not answers.described:
            called = turn.called if turn.suite_names else turn.target
            words = {"instruction": called, "target": turn.target, "none": ""}[answers.thoughts]
            return write(action, points, thought=words if action.type in CLICKS else "")
        if action.type not in CLICKS:
            return write(action, points)
        own = "" if turn.element is None else turn.element.name
        words = own if answers.thoughts == "target" else turn.called or own
        described = describe_target(write(action, points), words)
        if not find_targets(described):
            raise ActionError(
                f"no words for an action head describe what {action.type.value} points at, named {words!r}"
            )
        return described

    def _prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        messages_before: int,
        before: StepRecord | None,
        sizes: Sequence[tuple[int, int]],
    ) -> tuple[int, ...]:
        """The ids of a prompt, with as many place holders as each picture takes."""
        ids = prompt_ids(
            messages,
            () if before is None else before.prompt_ids_P + before.token_ids_T,
            0 if before is None else messages_before + 1,
            render=lambda shown: render_chat(self._processor, shown),
            tokenize=self._encode,
            image_token_id=self._image_token_id,
        )
        pictures = iter(sizes)
        return tuple(
            chain.from_iterable(
                [token] * (self._tokens_of(next(pictures)) if token == self._image_token_id else 1) for token in ids
            )
        )

    def _tokens_of(self, height_width: tuple[int, int]) -> int:
        """Tokens of a picture of a size."""
        if height_width not in self._tokens_by_size:
            from dart_train.model.policy_model import pixel_inputs

            _, grid = pixel_inputs(self._processor, [np.zeros((*height_width, 3), np.uint8)])
            merged = int(self._processor.image_processor.merge_size) ** 2
            self._tokens_by_size[height_width] = int(grid.prod()) // merged
        return self._tokens_by_size[height_width]

    def _encode(self, text: str) -> list[int]:
        return list(self._processor.tokenizer(text, add_special_tokens=False).input_ids)


def on_grid(turn: DemonstratedTurn, points: PointMap, step: int) -> Action:
    """Move a click to the grid of the coordinates that a policy writes, as its warm start does.

    Args:
        turn: The demonstrated step; a click on a known element goes to the cell of its middle.
        points: Maps between screen and written numbers.
        step: Side of a cell of the grid in written numbers; 1: there is no grid.

    Returns:
        The action; unchanged where it is no click, and where the middle of the cell lies outside of the element.
    """
    action, element = turn.action, turn.element
    if step == 1 or action.type not in CLICKS or action.x is None or action.y is None:
        return action
    x, y = (action.x, action.y) if element is None else (element.x + element.w // 2, element.y + element.h // 2)
    found = points.to_screen(*points.on_grid(*points.to_model(x, y), step))
    if found is None or (element is not None and not covers(element, *found)):
        return action
    return replace(action, x=found[0], y=found[1])


def write_demonstrations(
    settings: DemonstrationSettings, processor: Any, image_token_id: int, images: BlobStorage
) -> tuple[list[ImitatedEpisode], Counter[str]]:
    """Read demonstrations and write them in a policy's words.

    Args:
        settings: Which ones, and how the policy is asked.
        processor: The policy's processor.
        image_token_id: Its place holder of images.
        images: Where the pictures of prompts are kept.

    Returns:
        What can be imitated, and by reason how many demonstrations cannot.

    Raises:
        DemonstrationsUnusableError: None can be imitated, or some of it must not be.
    """
    tokenizer = EpisodeTokenizer(processor, image_token_id, settings.asked.prompt_spec, images, settings)
    found = read_demonstrations(settings.folders, settings.task_folder)
    return tokenize_episodes(tokenizer, found.episodes, found.left_out), found.left_out


def tokenize_episodes(
    tokenizer: EpisodeTokenizer, episodes: Iterable[DemonstratedEpisode], left_out: Counter[str]
) -> list[ImitatedEpisode]:
    """Write all episodes that the prompt has words for.

    Args:
        tokenizer: Writes them.
        episodes: The episodes.
        left_out: Counts those that it cannot write, by reason.

    Returns:
        What can be imitated.

    Raises:
        DemonstrationsUnusableError: None can be written, or a screen cannot be read.
    """
    written: list[ImitatedEpisode] = []
    for episode in episodes:
        try:
            written.append(ImitatedEpisode(episode.name, episode.task_id, tokenizer.steps(episode)))
        except ActionError as error:
            left_out[f"the prompt has no words for it: {error}"] += 1
    if not written:
        told = "; ".join(f"{count} {reason}" for reason, count in left_out.most_common(3))
        raise DemonstrationsUnusableError(f"no demonstration can be imitated ({told or 'there are none'})")
    return written


def _read_screen(path: Path) -> RgbImage:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except OSError as error:
        raise DemonstrationsUnusableError(f"the screen {path} cannot be read: {error}") from error
