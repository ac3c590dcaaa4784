"""Rollouts that only the next process of a worker can continue wait a short time for it."""

from __future__ import annotations

import pytest
from scheduling_harness import TASKS, SchedulingHarness, only

from dart_train.scheduling.commands import AssignRollout
from dart_train.scheduling.events import RolloutParked, TimePassed, WorkerReleased


def release(harness: SchedulingHarness, worker: str, *resumable: AssignRollout) -> list[AssignRollout]:
    """A worker is gone; the rollouts that only its next process can continue are named."""
    ids = frozenset(assigned.rollout_id for assigned in resumable)
    return only(harness.do(WorkerReleased(harness.now_s, worker, ids)), AssignRollout)


def wait_for_work(harness: SchedulingHarness, worker: str) -> None:
    assert harness.ask(worker, wait=True) is None


def test_what_only_the_next_process_of_a_worker_can_continue_waits_for_it() -> None:
    harness = SchedulingHarness()
    harness.evaluate(rollouts_per_task=2)
    mine, other, third, lost = (harness.must_ask("a") for _ in range(4))
    for _ in range(3):
        wait_for_work(harness, "b")
    given = release(harness, "a", mine, third)
    assert [(assigned.rollout_id, assigned.worker_id) for assigned in given] == [
        (other.rollout_id, "b"),
        (lost.rollout_id, "b"),
    ]
    assert harness.must_ask("a").rollout_id == mine.rollout_id
    harness.now_s = 9.0
    assert only(harness.do(TimePassed(9.0)), AssignRollout) == []
    harness.now_s = 10.0
    (late,) = only(harness.do(TimePassed(10.0)), AssignRollout)
    assert (late.rollout_id, late.worker_id) == (third.rollout_id, "b")


def test_a_worker_that_waits_behind_one_for_whom_nothing_is_reserved_gets_its_rollouts() -> None:
    harness = SchedulingHarness()
    harness.evaluate(task_ids=TASKS[:1])
    mine = harness.must_ask("a")
    wait_for_work(harness, "b")
    assert release(harness, "a", mine) == []
    again = harness.must_ask("a", wait=True)
    assert (again.rollout_id, again.worker_id) == (mine.rollout_id, "a")


@pytest.mark.parametrize("parked", [False, True])
def test_reserved_rollouts_of_groups_go_to_their_worker_first(parked: bool) -> None:
    harness = SchedulingHarness()
    harness.train()
    mine = [harness.must_ask("a") for _ in range(2)]
    if parked:
        for assigned in mine:
            harness.do(RolloutParked(0.0, assigned.rollout_id, "partial"))
        assert [harness.must_ask("a").rollout_id for _ in mine] == [assigned.rollout_id for assigned in mine]
    assert release(harness, "a", *mine) == []
    reserved = [assigned.rollout_id for assigned in mine]
    others = {harness.must_ask("b").rollout_id for _ in range(2)}
    assert not others & set(reserved)
    again = [harness.must_ask("a") for _ in mine]
    assert [assigned.rollout_id for assigned in again] == reserved
    assert harness.must_ask("b").group_id != again[0].group_id, "the group is filled, and another one begins"


def test_reserved_rollouts_that_nobody_asks_for_go_to_the_others() -> None:
    harness = SchedulingHarness()
    harness.train()
    mine = [harness.must_ask("a") for _ in range(2)]
    release(harness, "a", *mine)
    fresh = harness.must_ask("b").rollout_id
    harness.now_s = 10.0
    reserved = [assigned.rollout_id for assigned in mine]
    assert fresh not in reserved
    assert [harness.must_ask("b").rollout_id for _ in range(2)] == reserved
