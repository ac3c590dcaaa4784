"""Decisions of the scheduler: who gets what, when a group closes, which groups make a batch."""

from __future__ import annotations

from collections import Counter

import pytest
from scheduling_harness import SchedulingHarness, only

from dart_train.scheduling.commands import (
    AssignRollout,
    CloseGroup,
    ClosePhase,
    FinishRollout,
    IssueBatch,
    OpenGroup,
    RepeatBatch,
    RetryRollout,
    StopRollout,
    UnassignRollout,
    UseGroups,
)
from dart_train.scheduling.events import (
    AskWithdrawn,
    BatchRefused,
    HeartbeatReceived,
    PhaseStopped,
    RolloutAbandoned,
    RolloutParked,
    RolloutRestarted,
    TimePassed,
    WorkAsked,
    WorkerReleased,
)
from dart_train.scheduling.staleness_budget import largest_reserve


def test_a_whole_group_starts_on_the_next_free_desktops() -> None:
    harness = SchedulingHarness()
    harness.train()
    groups = [harness.must_ask().group_id for _ in range(8)]
    assert groups[:4] == [groups[0]] * 4
    assert groups[4:] == [groups[4]] * 4 != groups[:4]


def test_groups_that_are_filled_together_take_turns() -> None:
    harness = SchedulingHarness(scheduling={"parallel_groups": 3}, batch={"min_groups": 6, "max_groups": 6})
    harness.train()
    groups = [harness.must_ask().group_id for _ in range(12)]
    assert len(set(groups[:3])) == 3
    assert groups[3:9] == groups[:3] * 2
    assert Counter(groups).most_common(1)[0][1] == 4


def test_a_repeated_request_gets_the_same_rollout() -> None:
    harness = SchedulingHarness()
    harness.train()
    first, again = (only(harness.do(WorkAsked(0.0, "w", "same")), AssignRollout) for _ in range(2))
    assert first == again != []


def test_a_request_that_waits_is_answered_by_what_makes_work() -> None:
    harness = SchedulingHarness()
    assert harness.ask(wait=True) is None
    assert harness.ask(wait=True) is None
    harness.do(AskWithdrawn(0.0, "request-0"))
    started = harness.train()
    assert [each.request_id for each in only(started, AssignRollout)] == ["request-1"]
    assert not harness.state.asks


def test_evaluation_goes_first_unless_priorities_say_otherwise() -> None:
    harness = SchedulingHarness()
    harness.train()
    harness.evaluate()
    harness.train("urgent", priority=2)
    assert [harness.must_ask().phase for _ in range(2)] == ["urgent", "urgent"]
    harness.do(PhaseStopped(0.0, "urgent"))
    assert [harness.must_ask().phase for _ in range(3)] == ["eval", "eval", "train"]


def test_a_limited_evaluation_leaves_the_other_desktops_to_training() -> None:
    harness = SchedulingHarness()
    harness.train()
    harness.evaluate(max_in_flight=1)
    evaluated = harness.must_ask()
    assert [evaluated.phase, *(harness.must_ask().phase for _ in range(3))] == ["eval", "train", "train", "train"]
    harness.end(evaluated.rollout_id)
    assert [harness.must_ask().phase for _ in range(2)] == ["eval", "train"]


def test_what_a_silent_worker_holds_is_assigned_again_and_a_heartbeat_prevents_it() -> None:
    harness = SchedulingHarness()
    harness.train()
    lost, held = harness.must_ask("dead"), harness.must_ask("alive")
    harness.do(HeartbeatReceived(299.0, "alive"))
    commands = harness.do(TimePassed(301.0))
    assert [(each.rollout_id, each.state, each.attempt) for each in only(commands, UnassignRollout)] == [
        (lost.rollout_id, "queued", 2)
    ]
    harness.now_s = 301.0
    assert harness.must_ask("other").rollout_id == lost.rollout_id
    assert harness.must_ask("other").rollout_id not in {lost.rollout_id, held.rollout_id}


