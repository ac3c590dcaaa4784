"""Unfinished rollouts over the real data manager: continued by another worker, or begun anew with a cause; nothing is stored twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from data_manager_harness import DataManagerHarness
from sqlalchemy import select

from dart_agent.data_client.client import DataManagerClient
from dart_agent.errors import PolicyUnavailableError, StoreError, StoreUnavailableError
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.prompts.history import HistorySettings
from dart_agent.rollouts.episode import EpisodeSettings
from dart_agent.rollouts.journal import ActionMarks
from dart_agent.rollouts.limits import EpisodeLimits
from dart_agent.rollouts.partial import PartialRollouts
from dart_agent.rollouts.worker import RolloutWorker
from dart_agent.types import Completion, Directive, FinishReason, PolicyRequest, Trajectory, VersionSpan
from dart_envs.envs.parking import ResumableDesktopEnv
from dart_envs.errors import (
    DartEnvError,
    DesktopFailedError,
    FarmDatabaseUnavailableError,
    FarmDrainingError,
    FarmUnreachableError,
    LeaseExpiredError,
    NoCapacityError,
    SnapshotBrokenError,
)
from dart_envs.testing.fake_desktop import FakeDesktop
from dart_envs.testing.fake_farm import FakeFarm, FakeLease
from dart_envs.types import RgbImage
from dart_server.wire import DesktopShape, ErrorCode, ExecReply
from dart_train.data_manager.app import create_app
from dart_train.data_manager.store.models import EventTable, RolloutTable, StepTable, TrajectoryTable
from tests.unit.dart_envs.toy_task import ToyTask

WORD = "hello"
ANSWERS = [*(f"Action: type(content='{letter}')" for letter in WORD), "Action: finished(content='')"]


def _typed(desktop: FakeDesktop, _args: list[str], _stdin: str) -> ExecReply:
    return ExecReply(returncode=0, stdout=desktop.state.typed, stderr="")


class SpellingPolicy:
    """Types the word letter by letter, as an engine that continues exact prefixes; at `stop_at` it hangs, or raises."""

    def __init__(self, version: int = 0, stop_at: int | None = None, error: Exception | None = None) -> None:
        self.version = version
        self.stop_at = stop_at
        self.error = error
        self.reached = asyncio.Event()
        self.requests: list[PolicyRequest] = []

    async def complete(self, request: PolicyRequest) -> Completion:
        index = int(request.request_id.rpartition(".")[2])
        if index == self.stop_at:
            self.reached.set()
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        self.requests.append(request)
        prompt = (*request.prefix_ids_P, 1000 + index, 2000 + index)
        ids = (10 + index, 20 + index, 5)
        return Completion(
            ANSWERS[index], prompt, ids, (-0.5, -0.25, -0.125), (VersionSpan(self.version, 0, 3),), FinishReason.STOP
        )


@dataclass
class Scene:
    """A data manager, a farm, and workers on them."""

    harness: DataManagerHarness
    client: DataManagerClient
    root: Path
    farm: FakeFarm = field(default_factory=lambda: FakeFarm(programs={"typed": _typed}))
    running: list[asyncio.Task[None]] = field(default_factory=list)
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)

    def start(
        self, name: str, policy: SpellingPolicy, *, keep_lease: bool = False, on_act: Callable[[], Any] | None = None
    ) -> asyncio.Task[None]:
        class Env(ResumableDesktopEnv):
            async def step(self, action: Any, *, last: bool | None = None) -> Any:
                if on_act is not None:
                    await on_act()
                return await super().step(action, last=last)

        worker = RolloutWorker(
            name,
            self.client,
            desktops=1,
            make_env=lambda: Env(self.farm, shape=DesktopShape(resolution=(64, 64))),
            make_policy=lambda task, env: policy,
            builder=PromptBuilder(preset("uitars", history=HistorySettings(policy="full"))),
            load_task=lambda task_id: ToyTask(word=WORD, id=task_id, max_steps=10),  # type: ignore[arg-type,return-value]
            settings=EpisodeSettings(limits=self.limits),
            idle_poll_s=0.01,
            partial=PartialRollouts(
                self.client, self.client.images, ActionMarks(self.root / "acting"), keep_lease=keep_lease
            ),
        )
        self.running.append(asyncio.create_task(worker.run()))
        return self.running[-1]

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state of the database; a worker that ends with an error is the error."""
        async with asyncio.timeout(30):
            while not reached():
                for task in self.running:
                    if task.done() and not task.cancelled():
                        task.result()
                await asyncio.sleep(0.01)

    async def finished(self) -> Trajectory:
        """The one trajectory, when it is there."""
        await self.until(self._has_trajectory)
        (found,) = [trajectory async for trajectory in self.client.trajectories("train")]
        return found

    def _has_trajectory(self) -> bool:
        with self.harness.store.begin() as session:
            return session.scalars(select(TrajectoryTable.rollout_id)).first() is not None

    def events(self, kind: str) -> list[dict[str, Any]]:
        with self.harness.store.begin() as session:
            return [event.data for event in session.scalars(select(EventTable).where(EventTable.kind == kind))]

    async def parked_after(self, steps: int, *, keep_lease: bool = False) -> None:
        """A worker plays so many steps and is stopped; it leaves a snapshot, or its lease."""
        policy = SpellingPolicy(version=3, stop_at=steps)
        first = self.start("w1", policy, keep_lease=keep_lease)
        await policy.reached.wait()
        await end(first)

    def rollout(self) -> tuple[str, int]:
        """State and attempt of the rollout."""
        with self.harness.store.begin() as session:
            row = session.scalars(select(RolloutTable).order_by(RolloutTable.seq)).first()
            assert row is not None
            return row.state, row.attempt

    def snapshots(self) -> list[str]:
        """The snapshots of parked desktops at the farm."""
        return [name for name in self.farm.states if name.startswith("snap_")]

    def stored(self) -> list[tuple[str, int]]:
        with self.harness.store.begin() as session:
            return [(row.rollout_id, row.index) for row in session.scalars(select(StepTable))]


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def scene(harness: DataManagerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr("dart_agent.rollouts.worker.ACTION_TIMEOUT_S", 1.0)  # those that hang are stopped at the end
    monkeypatch.setattr("dart_agent.rollouts.partial.FAILED_START_DELAY_S", 0.01)
    monkeypatch.setattr("dart_train.scheduling.assignment.RESERVED_S", 0.0)  # its clock stands still
    harness.phase(endless=False, task_ids=["s/type/0"], select=None, rollouts_per_task=2)
    with harness.store.begin() as session:
        session.scalars(select(RolloutTable)).all()[1].state = "cancelled"
    harness.restart()  # what was changed behind its back is read now
    app = create_app(harness.manager)
    client = DataManagerClient(
        harness.config.socket, harness.images, transport=httpx.ASGITransport(app), assignment_wait_s=0
    )
    async with app.router.lifespan_context(app), client:
        made = Scene(harness, client, tmp_path)
        yield made
        for task in made.running:
            await end(task)


def check_whole(scene: Scene, trajectory: Trajectory) -> None:
    """All letters were typed once, each step is stored once, and every prompt continues the one before."""
    assert (trajectory.reward, len(trajectory.steps_S)) == (1.0, 6)
    assert scene.stored() == [(trajectory.rollout_id, index) for index in range(6)]
    for before, after in zip(trajectory.steps_S, trajectory.steps_S[1:], strict=False):
        held = before.prompt_ids_P + before.token_ids_T
        assert after.prompt_ids_P[: len(held)] == held
        assert after.image_sha256[: len(before.image_sha256)] == before.image_sha256
    assert not list((scene.root / "acting").iterdir())


@pytest.mark.parametrize("keep_lease", [False, True])
async def test_a_stopped_workers_rollout_is_continued_by_another(scene: Scene, keep_lease: bool) -> None:
    policy = SpellingPolicy(version=3, stop_at=3)
    first = scene.start("w1", policy, keep_lease=keep_lease)
    await policy.reached.wait()
    await end(first)
    assert scene.events("rollout_parked")
    other = SpellingPolicy(version=4)
    scene.start("w2", other)
    trajectory = await scene.finished()
    check_whole(scene, trajectory)
    assert [step.version_spans[0].version for step in trajectory.steps_S] == [3, 3, 3, 4, 4, 4]
    assert [request.request_id.rpartition(".")[2] for request in other.requests] == ["3", "4", "5"]
    assert all(request.prefix_ids_P for request in other.requests)
    assert len({lease.lease_id for lease in scene.farm.leases}) == (1 if keep_lease else 2)


@pytest.mark.parametrize("action", [1, 3, 6])
async def test_a_worker_that_is_stopped_in_an_action_finishes_it_first(scene: Scene, action: int) -> None:
    acted, go = asyncio.Event(), asyncio.Event()
    calls = 0

    async def wait_in_the_action() -> None:
        nonlocal calls
        calls += 1
        if calls == action:
            acted.set()
            await go.wait()

    first = scene.start("w1", SpellingPolicy(version=3), on_act=wait_in_the_action)
    await acted.wait()
    first.cancel()
    done, _ = await asyncio.wait({first}, timeout=0.2)
    assert not done, "it waits for the action"
    go.set()
    await asyncio.gather(first, return_exceptions=True)
    scene.start("w2", SpellingPolicy(version=4))
    trajectory = await scene.finished()
    check_whole(scene, trajectory)
    assert [step.version_spans[0].version for step in trajectory.steps_S] == [3] * action + [4] * (6 - action)
    assert scene.events("rollout_restarted") == []
    with scene.harness.store.begin() as session:
        assert set(session.scalars(select(RolloutTable.attempt))) == {1}


@pytest.mark.parametrize("dies_in", ["policy", "action"])
async def test_a_worker_that_is_killed_before_its_first_own_step_costs_no_step(scene: Scene, dies_in: str) -> None:
    policy = SpellingPolicy(version=3, stop_at=3)
    first = scene.start("w1", policy)
    await policy.reached.wait()
    await end(first)
    reached = asyncio.Event()

    async def hang() -> None:
        reached.set()
        await asyncio.Event().wait()

    killed = SpellingPolicy(version=4, stop_at=3 if dies_in == "policy" else None)
    scene.start("w2", killed, on_act=hang)
    await (killed.reached if dies_in == "policy" else reached).wait()
    await scene.client.release_worker("w2")  # as its successor does; w2 hangs for ever, as if it were dead
    scene.start("w2", SpellingPolicy(version=5))
    trajectory = await scene.finished()
    check_whole(scene, trajectory)
    assert [step.version_spans[0].version for step in trajectory.steps_S] == [3, 3, 3, 5, 5, 5]
    assert scene.events("rollout_restarted") == []


async def test_nobody_guesses_what_became_of_a_kept_lease_after_it_was_taken_up(scene: Scene) -> None:
    policy = SpellingPolicy(stop_at=3)
    first = scene.start("w1", policy, keep_lease=True)
    await policy.reached.wait()
    await end(first)
    acted = asyncio.Event()

    async def hang() -> None:
        acted.set()
        await asyncio.Event().wait()

    scene.start("w2", SpellingPolicy(), keep_lease=True, on_act=hang)
    await acted.wait()
    await scene.client.release_worker("w2")
    scene.start("w3", SpellingPolicy(), keep_lease=True)
    check_whole(scene, await scene.finished())
    (restart,) = scene.events("rollout_restarted")
    assert restart["cause"].startswith("worker w2 was lost")


async def test_a_killed_worker_continues_its_own_rollout_after_its_restart(scene: Scene) -> None:
    policy = SpellingPolicy(stop_at=2)
    scene.start("w1", policy)
    await policy.reached.wait()
    await scene.until(lambda: len(scene.stored()) == 2)
    await scene.client.release_worker("w1")  # as its successor does; the first one hangs for ever, as if it were dead
    scene.start("w1", SpellingPolicy())
    check_whole(scene, await scene.finished())
    assert scene.events("rollout_restarted") == []


async def test_a_worker_killed_in_the_middle_of_an_action_begins_anew_with_the_cause(scene: Scene) -> None:
    acted = asyncio.Event()
    calls = 0

    async def hang_in_the_third_action() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            acted.set()
            await asyncio.Event().wait()

    scene.start("w1", SpellingPolicy(), on_act=hang_in_the_third_action)
    await acted.wait()
    await scene.until(lambda: len(scene.stored()) == 2)
    await scene.client.release_worker("w1")
    scene.start("w1", SpellingPolicy())
    check_whole(scene, await scene.finished())
    (restart,) = scene.events("rollout_restarted")
    assert restart["cause"] == "the worker died while the action of step 2 was under way"
    assert restart["steps"] == 2


async def test_another_worker_does_not_guess_what_a_dead_one_did(scene: Scene) -> None:
    policy = SpellingPolicy(stop_at=2)
    scene.start("w1", policy)
    await policy.reached.wait()
    await scene.until(lambda: len(scene.stored()) == 2)
    await scene.client.release_worker("w1")
    scene.start("w2", SpellingPolicy())
    check_whole(scene, await scene.finished())
    assert scene.events("rollout_restarted")[0]["cause"].startswith("worker w1 was lost")


async def test_a_rollout_is_parked_when_the_scheduler_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def directive(session: Any, rollout: Any) -> Directive:
        nonlocal asked
        asked += 1
        return Directive.PARK if asked == 2 else Directive.CONTINUE

    monkeypatch.setattr(scene.harness.manager._scheduler, "directive", directive)
    scene.start("w1", SpellingPolicy())
    check_whole(scene, await scene.finished())
    assert len(scene.events("rollout_parked")) == 1
    assert all(lease.released or not lease.lost for lease in scene.farm.leases)


async def test_a_policy_that_is_away_costs_no_step(scene: Scene) -> None:
    away = SpellingPolicy(stop_at=4, error=PolicyUnavailableError("no worker came up"))
    scene.start("w1", away)
    await away.reached.wait()
    await scene.until(lambda: bool(scene.events("rollout_parked")))
    away.stop_at = None
    check_whole(scene, await scene.finished())


async def test_what_was_used_of_the_limits_counts_on(scene: Scene) -> None:
    scene.limits = EpisodeLimits(max_tokens=12)
    policy = SpellingPolicy(stop_at=2)
    first = scene.start("w1", policy)
    await policy.reached.wait()
    await end(first)
    scene.start("w2", SpellingPolicy())
    trajectory = await scene.finished()
    assert (trajectory.stop.value, len(trajectory.steps_S)) == ("max_tokens", 4)


async def test_a_desktop_that_is_gone_begins_the_rollout_anew(scene: Scene) -> None:
    policy = SpellingPolicy(stop_at=3)
    first = scene.start("w1", policy)
    await policy.reached.wait()
    await end(first)
    with contextlib.suppress(KeyError):
        scene.farm.states.clear()
    scene.start("w2", SpellingPolicy())
    check_whole(scene, await scene.finished())
    assert scene.events("rollout_restarted")[0]["cause"].startswith("FarmError: There is no snapshot")


@pytest.mark.parametrize(
    "error",
    [
        NoCapacityError("No desktop became free.", code=ErrorCode.NO_CAPACITY),
        FarmUnreachableError("The farm is away.", code="unreachable"),
        FarmDrainingError("The farm stops.", code=ErrorCode.DRAINING),
        FarmDatabaseUnavailableError("The database is away.", code=ErrorCode.DATABASE_UNAVAILABLE),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_farm_that_is_full_or_away_costs_a_parked_rollout_an_attempt_and_no_step(
    scene: Scene, error: DartEnvError
) -> None:
    await scene.parked_after(3)
    scene.farm.fail_next_lease(error)
    scene.start("w2", SpellingPolicy(version=4))
    trajectory = await scene.finished()
    check_whole(scene, trajectory)
    assert [step.version_spans[0].version for step in trajectory.steps_S] == [3, 3, 3, 4, 4, 4]
    assert scene.events("rollout_restarted") == []
    assert [event["cause"] for event in scene.events("rollout_parked")][1:] == [f"{type(error).__name__}: {error}"]
    assert scene.rollout() == ("done", 2)


async def test_images_that_cannot_be_read_now_cost_no_step(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await scene.parked_after(3)
    read = scene.client.images.get
    failures = [StoreUnavailableError("the storage is away")]

    def get(sha256: str) -> RgbImage:
        if failures:
            raise failures.pop()
        return read(sha256)

    monkeypatch.setattr(scene.client.images, "get", get)
    scene.start("w2", SpellingPolicy(version=4))
    check_whole(scene, await scene.finished())
    assert scene.events("rollout_restarted") == []
    assert scene.rollout() == ("done", 2)


async def test_a_farm_that_stays_full_ends_a_parked_rollout_after_its_attempts(scene: Scene) -> None:
    await scene.parked_after(3)
    for _ in range(5):
        scene.farm.fail_next_lease(NoCapacityError("No desktop became free.", code=ErrorCode.NO_CAPACITY))
    scene.start("w2", SpellingPolicy(version=4))
    await scene.until(lambda: scene.rollout()[0] == "failed")
    assert scene.rollout() == ("failed", 5)
    assert scene.stored() == []
    assert scene.harness.manager.heartbeat("w2").obsolete_snapshots == scene.snapshots()


async def test_a_worker_that_ends_in_the_pause_puts_the_rollout_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_agent.rollouts.partial.FAILED_START_DELAY_S", 600.0)
    await scene.parked_after(3)
    scene.farm.fail_next_lease(NoCapacityError("No desktop became free.", code=ErrorCode.NO_CAPACITY))
    waiting = scene.start("w2", SpellingPolicy(version=4))
    await scene.until(lambda: not scene.farm._faults)
    await end(waiting)
    assert scene.rollout() == ("parked", 2)
    assert len(scene.stored()) == 3


@pytest.mark.parametrize(
    "error",
    [
        SnapshotBrokenError("It does not restore.", code=ErrorCode.SNAPSHOT_BROKEN),
        LeaseExpiredError("The lease has ended."),
        DesktopFailedError("The desktop died."),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_desktop_that_never_comes_back_begins_the_rollout_anew(scene: Scene, error: DartEnvError) -> None:
    await scene.parked_after(3)
    scene.farm.fail_next_lease(error)
    scene.start("w2", SpellingPolicy(version=4))
    check_whole(scene, await scene.finished())
    assert [event["cause"] for event in scene.events("rollout_restarted")] == [f"{type(error).__name__}: {error}"]


def park_once(scene: Scene, monkeypatch: pytest.MonkeyPatch, after: int = 2) -> None:
    """The data manager says once that the rollout is to be parked, after so many steps."""
    asked = 0

    def directive(session: Any, rollout: Any) -> Directive:
        nonlocal asked
        asked += 1
        return Directive.PARK if asked == after else Directive.CONTINUE

    monkeypatch.setattr(scene.harness.manager._scheduler, "directive", directive)


@pytest.fixture
def slow_snapshot(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Snapshots take longer than a worker that ends waits for them; set once one is under way."""
    begun = asyncio.Event()
    snapshot = FakeLease.snapshot

    async def take(self: FakeLease, *args: Any, **options: Any) -> Any:
        if options.get("publish_key") is None:
            begun.set()
            await asyncio.sleep(0.5)
        return await snapshot(self, *args, **options)

    monkeypatch.setattr("dart_agent.rollouts.partial.PARK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(FakeLease, "snapshot", take)
    return begun


async def test_a_worker_that_goes_on_takes_its_time_to_park(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, slow_snapshot: asyncio.Event
) -> None:
    park_once(scene, monkeypatch)
    scene.start("w1", SpellingPolicy())
    check_whole(scene, await scene.finished())
    assert len(scene.events("rollout_parked")) == 1
    assert scene.events("rollout_requeued") == []


async def test_a_worker_that_ends_while_it_parks_does_not_wait_as_long(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, slow_snapshot: asyncio.Event
) -> None:
    park_once(scene, monkeypatch)
    worker = scene.start("w1", SpellingPolicy())
    await slow_snapshot.wait()
    await end(worker)
    assert scene.rollout() == ("queued", 1)
    (requeued,) = scene.events("rollout_requeued")
    assert requeued["cause"] == "it was to be parked; it could not be parked: TimeoutError: "


@pytest.mark.parametrize("answer", ["error", "gone"])
async def test_a_rollout_that_the_data_manager_does_not_take_leaves_no_snapshot(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    park_once(scene, monkeypatch)

    async def park(*args: Any, **options: Any) -> bool:
        assert len(scene.snapshots()) == 1
        if answer == "error":
            raise StoreError("the data manager does not answer")
        return False

    monkeypatch.setattr(scene.client, "park", park)
    scene.start("w1", SpellingPolicy())
    check_whole(scene, await scene.finished())
    assert scene.snapshots() == []
    assert len(scene.events("rollout_requeued")) == 1


async def test_a_snapshot_stays_where_only_the_answer_was_lost(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    park_once(scene, monkeypatch)
    park = scene.client.park

    async def park_twice(*args: Any, **options: Any) -> bool:
        assert await park(*args, **options)
        return await park(*args, **options)

    monkeypatch.setattr(scene.client, "park", park_twice)
    scene.start("w1", SpellingPolicy())
    check_whole(scene, await scene.finished())
    assert scene.events("rollout_restarted") == scene.events("rollout_requeued") == []
