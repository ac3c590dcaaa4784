"""Evaluation during training: training never waits for it, and what it found is in the metrics and can be chosen by."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from run_harness import RECIPE, FakeLauncher, RunHarness, untrained_then_trained

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import EpisodeResult, PhaseSpec, PhaseStatus, VersionRecord
from dart_agent.errors import StoreError
from dart_agent.metrics_file import MetricsReader, append_metrics
from dart_agent.types import Purpose, WorkItem
from dart_envs.clock import SystemClock
from dart_envs.types import EndReason
from dart_train.config import Recipe
from dart_train.config.evaluation import EvalSection
from dart_train.data_commands.open_run import open_run
from dart_train.evaluation import during_training
from dart_train.evaluation.best_versions import BestVersions
from dart_train.evaluation.during_training import METRICS_KIND, describe_evaluation, evaluated_during_training
from dart_train.evaluation.stored import chosen_version, validated_versions
from dart_train.report.build import read_metrics
from dart_train.run import phases
from dart_train.run.disk import DiskGuard, Pauses


class NeverEndsError(Exception):
    """In place of an episode that is played for ever."""


DURING = {"episodes": 6, "every_updates": 1, "during_episodes": 4}


def episode(number: int, reward: float, versions: tuple[int, int]) -> EpisodeResult:
    return EpisodeResult(
        task_id=f"basics/a/{number:04d}",
        family="a",
        repeat=0,
        rollout_id="r",
        reward=reward,
        end=EndReason.DONE,
        steps=1,
        duration_s=1.0,
        version_min=versions[0],
        version_max=versions[1],
    )


def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunHarness:
    """A run that evaluates after every update."""
    monkeypatch.setattr(during_training, "LOOK_S", 0.01)
    return RunHarness(tmp_path, monkeypatch, eval=DURING)


def train_until_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training end only when an evaluation has written its line."""
    train, evaluated = FakeLauncher.trainer, asyncio.Event()

    async def trainer(launcher: FakeLauncher) -> None:
        await train(launcher)
        await evaluated.wait()

    def append(path: Path, line: dict[str, Any]) -> None:
        append_metrics(path, line)
        evaluated.set()

    monkeypatch.setattr(during_training, "append_metrics", append)
    monkeypatch.setattr(FakeLauncher, "trainer", trainer)


async def test_an_evaluation_during_training_is_in_the_metrics_and_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = started(tmp_path, monkeypatch)
    train_until_evaluated(monkeypatch)
    harness.version = lambda item: 1 if item.phase.startswith("eval-during") else 2
    harness.reward = lambda item: float(item.purpose is Purpose.DEMO or item.phase.startswith("eval-during"))
    await asyncio.wait_for(harness.run(), 60)
    (line,) = (line for line in read_metrics(harness.paths) if line["kind"] == METRICS_KIND)
    assert (line["success"], line["episodes"], line["first_version"], line["last_version"]) == (1.0, 4, 1, 1)
    with open_run(harness.paths.root) as run:
        assert chosen_version(run).version == 1


async def test_training_ends_while_an_evaluation_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = started(tmp_path, monkeypatch)
    train, play = FakeLauncher.trainer, FakeLauncher.rollouts
    begun, begins = [], asyncio.Event()

    async def trainer(launcher: FakeLauncher) -> None:
        await train(launcher)
        await begins.wait()

    def reward(item: WorkItem) -> float | None:
        if item.phase.startswith("eval-during"):
            begun.append(item.phase)
            begins.set()
            raise NeverEndsError
        return untrained_then_trained(item)

    async def rollouts(launcher: FakeLauncher) -> None:
        while True:
            with contextlib.suppress(NeverEndsError):
                await play(launcher)

    monkeypatch.setattr(FakeLauncher, "rollouts", rollouts)
    monkeypatch.setattr(FakeLauncher, "trainer", trainer)
    harness.reward = reward
    paired = await asyncio.wait_for(harness.run(), 60)
    assert paired is not None
    assert harness.updates == 2
    async with harness.launcher() as run:
        assert (await run.client.phase(begun[0])).state == "stopped"
    assert not any(line["kind"] == METRICS_KIND for line in read_metrics(harness.paths))


def test_an_episode_that_two_versions_wrote_does_not_count() -> None:
    found = describe_evaluation([episode(0, 1.0, (3, 3)), episode(1, 0.0, (5, 5)), episode(2, 1.0, (3, 5))])
    assert found is not None
    assert (found["success"], found["episodes"], found["mixed_episodes"]) == (0.5, 2, 1)
    assert (found["first_version"], found["last_version"]) == (3, 5)
    assert describe_evaluation([episode(2, 1.0, (3, 5))]) is None