def test_a_released_worker_costs_no_attempt() -> None:
    harness = SchedulingHarness()
    harness.train()
    mine = harness.must_ask("w1")
    other = harness.must_ask("w2")
    harness.do(WorkerReleased(0.0, "w1"))
    assert harness.state.rollouts[mine.rollout_id].attempt == 1
    assert harness.must_ask("w3").rollout_id == mine.rollout_id
    assert harness.state.rollouts[other.rollout_id].worker is harness.state.workers["w2"]


def test_a_masked_item_of_a_list_is_tried_again_and_fails_after_its_attempts() -> None:
    harness = SchedulingHarness()
    harness.evaluate(task_ids=("s/tick/0",), max_attempts=3)
    commands = harness.end(harness.must_ask().rollout_id, None)
    assert [each.state for each in only(commands, FinishRollout)] == ["masked"]
    assert [each.attempt for each in only(commands, RetryRollout)] == [2]
    harness.do(RolloutAbandoned(0.0, harness.must_ask().rollout_id, "no desktop"))
    commands = harness.end(harness.must_ask().rollout_id, None)
    assert [each.state for each in only(commands, FinishRollout)] == ["failed"]
    assert only(commands, ClosePhase) == [ClosePhase("eval", "done")]
    assert +harness.state.phases["eval"].counts == {"masked": 1, "failed": 1}


def test_a_parked_rollout_that_cannot_be_continued_uses_up_its_attempts() -> None:
    harness = SchedulingHarness()
    harness.evaluate(task_ids=("s/tick/0",), max_attempts=3)
    rollout_id = harness.must_ask().rollout_id
    harness.do(RolloutParked(0.0, rollout_id, "partial", version_min=0))
    for attempt in (2, 3):
        again = harness.must_ask()
        assert again.partial == "partial"
        commands = harness.do(RolloutParked(0.0, again.rollout_id, "partial", failed_start="no desktop"))
        assert only(commands, UnassignRollout) == [
            UnassignRollout(rollout_id, "parked", attempt, "no desktop", "partial")
        ]
    harness.must_ask()
    commands = harness.do(RolloutParked(0.0, rollout_id, "partial", failed_start="no desktop"))
    assert only(commands, UnassignRollout) == [UnassignRollout(rollout_id, "failed", 3, "no desktop")]
    assert only(commands, ClosePhase) == [ClosePhase("eval", "done")]
    assert +harness.state.phases["eval"].counts == {"failed": 1}


def test_a_rollout_whose_assignment_was_not_read_keeps_its_partial_trajectory() -> None:
    harness = SchedulingHarness()
    harness.evaluate(task_ids=("s/tick/0",), max_attempts=1)
    rollout_id = harness.must_ask().rollout_id
    unread = RolloutAbandoned(0.0, rollout_id, "not read", uses_attempt=False, partial="partial", version_min=0)
    assert only(harness.do(unread), UnassignRollout) == [
        UnassignRollout(rollout_id, "parked", 1, "not read", "partial")
    ]
    again = harness.must_ask("w2")
    assert (again.rollout_id, again.partial) == (rollout_id, "partial")


def test_a_group_closes_as_what_its_rewards_make_it() -> None:
    harness = SchedulingHarness()
    harness.train()
    for rewards in ((1.0, 0.0, 0.0, 0.0), (0.0,) * 4, (1.0,) * 4):
        harness.group(rewards)
    assert [(each.state, each.reason) for each in only(harness.log, CloseGroup)] == [
        ("ready", None),
        ("dropped", "all_failed"),
        ("dropped", "all_succeeded"),
    ]


