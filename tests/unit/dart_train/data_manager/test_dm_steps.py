"""Steps are stored as they happen: once, in order, as slices; unfinished rollouts continue, restart with a cause, or end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alembic import command
from data_manager_harness import DataManagerHarness
from fastapi import FastAPI
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.orm import Session
from starlette.types import Message

from dart_agent.data_client.fake_trajectories import fake_image, fake_trajectory
from dart_agent.data_client.payloads import StreamStepPayload, TrajectoryPayload, stream_payloads
from dart_agent.data_client.token_stream import StreamReader
from dart_agent.data_client.wire import AssignmentRequest, ParkRequest, RestartRequest, StoreStepRequest
from dart_agent.errors import StoreError
from dart_agent.rollouts.episode_state import EpisodeState, KeptDesktop
from dart_agent.types import Directive, Purpose, SamplingParams, StepRecord, Trajectory, VersionSpan, WorkItem
from dart_train.data_manager.app import create_app
from dart_train.data_manager.store import database
from dart_train.data_manager.store.models import EpisodeStateTable, EventTable, RolloutTable, StepTable
from dart_train.data_manager.store.step_checks import ImagePlaceholders
from dart_train.data_manager.store.steps import read_steps
from tests.unit.dart_agent.test_token_stream import episode

STATE = EpisodeState(
    worker="w1",
    process="p",
    started_at_s=1.0,
    elapsed_s=2.0,
    reset_s=0.5,
    desktop=KeptDesktop(steps=1, acted=True, snapshot_id="snap"),
)


def played(harness: DataManagerHarness, item: WorkItem, turns: int = 3, **options: Any) -> Trajectory:
    """A trajectory of a growing prompt without images."""
    steps = [replace(step, image_sha256=(), image_hw=(), sampling=item.sampling) for step in episode(turns, **options)]
    return replace(fake_trajectory(item)[0], steps_S=tuple(steps))


def store(harness: DataManagerHarness, item: WorkItem, step: StreamStepPayload) -> tuple[bool, Directive]:
    reply = harness.manager.store_step(
        StoreStepRequest(rollout_id=item.rollout_id, assignment=item.assignment, step=step, state=STATE)
    )
    return reply.stored, reply.directive


def stored(harness: DataManagerHarness, rollout_id: str) -> tuple[StepRecord, ...]:
    with harness.store.begin() as session:
        return read_steps(session, rollout_id)


@pytest.fixture
def item(harness: DataManagerHarness) -> WorkItem:
    harness.phase()
    return harness.must_acquire()


def test_a_step_is_stored_once_and_in_order(harness: DataManagerHarness, item: WorkItem) -> None:
    trajectory = played(harness, item)
    rows = stream_payloads(trajectory.steps_S)
    with pytest.raises(StoreError, match="comes before step 0"):
        store(harness, item, rows[1])
    assert store(harness, item, rows[0]) == (True, Directive.CONTINUE)
    assert store(harness, item, rows[0]) == (False, Directive.CONTINUE)
    store(harness, item, rows[1])
    with pytest.raises(StoreError, match="stored with other tokens"):
        store(harness, item, stream_payloads(played(harness, item, turns=2).steps_S)[1])
    assert stored(harness, item.rollout_id) == trajectory.steps_S[:2]
    harness.restart()
    assert harness.manager.report(TrajectoryPayload.from_value(trajectory, 2))
    assert stored(harness, item.rollout_id) == trajectory.steps_S
    assert not harness.manager.report(TrajectoryPayload.from_value(trajectory, 2))
    with harness.store.begin() as session:
        assert session.scalar(select(func.count()).select_from(EpisodeStateTable)) == 0


def test_a_ten_turn_episode_holds_each_token_once(harness: DataManagerHarness, item: WorkItem) -> None:
    harness.manager.report(TrajectoryPayload.from_value(played(harness, item, turns=10)))
    with harness.store.begin() as session:
        rows = session.scalars(select(StepTable)).all()
        assert sum(len(row.prompt_new) + len(row.token_ids) for row in rows) == 10 * 52 * 4
        assert (rows[-1].segment, rows[-1].response_start, rows[-1].response_end) == (0, 10 * 52 - 12, 10 * 52)


def test_a_report_must_follow_what_is_stored(harness: DataManagerHarness, item: WorkItem) -> None:
    trajectory = played(harness, item)
    other = stream_payloads(played(harness, item, turns=4).steps_S)
    for row in other[:2]:
        store(harness, item, row)
    with pytest.raises(StoreError, match="are not the first 2 of this report"):
        harness.manager.report(TrajectoryPayload.from_value(trajectory, 2))
    assert harness.manager.report(TrajectoryPayload.from_value(trajectory))
    assert stored(harness, item.rollout_id) == trajectory.steps_S


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"response_start": 7, "response_end": 19}, "answers at"),
        ({"segment": 0, "index": 1}, "comes before"),
        ({"image_sha256_new": ["0" * 64]}, "names 1 images but 0 sizes"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused(
    harness: DataManagerHarness, item: WorkItem, change: dict[str, Any], words: str
) -> None:
    row = stream_payloads(played(harness, item).steps_S)[0].model_copy(update=change)
    harness.images.missing = lambda hashes, *, recheck=False: []  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=words):
        store(harness, item, row)


@pytest.mark.parametrize(("pads", "fits"), [(2, True), (1, False), (3, False)])
def test_images_must_fit_their_place_holders(
    harness: DataManagerHarness, item: WorkItem, pads: int, fits: bool
) -> None:
    image = fake_image(1, height=32, width=64)
    sha256 = harness.images.put(image)
    harness.store.placeholders = lambda: ImagePlaceholders(token_id=7, side_px=32)
    first = played(harness, item).steps_S[0]
    step = replace(
        first, prompt_ids_P=(1, *([7] * pads), 2), image_sha256=(sha256,), image_hw=((32, 64),)
    )  # fmt: skip
    (row,) = stream_payloads([step])
    if fits:
        assert store(harness, item, row)[0]
    else:
        with pytest.raises(StoreError, match=rf"placeholders in runs of \[{pads}\], but its images .* have \[2\]"):
            store(harness, item, row)


@pytest.mark.parametrize(
    ("prompt", "answer", "words"),
    [
        ((1, 7, 7, 2), (3,), r"placeholders in runs of \[2\], but its images of \[\] pixels have \[\]"),
        ((1, 2), (3, 7), r"sampled an image placeholder \(token 7\)"),
        ((), (3, 7), "sampled an image placeholder"),
    ],
)
def test_place_holders_without_an_image_are_refused(
    harness: DataManagerHarness, item: WorkItem, prompt: tuple[int, ...], answer: tuple[int, ...], words: str
) -> None:
    harness.store.placeholders = lambda: ImagePlaceholders(token_id=7, side_px=32)
    first = played(harness, item).steps_S[0]
    scores = {"logprobs_T": (-0.5,) * len(answer), "version_spans": (VersionSpan(0, 0, len(answer)),)}
    (row,) = stream_payloads([replace(first, prompt_ids_P=prompt, token_ids_T=answer, **scores)])
    with pytest.raises(StoreError, match=words):
        store(harness, item, row)
    assert stored(harness, item.rollout_id) == ()


def test_a_step_of_an_endpoint_has_images_and_no_ids(harness: DataManagerHarness, item: WorkItem) -> None:
    image = fake_image(1, height=32, width=64)
    harness.store.placeholders = lambda: ImagePlaceholders(token_id=7, side_px=32)
    nothing: dict[str, Any] = dict.fromkeys(("prompt_ids_P", "token_ids_T", "logprobs_T", "version_spans"), ())
    first = played(harness, item).steps_S[0]
    step = replace(first, image_sha256=(harness.images.put(image),), image_hw=((32, 64),), **nothing)
    (row,) = stream_payloads([step])
    assert store(harness, item, row)[0]
    assert stored(harness, item.rollout_id) == (step,)


def test_a_parked_rollout_is_handed_out_first_and_continues(harness: DataManagerHarness, item: WorkItem) -> None:
    trajectory = played(harness, item)
    rows = stream_payloads(trajectory.steps_S)
    for row in rows[:2]:
        store(harness, item, row)
    parked = STATE.model_copy(update={"parked": True})
    request = ParkRequest(rollout_id=item.rollout_id, assignment=item.assignment, state=parked)
    assert harness.manager.park(request) == 1
    assert harness.manager.heartbeat("w1").count == 0
    harness.restart()
    again = harness.must_acquire("w2")
    assert (again.rollout_id, again.stored_steps) == (item.rollout_id, 2)
    saved = harness.manager.saved_episode(item.rollout_id)
    reader = StreamReader()
    assert tuple(row.to_value(reader) for row in saved.steps) == trajectory.steps_S[:2]
    assert saved.state == parked
    assert store(harness, item, rows[2]) == (False, Directive.CANCEL)
    assert store(harness, again, rows[2]) == (True, Directive.CONTINUE)
    assert harness.manager.report(TrajectoryPayload.from_value(trajectory, 3))


def test_what_cannot_be_continued_begins_anew_with_its_cause(harness: DataManagerHarness, item: WorkItem) -> None:
    trajectory = played(harness, item)
    for row in stream_payloads(trajectory.steps_S)[:2]:
        store(harness, item, row)
    harness.manager.release("w1")
    again = harness.must_acquire("w1")
    assert (again.rollout_id, again.stored_steps) == (item.rollout_id, 2)
    cause = "the worker died while the action of step 2 was under way"
    request = RestartRequest(rollout_id=item.rollout_id, assignment=again.assignment, cause=cause)
    assert harness.manager.restart(request) == 2
    assert harness.manager.restart(request) == 0
    assert stored(harness, item.rollout_id) == ()
    with harness.store.begin() as session:
        event = session.scalars(select(EventTable).where(EventTable.kind == "rollout_restarted")).first()
        assert event is not None
        assert event.data == {"rollout_id": item.rollout_id, "cause": cause, "steps": 2}
    assert harness.manager.report(TrajectoryPayload.from_value(trajectory))


def test_a_rollout_that_begins_anew_has_the_version_of_its_new_steps(
    harness: DataManagerHarness, item: WorkItem
) -> None:
    rows = stream_payloads(played(harness, item).steps_S)

    def park(held: WorkItem, version: int) -> None:
        spans = [(version, *span[1:]) for span in rows[0].version_spans]
        store(harness, held, rows[0].model_copy(update={"version_spans": spans}))
        harness.manager.park(ParkRequest(rollout_id=held.rollout_id, assignment=held.assignment, state=STATE))

    def version() -> int | None:
        with harness.manager._scheduler.transaction() as session:
            return harness.manager._scheduler.state(session).rollouts[item.rollout_id].partial_version

    park(item, 3)
    again = harness.must_acquire("w1")
    assert (again.rollout_id, version()) == (item.rollout_id, 3)
    harness.manager.restart(
        RestartRequest(rollout_id=again.rollout_id, assignment=again.assignment, cause="its desktop is gone")
    )
    assert version() is None
    park(again, 5)
    assert version() == 5
    harness.restart()
    assert version() == 5


def test_what_is_given_back_leaves_no_steps(harness: DataManagerHarness, item: WorkItem) -> None:
    store(harness, item, stream_payloads(played(harness, item).steps_S)[0])
    harness.abandon(item)
    assert stored(harness, item.rollout_id) == ()
    assert harness.must_acquire("w2").stored_steps == 0


def test_an_earlier_assignment_of_the_same_worker_changes_nothing(harness: DataManagerHarness, item: WorkItem) -> None:
    rows = stream_payloads(played(harness, item).steps_S)
    store(harness, item, rows[0])
    harness.abandon(item)
    again = harness.must_acquire("w1")
    assert again.rollout_id == item.rollout_id
    assert store(harness, again, rows[0]) == (True, Directive.CONTINUE)
    assert store(harness, item, rows[1]) == (False, Directive.CANCEL), "it would come behind another episode's step"
    late = {"rollout_id": item.rollout_id, "assignment": item.assignment}
    assert harness.manager.park(ParkRequest(**late, state=STATE)) == 0
    assert harness.manager.restart(RestartRequest(**late, cause="its desktop is gone")) == 0
    assert harness.abandon(item) == 0
    assert len(stored(harness, item.rollout_id)) == 1
    assert store(harness, again, rows[1]) == (True, Directive.CONTINUE)


def test_a_stopped_phase_ends_what_is_parked(harness: DataManagerHarness, item: WorkItem) -> None:
    store(harness, item, stream_payloads(played(harness, item).steps_S)[0])
    harness.manager.park(ParkRequest(rollout_id=item.rollout_id, assignment=item.assignment, state=STATE))
    harness.manager.stop_phase("train")
    with harness.store.begin() as session:
        assert set(session.scalars(select(RolloutTable.state))) == {"cancelled"}
        for table in (EpisodeStateTable, StepTable):
            assert session.scalar(select(func.count()).select_from(table)) == 0
    assert harness.manager.kept_leases().leases == []


def test_a_snapshot_is_named_to_be_deleted_once_nobody_needs_it_until_it_is_gone(
    harness: DataManagerHarness, item: WorkItem
) -> None:
    rows = stream_payloads(played(harness, item).steps_S)
    store(harness, item, rows[0])
    first, second = (
        STATE.model_copy(update={"desktop": KeptDesktop(steps=1, acted=True, snapshot_id=name)})
        for name in ("one", "two")
    )
    assert harness.manager.heartbeat("w1").obsolete_snapshots == []
    harness.manager.park(ParkRequest(rollout_id=item.rollout_id, assignment=item.assignment, state=first))
    assert harness.manager.heartbeat("w1").obsolete_snapshots == ["snap"], "the state names another one now"
    again = harness.must_acquire("w1")
    harness.manager.park(ParkRequest(rollout_id=again.rollout_id, assignment=again.assignment, state=second))
    harness.restart()
    assert harness.manager.heartbeat("w1").obsolete_snapshots == ["one", "snap"]
    assert harness.manager.heartbeat("w1", deleted_snapshots=["snap"]).obsolete_snapshots == ["one"]
    harness.manager.stop_phase("train")
    assert harness.manager.heartbeat("w2", deleted_snapshots=["one"]).obsolete_snapshots == ["two"]


def _old_database(path: Path, trajectories: list[Trajectory]) -> None:
    """A database of the first revision with these trajectories, written as that revision wrote them."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = database._alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "trajectories_0001")
        connection.execute(text("INSERT INTO tasks VALUES ('s/tick/1', 'tick', 'train')"))
        connection.execute(text("INSERT INTO phases VALUES (1, 'p', 'train', '{}', '[]', 'active', 0, 1)"))
        connection.execute(
            text("INSERT INTO groups VALUES (1, 'grp', 'p', 's/tick/1', 'train', 2, 9, 'open', NULL, 0, NULL)")
        )
        for number, one in enumerate(trajectories, 1):
            connection.execute(
                text(
                    "INSERT INTO rollouts VALUES (:n, :id, 'grp', 'p', 's/tick/1', 'train', 0, 1, 'done', "
                    "NULL, NULL, NULL, '{}', 9)"
                ),
                {"n": number, "id": one.rollout_id},
            )
            connection.execute(
                text(
                    "INSERT INTO trajectories VALUES (:n, :id, 'grp', 's/tick/1', 'tick', 'train', 'p', 1.0, 'max_steps', "
                    "NULL, 0, 1, 1, '{}', :steps, 0, 0)"
                ),
                {"n": number, "id": one.rollout_id, "steps": len(one.steps_S)},
            )
            for step in one.steps_S:
                connection.execute(
                    text(
                        "INSERT INTO steps VALUES (:id, :i, :prompt, :tokens, :logprobs, :spans, :hashes, :sizes, 'hm', NULL, "
                        "NULL, '{}', 'stop', 0, 0)"
                    ),
                    {
                        "id": one.rollout_id,
                        "i": step.index,
                        "prompt": np.asarray(step.prompt_ids_P, "<i4").tobytes(),
                        "tokens": np.asarray(step.token_ids_T, "<i4").tobytes(),
                        "logprobs": np.asarray(step.logprobs_T, "<f4").tobytes(),
                        "spans": f"[[0, 0, {len(step.token_ids_T)}]]",
                        "hashes": str([*step.image_sha256]).replace("'", '"'),
                        "sizes": str([[*hw] for hw in step.image_hw]),
                    },
                )
    engine.dispose()


