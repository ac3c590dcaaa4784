"""An episode that is continued from any of its saved states asks what the uninterrupted one asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dart_agent.data_client.image_store import ImageStore
from dart_agent.errors import PromptTooLongError
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.prompts.history import HistorySettings
from dart_agent.rewards.source import RewardSource
from dart_agent.rollouts.episode import EpisodeSettings, ResumedEpisode
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.rollouts.episode_report import PlayedItem
from dart_agent.rollouts.episode_state import EpisodeState, KeptDesktop, SavedEpisode
from dart_agent.rollouts.journal import ActionMarks, PartialWorkSource
from dart_agent.rollouts.partial import PartialRollouts
from dart_agent.rollouts.policies import OraclePolicy
from dart_agent.types import (
    Completion,
    Directive,
    FinishReason,
    PolicyRequest,
    StepRecord,
    VersionSpan,
    WorkItem,
)
from dart_envs.envs.parking import ParkedDesktop
from dart_envs.tasks import ScriptAction
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.types import Action, ActionType, Observation, RgbImage, TaskLike
from tests.unit.dart_agent.fakes import FakeClock, FakeScreenJudge, ScriptedEnv, item, task

STEPS = 12
MOST_IMAGES = 6


class SmallContext:
    """Takes as many images as a small context holds, and answers like an engine that continues exact prefixes."""

    def __init__(self) -> None:
        self.requests: list[PolicyRequest] = []

    async def complete(self, request: PolicyRequest) -> Completion:
        if len(request.images) > MOST_IMAGES:
            raise PromptTooLongError(f"{len(request.images)} images")
        self.requests.append(request)
        index = int(request.request_id.rpartition(".")[2])
        prompt = (*request.prefix_ids_P, 1000 + index, 2000 + index)
        ids = (10 + index, 20 + index)
        text = f"Thought: t{index}\nAction: click(start_box='({index + 1},{index + 2})')"
        return Completion(text, prompt, ids, (-0.5, -0.25), (VersionSpan(0, 0, 2),), FinishReason.STOP)


class Journal:
    """Keeps every state as the data manager would."""

    sent_images: frozenset[str] = frozenset()

    def __init__(self, images: ImageStore) -> None:
        self.saved: list[SavedEpisode] = []
        self._images = images

    def acting(self, index: int) -> None:
        pass

    async def stored(self, steps_S: tuple[StepRecord, ...], image: RgbImage, state: EpisodeState) -> Directive:
        self._images.put(image)
        desktop = KeptDesktop(steps=len(steps_S), acted=True, snapshot_id="snap_0")
        parked = state.model_copy(update={"parked": True, "desktop": desktop})
        self.saved.append(SavedEpisode(EpisodeState.model_validate_json(parked.model_dump_json()), steps_S))
        return Directive.CONTINUE


class ParkedEnv(ScriptedEnv):
    """Its desktop is as the stored steps left it."""

    async def resume(self, task: TaskLike, parked: ParkedDesktop, *, share_setup: bool | None = None) -> Observation:
        self._max_steps = task.max_steps
        self.actions = [None] * parked.steps
        return self._observe()


class OneRollout:
    """A source with one unfinished rollout."""

    def __init__(self, saved: SavedEpisode) -> None:
        self.saved = saved

    async def saved_episode(self, rollout_id: str) -> SavedEpisode:
        return self.saved

    async def restart(self, item: WorkItem, cause: str) -> None:
        raise AssertionError(cause)


def comparable(request: PolicyRequest) -> dict[str, Any]:
    return {
        "messages": request.messages,
        "images": [np.asarray(image).tobytes() for image in request.images],
        "hashes": request.image_sha256,
        "prefix": (request.prefix_ids_P, request.prefix_messages),
        "id": request.request_id,
    }


async def continued(
    saved: SavedEpisode,
    builder: PromptBuilder,
    partial: PartialRollouts,
    env: ScriptedEnv,
    rewards: RewardSource | None = None,
) -> list[PolicyRequest]:
    """All requests of an episode after it was taken up."""
    told = replace(item(max_steps=STEPS), stored_steps=len(saved.steps_S))
    screenshots = 0 if rewards is None else rewards.screenshots
    resumed, _ = await partial.begin(
        env, EpisodeSettings(worker="w2"), task(STEPS), PlayedItem(told), screenshots=screenshots
    )
    assert resumed is not None
    policy = SmallContext()
    await run_episode(env, policy, task(STEPS), told, builder, clock=FakeClock(), resumed=resumed, rewards=rewards)
    return policy.requests


@pytest.mark.parametrize(
    "history",
    [
        HistorySettings(policy="window", keep=8, drop=1),
        HistorySettings(policy="window", keep=8, drop=4),
        HistorySettings(policy="window", keep=3, drop=2),
        HistorySettings(policy="summary", keep=8, drop=1),
        HistorySettings(policy="summary", keep=8, drop=4),
        HistorySettings(policy="screens", keep=4, drop=1),
        HistorySettings(policy="screens", keep=5, drop=3),
        HistorySettings(policy="full"),
    ],
    ids=lambda history: f"{history.policy}-{history.keep}-{history.drop}",
)
async def test_a_continued_episode_asks_what_the_uninterrupted_one_asks(
    history: HistorySettings, tmp_path: Path
) -> None:
    builder = PromptBuilder(preset("uitars", history=history))
    images = ImageStore(tmp_path / "images")
    journal, policy = Journal(images), SmallContext()
    await run_episode(
        ScriptedEnv(), policy, task(STEPS), item(max_steps=STEPS), builder, clock=FakeClock(), journal=journal
    )
    asked = [comparable(request) for request in policy.requests]
    assert len(asked) == (MOST_IMAGES if history.policy == "full" else STEPS)
    assert any(len(request.images) == MOST_IMAGES for request in policy.requests) or history.keep < MOST_IMAGES
    for saved in journal.saved:
        source = cast(PartialWorkSource, OneRollout(saved))
        partial = PartialRollouts(source, images, ActionMarks(tmp_path / "acting"))
        requests = await continued(saved, builder, partial, ParkedEnv())
        assert [comparable(request) for request in requests] == asked[len(saved.steps_S) :], len(saved.steps_S)


async def test_a_reward_source_sees_the_screens_of_a_continued_episode(tmp_path: Path) -> None:
    builder = PromptBuilder(preset("uitars", images=1))
    images = ImageStore(tmp_path / "images")
    journal, judge = Journal(images), FakeScreenJudge(5)
    await run_episode(
        ScriptedEnv(), SmallContext(), task(STEPS), item(max_steps=STEPS), builder,
        clock=FakeClock(), journal=journal, rewards=judge,
    )  # fmt: skip
    assert len(judge.seen) == 5
    for saved in journal.saved:
        partial = PartialRollouts(cast(PartialWorkSource, OneRollout(saved)), images, ActionMarks(tmp_path / "acting"))
        again = FakeScreenJudge(5)
        await continued(saved, builder, partial, ParkedEnv(), again)
        assert again.seen == judge.seen, len(saved.steps_S)


class FourMoves:
    """A task whose solution types one letter after the other."""

    async def resolve_script(self, desktop: object, *, step: int = 0) -> list[ScriptAction]:
        return [ScriptAction(Action(ActionType.TYPE, text=letter)) for letter in "abcd"][step:]


async def test_a_continued_demonstration_goes_on_with_its_next_move(tmp_path: Path) -> None:
    builder = PromptBuilder(preset("uitars", images=1))
    images, moves = ImageStore(tmp_path / "images"), ["a", "b", "c", "d", ""]
    journal = Journal(images)

    def oracle() -> OraclePolicy:
        return OraclePolicy(FourMoves(), lambda: FakeDesktop((64, 64)), builder.spec)

    async def played(env: ScriptedEnv, resumed: ResumedEpisode | None, told: WorkItem) -> list[str]:
        before = len(env.actions)
        await run_episode(
            env, oracle(), task(STEPS), told, builder, clock=FakeClock(), journal=journal, resumed=resumed
        )
        return [action.text for action in env.actions[before:]]

    assert await played(ScriptedEnv(), None, item(max_steps=STEPS)) == moves
    for saved in list(journal.saved):
        partial = PartialRollouts(cast(PartialWorkSource, OneRollout(saved)), images, ActionMarks(tmp_path / "acting"))
        told, env = replace(item(max_steps=STEPS), stored_steps=len(saved.steps_S)), ParkedEnv()
        resumed, _ = await partial.begin(env, EpisodeSettings(worker="w2"), task(STEPS), PlayedItem(told))
        assert await played(env, resumed, told) == moves[len(saved.steps_S) :]
