"""A batch that cannot be trained on: its culprits are set aside, the rest is issued again, and failures in a row are counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from data_manager_harness import DataManagerHarness
from sqlalchemy import event, func, select

from dart_agent.data_client.wire import Batch, BatchFailure, BatchReport, DataManagerStats, StepReference
from dart_agent.errors import StoreError
from dart_train.data_manager.store.models import BatchMemberTable, EventTable, QuarantinedStepTable

MIXED = [1.0, 0.0, 0.0, 0.0]


def fail(harness: DataManagerHarness, batch: Batch, *rows: int) -> int:
    culprits = [StepReference(rollout_id=batch.rows[row].rollout_id, index=batch.rows[row].step.index) for row in rows]
    return harness.manager.batch_failed(
        batch.batch_id, BatchFailure(cause="image 1234 cannot be read", culprits=culprits)
    )


def keys(batch: Batch) -> set[tuple[str, int]]:
    return {(row.rollout_id, row.step.index) for row in batch.rows}


def test_the_rest_of_a_failed_batch_is_issued_again(harness: DataManagerHarness) -> None:
    harness.phase()
    groups = {harness.group(MIXED), harness.group(MIXED)}
    first = harness.must_batch()
    assert fail(harness, first, 0, 5) == 1
    again = harness.must_batch()
    assert again.batch_id != first.batch_id
    assert {group.group_id for group in again.groups} == groups
    assert keys(again) == keys(first) - {(first.rows[row].rollout_id, first.rows[row].step.index) for row in (0, 5)}
    assert again.excluded_steps == {"quarantined": 2}
    assert sum(len(group.members) for group in again.groups) == 8, "all members stay in the baseline"


def test_quarantine_is_state_and_event_and_survives_a_restart(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED)
    harness.group(MIXED)
    first = harness.must_batch()
    fail(harness, first, 3)
    harness.restart()
    assert len(harness.must_batch().rows) == len(first.rows) - 1
    with harness.store.begin() as session:
        (row,) = session.scalars(select(QuarantinedStepTable)).all()
        assert (row.rollout_id, row.index) == (first.rows[3].rollout_id, first.rows[3].step.index)
        assert (row.batch_id, row.cause) == (first.batch_id, "image 1234 cannot be read")
        (failed,) = session.scalars(select(EventTable).where(EventTable.kind == "batch_failed")).all()
        assert failed.data == {
            "batch_id": first.batch_id,
            "cause": "image 1234 cannot be read",
            "quarantined": [[row.rollout_id, row.index]],
        }
        marked = select(BatchMemberTable).where(BatchMemberTable.batch_id == first.batch_id)
        assert [member.reason for member in session.scalars(marked) if member.reason] == ["quarantined"]


def test_without_culprits_all_of_the_batch_is_set_aside(harness: DataManagerHarness) -> None:
    harness.phase()
    groups = [harness.group(MIXED), harness.group(MIXED)]
    assert fail(harness, harness.must_batch()) == 1
    assert harness.batch() is None
    assert {harness.state_of(group) for group in groups} == {("dropped", "quarantined")}
    fresh = {harness.group(MIXED), harness.group(MIXED)}
    assert {group.group_id for group in harness.must_batch().groups} == fresh


def test_setting_a_large_batch_aside_takes_few_statements(harness: DataManagerHarness) -> None:
    harness.phase()
    for _ in range(2):
        harness.group(MIXED, steps=250)
    batch = harness.must_batch()
    assert len(batch.rows) == 2000
    statements: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    event.listen(harness.store.engine, "before_cursor_execute", record)
    try:
        fail(harness, batch)
    finally:
        event.remove(harness.store.engine, "before_cursor_execute", record)
    assert len(statements) < 30, Counter(statements).most_common(3)
    with harness.store.begin() as session:
        assert session.scalar(select(func.count()).select_from(QuarantinedStepTable)) == 2000
        assert set(session.scalars(select(BatchMemberTable.reason))) == {"quarantined"}


def test_a_group_of_which_nothing_is_left_is_dropped(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED)
    harness.group(MIXED)
    batch = harness.must_batch()
    gone = batch.rows[0].group_id
    fail(harness, batch, *(row for row, each in enumerate(batch.rows) if each.group_id == gone))
    assert harness.batch() is None
    assert harness.state_of(gone) == ("dropped", "quarantined")


def test_failures_in_a_row_are_counted_until_a_batch_succeeds(harness: DataManagerHarness) -> None:
    harness.phase()
    for _ in range(3):
        harness.group(MIXED)
    batch = harness.must_batch()
    assert fail(harness, batch, 0) == 1
    assert fail(harness, batch, 0) == 1, "a repeated report counts once"
    assert fail(harness, harness.must_batch(), 0) == 2
    good = harness.must_batch()
    harness.manager.batch_done(good.batch_id, BatchReport(version=1))
    with pytest.raises(StoreError, match="was trained on"):
        fail(harness, good, 0)
    harness.group(MIXED)
    harness.group(MIXED)
    assert fail(harness, harness.must_batch(), 0) == 1


def test_the_counts_of_groups_and_batches_are_those_of_the_database(harness: DataManagerHarness) -> None:
    harness.phase()

    def counted() -> DataManagerStats:
        kept = harness.manager.stats()
        harness.restart()
        anew = harness.manager.stats()
        for name in ("groups", "dropped_groups", "batches", "rows_used", "rows_excluded", "curation"):
            assert getattr(anew, name) == getattr(kept, name)
        return kept

    harness.group([1.0] * 4)
    harness.group(MIXED)
    harness.group(MIXED)
    harness.must_acquire()
    assert counted().groups == {"dropped": 1, "ready": 2, "open": 1}
    batch = harness.must_batch()
    stats = counted()
    assert (stats.groups, stats.batches) == ({"dropped": 1, "issued": 2, "open": 1}, {"issued": 1})
    fail(harness, batch, *(row for row, each in enumerate(batch.rows) if each.group_id == batch.rows[0].group_id))
    assert counted().batches == {"failed": 1}
    assert harness.batch() is None
    stats = counted()
    assert (stats.groups, stats.dropped_groups) == (
        {"dropped": 2, "ready": 1, "open": 1},
        {"all_succeeded": 1, "quarantined": 1},
    )
    harness.report(harness.must_acquire(), 0.0)
    for reward in (1.0, 0.0):
        harness.report(harness.must_acquire(), reward)
    counted()


def test_a_culprit_that_is_not_in_the_batch_is_refused(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.group(MIXED)
    harness.group(MIXED)
    batch = harness.must_batch()
    stranger = BatchFailure(cause="?", culprits=[StepReference(rollout_id="roll_x", index=0)])
    with pytest.raises(StoreError, match="step 0 of rollout roll_x is not in batch"):
        harness.manager.batch_failed(batch.batch_id, stranger)
    with pytest.raises(StoreError, match="there is no batch"):
        harness.manager.batch_failed("batch_x", stranger)
