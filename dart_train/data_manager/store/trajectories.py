"""Trajectories in the database: which episodes were run, and their training rows.

Role: `TrajectoryStore` opens transactions and enforces the rules of what may be stored; `add_trajectory` and the readers work inside one
transaction. Rule: trajectories and steps are only added, once per rollout id; only tasks of the train split are stored as `train` or
`demo`; a task whose split is not known is refused; a trajectory must match the rollout that was assigned. Non-goals: what to run next and
what to train on (`dart_train.data_manager`), states of work (`dart_train.data_manager.store.work`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Table, bindparam, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from dart_agent.data_client.payloads import TrajectoryPayload
from dart_agent.errors import StoreError, StoreUnavailableError
from dart_agent.types import Purpose, RewardKind, StopReason, Trajectory
from dart_envs.clock import SYSTEM_CLOCK
from dart_train.data_manager.catalog import TRAINING_PURPOSES, TRAINING_SPLIT, SplitOf, task_family
from dart_train.data_manager.store import steps as stored_steps
from dart_train.data_manager.store.database import (
    BRIEF_BUSY_TIMEOUT_MS,
    BUSY_TIMEOUT_MS,
    CONNECTION,
    DatabaseLocation,
    connection_of,
    is_outage,
    open_engine,
    set_busy_timeout,
    unavailable,
)
from dart_train.data_manager.store.models import EventTable, GroupTable, RolloutTable, TaskTable, TrajectoryTable
from dart_train.data_manager.store.postgres import DatabaseInUseError
from dart_train.data_manager.store.step_checks import Placeholders


def _table(model: type[Any]) -> Table:
    table: Table = model.__table__
    return table


_ROLLOUTS, _TRAJECTORIES = _table(RolloutTable), _table(TrajectoryTable)
_FIND_ROLLOUT = (
    select(
        _ROLLOUTS.c.group_id,
        _ROLLOUTS.c.task_id,
        _ROLLOUTS.c.purpose,
        _ROLLOUTS.c.phase,
        _TRAJECTORIES.c.seq.label("stored"),
    )
    .outerjoin_from(_ROLLOUTS, _TRAJECTORIES, _TRAJECTORIES.c.rollout_id == _ROLLOUTS.c.rollout_id)
    .where(_ROLLOUTS.c.rollout_id == bindparam("key"))
)
_INSERT_TRAJECTORY = insert(_TRAJECTORIES)
_BUSY_TIMEOUT = "busy_timeout_ms"
"""Key in `Session.info` of how long the connection waits for a locked file."""


class AssignedRollout(NamedTuple):
    """What a trajectory must agree with: the row of its rollout."""

    group_id: str
    task_id: str
    purpose: str
    phase: str


class TrajectoryStore:
    """Transactions on the database, and the check of the splits.

    Args:
        engine: The database.
        split_of: Looks up the split of a task.
        now: Clock, in seconds since the epoch.
        placeholders: How the prompts of the run's model stand for images; without it, images are not compared with prompts.
    """

    def __init__(
        self,
        engine: Engine,
        split_of: SplitOf,
        now: Callable[[], float] = SYSTEM_CLOCK.time,
        placeholders: Placeholders = lambda: None,
    ) -> None:
        self.engine = engine
        self.now = now
        self.placeholders = placeholders
        self._split_of = split_of
        self._registered: dict[str, str] = {}
        self._unfinished: set[str] | None = None
        self._free: list[Session] = []
        self._busy_timeout_ms = BUSY_TIMEOUT_MS

    @classmethod
    def open(
        cls,
        where: DatabaseLocation,
        split_of: SplitOf,
        now: Callable[[], float] = SYSTEM_CLOCK.time,
        placeholders: Placeholders = lambda: None,
    ) -> TrajectoryStore:
        """Open a database for writing; it is created and migrated. One process writes, any number may read.

        Args:
            where: The SQLite file, or the URL of a database.
            split_of: Looks up the split of a task.
            now: Clock, in seconds since the epoch.
            placeholders: As for the class.

        Returns:
            The store.

        Raises:
            StoreError: The database cannot be used.
        """
        return cls(open_engine(where), split_of, now, placeholders)

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """Begin a transaction: committed when the context ends, rolled back when it raises.

        Yields:
            The session.

        Raises:
            StoreUnavailableError: The database is away, or another session holds its lock; whether the transaction was committed is not
                known.
            DatabaseLockedError: Another process has locked the file for longer than transactions wait now; nothing was committed.
        """
        session = self._free.pop() if self._free else Session(self._bind())
        bind = session.bind
        own = bind if isinstance(bind, Connection) else None
        try:
            if own is not None and session.info.get(_BUSY_TIMEOUT) != self._busy_timeout_ms:
                set_busy_timeout(own, self._busy_timeout_ms)
                session.info[_BUSY_TIMEOUT] = self._busy_timeout_ms
            with session.begin() if own is None else own.begin():
                if own is not None:
                    session.info[CONNECTION] = own
                if self._unfinished is None:
                    self._unfinished = stored_steps.unfinished_rollouts(session)
                session.info[stored_steps.UNFINISHED] = self._unfinished
                yield session
                if own is not None and (session.in_transaction() or session.new):  # it has objects, or asked for some
                    session.commit()
            self._free.append(session)
        except DBAPIError as error:
            self._registered, self._unfinished = {}, None
            self._drop(session)
            if not is_outage(error):
                raise
            raise unavailable(error) from error
        except DatabaseInUseError as error:
            self._registered, self._unfinished = {}, None
            self._drop(session)
            raise StoreUnavailableError(
                "the trajectory database cannot be used now: another session holds its lock, which is the lost one of this data manager "
                "until the server ends it, or that of another data manager"
            ) from error
        except BaseException:  # whatever it was, the transaction was rolled back
            self._registered, self._unfinished = {}, None
            self._drop(session)
            raise

    @contextmanager
    def waiting_briefly(self) -> Iterator[None]:
        """Let transactions wait for a locked SQLite file only as long as an event loop may stand still.

        Yields:
            Nothing; transactions that begin in the context do so.
        """
        self._busy_timeout_ms = BRIEF_BUSY_TIMEOUT_MS
        try:
            yield
        finally:
            self._busy_timeout_ms = BUSY_TIMEOUT_MS

    def _bind(self) -> Engine | Connection:
        """What a session works on: a connection of its own to a file, or the pool of a server, which looks whether it still answers."""
        return self.engine.connect() if self.engine.dialect.name == "sqlite" else self.engine

    def _drop(self, session: Session) -> None:
        """Forget a session whose transaction failed; the next one begins with another."""
        session.close()
        if isinstance(session.bind, Connection):
            session.bind.close()

    def close(self) -> None:
        """Close the connections."""
        while self._free:
            self._drop(self._free.pop())
        self.engine.dispose()

    def check_task(self, task_id: str, purpose: Purpose) -> str:
        """Check that a task may be run for a purpose.

        Args:
            task_id: The task.
            purpose: What it is to be run for.

        Returns:
            The split of the task.

        Raises:
            StoreError: The task is not known, or is not of the train split although its trajectory would be training data.
        """
        task_family(task_id)
        try:
            split = self._split_of(task_id)
        except Exception as error:
            raise StoreError(f"task {task_id} is refused: its split is not known ({error})") from error
        if purpose in TRAINING_PURPOSES and split != TRAINING_SPLIT:
            raise StoreError(
                f"task {task_id} is of the {split} split: it must not be run for {purpose.value}, only for eval"
            )
        return split

    def register_task(self, session: Session, task_id: str, purpose: Purpose) -> str:
        """Check and register a task.

        Args:
            session: The transaction.
            task_id: The task.
            purpose: What it is to be run for.

        Returns:
            Its family.

        Raises:
            StoreError: As for `check_task`, or its split has changed since its first run.
        """
        split = self.check_task(task_id, purpose)
        known = self._registered.get(task_id)
        if known is None:
            row = session.get(TaskTable, task_id)
            if row is None:
                session.add(TaskTable(task_id=task_id, family=task_family(task_id), split=split))
                session.flush()
                return task_family(task_id)
            known = self._registered[task_id] = row.split  # it was committed before, so it stays
        if known != split:
            raise StoreError(f"task {task_id} was of the {known} split when it was first run and is of {split} now")
        return task_family(task_id)

    def add_trajectory(self, session: Session, row: TrajectoryPayload, assigned: AssignedRollout | None = None) -> bool:
        """Add a trajectory with its steps.

        Args:
            session: The transaction.
            row: The trajectory.
            assigned: Its rollout, where it is known to have no trajectory; None: it is looked up.

        Returns:
            False where its rollout has a trajectory already.

        Raises:
            StoreError: The rollout was never assigned, was assigned as something else, its task may not be stored, or its steps do not
                follow those that are stored.
        """
        connection = connection_of(session)
        rollout = assigned
        if rollout is None:
            found = connection.execute(_FIND_ROLLOUT, {"key": row.rollout_id}).first()
            if found is None:
                raise StoreError(f"rollout {row.rollout_id} was never assigned")
            *columns, stored = found
            if stored is not None:
                return False
            rollout = AssignedRollout(*columns)
        if row.group_id != rollout.group_id and not _was_in_group(
            session, rollout.phase, rollout.task_id, row.group_id
        ):
            raise StoreError(
                f"rollout {row.rollout_id} was assigned with group_id {rollout.group_id!r}, not {row.group_id!r}"
            )
        for name in ("task_id", "purpose", "phase"):
            if getattr(rollout, name) != getattr(row, name):
                raise StoreError(
                    f"rollout {row.rollout_id} was assigned with {name} {getattr(rollout, name)!r}, not {getattr(row, name)!r}"
                )
        family = self.register_task(session, row.task_id, row.purpose)
        stored_steps.complete(session, row, self.placeholders)
        versions = stored_steps.versions(session, row)
        connection.execute(
            _INSERT_TRAJECTORY,
            {
                "rollout_id": row.rollout_id,
                "group_id": rollout.group_id,
                "task_id": row.task_id,
                "family": family,
                "purpose": row.purpose.value,
                "phase": row.phase,
                "reward": row.reward,
                "reward_source": row.reward_source.value,
                "end": row.end.value,
                "stop": row.stop.value,
                "cause": row.cause,
                "started_at_s": row.started_at_s,
                "duration_s": row.duration_s,
                "stored_s": self.now(),
                "info": row.info,
                "n_steps": row.n_steps,
                "version_min": min(versions, default=None),
                "version_max": max(versions, default=None),
            },
        )
        return True

    def record_event(self, session: Session, kind: str, **data: Any) -> None:
        """Add an event to the history.

        Args:
            session: The transaction.
            kind: What happened.
            **data: Details, as JSON values.
        """
        session.add(EventTable(at_s=self.now(), kind=kind, data=data))


def _was_in_group(session: Session, phase: str, task_id: str, group_id: str) -> bool:
    """Whether a rollout can have been assigned as a member of a group: a running one may have moved to a later group of its task."""
    query = select(GroupTable.seq).where(
        GroupTable.group_id == group_id, GroupTable.phase == phase, GroupTable.task_id == task_id
    )
    return session.scalar(query) is not None


def read_trajectory(session: Session, row: TrajectoryTable) -> Trajectory:
    """Read a trajectory with its steps.

    Args:
        session: The transaction.
        row: Its row.

    Returns:
        The trajectory.
    """
    return Trajectory(
        rollout_id=row.rollout_id,
        group_id=row.group_id,
        task_id=row.task_id,
        purpose=Purpose(row.purpose),
        phase=row.phase,
        steps_S=stored_steps.read_steps(session, row.rollout_id),
        reward=row.reward,
        stop=StopReason(row.stop),
        cause=row.cause,
        started_at_s=row.started_at_s,
        duration_s=row.duration_s,
        info=row.info,
        reward_source=RewardKind(row.reward_source),
    )


def list_trajectories(
    session: Session, phase: str, after: int, limit: int
) -> tuple[list[TrajectoryPayload], int | None]:
    """Read a page of a phase's trajectories.

    Args:
        session: The transaction.
        phase: Name of the phase.
        after: Sequence number after which the page begins.
        limit: Greatest number of trajectories.

    Returns:
        The trajectories, and the sequence number of the next page, None at the end.
    """
    query = select(TrajectoryTable).where(TrajectoryTable.phase == phase, TrajectoryTable.seq > after)
    found: Sequence[TrajectoryTable] = session.scalars(query.order_by(TrajectoryTable.seq).limit(limit)).all()
    rows = [TrajectoryPayload.from_value(read_trajectory(session, row)) for row in found]
    return rows, found[-1].seq if len(found) == limit else None