@pytest.mark.parametrize("read_only", [False, True])
def test_an_older_database_is_migrated_to_streams_and_reads_back_equal(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "old.db"
    item = WorkItem("roll_0", "grp", "s/tick/1", Purpose.TRAIN, SamplingParams(), 9, "p")
    full = replace(fake_trajectory(item)[0], steps_S=tuple(episode(5)))
    cut = replace(full, rollout_id="roll_1", steps_S=tuple(episode(6, keep=2)))
    _old_database(path, [full, cut])
    before = path.read_bytes()
    engine = database.open_engine(path, read_only=read_only)
    with Session(engine) as session:
        assert read_steps(session, "roll_0") == full.steps_S
        assert read_steps(session, "roll_1") == cut.steps_S
        assert session.scalars(select(StepTable.segment)).all() == [0] * 5 + [0, 0, 2, 3, 4, 5]
        assert session.scalars(text("SELECT stop FROM trajectories")).all() == ["max_steps"] * 2
    if read_only:
        engine.dispose()
        assert path.read_bytes() == before
        return
    with engine.begin() as connection:
        config = database._alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "trajectories_0001")
        prompts = connection.scalars(text('SELECT prompt_ids FROM steps ORDER BY rollout_id, "index"')).all()
    steps = full.steps_S + cut.steps_S
    assert prompts == [np.asarray(step.prompt_ids_P, "<i4").tobytes() for step in steps]
    engine.dispose()


