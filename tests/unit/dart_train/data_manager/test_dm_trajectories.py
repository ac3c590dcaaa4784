"""The trajectory database: appends once, gates splits, survives reopening."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import inspect, select

from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.payloads import TrajectoryPayload
from dart_agent.data_client.wire import PhaseSpec
from dart_agent.errors import StoreError
from dart_agent.types import Purpose, VersionSpan, WorkItem
from dart_train.data_manager.catalog import task_family
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.scheduler import Scheduler
from dart_train.data_manager.store.database import open_engine
from dart_train.data_manager.store.models import RolloutTable, StepTable, StoreBase, TrajectoryTable
from dart_train.data_manager.store.trajectories import TrajectoryStore, list_trajectories, read_trajectory
from dart_train.scheduling.events import WorkAsked

SPLITS = {"s/tick/1": "train", "s/tick/2": "validation", "s/tick/3": "test"}


@pytest.fixture
def store(database_url: str) -> Iterator[TrajectoryStore]:
    opened = TrajectoryStore.open(database_url, SPLITS.__getitem__, now=lambda: 100.0)
    yield opened
    opened.close()


def start(store: TrajectoryStore, task_id: str = "s/tick/1", purpose: Purpose = Purpose.TRAIN) -> WorkItem:
    spec = PhaseSpec(name="p", purpose=purpose, task_ids=[task_id], rollouts_per_task=2, max_steps=3)
    scheduler = scheduler_of(store)
    with scheduler.transaction() as session:
        scheduler.start_phase(session, spec, [task_id])
    return assign(scheduler, "request-1")


def scheduler_of(store: TrajectoryStore) -> Scheduler:
    unused = Path("unused")
    return Scheduler(store, ImageStore(unused), DataManagerConfig(database=unused, images=unused, socket=unused))


def assign(scheduler: Scheduler, request_id: str) -> WorkItem:
    with scheduler.transaction() as session:
        scheduler.handle(session, WorkAsked(scheduler.now_s(), "w1", request_id))
    item = scheduler.take_answers()[request_id].item
    assert item is not None
    return item.to_value()


def test_stored_trajectory_reads_back_equal(store: TrajectoryStore) -> None:
    trajectory, _ = fake_trajectory(
        start(store), image=fake_image(0), spans=[VersionSpan(1, 0, 2), VersionSpan(2, 2, 4)]
    )
    with store.begin() as session:
        assert store.add_trajectory(session, TrajectoryPayload.from_value(trajectory))
    with store.begin() as session:
        row = session.scalars(select(TrajectoryTable)).one()
        assert read_trajectory(session, row) == trajectory
        assert (row.family, row.version_min, row.version_max, row.stored_s) == ("tick", 1, 2, 100.0)


def test_second_report_of_a_rollout_changes_nothing(store: TrajectoryStore) -> None:
    item = start(store)
    with store.begin() as session:
        assert store.add_trajectory(session, TrajectoryPayload.from_value(fake_trajectory(item, reward=0.0)[0]))
    with store.begin() as session:
        assert not store.add_trajectory(session, TrajectoryPayload.from_value(fake_trajectory(item, reward=1.0)[0]))
        assert session.scalars(select(TrajectoryTable.reward)).all() == [0.0]


@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.DEMO])
@pytest.mark.parametrize("task_id", ["s/tick/2", "s/tick/3", "s/tick/unknown", "nonsense"])
def test_only_train_tasks_may_teach(store: TrajectoryStore, purpose: Purpose, task_id: str) -> None:
    with pytest.raises(StoreError, match=r"split|form"):
        start(store, task_id, purpose)
    with store.begin() as session:
        assert session.scalars(select(RolloutTable)).all() == []


@pytest.mark.parametrize("task_id", ["s/tick/1", "s/tick/2", "s/tick/3"])
def test_evaluation_may_run_any_known_task(store: TrajectoryStore, task_id: str) -> None:
    assert start(store, task_id, Purpose.EVAL).task_id == task_id


@pytest.mark.parametrize(
    "change", [{"purpose": Purpose.TRAIN}, {"task_id": "s/tick/1"}, {"group_id": "grp_x"}, {"phase": "other"}]
)
def test_a_trajectory_must_be_what_its_rollout_was(store: TrajectoryStore, change: dict[str, object]) -> None:
    trajectory, _ = fake_trajectory(start(store, "s/tick/3", Purpose.EVAL))
    with pytest.raises(StoreError, match="assigned with"), store.begin() as session:
        store.add_trajectory(session, TrajectoryPayload.from_value(replace(trajectory, **change)))


def test_a_rollout_that_was_never_handed_out_is_refused(store: TrajectoryStore) -> None:
    trajectory, _ = fake_trajectory(replace(start(store), rollout_id="roll_other"))
    with pytest.raises(StoreError, match="never assigned"), store.begin() as session:
        store.add_trajectory(session, TrajectoryPayload.from_value(trajectory))


def test_a_split_that_changes_after_the_fact_is_noticed(database_url: str) -> None:
    splits = {"s/tick/1": "train"}
    store = TrajectoryStore.open(database_url, splits.__getitem__)
    item = start(store)
    splits["s/tick/1"] = "test"
    with pytest.raises(StoreError, match="test split"), store.begin() as session:
        store.add_trajectory(session, TrajectoryPayload.from_value(fake_trajectory(item)[0]))
    store.close()


@pytest.mark.parametrize(
    "spans", [[VersionSpan(0, 1, 4)], [VersionSpan(0, 0, 3)], [VersionSpan(0, 0, 2), VersionSpan(1, 3, 4)]]
)
def test_version_spans_must_cover_the_tokens(store: TrajectoryStore, spans: list[VersionSpan]) -> None:
    trajectory, _ = fake_trajectory(start(store), spans=spans)
    with pytest.raises(StoreError, match="version spans"), store.begin() as session:
        store.add_trajectory(session, TrajectoryPayload.from_value(trajectory))
    with store.begin() as session:
        assert session.scalars(select(StepTable)).all() == []


@pytest.mark.parametrize(
    "logprobs", [(-1.0, -1.0), (-1.0, -1.0, float("nan"), -1.0), (-1.0, -1.0, -1.0, float("-inf"))]
)
def test_log_probs_must_be_finite_and_complete(store: TrajectoryStore, logprobs: tuple[float, ...]) -> None:
    trajectory, _ = fake_trajectory(start(store), steps=1)
    broken = replace(trajectory, steps_S=(replace(trajectory.steps_S[0], logprobs_T=logprobs),))
    with pytest.raises(StoreError, match="log-prob"), store.begin() as session:
        store.add_trajectory(session, TrajectoryPayload.from_value(broken))


def test_reopening_finds_everything_and_readers_do_not_write(store: TrajectoryStore, database_url: str) -> None:
    trajectory, _ = fake_trajectory(start(store))
    with store.begin() as session:
        store.add_trajectory(session, TrajectoryPayload.from_value(trajectory))
    reader = TrajectoryStore(open_engine(database_url, read_only=True), SPLITS.__getitem__)
    with reader.begin() as session:
        rows, after = list_trajectories(session, "p", 0, 10)
    assert [row.to_value() for row in rows] == [trajectory]
    assert after is None
    with pytest.raises(Exception, match=r"readonly|read-only"), reader.begin() as session:
        reader.record_event(session, "nope")
    reader.close()


def test_pages_go_on_where_the_last_one_ended(store: TrajectoryStore) -> None:
    first = start(store)
    item = assign(scheduler_of(store), "request-2")
    with store.begin() as session:
        for each in (first, item):
            store.add_trajectory(session, TrajectoryPayload.from_value(fake_trajectory(each)[0]))
    with store.begin() as session:
        page, after = list_trajectories(session, "p", 0, 1)
        rest, end = list_trajectories(session, "p", after or 0, 2)
    assert [row.rollout_id for row in page + rest] == [first.rollout_id, item.rollout_id]
    assert end is None


def test_migrations_make_the_schema_of_the_models(database_url: str) -> None:
    engine = open_engine(database_url)
    found = inspect(engine)
    for table in StoreBase.metadata.sorted_tables:
        assert {column["name"] for column in found.get_columns(table.name)} == {column.name for column in table.columns}
        assert {index["name"] for index in found.get_indexes(table.name) if not index.get("duplicates_constraint")} == {
            index.name for index in table.indexes
        }
    engine.dispose()


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.db").write_bytes(b"this is not sqlite" * 100)
    with pytest.raises(StoreError, match="is not a trajectory database"):
        open_engine(tmp_path / "data.db")
    with pytest.raises(StoreError, match="no trajectory database"):
        open_engine(tmp_path / "other.db", read_only=True)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_database_of_an_older_version_is_refused_in_one_sentence(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "data.db"
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        old.execute("INSERT INTO alembic_version VALUES ('0001')")
        old.commit()
    with pytest.raises(StoreError, match=r"made by another version of DART; start a new run with --name, or delete"):
        open_engine(path, read_only=read_only)


def test_the_family_is_the_middle_of_a_task_id() -> None:
    assert task_family("basics/choose_row/17") == "choose_row"
    for wrong in ("choose_row", "basics/choose_row", "basics//17", "a/b/c/d"):
        with pytest.raises(StoreError, match="suite/family/variation"):
            task_family(wrong)
