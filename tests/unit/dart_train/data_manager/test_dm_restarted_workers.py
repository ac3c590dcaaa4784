"""A worker that was killed and is started again goes on with its unfinished rollouts, also where others wait for work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from test_dm_partial_rollouts import Scene, SpellingPolicy, check_whole, scene

from dart_agent.rollouts.worker import play_rollouts
from dart_agent.rollouts.worker_config import PartialSettings, WorkerConfig
from dart_envs.clock import SystemClock
from dart_envs.testing.fake_farm import FakeFarm

__all__ = ["scene"]


async def killed_after(scene: Scene, steps: int) -> None:
    """A worker that hangs for ever, as if it were dead, after so many steps."""
    policy = SpellingPolicy(version=3, stop_at=steps)
    scene.start("w1", policy)
    await policy.reached.wait()
    await scene.until(lambda: len(scene.stored()) == steps)


async def test_the_rollouts_of_a_killed_worker_wait_for_its_next_process(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_train.scheduling.assignment.RESERVED_S", 600.0)
    await killed_after(scene, 2)
    other = SpellingPolicy(version=4)
    scene.start("w2", other)
    assert scene.harness.manager.assign("w2", "waits", wait=True).item is None
    await scene.client.release_worker("w1")
    assert scene.rollout()[0] == "queued"
    scene.start("w1", SpellingPolicy(version=5))
    trajectory = await scene.finished()
    check_whole(scene, trajectory)
    assert [step.version_spans[0].version for step in trajectory.steps_S] == [3, 3, 5, 5, 5, 5]
    assert scene.events("rollout_restarted") == []
    assert not other.requests


async def test_they_go_to_others_where_it_does_not_ask_for_them(scene: Scene) -> None:
    await killed_after(scene, 2)
    scene.start("w2", SpellingPolicy(version=4))
    await scene.client.release_worker("w1")
    check_whole(scene, await scene.finished())
    assert scene.events("rollout_restarted")[0]["cause"].startswith("worker w1 was lost")


class RecordedCalls:
    """A data manager without work; notes what it is asked."""

    images = cast(Any, None)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked = asyncio.Event()

    async def saved_episode(self, rollout_id: str) -> None:
        self.calls.append("saved_episode")

    async def release_worker(self, worker_id: str) -> int:
        self.calls.append("release_worker")
        return 0

    async def acquire(self, worker_id: str) -> None:
        self.calls.append("acquire")
        self.asked.set()
        await asyncio.Event().wait()


async def test_what_an_earlier_process_held_is_given_back_right_before_the_first_request_for_work(
    tmp_path: Path,
) -> None:
    config = WorkerConfig(
        policy="random",
        desktops=1,
        socket=tmp_path / "data.sock",
        images=tmp_path / "images",
        partial=PartialSettings(enabled=True),
    )
    (tmp_path / "acting").mkdir()
    (tmp_path / "acting" / "roll_0.3").touch()
    data = RecordedCalls()
    playing = asyncio.create_task(
        play_rollouts(config, SystemClock(), cast(Any, data), FakeFarm(), lambda task, env: cast(Any, None))
    )
    await data.asked.wait()
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    assert data.calls == ["saved_episode", "release_worker", "acquire"]
