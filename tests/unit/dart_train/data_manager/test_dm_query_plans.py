"""Hot calls read by key: no statement that they issue scans a table that grows with the run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from data_manager_harness import DataManagerHarness
from sqlalchemy import event, text

from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.data_client.payloads import TrajectoryPayload, stream_payloads
from dart_agent.data_client.wire import BatchReport, ParkRequest, StoreStepRequest, TaskSelection, VersionRecord
from dart_agent.rollouts.episode_state import EpisodeState
from dart_agent.types import Purpose
from dart_train.data_manager.store.models import StoreBase

FEW_ROWS = {"phases", "versions", "tasks", "obsolete_snapshots"}
"""Tables that do not grow with episodes: one row per phase, update, and task; snapshots until a worker has deleted them."""
GROWING = {table.name for table in StoreBase.metadata.sorted_tables} - FEW_ROWS


@contextmanager
def recorded_statements(harness: DataManagerHarness) -> Iterator[dict[str, Any]]:
    """Every statement with the parameters of its first use."""
    seen: dict[str, Any] = {}

    def record(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        seen.setdefault(statement, parameters[0] if many else parameters)

    engine = harness.store.engine
    event.listen(engine, "before_cursor_execute", record)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", record)


def scans(harness: DataManagerHarness, statements: dict[str, Any]) -> list[str]:
    """Statements that scan a growing table, or all of its rows of a purpose, with their plan."""
    found = []
    with harness.store.engine.connect() as connection:
        for statement, parameters in statements.items():
            if statement.startswith("EXPLAIN"):
                continue
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            for row in plan:
                scanned = re.match(r"SCAN (\w+)", row[3]) or re.match(r"SEARCH (\w+) .*\(purpose=\?\)", row[3])
                if scanned is not None and scanned[1] in GROWING:
                    found.append(f"{row[3]}: {statement}")
    return found


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[DataManagerHarness]:
    """On SQLite, which tells its plans."""
    made = DataManagerHarness(tmp_path, batch={"min_groups": 2, "max_groups": 3, "max_staleness": 2})
    yield made
    made.store.close()


def test_hot_calls_scan_no_table_that_grows(harness: DataManagerHarness) -> None:
    harness.phase()
    harness.phase("eval", purpose=Purpose.EVAL, select=TaskSelection(suite="s", split="test"), endless=False)
    harness.must_acquire()
    with recorded_statements(harness) as statements:
        for version in range(4):
            for number in range(12):
                item = harness.must_acquire(f"w{number % 2}")
                trajectory, _ = fake_trajectory(item, reward=float(number % 2), version=version)
                step = stream_payloads(trajectory.steps_S)[0]
                state = EpisodeState(worker=f"w{number % 2}", process="p", started_at_s=0, elapsed_s=1, reset_s=0)
                harness.manager.store_step(
                    StoreStepRequest(rollout_id=item.rollout_id, assignment=item.assignment, step=step, state=state)
                )
                if number == 5:
                    harness.manager.park(
                        ParkRequest(rollout_id=item.rollout_id, assignment=item.assignment, state=state)
                    )
                elif number == 6:
                    harness.abandon(item)
                else:
                    harness.manager.report(TrajectoryPayload.from_value(trajectory))
                harness.manager.heartbeat(state.worker)
                harness.manager.phase("train")
                harness.manager.stats()
            batch = harness.batch(version)
            if batch is not None:
                harness.manager.publish(VersionRecord(version=version + 1, path=f"fake/{version}"))
                harness.manager.batch_done(batch.batch_id, BatchReport(version=version + 1))
        harness.manager.release("w0")
    assert any("INSERT INTO batch_members" in statement for statement in statements), "a batch was formed"
    assert any("trajectories.stored_s >" in statement for statement in statements), "another one was formed after it"
    assert scans(harness, statements) == []


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM rollouts WHERE attempt = 1",
        "SELECT * FROM trajectories WHERE purpose = 'train' AND stop = 'done'",
    ],
    ids=["of the table", "of a purpose"],
)
def test_a_scan_would_be_found(harness: DataManagerHarness, statement: str) -> None:
    with recorded_statements(harness) as statements, harness.store.engine.connect() as connection:
        connection.execute(text(statement))
    assert len(scans(harness, statements)) == 1
