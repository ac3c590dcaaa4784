"""Whole simulations: the same for one seed, nothing lost or trained twice, and each mode does what its name says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dart_train.scheduling.settings import BatchSettings, SchedulerSettings, SchedulingMode, SchedulingSettings
from dart_train.simulation.event_heap import EventHeap
from dart_train.simulation.models import DesktopModel, EpisodeModel, FaultModel, Latency, PublishModel, SystemModels
from dart_train.simulation.outcome import SimulationOutcome, simulate
from dart_train.simulation.records import RolloutTracker
from dart_train.simulation.scenario import Scenario
from dart_train.simulation.system import Simulation


def scenario(mode: SchedulingMode = SchedulingMode.ROLLOUT_PER_WORKER, **changes: Any) -> Scenario:
    scheduling = changes.pop("scheduling", {})
    base = Scenario(
        desktops=16,
        workers=2,
        rollout_workers=2,
        rollouts_per_task=4,
        max_steps=12,
        hours=0.5,
        warm_up_hours=0.1,
        scheduler=SchedulerSettings(
            scheduling=SchedulingSettings(mode=mode, **scheduling), batch=BatchSettings(min_groups=4, max_groups=4)
        ),
    )
    return replace(base, **changes)


def models(**parts: Any) -> SystemModels:
    return SystemModels(**parts)


def nothing_is_wrong(outcome: SimulationOutcome) -> None:
    assert (outcome.lost, outcome.stuck, outcome.finished_twice, outcome.trained_twice) == (0, 0, 0, 0)
    for shares in (outcome.slots, outcome.workers, outcome.trainer):
        values = [getattr(shares, name) for name in shares.__slots__]
        assert sum(values) == pytest.approx(1.0)
        assert all(0 <= value <= 1 for value in values)


@pytest.mark.parametrize("mode", list(SchedulingMode))
def test_every_mode_trains_and_loses_nothing(mode: SchedulingMode) -> None:
    outcome = simulate(scenario(mode))
    nothing_is_wrong(outcome)
    assert outcome.updates > 5
    assert outcome.trained_rows_per_min > 0


def test_one_seed_gives_one_run() -> None:
    first, again, other = (simulate(scenario(seed=seed)) for seed in (3, 3, 4))
    assert first.as_dict() == again.as_dict()
    assert first.as_dict() != other.as_dict()


def test_in_batch_mode_rollouts_and_trainer_take_turns() -> None:
    outcome = simulate(scenario(SchedulingMode.BATCH, gantt_s=1800.0))
    assert outcome.staleness.max <= 1, "the first requests after an update may be answered by the weights before it"
    waits = simulate(scenario(SchedulingMode.BATCH, batch_waits_for_workers=True))
    assert waits.staleness.max == 0
    training = [(begin_s, end_s) for _, state, begin_s, end_s in outcome.intervals["trainer"] if state == "training"]
    acting = [
        (begin_s, end_s)
        for _, state, begin_s, end_s in outcome.intervals["desktops"]
        if state in {"executing", "running"}
    ]
    assert training
    assert acting
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in training for b in acting)
    assert both == pytest.approx(0.0)


def test_the_decoupled_modes_use_desktops_more() -> None:
    used = {mode: simulate(scenario(mode)).slots.utilisation for mode in SchedulingMode}
    assert used[SchedulingMode.BATCH] < used[SchedulingMode.TASK] < used[SchedulingMode.ROLLOUT_PER_WORKER]


def test_a_global_update_stops_all_workers_and_a_rolling_one_never_does() -> None:
    slow = models(publish=PublishModel(swap_s=20.0, stage_s_per_gib=0.0))

    def all_stand(mode: SchedulingMode) -> float:
        outcome = simulate(scenario(mode, models=slow, gantt_s=1800.0))
        spans = {"policy-0": [], "policy-1": []}
        for name, state, begin_s, end_s in outcome.intervals["workers"]:
            if state == "updating":
                spans[name].append((begin_s, end_s))
        assert all(spans.values())
        return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in spans["policy-0"] for b in spans["policy-1"])

    assert all_stand(SchedulingMode.ROLLOUT_GLOBAL) > 0
    assert all_stand(SchedulingMode.ROLLOUT_PER_WORKER) == 0.0


def test_partial_rollouts_are_continued_and_end_once() -> None:
    outcome = simulate(scenario(SchedulingMode.BATCH, scheduling={"over_provision": 2.0}))
    nothing_is_wrong(outcome)
    assert outcome.parked > 0
    assert outcome.staleness.max > 0
    restarted = simulate(scenario(SchedulingMode.BATCH, scheduling={"over_provision": 2.0, "partial_rollouts": False}))
    nothing_is_wrong(restarted)
    assert restarted.parked == 0
    assert restarted.wasted_actions_per_min > outcome.wasted_actions_per_min


@pytest.mark.parametrize("mode", list(SchedulingMode))
def test_failures_lose_nothing_and_train_nothing_twice(mode: SchedulingMode) -> None:
    faults = FaultModel(desktops_per_hour=3.0, worker_lost_at_s=700.0, worker_repair_s=300.0, trainer_lost_at_s=900.0)
    outcome = simulate(scenario(mode, models=models(faults=faults), hours=1.0))
    nothing_is_wrong(outcome)
    assert outcome.desktop_faults > 20
    assert outcome.masked > 0
    assert outcome.workers.down == pytest.approx(300 / 3600 / 2, rel=0.05)


def test_a_worker_that_comes_back_gets_the_present_weights_before_it_serves() -> None:
    faults = FaultModel(worker_lost_at_s=900.0, worker_repair_s=120.0)
    simulation = Simulation(scenario(models=models(faults=faults)))
    simulation.run()
    versions = {engine.version for engine in simulation.engines.values()}
    assert max(versions) - min(versions) <= 1
    assert min(versions) > 3
    assert max(simulation.record.staleness) <= simulation.scenario.scheduler.batch.max_staleness


def test_rows_above_the_limit_of_staleness_are_withheld_and_counted() -> None:
    strict = SchedulerSettings(batch=BatchSettings(min_groups=2, max_groups=2, max_staleness=0))
    outcome = simulate(scenario(scheduler=strict))
    nothing_is_wrong(outcome)
    assert 0 < outcome.withheld_fraction < 1
    assert outcome.trained_rows_per_min > 0
    assert outcome.staleness.max == 0


def test_a_deadlock_is_seen() -> None:
    faults = FaultModel(worker_lost_at_s=900.0, worker_repair_s=1e9)
    stopped = scenario(workers=1, models=models(faults=faults), hours=2.0, stuck_after_s=1800.0)
    assert simulate(stopped).stuck >= 16, "every desktop waits for ever for the only worker"
    assert simulate(replace(stopped, models=models())).stuck == 0


def test_a_finished_rollout_is_trained_on_or_waits_or_has_a_cause() -> None:
    tracker = RolloutTracker(EventHeap(), 60.0)
    for rollout_id in ("used", "waits", "dropped", "forgotten", "gone"):
        tracker.moved(rollout_id)
    for rollout_id in ("used", "waits", "dropped", "forgotten"):
        tracker.ended(rollout_id)
        tracker.stored(rollout_id, f"group of {rollout_id}", known=True)
    tracker.taken(["group of used"])
    tracker.trained(["group of used"])
    tracker.dropped("group of dropped", "stale")
    assert tracker.lost({}, {"group of waits"}) == {"forgotten", "gone"}
    tracker.dropped("group of waits", None)
    assert "waits" in tracker.lost({"gone"}, {"group of forgotten"})
    tracker.ended("used")
    tracker.trained(["group of used"])
    assert (tracker.ended_twice, tracker.trained_twice) == (["used"], ["group of used"])


def test_a_member_that_goes_on_in_another_group_is_trained_on_there() -> None:
    """A group that closes before it gets stale passes its running members on."""
    long_tailed = EpisodeModel(median_steps=4.0, sigma=1.5)
    strict = SchedulerSettings(batch=BatchSettings(min_groups=2, max_groups=2, max_staleness=1))
    simulation = Simulation(scenario(scheduler=strict, models=models(episode=long_tailed), max_steps=60, hours=1.0))
    moved: list[str] = []
    opened = simulation.record.opened
    simulation.record.opened = lambda command: (moved.extend(command.adopted), opened(command))[1]  # type: ignore[method-assign]
    simulation.run()
    assert moved
    assert simulation.record.tracker.late < len(moved) / 2


def test_a_task_is_prepared_once_for_all_of_its_groups() -> None:
    slow = DesktopModel(reset_s=Latency(mean_s=30.0), fork_s=Latency(mean_s=0.0), evaluate_s=Latency(mean_s=0.0))
    few = scenario(tasks=20, families=2, warm_up_hours=0.3, models=models(desktop=slow))
    forgotten = replace(few, models=models(desktop=slow.model_copy(update={"prepared_tasks": 0})))
    assert simulate(few).slots.resetting < 0.01
    assert simulate(forgotten).slots.resetting > 0.05


def test_a_worker_is_in_use_from_the_sending_of_a_request_to_its_answer() -> None:
    outcome = simulate(scenario(models=models(publish=PublishModel(swap_s=20.0, stage_s_per_gib=0.0))))
    assert outcome.workers.serving + 0.5 * outcome.workers.updating < outcome.workers_in_use <= 1.0
