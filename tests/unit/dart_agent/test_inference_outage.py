"""An outage of the inference workers is not the policy's doing: its time limit waits. In virtual time, with a real pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dart_agent.errors import PolicyUnavailableError
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.pool import VllmPool
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.rollouts.episode import EpisodeSettings
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.rollouts.limits import EpisodeLimits
from dart_agent.types import Completion, PolicyRequest, StopReason, Trajectory
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time
from tests.unit.dart_agent.fakes import FakeWorkerClient, ScriptedEnv, completion, item, task

ANSWER_S = 12.0
LIMITS = EpisodeSettings(limits=EpisodeLimits(wall_clock_s=60.0))
Event = Callable[[FakeWorkerClient, VirtualClock], Coroutine[Any, Any, None]]


class SlowWorkerClient(FakeWorkerClient):
    """Takes `ANSWER_S` for an answer, and stands still for updates; the first two answers are clicks, the third one is the end."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__("a")
        self._clock = clock

    async def complete(self, request: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
        self._check()
        await self._clock.sleep(ANSWER_S)
        self._check()
        while self.state is WorkerState.UPDATING:
            await self._clock.sleep(1.0)
        self.served.append(request.request_id)
        return completion(
            "Action: click(start_box='(1,1)')" if len(self.served) < 3 else "Action: finished(content='')"
        )


def play(happens: Event) -> tuple[Trajectory, float]:
    """Play one episode while `happens` goes on with the only worker; its trajectory, and when it ended, in seconds."""

    async def body(clock: VirtualClock) -> tuple[Trajectory, float]:
        worker = SlowWorkerClient(clock)
        async with VllmPool([worker], clock=clock) as pool:
            event = asyncio.ensure_future(happens(worker, clock))
            try:
                episode = await run_episode(
                    ScriptedEnv(), pool, task(), item(), PromptBuilder(preset("tiny")), clock=clock, settings=LIMITS,
                    outage_s=lambda: pool.outage_s,
                )  # fmt: skip
            finally:
                event.cancel()
            return episode.trajectory, clock.monotonic()

    return run_in_virtual_time(body)


async def restart(worker: FakeWorkerClient, clock: VirtualClock) -> None:
    """The worker is away from second 30 to second 150."""
    await clock.sleep(30.0)
    worker.die()
    await clock.sleep(120.0)
    worker.come_back()


async def update(worker: FakeWorkerClient, clock: VirtualClock) -> None:
    """Its requests stand still for new weights from second 30 to second 150."""
    await clock.sleep(30.0)
    worker.set_state(WorkerState.UPDATING)
    await clock.sleep(120.0)
    worker.set_state(WorkerState.SERVING)


@pytest.mark.parametrize("happens", [restart, update])
def test_an_episode_outlives_an_outage_that_is_longer_than_its_time_limit(happens: Event) -> None:
    trajectory, ended_s = play(happens)
    assert (trajectory.stop, len(trajectory.steps_S)) == (StopReason.DONE, 3)
    assert ended_s >= 150.0
    assert trajectory.duration_s == pytest.approx(ended_s)


def test_after_an_outage_the_rest_of_the_time_limit_holds() -> None:
    async def restart_and_slow_down(worker: FakeWorkerClient, clock: VirtualClock) -> None:
        async def never(request: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
            await asyncio.Event().wait()
            raise AssertionError("never reached")

        await restart(worker, clock)
        worker.complete = never  # type: ignore[method-assign]

    trajectory, ended_s = play(restart_and_slow_down)
    assert (trajectory.stop, trajectory.reward, len(trajectory.steps_S)) == (StopReason.WALL_CLOCK, 0.0, 2)
    # 60 s of its own and the outage, which the pool sees from second 30, or from the request that breaks off at 36 s, to its next probe.
    assert 60.0 + 114.0 <= ended_s <= 60.0 + 120.0 + 2.0


def test_an_outage_that_does_not_end_is_no_episode() -> None:
    async def gone(worker: FakeWorkerClient, clock: VirtualClock) -> None:
        await clock.sleep(30.0)
        worker.die()

    with pytest.raises(PolicyUnavailableError, match="no worker serves; waited 300 s"):
        play(gone)