def test_the_oldest_fresh_tokens_go_first_and_stale_groups_are_dropped() -> None:
    harness = SchedulingHarness(batch={"min_groups": 2, "max_groups": 2, "max_staleness": 2, "max_ready_groups": 9})
    harness.train()
    stale, young, old, middle = (harness.group(version=version) for version in (0, 3, 1, 2))
    commands = harness.batch(3)
    assert only(commands, CloseGroup) == [CloseGroup(stale, "dropped", "stale")]
    assert only(commands, IssueBatch) == [IssueBatch((old, middle), 3)]
    assert harness.batch(3) == [RepeatBatch((old, middle))]
    assert only(harness.update(4), UseGroups) == [UseGroups((old, middle), 4)]
    assert set(harness.state.ready) == {young}
    assert harness.batch(4) == []


def test_a_refused_batch_gives_its_other_groups_back() -> None:
    harness = SchedulingHarness(batch={"min_groups": 2, "max_groups": 2, "max_staleness": 2, "max_ready_groups": 9})
    harness.train()
    bad, good, third = (harness.group() for _ in range(3))
    harness.batch()
    assert harness.do(BatchRefused(0.0, {bad: "stale"})) == [CloseGroup(bad, "dropped", "stale")]
    assert only(harness.batch(), IssueBatch) == [IssueBatch((good, third), 0)]


def test_a_group_that_would_become_stale_closes_early_and_its_stragglers_go_on_in_another() -> None:
    harness = SchedulingHarness()
    harness.train(rollouts_per_task=4)
    first = [harness.must_ask() for _ in range(4)]
    for each, reward in zip(first[:2], (1.0, 0.0), strict=True):
        harness.end(each.rollout_id, reward, version=0)
    young = [harness.group(version=2) for _ in range(2)]
    commands = harness.batch(2)
    (successor,) = only(commands, OpenGroup)
    assert only(commands, IssueBatch)[0].group_ids == (first[0].group_id, young[0])
    assert successor.task_id == first[0].task_id
    assert set(successor.adopted) == {each.rollout_id for each in first[2:]}
    assert len(successor.rollouts) == 2
    opened = Counter(each.task_id for each in only(harness.log, OpenGroup))
    assert harness.state.groups_by_task == opened
    assert harness.state.phases["train"].groups_opened == opened.total() == 4
    harness.end(first[2].rollout_id, 1.0, version=2)
    assert harness.state.groups[successor.group_id].rewards == [1.0]


def test_nothing_closes_early_while_there_is_no_batch_without_it() -> None:
    harness = SchedulingHarness()
    harness.train()
    first = [harness.must_ask() for _ in range(4)]
    for each, reward in zip(first[:2], (1.0, 0.0), strict=True):
        harness.end(each.rollout_id, reward, version=0)
    harness.group(version=2)
    assert harness.batch(2) == []
    assert harness.state.groups[first[0].group_id].state == "open"


def test_a_stopped_phase_cancels_what_waits_and_stores_what_runs() -> None:
    harness = SchedulingHarness()
    harness.train()
    running = harness.must_ask()
    stopped = harness.do(PhaseStopped(0.0, "train"))
    assert [each.state for each in only(stopped, UnassignRollout)] == ["cancelled"] * 3
    assert harness.ask() is None
    assert harness.state.training_active
    assert only(harness.end(running.rollout_id), CloseGroup) == [
        CloseGroup(running.group_id, "dropped", "too_few_members")
    ]
    assert not harness.state.training_active


# Modes


def test_in_mode_batch_rollouts_and_trainer_take_turns() -> None:
    harness = SchedulingHarness(scheduling={"mode": "batch"})
    harness.train()
    groups = [harness.group() for _ in range(2)]
    assert harness.ask(wait=True) is None, "the batch is complete"
    assert only(harness.batch(), IssueBatch)[0].group_ids == tuple(groups)
    assert harness.ask(wait=True) is None, "the trainer has it"
    assert len(only(harness.update(1), AssignRollout)) == 2


