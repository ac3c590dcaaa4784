"""Batches: informative groups once each, stale tokens out, everything accounted for."""

from __future__ import annotations

from pathlib import Path

from dm_bench import SPANS, Bench
from sqlalchemy import select

from dart_agent.store.models import BatchMemberTable
from dart_agent.store.wire import BatchReport, FaultTally, TaskSelection, UnusedStep
from dart_agent.types import Purpose

MIXED = [1.0, 0.0, 0.0, 0.0]


def test_no_batch_before_enough_groups(bench: Bench) -> None:
    bench.phase()
    bench.group(MIXED)
    reply = bench.manager.next_batch(0)
    assert reply.batch is None
    assert reply.training


def test_groups_without_variance_never_reach_a_batch(bench: Bench) -> None:
    bench.phase()
    failed, solved = bench.group([0.0] * 4), bench.group([1.0] * 4)
    used = [bench.group(MIXED), bench.group(MIXED)]
    batch = bench.must_batch()
    assert {group.group_id for group in batch.groups} == set(used)
    assert bench.state_of(failed) == ("dropped", "all_failed")
    assert bench.state_of(solved) == ("dropped", "all_succeeded")


def test_a_group_closes_with_fewer_members_when_some_are_masked(bench: Bench) -> None:
    bench.phase()
    bench.group([1.0, None, 0.0, None])
    lonely = bench.group([1.0, None, None, None])
    bench.group(MIXED)
    sizes = sorted(len(group.members) for group in bench.must_batch().groups)
    assert sizes == [2, 4]
    assert bench.state_of(lonely) == ("dropped", "too_few_members")


def test_oldest_groups_go_first_up_to_the_limit(bench: Bench) -> None:
    bench.phase()
    groups = [bench.group(MIXED) for _ in range(5)]
    assert {group.group_id for group in bench.must_batch().groups} == set(groups[:3])


def test_an_unfinished_batch_is_given_again_then_never_more(bench: Bench) -> None:
    bench.phase()
    groups = [bench.group(MIXED) for _ in range(2)]
    first = bench.must_batch()
    bench.restart()
    assert bench.must_batch() == first
    assert bench.manager.batch_done(first.batch_id, BatchReport(version=1, metrics={"loss": 0.5})) == 1
    assert bench.manager.batch_done(first.batch_id, BatchReport(version=1)) == 0
    assert bench.batch(1) is None
    assert {bench.state_of(group)[0] for group in groups} == {"used"}


def test_staleness_withholds_tokens_then_steps_then_groups(bench: Bench) -> None:
    bench.phase()
    bench.group(MIXED, spans=SPANS)  # two tokens by version 0, two by version 3
    bench.group(MIXED, version=3)
    batch = bench.must_batch(version=3)
    ranges = {row.group_id: row.trainable for row in batch.rows}
    assert sorted(ranges.values()) == [[(0, 4)], [(2, 4)]]
    assert batch.staleness_max == 0
    assert len(batch.rows) == 16


def test_stale_groups_are_dropped_and_named(bench: Bench) -> None:
    bench.phase()
    old = bench.group(MIXED, version=0)
    fresh = [bench.group(MIXED, version=3) for _ in range(2)]
    batch = bench.must_batch(version=3)
    assert {group.group_id for group in batch.groups} == set(fresh)
    assert bench.state_of(old) == ("dropped", "stale")


def test_staleness_is_measured_over_what_trains(bench: Bench) -> None:
    bench.phase()
    bench.group(MIXED, version=1)
    bench.group(MIXED, version=3)
    batch = bench.must_batch(version=3)
    assert (batch.staleness_mean, batch.staleness_max) == (1.0, 2)


def test_withheld_steps_keep_their_trajectory_in_the_baseline(bench: Bench) -> None:
    bench.phase()
    items = [bench.must_claim() for _ in range(4)]
    for item, reward, version in zip(items, MIXED, [0, 3, 3, 3], strict=True):
        bench.report(item, reward, version=version)
    bench.group(MIXED, version=3)
    batch = bench.must_batch(version=3)
    group = next(group for group in batch.groups if group.group_id == items[0].group_id)
    assert sorted(member.reward for member in group.members) == [0, 0, 0, 1]
    assert items[0].rollout_id not in {row.rollout_id for row in batch.rows}
    assert batch.withheld == {"stale": 2}


