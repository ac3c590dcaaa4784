"""An episode whose steps are stored as they happen keeps few images, however long it is."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.rewards.source import RewardSource
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.rollouts.journal import ActionMarks, PartialWorkSource, StepJournal
from dart_agent.types import Completion, Directive, PolicyRequest
from tests.unit.dart_agent.fakes import FakeClock, FakeScreenJudge, ScriptedEnv, completion, item, task

STEPS = 50


class CountingPolicy:
    """Clicks, and counts how many of the screens that it was shown are still in memory."""

    def __init__(self) -> None:
        self.shown: list[weakref.ref[Any]] = []
        self.most = 0

    async def complete(self, request: PolicyRequest) -> Completion:
        self.shown.append(weakref.ref(np.asarray(request.images[-1])))
        self.most = max(self.most, sum(shown() is not None for shown in self.shown))
        return completion("Action: click(start_box='(1,2)')")


class StoringSource:
    """Stores every step, and notes its images."""

    def __init__(self) -> None:
        self.images: set[str] = set()

    async def store_step(self, item: Any, steps_S: Any, segment: int, images: Any, state: Any) -> tuple[int, Directive]:
        self.images |= set(images)
        return segment, Directive.CONTINUE


class KeptNowhereEnv(ScriptedEnv):
    """No other process can take its desktop up."""

    def held_desktop(self) -> None:
        return None


@pytest.mark.parametrize("screenshots", [0, 5])
async def test_an_episode_lets_go_of_images_that_are_stored(tmp_path: Path, screenshots: int) -> None:
    source, env, policy, judge = StoringSource(), KeptNowhereEnv(), CountingPolicy(), FakeScreenJudge(screenshots)
    told = item(max_steps=STEPS)
    journal = StepJournal(cast(PartialWorkSource, source), told, cast(Any, env), ActionMarks(tmp_path))
    episode = await run_episode(
        env, policy, task(STEPS), told, PromptBuilder(preset("uitars", images=2)),
        clock=FakeClock(), journal=journal, rewards=cast(RewardSource, judge),
    )  # fmt: skip
    await journal.flush()
    assert len(policy.shown) == STEPS
    assert policy.most <= screenshots + 4, "those that a prompt shows, and that which is being stored"
    assert source.images | set(episode.images) == {step.image_sha256[-1] for step in episode.trajectory.steps_S}
    assert judge.seen == list(range(100 + STEPS - screenshots + 1, 100 + STEPS + 1)) or not screenshots