def test_several_episodes_of_a_task_give_pass_at_k() -> None:
    """Task 0 is solved once in four, task 1 never, task 2 has too few episodes that count."""
    rewards = {0: (0.0, 1.0, 0.0, 0.0), 1: (0.0, 0.0, 0.0, 0.0), 2: (1.0,)}
    found = describe_evaluation([episode(task, reward, (3, 3)) for task, each in rewards.items() for reward in each])
    assert found is not None
    assert found["success"] == pytest.approx((0.25 + 0.0 + 1.0) / 3)
    assert {key: value for key, value in found.items() if key.startswith("pass_at")} == {
        "pass_at_2": pytest.approx(0.25),  # 1 - C(3, 2) / C(4, 2) = 0.5 for task 0
        "pass_at_4": pytest.approx(0.5),
    }
    once = describe_evaluation([episode(task, 1.0, (3, 3)) for task in range(3)])
    assert once is not None
    assert not any(key.startswith("pass_at") for key in once)


async def test_versions_that_were_evaluated_otherwise_are_not_ranked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on with sampled evaluations does not keep versions for what greedy ones said of them."""
    given: list[list[int]] = []

    class Noted(BestVersions):
        def __init__(self, weights: Path, keep: int, evaluated: Any = ()) -> None:
            given.append([line["version"] for line in evaluated])
            super().__init__(weights, keep, evaluated)

    monkeypatch.setattr(during_training, "BestVersions", Noted)
    lines = tmp_path / "metrics.jsonl"
    for version, extra in ((1, {}), (2, {"temperature": 0.0}), (3, {"temperature": 1.0})):
        append_metrics(lines, {"kind": METRICS_KIND, "version": version, "lower": 0.5, **extra})
    client = cast("DataManagerClient", EndedEvaluation())
    for changes in ({}, {"during_samples": 2, "during_temperature": 1.0}):
        recipe = Recipe.model_validate(RECIPE | {"eval": {"episodes": 6, "during_episodes": 4} | changes})
        async with evaluated_during_training(client, recipe, 0, lines, tmp_path, SystemClock()):
            pass
    assert given == [[1, 2], [3]]


def test_tasks_are_played_several_times_at_the_temperature_of_training() -> None:
    recipe = Recipe.model_validate(RECIPE | {"eval": DURING | {"during_samples": 2}})
    phase = phases.during_training(recipe, 7)
    assert phase.select is not None
    assert (phase.select.count, phase.rollouts_per_task) == (2, 2)
    assert phase.sampling.temperature == recipe.rollout.temperature > 0
    chosen = Recipe.model_validate(RECIPE | {"eval": DURING | {"during_samples": 2, "during_temperature": 0.3}})
    assert phases.during_training(chosen, 7).sampling.temperature == 0.3
    greedy = phases.during_training(Recipe.model_validate(RECIPE | {"eval": DURING}), 7)
    assert (greedy.rollouts_per_task, greedy.sampling.temperature) == (1, 0.0)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"during_samples": 3}, "no multiple"), ({"during_samples": 2, "during_temperature": 0.0}, "same answers again")],
)
def test_repeats_that_make_no_sense_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        EvalSection.model_validate(DURING | settings)


async def test_sampled_evaluations_choose_without_the_greedy_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The greedy evaluations before and after say that versions 0 and 2 are perfect; the sampled ones know version 1 alone."""
    monkeypatch.setattr(during_training, "LOOK_S", 0.01)
    harness = RunHarness(tmp_path, monkeypatch, eval=DURING | {"during_samples": 2})
    train_until_evaluated(monkeypatch)
    harness.version = lambda item: 1 if item.phase.startswith("eval-during") else 2
    played: set[tuple[str, str]] = set()

    def reward(item: WorkItem) -> float:
        """Of the sampled episodes the first of each task is solved."""
        known = (item.phase, item.task_id) in played
        played.add((item.phase, item.task_id))
        return float(not known or not item.phase.startswith("eval-during"))

    harness.reward = reward
    await asyncio.wait_for(harness.run(), 60)
    line = next(line for line in read_metrics(harness.paths) if line["kind"] == METRICS_KIND)
    assert (line["episodes"], line["success"], line["pass_at_2"]) == (4, 0.5, 1.0)
    with open_run(harness.paths.root) as run:
        assert chosen_version(run).version == 1
        assert list(validated_versions(run)) == [1]