def test_an_episode_without_steps_counts_in_the_baseline_only(bench: Bench) -> None:
    bench.phase()
    items = [bench.must_claim() for _ in range(4)]
    for item, reward in zip(items, MIXED, strict=True):
        bench.report(item, reward, steps=2 if reward else 0)
    bench.group(MIXED)
    batch = bench.must_batch()
    group = next(group for group in batch.groups if group.group_id == items[0].group_id)
    assert len(group.members) == 4
    assert batch.withheld == {"no_steps": 3}


def test_every_step_of_a_batch_has_a_reason_or_was_used(bench: Bench) -> None:
    bench.phase()
    bench.group(MIXED)
    bench.group(MIXED)
    batch = bench.must_batch()
    left_out = batch.rows[0]
    unused = [UnusedStep(rollout_id=left_out.rollout_id, index=left_out.step.index, reason="low_entropy")]
    bench.manager.batch_done(batch.batch_id, BatchReport(version=1, unused=unused))
    with bench.store.begin() as session:
        reasons = session.scalars(select(BatchMemberTable.reason)).all()
    assert sorted(str(reason) for reason in reasons) == ["None"] * 15 + ["low_entropy"]
    assert bench.manager.stats().rows_withheld == {"low_entropy": 1}


def test_success_pool_rescues_a_hopeless_group(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        batch={"min_groups": 1, "max_groups": 1, "max_staleness": 1},
        curation={"success_pool": {"enabled": True, "max_age": 5}},
    )
    bench.phase(select=None, task_ids=["s/tick/1"])
    bench.group(MIXED, version=0)
    first = bench.must_batch(0)
    bench.manager.batch_done(first.batch_id, BatchReport(version=1))
    success = next(member.rollout_id for member in first.groups[0].members if member.reward == 1)
    hopeless = bench.group([0.0] * 4, version=4)
    batch = bench.must_batch(4)
    assert batch.groups[0].group_id == hopeless
    sources = sorted((member.source, member.reward) for member in batch.groups[0].members)
    assert sources == [("fresh", 0), ("fresh", 0), ("fresh", 0), ("pool", 1)]
    assert success in {row.rollout_id for row in batch.rows}
    bench.manager.batch_done(batch.batch_id, BatchReport(version=7))
    late = bench.group([0.0] * 4, version=7)
    assert bench.batch(7) is None
    assert bench.state_of(late) == ("dropped", "all_failed")
    bench.store.close()


def test_only_training_rollouts_reach_a_batch(bench: Bench) -> None:
    for purpose in (Purpose.DEMO, Purpose.EVAL):
        bench.phase(purpose.value, purpose=purpose, endless=False, rollouts_per_task=2)
        while (item := bench.claim()) is not None:
            bench.report(item, float(len(item.rollout_id + item.task_id) % 2 or bench.requests % 2))
    reply = bench.manager.next_batch(0)
    assert reply.batch is None
    assert not reply.training


def test_training_ends_with_its_phase_but_not_before_what_runs(bench: Bench) -> None:
    bench.phase(select=TaskSelection(suite="s", split="train", families=["tick"]))
    running = bench.must_claim()
    bench.manager.stop_phase("train")
    assert bench.manager.next_batch(0).training
    bench.report(running)
    assert not bench.manager.next_batch(0).training


def test_masked_episodes_are_counted_by_version_and_family(bench: Bench) -> None:
    assert bench.manager.stats().played == FaultTally(episodes=0, masked=0)
    bench.phase(select=TaskSelection(suite="s", split="train", families=["tick"]))
    bench.group([1.0, None, 0.0, 0.0], version=2)
    bench.phase("demo", purpose=Purpose.DEMO, endless=False, rollouts_per_task=1)
    bench.report(bench.must_claim(), None)
    stats = bench.manager.stats()
    assert stats.played == FaultTally(episodes=4, masked=1)
    assert stats.played.share == 0.25
    assert stats.played_by_version == {2: stats.played}
    assert stats.played_by_family == {"tick": stats.played}
    assert stats.last_fault == "farm_fault (fake fault)"
    assert stats.success_rate == {"tick": 1 / 3}


def test_the_most_episodes_at_once_are_those_that_overlap(bench: Bench) -> None:
    assert bench.manager.stats().most_at_once == 0
    bench.phase(select=TaskSelection(suite="s", split="train", families=["tick"]))
    for started_at_s, duration_s in ((0.0, 4.0), (1.0, 1.0), (2.0, 1.0), (4.0, 1.0)):
        bench.report(bench.must_claim(), started_at_s=started_at_s, duration_s=duration_s)
    assert bench.manager.stats().most_at_once == 2