@pytest.mark.parametrize("partial_rollouts", [True, False])
def test_in_mode_batch_with_over_provisioning_the_unfinished_go_on_with_the_next_batch(partial_rollouts: bool) -> None:
    harness = SchedulingHarness(
        scheduling={"mode": "batch", "over_provision": 1.5, "partial_rollouts": partial_rollouts}
    )
    harness.train()
    for _ in range(2):
        harness.group()
    left = [harness.must_ask() for _ in range(3)]
    assert len({each.group_id for each in left}) == 1
    stops = only(harness.batch(), StopRollout)
    assert stops == [StopRollout(each.rollout_id, "w", partial_rollouts) for each in left]
    harness.end(left[0].rollout_id)
    for each in left[1:]:
        if partial_rollouts:
            harness.do(RolloutParked(0.0, each.rollout_id, f"partial of {each.rollout_id}", version_min=0))
        else:
            harness.do(RolloutAbandoned(0.0, each.rollout_id, "stopped"))
    assert harness.ask() is None
    harness.update(1)
    again = [harness.must_ask() for _ in range(2)]
    assert {each.rollout_id for each in again} == {each.rollout_id for each in left[1:]}
    assert [each.partial for each in again] == [
        f"partial of {each.rollout_id}" if partial_rollouts else None for each in again
    ]


def test_in_mode_task_desktops_wait_for_their_group() -> None:
    harness = SchedulingHarness(scheduling={"mode": "task"})
    harness.train()
    members = [harness.must_ask(desktops=4) for _ in range(4)]
    for each in members[:3]:
        harness.end(each.rollout_id)
        assert harness.ask(wait=True) is None
    assert len(only(harness.end(members[3].rollout_id, 0.0), AssignRollout)) == 3
    assert harness.must_ask().group_id != members[0].group_id


@pytest.mark.parametrize("parallel_groups", [1, 3])
def test_in_mode_task_fewer_desktops_than_rollouts_finish_their_groups(parallel_groups: int) -> None:
    harness = SchedulingHarness(scheduling={"mode": "task", "parallel_groups": parallel_groups})
    harness.train()
    running = [harness.must_ask(desktops=3) for _ in range(3)]
    closed: set[str] = set()
    for number in range(15):
        ended = running.pop(0)
        commands = harness.end(ended.rollout_id, float(number % 2))
        closed |= {each.group_id for each in only(commands, CloseGroup)}
        running += only(commands, AssignRollout)
        if (more := harness.ask(wait=True)) is not None:
            running.append(more)
        assert running, "all desktops wait"
    assert len(closed) >= 3


def test_in_mode_task_a_rollout_that_comes_back_gets_a_desktop_that_waits() -> None:
    harness = SchedulingHarness(scheduling={"mode": "task"})
    harness.train()
    members = [harness.must_ask("a", desktops=3) for _ in range(3)] + [harness.must_ask("b", desktops=1)]
    for each in members[:3]:
        harness.end(each.rollout_id)
    assert harness.ask("a", wait=True) is None
    again = only(harness.do(WorkerReleased(harness.now_s, "b")), AssignRollout)
    assert [(each.worker_id, each.rollout_id) for each in again] == [("a", members[3].rollout_id)]


def test_in_the_rollout_modes_a_desktop_goes_on_at_once() -> None:
    for mode in ("rollout-global", "rollout-per-worker"):
        harness = SchedulingHarness(scheduling={"mode": mode})
        harness.train()
        members = [harness.must_ask(desktops=4) for _ in range(4)]
        harness.end(members[0].rollout_id)
        assert harness.ask() is not None


# Over-provisioning, parking, admission


