"""Commands of the scheduler as changes of the database.

Role: one statement, or a few, per command, by primary or unique key, inside the caller's transaction. Rule: the database has the same
change as the state of the scheduler, so that the state can be rebuilt from it; every change that explains a loss leaves an event.
Non-goals: decisions (`dart_train.scheduling`), the contents of a batch (`batches`), trajectories (`store`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, insert, update
from sqlalchemy.orm import Session

from dart_train.data_manager.store import steps, work
from dart_train.data_manager.store.database import connection_of
from dart_train.data_manager.store.models import EventTable, GroupTable, PhaseTable, RolloutTable
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.scheduling.commands import (
    AssignRollout,
    CloseGroup,
    ClosePhase,
    Command,
    FinishRollout,
    OpenGroup,
    RetryRollout,
    UnassignRollout,
    UseGroups,
)


def _table(model: type[Any]) -> Table:
    table: Table = model.__table__
    return table


_ROLLOUTS, _GROUPS, _PHASES, _EVENTS = (_table(model) for model in (RolloutTable, GroupTable, PhaseTable, EventTable))
_BY_ROLLOUT = _ROLLOUTS.c.rollout_id == bindparam("key")
_FREE: dict[str, Any] = {"worker_id": None, "request_id": None, "deadline_s": None}
_ASSIGN = (
    update(_ROLLOUTS)
    .where(_BY_ROLLOUT)
    .values(
        state="assigned",
        worker_id=bindparam("worker"),
        request_id=bindparam("request"),
        deadline_s=bindparam("deadline"),
    )
)
_UNASSIGN = (
    update(_ROLLOUTS).where(_BY_ROLLOUT).values(state=bindparam("new_state"), attempt=bindparam("new_attempt"), **_FREE)
)
_FINISH = update(_ROLLOUTS).where(_BY_ROLLOUT).values(state=bindparam("new_state"), **_FREE)
_ADOPT = update(_ROLLOUTS).where(_BY_ROLLOUT).values(group_id=bindparam("new_group"), repeat=bindparam("new_repeat"))
_CLOSE_GROUP = (
    update(_GROUPS)
    .where(_GROUPS.c.group_id == bindparam("key"))
    .values(state=bindparam("new_state"), reason=bindparam("new_reason"), closed_s=bindparam("at_s"))
)
_USE_GROUP = update(_GROUPS).where(_GROUPS.c.group_id == bindparam("key")).values(state="used")
_ISSUE_GROUP = update(_GROUPS).where(_GROUPS.c.group_id == bindparam("key")).values(state="issued")
_CLOSE_PHASE = update(_PHASES).where(_PHASES.c.name == bindparam("key")).values(state=bindparam("new_state"))
_ADD_GROUP, _ADD_ROLLOUT, _ADD_EVENT = insert(_GROUPS), insert(_ROLLOUTS), insert(_EVENTS)


class CommandExecutor:
    """Executes commands in the caller's transaction.

    Args:
        store: The trajectory database.
    """

    def __init__(self, store: TrajectoryStore) -> None:
        self._store = store
        self._sampling: dict[str, dict[str, Any]] = {}
        self._executors: dict[type, Callable[[Session, Connection, Any], None]] = {
            OpenGroup: self._open_group,
            AssignRollout: self._assign,
            UnassignRollout: self._unassign,
            FinishRollout: self._finish,
            RetryRollout: self._retry,
            CloseGroup: self._close_group,
            ClosePhase: self._close_phase,
            UseGroups: self._use_groups,
        }

    def execute(self, session: Session, commands: Sequence[Command]) -> None:
        """Execute commands in their order; those that change nothing in the database are skipped.

        Args:
            session: The transaction.
            commands: The commands.

        Raises:
            StoreError: A group is opened on a task that must not be run.
        """
        connection: Connection | None = None
        for command in commands:
            executor = self._executors.get(type(command))
            if executor is not None:
                connection = connection or connection_of(session)
                executor(session, connection, command)

    def issue_groups(self, session: Session, group_ids: Sequence[str]) -> None:
        """Mark the groups of a batch that was issued.

        Args:
            session: The transaction.
            group_ids: The groups.
        """
        connection_of(session).execute(_ISSUE_GROUP, [{"key": group_id} for group_id in group_ids])

    def record_event(self, connection: Connection, kind: str, **data: Any) -> None:
        """Add an event to the history.

        Args:
            connection: The connection of the transaction.
            kind: What happened.
            **data: Details, as JSON values.
        """
        connection.execute(_ADD_EVENT, {"at_s": self._store.now(), "kind": kind, "data": data})

    def _open_group(self, session: Session, connection: Connection, command: OpenGroup) -> None:
        self._store.register_task(session, command.task_id, command.purpose)
        connection.execute(
            _ADD_GROUP,
            {
                "group_id": command.group_id,
                "phase": command.phase,
                "task_id": command.task_id,
                "purpose": command.purpose.value,
                "size": command.target,
                "max_steps": command.max_steps,
                "state": "open",
                "opened_s": self._store.now(),
            },
        )
        sampling = self._sampling.get(command.phase)
        if sampling is None:
            spec = work.phase_spec(work.find_phase(session, command.phase))
            sampling = self._sampling[command.phase] = spec.sampling.model_dump()
        shared = {
            "group_id": command.group_id,
            "phase": command.phase,
            "task_id": command.task_id,
            "purpose": command.purpose.value,
            "attempt": 1,
            "state": "queued",
            "sampling": sampling,
            "max_steps": command.max_steps,
        }
        if command.rollouts:
            connection.execute(
                _ADD_ROLLOUT,
                [{"rollout_id": rollout_id, "repeat": repeat, **shared} for rollout_id, repeat in command.rollouts],
            )
        if command.adopted:
            connection.execute(
                _ADOPT,
                [
                    {"key": rollout_id, "new_group": command.group_id, "new_repeat": repeat}
                    for repeat, rollout_id in enumerate(command.adopted)
                ],
            )

    def _assign(self, _session: Session, connection: Connection, command: AssignRollout) -> None:
        connection.execute(
            _ASSIGN,
            {
                "key": command.rollout_id,
                "worker": command.worker_id,
                "request": command.request_id,
                "deadline": command.deadline_s,
            },
        )

    def _unassign(self, session: Session, connection: Connection, command: UnassignRollout) -> None:
        if command.state in ("cancelled", "failed"):
            steps.drop(session, command.rollout_id)
        connection.execute(
            _UNASSIGN,
            {"key": command.rollout_id, "new_state": command.state, "new_attempt": command.attempt},
        )
        self.record_event(
            connection,
            "rollout_parked" if command.state == "parked" else "rollout_requeued",
            rollout_id=command.rollout_id,
            cause=command.cause,
            state=command.state,
        )

    def _finish(self, _session: Session, connection: Connection, command: FinishRollout) -> None:
        connection.execute(_FINISH, {"key": command.rollout_id, "new_state": command.state})

    def _retry(self, session: Session, connection: Connection, command: RetryRollout) -> None:
        before = work.find_rollout(session, command.retries)
        connection.execute(
            _ADD_ROLLOUT,
            {
                "rollout_id": command.rollout_id,
                "group_id": before.group_id,
                "phase": before.phase,
                "task_id": before.task_id,
                "purpose": before.purpose,
                "repeat": before.repeat,
                "attempt": command.attempt,
                "state": "queued",
                "sampling": before.sampling,
                "max_steps": before.max_steps,
            },
        )

    def _close_group(self, _session: Session, connection: Connection, command: CloseGroup) -> None:
        connection.execute(
            _CLOSE_GROUP,
            {
                "key": command.group_id,
                "new_state": command.state,
                "new_reason": command.reason,
                "at_s": self._store.now(),
            },
        )
        if command.reason is not None:
            self.record_event(connection, "group_dropped", group_id=command.group_id, reason=command.reason)

    def _close_phase(self, _session: Session, connection: Connection, command: ClosePhase) -> None:
        connection.execute(_CLOSE_PHASE, {"key": command.name, "new_state": command.state})
        self.record_event(connection, f"phase_{command.state}", name=command.name)

    def _use_groups(self, _session: Session, connection: Connection, command: UseGroups) -> None:
        connection.execute(_USE_GROUP, [{"key": group_id} for group_id in command.group_ids])