@pytest.mark.parametrize(
    ("settings", "waited_s", "due"),
    [
        ({"every_updates": 8}, 0.0, [8, 16]),
        ({"every_minutes": 1.0}, 59.0, []),
        ({"every_minutes": 1.0}, 60.0, [6, 7, 8, 16]),
        ({"every_minutes": 1.0, "every_updates": 8}, 59.0, [8, 16]),
    ],
)
def test_evaluations_come_by_updates_or_by_time(settings: dict[str, Any], waited_s: float, due: list[int]) -> None:
    chosen = EvalSection.model_validate(settings)
    assert chosen.during_training
    versions = (5, 6, 7, 8, 16)
    assert [version for version in versions if during_training.is_due(chosen, 5, version, waited_s)] == due


def test_training_keeps_a_desktop() -> None:
    with pytest.raises(ValueError, match="leaves training none of the 2 desktops"):
        Recipe.model_validate(RECIPE | {"desktops": {"count": 2}, "eval": DURING | {"during_desktops": 2}})


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ({"inference": {"workers": 2}, "eval": {"during_workers": 2}}, "raise inference.workers"),
        ({"model": RECIPE["model"] | {"pointer": True}, "eval": {"during_workers": 1}}, "set it to 0"),
    ],
)
def test_workers_that_hold_a_version_leave_one_to_training(changes: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        Recipe.model_validate(RECIPE | changes)


def test_an_evaluation_asks_for_its_version_where_workers_hold_one() -> None:
    held = Recipe.model_validate(RECIPE | {"inference": {"workers": 2}, "eval": DURING | {"during_workers": 1}})
    assert phases.during_training(held, 7).sampling.version == 7
    assert phases.during_training(Recipe.model_validate(RECIPE | {"eval": DURING}), 7).sampling.version is None
    assert phases.evaluation(held, "eval-after").sampling.version is None


class EndedEvaluation:
    """A data manager in which version 1 was evaluated before, with other weights."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def latest_version(self) -> VersionRecord:
        return VersionRecord(version=1, path="v1")

    async def active_phases(self) -> list[PhaseStatus]:
        return []

    async def start_phase(self, spec: PhaseSpec) -> PhaseStatus:
        self.asked.set()
        return PhaseStatus.model_construct(name=spec.name, state="done")

    async def results(self, name: str) -> list[EpisodeResult]:
        return [episode(0, 1.0, (1, 1))]


async def test_an_evaluation_of_lost_weights_is_not_taken_for_one_of_the_new_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(during_training, "LOOK_S", 0.0)
    looks = asyncio.Semaphore(0)
    clock = ManyLooks(looks)
    manager = EndedEvaluation()
    recipe, lines = Recipe.model_validate(RECIPE | {"eval": DURING}), tmp_path / "metrics.jsonl"
    async with evaluated_during_training(cast("DataManagerClient", manager), recipe, 0, lines, tmp_path, clock):
        await manager.asked.wait()
        for _ in range(2):
            await looks.acquire()
    assert not lines.exists()


class UnreachableStore:
    """A data manager that does not answer."""

    async def active_phases(self) -> list[PhaseStatus]:
        raise StoreError("the data manager does not answer")


async def test_a_failure_ends_training_at_once(tmp_path: Path) -> None:
    client, never = cast("DataManagerClient", UnreachableStore()), asyncio.Event()
    recipe = Recipe.model_validate(RECIPE | {"eval": DURING})
    with pytest.raises(StoreError, match="does not answer"):
        async with evaluated_during_training(client, recipe, 0, tmp_path / "metrics.jsonl", tmp_path, SystemClock()):
            await asyncio.wait_for(never.wait(), 30)


async def test_a_failure_of_training_is_passed_on_as_it_is(tmp_path: Path) -> None:
    client, recipe = cast("DataManagerClient", EndedEvaluation()), Recipe.model_validate(RECIPE | {"eval": DURING})
    with pytest.raises(NeverEndsError):
        async with evaluated_during_training(client, recipe, 0, tmp_path / "metrics.jsonl", tmp_path, SystemClock()):
            raise NeverEndsError


class ManyLooks(SystemClock):
    """Counts the pauses."""

    def __init__(self, looks: asyncio.Semaphore) -> None:
        self._looks = looks

    async def sleep(self, delay_s: float) -> None:
        self._looks.release()
        await asyncio.sleep(0)


class LeftEvaluation(EndedEvaluation):
    """A data manager in which training and an evaluation of version 4 are active; no episode ends."""

    def __init__(self) -> None:
        super().__init__()
        self.active = ["train", "eval-during-4"]
        self.stopped: list[str] = []

    async def active_phases(self) -> list[PhaseStatus]:
        return [await self.phase(name) for name in self.active]

    async def start_phase(self, spec: PhaseSpec) -> PhaseStatus:
        self.active.append(spec.name)
        self.asked.set()
        return await self.phase(spec.name)

    async def phase(self, name: str) -> PhaseStatus:
        return PhaseStatus.model_construct(name=name, state="active", done=0, failed=0, masked=0)

    async def stop_phase(self, name: str) -> None:
        self.active.remove(name)
        self.stopped.append(name)


@pytest.mark.parametrize("every_updates", [0, 1])
async def test_an_evaluation_that_a_killed_process_left_is_stopped(tmp_path: Path, every_updates: int) -> None:
    manager, lines = LeftEvaluation(), tmp_path / "metrics.jsonl"
    recipe = Recipe.model_validate(RECIPE | {"eval": {"episodes": 6, "every_updates": every_updates}})
    client = cast("DataManagerClient", manager)
    async with evaluated_during_training(client, recipe, 1, lines, tmp_path, SystemClock()):
        assert manager.stopped == ["eval-during-4"]


@pytest.mark.parametrize("during_workers", [0, 1])
async def test_an_evaluation_whose_version_no_worker_holds_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during_workers: int
) -> None:
    monkeypatch.setattr(during_training, "LOOK_S", 0.01)
    manager, ends = LeftEvaluation(), asyncio.Event()
    recipe = Recipe.model_validate(
        RECIPE
        | {
            "eval": DURING | {"during_workers": during_workers},
            "inference": {"workers": 2},
            "limits": {"stall_minutes": 0.1 / 60},
        }
    )
    client = cast("DataManagerClient", manager)
    async with evaluated_during_training(client, recipe, 0, tmp_path / "metrics.jsonl", tmp_path, SystemClock()):
        await asyncio.wait_for(manager.asked.wait(), 30)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ends.wait(), 1.0)
        assert ("eval-during-1" in manager.stopped) is bool(during_workers)
    assert manager.stopped == ["eval-during-4", "eval-during-1"], "at the end of training"


class HourlyClock(SystemClock):
    """Moves by an hour whenever somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += 3600
        await asyncio.sleep(0)


class PausedDisk:
    """A disk that is full from the beginning to the first file."""

    def __init__(self) -> None:
        self.reason: str | None = "paused: no space"
        self.written = asyncio.Event()

    async def until_written(self, write: Callable[[], None]) -> None:
        self.reason = None
        write()
        self.written.set()


class AwayDuringPause(LeftEvaluation):
    """A data manager that does not answer at first, and whose evaluation makes no progress for long."""

    def __init__(self, disk: PausedDisk) -> None:
        super().__init__()
        self.active = []
        self.looks = 0
        self._disk = disk

    async def phase(self, name: str) -> PhaseStatus:
        self.looks += 1
        if self.looks in {2, 3}:
            raise StoreError("the data manager does not answer")
        if self.looks < 6:
            return await super().phase(name)
        self.active.clear()
        return PhaseStatus.model_construct(name=name, state="done", done=1, failed=0, masked=0)

    async def results(self, name: str) -> list[EpisodeResult]:
        return [episode(0, 1.0, (1, 1)).model_copy(update={"task_id": "basics/press_nth/0000", "family": "press_nth"})]


async def test_a_pause_ends_no_evaluation(tmp_path: Path) -> None:
    """It asks again, does not count the time, and writes its line through the disk's guard."""
    clock, disk, lines = HourlyClock(), PausedDisk(), tmp_path / "metrics.jsonl"
    manager = AwayDuringPause(disk)
    recipe = Recipe.model_validate(
        RECIPE | {"eval": DURING | {"during_workers": 1}, "inference": {"workers": 2}, "limits": {"stall_minutes": 1}}
    )
    pauses = Pauses(clock, cast("DiskGuard", disk))
    async with evaluated_during_training(cast("DataManagerClient", manager), recipe, 0, lines, tmp_path, clock, pauses):
        await asyncio.wait_for(disk.written.wait(), 30)
    assert manager.stopped == []
    assert pauses.repeated == 2
    assert [line["success"] for line in MetricsReader(lines).read_new()] == [1.0]


async def test_without_a_pause_an_unreachable_data_manager_is_no_wait() -> None:
    async def ask() -> None:
        raise StoreError("the data manager does not answer")

    with pytest.raises(StoreError):
        await Pauses(SystemClock()).ask(ask)