def test_an_over_provisioned_group_closes_at_its_target_and_keeps_what_is_left_for_its_task() -> None:
    harness = SchedulingHarness(scheduling={"over_provision": 1.5}, batch={"min_groups": 9, "max_groups": 9})
    harness.train(task_ids=("s/tick/0",))
    members = [harness.must_ask() for _ in range(6)]
    assert len({each.group_id for each in members}) == 1
    for each, reward in zip(members[:4], (1.0, 0.0, 0.0, 0.0), strict=True):
        commands = harness.end(each.rollout_id, reward)
    assert only(commands, CloseGroup) == [CloseGroup(members[0].group_id, "ready")]
    assert [each.rollout_id for each in only(commands, StopRollout)] == [each.rollout_id for each in members[4:]]
    for each in members[4:]:
        harness.do(RolloutParked(0.0, each.rollout_id, "partial", version_min=0))
    first = harness.must_ask()
    assert first.rollout_id not in {each.rollout_id for each in members}, "the lead of the group prepares the state"
    (opened,) = only(harness.log, OpenGroup)[1:]
    assert set(opened.adopted) == {each.rollout_id for each in members[4:]}
    assert len(opened.rollouts) == 2, "it is filled up to its target"
    assert harness.must_ask().partial == "partial"


def test_what_a_group_left_is_continued_before_another_task_begins() -> None:
    harness = SchedulingHarness(scheduling={"over_provision": 1.5}, batch={"min_groups": 9, "max_groups": 9})
    harness.train()
    members = [harness.must_ask() for _ in range(6)]
    for each, reward in zip(members[:4], (1.0, 0.0, 0.0, 0.0), strict=True):
        harness.end(each.rollout_id, reward)
    for each in members[4:]:
        harness.do(RolloutParked(0.0, each.rollout_id, "partial", version_min=0))
    following = [harness.must_ask() for _ in range(5)]
    assert [each.task_id == members[0].task_id for each in following] == [True] * 4 + [False]
    assert {each.rollout_id for each in members[4:]} < {each.rollout_id for each in following[:4]}
    for each, reward in zip(following[:4], (1.0, 0.0, 0.0, 0.0), strict=True):
        commands = harness.end(each.rollout_id, reward)
    assert only(commands, CloseGroup)
    assert not only(commands, StopRollout), "it was not over-provisioned, or the same task would come again for ever"


def test_a_partial_trajectory_that_became_stale_is_discarded() -> None:
    harness = SchedulingHarness(
        scheduling={"over_provision": 1.25}, batch={"min_groups": 1, "max_groups": 1, "max_staleness": 1}
    )
    harness.train(rollouts_per_task=4, continue_first=False)
    members = [harness.must_ask() for _ in range(5)]
    for each, reward in zip(members[:4], (1.0, 0.0, 0.0, 0.0), strict=True):
        harness.end(each.rollout_id, reward)
    harness.do(RolloutParked(0.0, members[4].rollout_id, "partial", version_min=0))
    harness.batch(0)
    assert not only(harness.update(1), UnassignRollout)
    harness.group(version=1)
    harness.batch(1)
    assert [each.state for each in only(harness.update(2), UnassignRollout)] == ["cancelled"]


def test_a_rollout_that_was_begun_anew_is_as_fresh_as_its_new_steps() -> None:
    harness = SchedulingHarness(
        scheduling={"over_provision": 1.25}, batch={"min_groups": 1, "max_groups": 1, "max_staleness": 1}
    )
    harness.train()
    again = harness.must_ask()
    harness.do(RolloutParked(0.0, again.rollout_id, "partial", version_min=0))
    members = [harness.must_ask() for _ in range(5)]
    assert again.rollout_id in {each.rollout_id for each in members}
    harness.do(RolloutRestarted(0.0, again.rollout_id))
    harness.group(version=1)
    harness.batch(1), harness.update(2)
    others = [each for each in members if each.rollout_id != again.rollout_id]
    for each, reward in zip(others, (1.0, 0.0, 0.0, 0.0), strict=True):
        harness.end(each.rollout_id, reward, version=2)
    harness.do(RolloutParked(0.0, again.rollout_id, "partial", version_min=2))
    harness.batch(2)
    assert not only(harness.update(3), UnassignRollout), "its oldest tokens are of version 2"
    assert again.rollout_id in harness.state.rollouts


