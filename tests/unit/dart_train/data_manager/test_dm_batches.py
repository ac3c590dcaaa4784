"""Batches: informative groups once each, stale tokens out, everything accounted for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from data_manager_harness import SPANS, DataManagerHarness
from sqlalchemy import select

from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.data_client.payloads import TrajectoryPayload
from dart_agent.data_client.wire import Batch, BatchReport, BatchRow, EpisodeCounts, StepUse, TaskSelection
from dart_agent.errors import StoreError
from dart_agent.types import PointedTarget, Purpose, StepRecord, VersionSpan
from dart_train.data_manager.store.models import BatchMemberTable, TrajectoryTable

MIXED = [1.0, 0.0, 0.0, 0.0]


def use_of(row: BatchRow, reason: str | None = None, advantage: float = 0.5) -> StepUse:
    return StepUse(
        group_id=row.group_id, rollout_id=row.rollout_id, index=row.step.index, advantage=advantage, reason=reason
    )


def test_no_batch_before_enough_groups(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED)
    reply = harness.manager.next_batch(0)
    assert reply.batch is None
    assert reply.training_active


def test_groups_without_variance_never_reach_a_batch(harness: DataManagerHarness) -> None:
    harness.phase()
    failed, solved = harness.group([0.0] * 4), harness.group([1.0] * 4)
    used = [harness.group(MIXED), harness.group(MIXED)]
    batch = harness.must_batch()
    assert {group.group_id for group in batch.groups} == set(used)
    assert harness.state_of(failed) == ("dropped", "all_failed")
    assert harness.state_of(solved) == ("dropped", "all_succeeded")


def rewards_of(batch: Batch) -> tuple[int, float]:
    """Number and sum of all stored rewards that a batch tells."""
    stored = batch.stored_rewards.values()
    return sum(each.rollouts for each in stored), sum(each.reward_sum for each in stored)


def test_a_batch_tells_the_rewards_of_all_that_was_stored_since_the_one_before(harness: DataManagerHarness) -> None:
    """Of groups that cannot train, too: the members of a batch say little about how well the policy does."""
    harness.phase()
    for rewards in ([0.0] * 4, MIXED, [1.0, None, 0.5, None], MIXED):
        harness.group(rewards)
    first = harness.must_batch()
    assert rewards_of(first) == (14, 3.5)
    harness.restart()
    assert harness.must_batch().stored_rewards == first.stored_rewards, "the same when it is given again"
    harness.now_s += 1.0
    for rewards in ([1.0] * 4, MIXED, MIXED):
        harness.group(rewards)
    harness.manager.batch_done(first.batch_id, BatchReport(version=1))
    second = harness.must_batch(1)
    assert rewards_of(second) == (12, 6.0)
    assert all(each.rollouts % 4 == 0 for each in second.stored_rewards.values()), "a group is of one family"


def test_a_group_closes_with_fewer_members_when_some_are_masked(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group([1.0, None, 0.0, None])
    lonely = harness.group([1.0, None, None, None])
    harness.group(MIXED)
    sizes = sorted(len(group.members) for group in harness.must_batch().groups)
    assert sizes == [2, 4]
    assert harness.state_of(lonely) == ("dropped", "too_few_members")


def test_oldest_groups_go_first_up_to_the_limit(harness: DataManagerHarness) -> None:
    harness.phase()
    groups = [harness.group(MIXED) for _ in range(5)]
    assert {group.group_id for group in harness.must_batch().groups} == set(groups[:3])


def test_an_unfinished_batch_is_given_again_then_never_more(harness: DataManagerHarness) -> None:
    harness.phase()
    groups = [harness.group(MIXED) for _ in range(2)]
    first = harness.must_batch()
    harness.restart()
    assert harness.must_batch() == first
    assert harness.manager.batch_done(first.batch_id, BatchReport(version=1, metrics={"loss": 0.5})) == 1
    assert harness.manager.batch_done(first.batch_id, BatchReport(version=1)) == 0
    assert harness.batch(1) is None
    assert {harness.state_of(group)[0] for group in groups} == {"used"}


def test_what_is_reported_first_after_a_restart_counts_once(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED)
    items = [harness.must_acquire() for _ in MIXED]
    for item, reward in zip(items[1:], MIXED[1:], strict=True):
        harness.report(item, reward)
    harness.restart()
    harness.report(items[0], MIXED[0])
    assert harness.manager.stats().trajectories == 8
    batch = harness.must_batch()
    assert [len(group.members) for group in batch.groups] == [4, 4]
    harness.restart()
    harness.manager.batch_done(batch.batch_id, BatchReport(version=1))
    assert harness.manager.stats().rows_used == 16


def test_points_of_an_action_head_reach_the_batch(harness: DataManagerHarness) -> None:
    harness.phase()
    pointed: dict[tuple[str, int], tuple[PointedTarget, ...]] = {}
    for number, reward in enumerate(2 * MIXED):
        item = harness.must_acquire()
        trajectory, _ = fake_trajectory(item, reward=reward)
        found = PointedTarget("click the bin", number, 3, -1.25 - number, (0.5, 20.25))
        steps = tuple(_pointed(step, (found,) * step.index, version=0) for step in trajectory.steps_S)
        pointed |= {(item.rollout_id, step.index): step.pointers for step in steps}
        harness.manager.report(TrajectoryPayload.from_value(replace(trajectory, steps_S=steps)))
    harness.restart()
    batch = Batch.model_validate_json(harness.must_batch().model_dump_json())
    assert {(row.rollout_id, row.step.index): row.step.to_value().pointers for row in batch.rows} == pointed
    assert {row.trainable == [(0, 4 + row.step.index)] for row in batch.rows} == {True}


def test_the_gate_withholds_points_of_an_old_version_and_keeps_their_tokens(harness: DataManagerHarness) -> None:
    harness.phase()
    target = PointedTarget("click the bin", 1, 3, -1.25, (0.5, 20.25))
    for number, reward in enumerate(2 * MIXED):
        trajectory, _ = fake_trajectory(harness.must_acquire(), reward=reward, version=3, steps=1)
        steps = tuple(_pointed(step, (target,), version=3 * (number % 2)) for step in trajectory.steps_S)
        harness.manager.report(TrajectoryPayload.from_value(replace(trajectory, steps_S=steps)))
    ranges = Counter(tuple(row.trainable) for row in harness.must_batch(version=3).rows)
    assert ranges == {((0, 4),): 4, ((0, 5),): 4}


def test_a_point_without_a_version_is_refused(harness: DataManagerHarness) -> None:
    harness.phase()
    trajectory, _ = fake_trajectory(harness.must_acquire(), reward=1.0, steps=1)
    target = PointedTarget("click the bin", 1, 3, -1.25, (0.5, 20.25))
    steps = tuple(replace(step, pointers=(target,)) for step in trajectory.steps_S)
    with pytest.raises(StoreError, match="version spans cover 4 positions of 4 tokens and 1 targets"):
        harness.manager.report(TrajectoryPayload.from_value(replace(trajectory, steps_S=steps)))


def _pointed(step: StepRecord, targets: tuple[PointedTarget, ...], *, version: int) -> StepRecord:
    begin = len(step.token_ids_T)
    span = (VersionSpan(version, begin, begin + len(targets)),) if targets else ()
    return replace(step, pointers=targets, version_spans=(*step.version_spans, *span))


def test_staleness_withholds_tokens_then_steps_then_groups(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED, spans=SPANS)  # two tokens by version 0, two by version 3
    harness.group(MIXED, version=3)
    batch = harness.must_batch(version=3)
    ranges = {row.group_id: row.trainable for row in batch.rows}
    assert sorted(ranges.values()) == [[(0, 4)], [(2, 4)]]
    assert batch.staleness_max == 0
    assert len(batch.rows) == 16


def test_stale_groups_are_dropped_and_named(harness: DataManagerHarness) -> None:
    harness.phase()
    old = harness.group(MIXED, version=0)
    fresh = [harness.group(MIXED, version=3) for _ in range(2)]
    batch = harness.must_batch(version=3)
    assert {group.group_id for group in batch.groups} == set(fresh)
    assert harness.state_of(old) == ("dropped", "stale")


def test_staleness_is_measured_over_what_trains(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED, version=1)
    harness.group(MIXED, version=3)
    batch = harness.must_batch(version=3)
    assert (batch.staleness_mean, batch.staleness_max) == (1.0, 2)


def test_withheld_steps_keep_their_trajectory_in_the_baseline(harness: DataManagerHarness) -> None:
    harness.phase()
    items = [harness.must_acquire() for _ in range(4)]
    for item, reward, version in zip(items, MIXED, [0, 3, 3, 3], strict=True):
        harness.report(item, reward, version=version)
    harness.group(MIXED, version=3)
    batch = harness.must_batch(version=3)
    group = next(group for group in batch.groups if group.group_id == items[0].group_id)
    assert sorted(member.reward for member in group.members) == [0, 0, 0, 1]
    assert items[0].rollout_id not in {row.rollout_id for row in batch.rows}
    assert batch.excluded_steps == {"stale": 2}


def test_an_episode_without_steps_counts_in_the_baseline_only(harness: DataManagerHarness) -> None:
    harness.phase()
    items = [harness.must_acquire() for _ in range(4)]
    for item, reward in zip(items, MIXED, strict=True):
        harness.report(item, reward, steps=2 if reward else 0)
    harness.group(MIXED)
    batch = harness.must_batch()
    group = next(group for group in batch.groups if group.group_id == items[0].group_id)
    assert len(group.members) == 4
    assert batch.excluded_steps == {"no_steps": 3}


def test_a_batch_says_when_its_trajectories_ended(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED)
    harness.group(MIXED)
    with harness.store.begin() as session:
        stored_s = dict(session.execute(select(TrajectoryTable.rollout_id, TrajectoryTable.stored_s)).all())
    members = [member for group in harness.must_batch().groups for member in group.members]
    assert {member.rollout_id: member.ended_s for member in members} == stored_s


def test_every_step_of_a_batch_has_a_reason_or_was_used(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED)
    harness.group(MIXED)
    batch = harness.must_batch()
    left_out = batch.rows[0]
    harness.manager.batch_done(batch.batch_id, BatchReport(version=1, steps=[use_of(left_out, "low_entropy")]))
    with harness.store.begin() as session:
        reasons = session.scalars(select(BatchMemberTable.reason)).all()
    assert sorted(str(reason) for reason in reasons) == ["None"] * 15 + ["low_entropy"]
    assert harness.manager.stats().rows_excluded == {"low_entropy": 1}


def test_what_token_selection_left_is_recorded(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED)
    harness.group(MIXED)
    batch = harness.must_batch()
    narrowed, whole, dropped = batch.rows[:3]
    uses = [
        use_of(narrowed).model_copy(update={"trained": [(1, 2), (3, 4)]}),
        use_of(whole),
        use_of(dropped, "low_entropy_tokens"),
    ]
    harness.manager.batch_done(batch.batch_id, BatchReport(version=1, steps=uses))
    with harness.store.begin() as session:
        rows = session.scalars(select(BatchMemberTable).where(BatchMemberTable.batch_id == batch.batch_id)).all()
        found = {(row.rollout_id, row.index): (row.trainable, row.reason) for row in rows}
    assert found[(narrowed.rollout_id, narrowed.step.index)] == ([[1, 2], [3, 4]], None)
    assert found[(whole.rollout_id, whole.step.index)] == ([[0, 4]], None)
    assert found[(dropped.rollout_id, dropped.step.index)] == ([[0, 4]], "low_entropy_tokens")


def test_a_step_without_logprobs_says_so(harness: DataManagerHarness) -> None:
    harness.phase()
    items = [harness.must_acquire() for _ in MIXED]
    for item, reward in zip(items, MIXED, strict=True):
        trajectory, _ = fake_trajectory(item, reward=reward)
        first, *others = trajectory.steps_S
        steps = (replace(first, logprobs_T=()), *others)
        harness.manager.report(TrajectoryPayload.from_value(replace(trajectory, steps_S=steps)))
    harness.group(MIXED)
    assert harness.must_batch().excluded_steps == {"no_logprobs": 4}


def test_success_pool_rescues_a_hopeless_group(tmp_path: Path) -> None:
    harness = DataManagerHarness(
        tmp_path,
        batch={"min_groups": 1, "max_groups": 1, "max_staleness": 1},
        curation={"experience_pool": {"enabled": True, "max_age": 5}},
    )
    harness.phase(select=None, task_ids=["s/tick/1"])
    harness.group(MIXED, version=0)
    first = harness.must_batch(0)
    harness.manager.batch_done(first.batch_id, BatchReport(version=1))
    success = next(member.rollout_id for member in first.groups[0].members if member.reward == 1)
    hopeless = harness.group([0.0] * 4, version=4)
    batch = harness.must_batch(4)
    assert batch.groups[0].group_id == hopeless
    sources = sorted((member.source, member.reward) for member in batch.groups[0].members)
    assert sources == [("fresh", 0), ("fresh", 0), ("fresh", 0), ("pool", 1)]
    assert success in {row.rollout_id for row in batch.rows}
    harness.manager.batch_done(batch.batch_id, BatchReport(version=7))
    late = harness.group([0.0] * 4, version=7)
    assert harness.batch(7) is None
    assert harness.state_of(late) == ("dropped", "all_failed")
    harness.store.close()


def test_a_pooled_success_leaves_out_a_step_in_one_group_only_and_displaces_a_member(tmp_path: Path) -> None:
    harness = DataManagerHarness(
        tmp_path,
        batch={"min_groups": 1, "max_groups": 1, "max_staleness": 9},
        curation={"experience_pool": {"enabled": True, "max_age": 9}},
    )
    harness.phase(select=None, task_ids=["s/tick/1"])
    harness.group(MIXED)
    harness.manager.batch_done(harness.must_batch().batch_id, BatchReport(version=1))
    hopeless = harness.group([0.0] * 4)
    batch = harness.must_batch(1)
    assert len(batch.groups[0].members) == 4
    assert batch.excluded_steps == {"displaced_by_pool": 2}
    harness.restart()
    assert harness.must_batch(1) == batch
    pooled = next(row for row in batch.rows if row.rollout_id in _pooled(batch))
    elsewhere = use_of(pooled, "low_entropy").model_copy(update={"group_id": "grp_other"})
    uses = [*(use_of(row, advantage=-0.25) for row in batch.rows), elsewhere]
    harness.manager.batch_done(batch.batch_id, BatchReport(version=2, steps=uses))
    with harness.store.begin() as session:
        rows = session.scalars(select(BatchMemberTable).where(BatchMemberTable.group_id == hopeless)).all()
        found = sorted((row.source, str(row.reason), row.advantage or 0.0) for row in rows)
    assert found == [
        *[("displaced", "displaced_by_pool", 0.0)] * 2,
        *[("fresh", "None", -0.25)] * 6,
        *[("pool", "None", -0.25)] * 2,
    ]
    assert harness.manager.stats().rows_excluded == {"displaced_by_pool": 2}
    harness.store.close()


def _pooled(batch: Batch) -> set[str]:
    return {member.rollout_id for group in batch.groups for member in group.members if member.source == "pool"}


def test_only_training_rollouts_reach_a_batch(harness: DataManagerHarness) -> None:
    for purpose in (Purpose.DEMO, Purpose.EVAL):
        harness.phase(purpose.value, purpose=purpose, endless=False, rollouts_per_task=2)
        while (item := harness.acquire()) is not None:
            harness.report(item, float(len(item.rollout_id + item.task_id) % 2 or harness.requests % 2))
    reply = harness.manager.next_batch(0)
    assert reply.batch is None
    assert not reply.training_active


def test_training_ends_with_its_phase_but_not_before_what_runs(harness: DataManagerHarness) -> None:
    harness.phase(select=TaskSelection(suite="s", split="train", families=["tick"]))
    running = harness.must_acquire()
    harness.manager.stop_phase("train")
    assert harness.manager.next_batch(0).training_active
    harness.report(running)
    assert not harness.manager.next_batch(0).training_active


def test_masked_episodes_are_counted_by_version_and_family(harness: DataManagerHarness) -> None:
    assert harness.manager.stats().episode_counts == EpisodeCounts(episodes=0, masked=0)
    harness.phase(select=TaskSelection(suite="s", split="train", families=["tick"]))
    harness.group([1.0, None, 0.0, 0.0], version=2)
    harness.phase("demo", purpose=Purpose.DEMO, endless=False, rollouts_per_task=1)
    harness.report(harness.must_acquire(), None)
    stats = harness.manager.stats()
    assert stats.episode_counts == EpisodeCounts(episodes=4, masked=1)
    assert stats.episode_counts.masked_fraction == 0.25
    assert stats.episode_counts_by_version == {2: stats.episode_counts}
    assert stats.episode_counts_by_family == {"tick": stats.episode_counts}
    assert stats.last_masked_cause == "farm_fault (fake fault)"
    assert stats.success_rate == {"tick": 1 / 3}


def test_the_most_episodes_at_once_are_those_that_overlap(harness: DataManagerHarness) -> None:
    assert harness.manager.stats().max_concurrent_episodes == 0
    harness.phase(select=TaskSelection(suite="s", split="train", families=["tick"]))
    for started_at_s, duration_s in ((0.0, 4.0), (1.0, 1.0), (2.0, 1.0), (4.0, 1.0)):
        harness.report(harness.must_acquire(), started_at_s=started_at_s, duration_s=duration_s)
    assert harness.manager.stats().max_concurrent_episodes == 2