async def _ask_and_hang_up(app: FastAPI) -> None:
    """A request for work whose worker closes the connection at once."""
    body = AssignmentRequest(worker_id="gone", request_id="request-gone", wait_s=2.0).model_dump_json().encode()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        return next(messages, {"type": "http.disconnect"})

    async def send(_message: Message) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/work/assign", "query_string": b"", "headers": []}
    await app(scope, receive, send)


@pytest.mark.parametrize(
    ("how", "state", "steps"), [("parked", "parked", 1), ("released", "parked", 1), ("abandoned", "queued", 0)]
)
async def test_a_rollout_that_is_assigned_to_a_dead_request_keeps_its_steps(
    harness: DataManagerHarness, monkeypatch: pytest.MonkeyPatch, how: str, state: str, steps: int
) -> None:
    monkeypatch.setattr("dart_train.scheduling.assignment.RESERVED_S", 0.0)  # its clock stands still
    harness.phase(endless=False, task_ids=["s/type/0"], select=None, rollouts_per_task=2)
    item, _other = harness.must_acquire(), harness.must_acquire("w3")
    store(harness, item, stream_payloads(played(harness, item).steps_S)[0])
    app = create_app(harness.manager)
    held = {"rollout_id": item.rollout_id, "assignment": item.assignment}
    give_up: dict[str, Callable[[], int]] = {
        "parked": lambda: harness.manager.park(ParkRequest.model_validate({**held, "state": STATE})),
        "released": lambda: harness.manager.release("w1"),
        "abandoned": lambda: harness.abandon(item, uses_attempt=False),
    }
    async with app.router.lifespan_context(app):
        asking = asyncio.create_task(_ask_and_hang_up(app))
        await asyncio.sleep(0)  # it has asked, or stands before the next operation
        assert await app.state.writer.run(give_up[how]) == 1
        await asyncio.wait_for(asking, 5.0)
    with harness.store.begin() as session:
        row = session.scalars(select(RolloutTable).where(RolloutTable.rollout_id == item.rollout_id)).one()
        assert (row.state, row.attempt, row.worker_id) == (state, 1, None)
        causes = [each.data["cause"] for each in session.scalars(select(EventTable)) if "cause" in each.data]
    assert causes[-1] == "its request was given up"
    assert len(stored(harness, item.rollout_id)) == steps
    again = harness.must_acquire("w2")
    assert (again.rollout_id, again.stored_steps) == (item.rollout_id, steps)
    assert harness.manager.heartbeat("w2").obsolete_snapshots == ([] if steps else ["snap"])
