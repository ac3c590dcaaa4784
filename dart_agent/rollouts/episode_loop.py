"""The episode loop: the one place where a policy acts in an environment.

Role: `run_episode`, used for training, evaluation and demonstrations alike. Rule: what the policy does wrong is data in the
trajectory; what the farm does wrong ends the episode with its cause; an episode that never began raises and leaves nothing.
Cancelling it is safe at any point: the environment's next reset starts afresh. Non-goals: claiming work, storing results
(`dart_agent.rollouts.worker`).

    reset ─► observation ─► prompt ─► policy ─► text ─► parse ─► action ─► step ─┬─► record ─► end?
                 ▲                                        └─ no action: wait 0 s ┘        no │
                 └─────────────────────────────────────────────────────────────────────────── ┘
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from dart_agent.errors import PolicyUnavailableError
from dart_agent.prompts.builder import Prompt, PromptBuilder
from dart_agent.types import (
    Completion,
    Policy,
    PolicyRequest,
    Purpose,
    SamplingParams,
    StepRecord,
    Trajectory,
    WorkItem,
)
from dart_envs.action_formats import ParsedAnswer, ParseError
from dart_envs.actions import actions_to_dict
from dart_envs.clock import SystemClock
from dart_envs.errors import ActionError
from dart_envs.hashing import image_sha256
from dart_envs.types import Action, ActionType, DecodedAction, EndReason, Observation, RgbImage, StepResult, TaskLike
from dart_server.wire import Clock


class EpisodeEnv(Protocol):
    """What the loop needs of an environment: `dart_envs.envs.core.AsyncDesktopEnv`, or a scripted one in tests."""

    async def reset(
        self, task: TaskLike, seed: int | None = None, *, share_setup: bool | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; raises `dart_envs.errors.DartEnvError` when it cannot begin."""
        ...

    async def step(self, action: Action | DecodedAction) -> StepResult:
        """Perform one action; raises ActionError, and nothing else, for what the policy did."""
        ...


class OnParseError(StrEnum):
    """What an answer that is no action does: nothing (but it counts as a step), or give up the episode."""

    NO_ACTION = "no_action"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One step as a teacher sees it: the full screen before the action, and the action."""

    index: int
    observation: Observation
    action: Action | DecodedAction | None


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode and the model-input images that its steps refer to, by sha256."""

    trajectory: Trajectory
    images: Mapping[str, RgbImage]


_NO_OP = Action(ActionType.WAIT, duration_s=0.0)
_GIVE_UP = Action(ActionType.FAIL)


async def run_episode(
    env: EpisodeEnv,
    policy: Policy,
    task: TaskLike,
    item: WorkItem,
    builder: PromptBuilder,
    *,
    clock: Clock | None = None,
    on_parse_error: OnParseError = OnParseError.NO_ACTION,
    on_step: Callable[[ObservedStep], Awaitable[None]] | None = None,
) -> Episode:
    """Play one episode of `task` to its end.

    Raises `dart_envs.errors.DartEnvError` when it could not begin. A policy that cannot answer any more ends the episode like a fault of
    the farm: masked, with its cause.
    """
    episode = _EpisodeRecorder(item, builder, clock or SystemClock())
    share_setup = True if item.purpose is Purpose.TRAIN else None
    observation, _ = await env.reset(task, item.sampling.seed, share_setup=share_setup)
    episode.reset_s = episode.clock.monotonic() - episode.began_s
    while True:
        prompt = builder.build(observation, episode.history)
        request = episode.request(prompt)
        asked_s = episode.clock.monotonic()
        try:
            completion = await policy.complete(request)
        except PolicyUnavailableError as error:
            return episode.finish(task, EndReason.FARM_FAULT, 0.0, f"policy: {error}", {})
        answered_s = episode.clock.monotonic()
        parsed = builder.spec.parse(completion.text, prompt.points, observation.pointer)
        action = parsed.action if isinstance(parsed, ParsedAnswer) else None
        if on_step is not None:
            await on_step(ObservedStep(len(episode.steps), observation, action))
        result, refusal = await _perform(env, parsed, on_parse_error)
        episode.record(
            prompt, request.sampling, completion, parsed if isinstance(parsed, ParsedAnswer) and refusal is None else None, refusal,
            model_s=answered_s - asked_s, env_s=episode.clock.monotonic() - answered_s,
        )  # fmt: skip
        if result.end is not None:
            return episode.finish(task, result.end, result.reward, result.info.get("cause"), result.info)
        observation = result.observation


async def _perform(
    env: EpisodeEnv, parsed: ParsedAnswer | ParseError, on_parse_error: OnParseError
) -> tuple[StepResult, str | None]:
    """The transition, and why the answer was no action (None when it was one)."""
    instead = _GIVE_UP if on_parse_error is OnParseError.FAIL else _NO_OP
    if isinstance(parsed, ParseError):
        return await env.step(instead), str(parsed)
    try:
        return await env.step(parsed.action), None
    except ActionError as refused:
        return await env.step(instead), str(ParseError(refused.fault, str(refused)))


class _EpisodeRecorder:
    """What a running episode has gathered."""

    def __init__(self, item: WorkItem, builder: PromptBuilder, clock: Clock) -> None:
        self.item = item
        self.clock = clock
        self.history = builder.new_history()
        self.steps: list[StepRecord] = []
        self.images: dict[str, RgbImage] = {}
        self.hashes: list[str] = []
        self.reset_s = 0.0
        self.started_at_s = clock.time()
        self.began_s = clock.monotonic()

    def request(self, prompt: Prompt) -> PolicyRequest:
        index, sampling = len(self.steps), self.item.sampling
        if sampling.seed is not None:
            sampling = dataclasses.replace(sampling, seed=sampling.seed + index)
        return PolicyRequest(prompt.messages, prompt.images, sampling, f"{self.item.rollout_id}.{index}")

    def record(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        completion: Completion,
        performed: ParsedAnswer | None,
        error: str | None,
        *,
        model_s: float,
        env_s: float,
    ) -> None:
        present = prompt.images[-1]
        sha256 = image_sha256(present)
        self.hashes.append(sha256)
        self.images[sha256] = present
        self.steps.append(
            StepRecord(
                index=len(self.steps),
                prompt_ids_P=completion.prompt_ids_P,
                token_ids_T=completion.token_ids_T,
                logprobs_T=completion.logprobs_T,
                version_spans=completion.version_spans,
                image_sha256=tuple(self.hashes[-len(prompt.images) :]),
                image_hw=tuple((int(image.shape[0]), int(image.shape[1])) for image in prompt.images),
                text=completion.text,
                action=None if performed is None else actions_to_dict(performed.actions),
                parse_error=error,
                sampling=sampling,
                finish_reason=completion.finish_reason,
                model_s=model_s,
                env_s=env_s,
            )
        )
        self.history.add(present, completion.text)

    def finish(
        self, task: TaskLike, end: EndReason, reward: float, cause: str | None, info: Mapping[str, Any]
    ) -> Episode:
        item = self.item
        details = {"instruction": task.instruction, "reset_s": self.reset_s}
        if "outcome" in info:
            details["outcome"] = info["outcome"]
        return Episode(
            Trajectory(
                rollout_id=item.rollout_id,
                group_id=item.group_id,
                task_id=item.task_id,
                purpose=item.purpose,
                phase=item.phase,
                steps_S=tuple(self.steps),
                reward=None if end.masked else float(reward),
                end=end,
                cause=cause,
                started_at_s=self.started_at_s,
                duration_s=self.clock.monotonic() - self.began_s,
                info=details,
            ),
            self.images,
        )