def test_a_rollout_that_was_begun_anew_has_nothing_to_continue_where_its_worker_dies() -> None:
    harness = SchedulingHarness()
    harness.train()
    item = harness.must_ask()
    harness.do(RolloutParked(0.0, item.rollout_id, "partial", version_min=0))
    assert harness.must_ask().partial == "partial"
    harness.do(RolloutRestarted(0.0, item.rollout_id))
    (freed,) = only(harness.do(WorkerReleased(0.0, "w")), UnassignRollout)
    assert (freed.state, freed.partial) == ("queued", None)


def test_no_rollout_starts_while_the_kv_cache_is_full_unless_nothing_runs() -> None:
    harness = SchedulingHarness()
    harness.train()
    assert harness.ask(kv_cache_usage=0.99) is not None
    assert harness.ask(kv_cache_usage=0.99, wait=True) is None
    assert harness.ask("other") is not None, "unknown is no pressure"
    assert len(only(harness.do(HeartbeatReceived(0.0, "w", kv_cache_usage=0.5)), AssignRollout)) == 1


def test_more_rollouts_start_only_as_long_as_their_requests_fit_into_the_kv_cache() -> None:
    harness = SchedulingHarness()
    harness.train()
    for _ in range(4):
        harness.must_ask()
    harness.do(HeartbeatReceived(0.0, "w", kv_cache_usage=0.6))
    started = [harness.ask() for _ in range(8)]
    assert sum(each is not None for each in started) == 3, "four need 0.6, so six need 0.9, and seven more than 0.95"
    assert harness.ask("other") is not None
    harness.do(HeartbeatReceived(1.0, "w", kv_cache_usage=2.0))
    assert harness.ask() is None


def test_the_start_of_the_inference_workers_is_not_remembered_as_need_of_the_kv_cache() -> None:
    harness = SchedulingHarness()
    harness.train()
    harness.must_ask(kv_cache_usage=1.0)  # none of them serves yet
    for seconds in range(10, 300, 10):
        harness.do(HeartbeatReceived(float(seconds), "w", kv_cache_usage=1.0))
        assert harness.ask() is None
    harness.do(HeartbeatReceived(300.0, "w", kv_cache_usage=0.01))
    assert sum(harness.ask() is not None for _ in range(6)) == 6


def test_a_need_of_the_kv_cache_that_has_passed_is_forgotten_while_a_worker_holds_one_rollout() -> None:
    harness = SchedulingHarness()
    harness.train()
    first, _ = harness.must_ask(), harness.must_ask()
    for seconds in range(0, 3600, 10):
        harness.do(HeartbeatReceived(float(seconds), "w", kv_cache_usage=2.2))
    harness.end(first.rollout_id, 1.0)
    harness.do(HeartbeatReceived(3600.0, "w", kv_cache_usage=0.1))
    assert harness.ask() is None, "a rollout needed 1.1 until now"
    harness.do(HeartbeatReceived(4200.0, "w", kv_cache_usage=0.1))
    assert harness.ask() is not None


def test_the_budget_bounds_the_groups_under_way() -> None:
    harness = SchedulingHarness()
    harness.train()
    harness.state.measures.reserve = 0.0
    asked = [harness.ask() for _ in range(100)]
    groups = {each.group_id for each in asked if each is not None}
    assert len(groups) == 6, "(max_staleness + 1) batches of 2 groups"
    assert asked[-1] is None


@pytest.mark.parametrize(("max_staleness", "groups"), [(0, 0), (1, 2), (2, 2)])
def test_desktops_fill_the_next_batch_while_the_trainer_has_one(max_staleness: int, groups: int) -> None:
    """However large the reserve, unless the policy must be trained on its newest tokens only."""
    harness = SchedulingHarness(batch={"min_groups": 2, "max_groups": 2, "max_staleness": max_staleness})
    harness.train()
    for _ in range(2):
        harness.group()
    harness.batch()
    for _ in range(30):
        harness.state.measures.add_batch(1.0, largest_reserve(max_staleness, 0.0))
    harness.state.measures.useful_fraction = 1.0
    asked = [harness.ask() for _ in range(20)]
    assert len({each.group_id for each in asked if each is not None}) == groups
