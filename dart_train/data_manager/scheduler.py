"""The scheduler of a running data manager: events in, changes of the database and answers out.

Role: holds the state of `dart_train.scheduling`, executes its commands in the caller's transaction, and rebuilds the state from the
database when it is needed. Rule: one event after the other; a state whose commands were not committed is thrown away, so that state and
database never differ. Non-goals: decisions (`dart_train.scheduling`), statements (`execution`), HTTP (`app`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy.orm import Session

from dart_agent.data_client.image_store import BlobStorage
from dart_agent.data_client.payloads import TrajectoryPayload, WorkItemPayload
from dart_agent.data_client.wire import AssignmentReply, PhaseSpec
from dart_agent.types import Directive
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.execution import CommandExecutor
from dart_train.data_manager.pool import has_success
from dart_train.data_manager.recovery import phase_plan, rebuild_state
from dart_train.data_manager.store import steps, work
from dart_train.data_manager.store.trajectories import AssignedRollout, TrajectoryStore
from dart_train.data_manager.tallies import Tallies, read_tallies
from dart_train.scheduling.commands import AssignRollout, Command, SearchPool
from dart_train.scheduling.decide import decide
from dart_train.scheduling.events import Event, PhaseStarted, PoolSearched, RolloutEnded
from dart_train.scheduling.state import SchedulerState

Answers = dict[str, AssignmentReply]
"""Rollouts for requests, by request id."""


class Scheduler:
    """Decides on work; what must survive is in the database, so that a restart changes nothing.

    Args:
        store: The trajectory database.
        images: Where images are stored.
        config: The configuration of the data manager.
    """

    def __init__(self, store: TrajectoryStore, images: BlobStorage, config: DataManagerConfig) -> None:
        self._store = store
        self._images = images
        self._config = config
        self._executor = CommandExecutor(store)
        self._state: SchedulerState | None = None
        self._tallies: Tallies | None = None
        self._changed = False
        self._specs: dict[str, PhaseSpec] = {}
        self._answers: Answers = {}
        self._last_s = 0.0

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Begin a transaction: state and database change together, or not at all.

        Yields:
            The session.
        """
        self._changed = False
        self._answers = {}
        try:
            with self._store.begin() as session:
                self.state(session)  # before the transaction changes what it is rebuilt from
                self.tallies(session)
                yield session
        except BaseException:  # whatever it was, the transaction was rolled back
            if self._changed:
                self._state = self._tallies = None
                self._specs = {}
                self._executor = CommandExecutor(self._store)
            self._answers = {}
            raise

    def state(self, session: Session) -> SchedulerState:
        """Return the state; it must not be changed.

        Args:
            session: The transaction.
        """
        if self._state is None:
            self._state = rebuild_state(session, self._config.scheduler, self.now_s())
        return self._state

    def tallies(self, session: Session) -> Tallies:
        """Return the counts of what is stored.

        Args:
            session: The transaction.
        """
        if self._tallies is None:
            self._tallies = read_tallies(session)
        return self._tallies

    def now_s(self) -> float:
        """Return the present time, in seconds since the epoch, but never less than before."""
        self._last_s = max(self._last_s, self._store.now())
        return self._last_s

    def handle(self, session: Session, event: Event) -> list[Command]:
        """Decide on an event and execute what follows.

        Args:
            session: The transaction.
            event: What happened.

        Returns:
            What was done.
        """
        state = self.state(session)
        self._changed = True
        commands = decide(state, event)
        if commands:
            self._executor.execute(session, commands)
        tallies = self.tallies(session)
        searches = []
        for command in commands:
            tallies.add_command(command)
            if isinstance(command, AssignRollout):
                self._answers[command.request_id] = self._answer(session, command)
            elif isinstance(command, SearchPool):
                searches.append(command)
        for search in searches:
            found = has_success(
                session,
                self._images,
                search.task_id,
                self._config.curation,
                max(state.version, state.trainer_version),
            )
            commands += self.handle(session, PoolSearched(event.now_s, search.group_id, found))
        return commands

    def take_answers(self) -> Answers:
        """Return the rollouts that were assigned in the last transaction; it is committed.

        Returns:
            Them, by request.
        """
        answers, self._answers = self._answers, {}
        return answers

    def start_phase(self, session: Session, spec: PhaseSpec, task_ids: Sequence[str]) -> None:
        """Start a phase that does not exist.

        Args:
            session: The transaction.
            spec: Its specification.
            task_ids: Its tasks.

        Raises:
            StoreError: The list is empty, names a task twice, or has a task that may not be run.
        """
        self.state(session)
        self._changed = True
        row = work.create_phase(self._store, session, spec, task_ids)
        self.handle(session, PhaseStarted(self.now_s(), phase_plan(row, task_ids)))

    def complete_rollout(self, session: Session, row: TrajectoryPayload, versions: Sequence[int]) -> None:
        """Complete a rollout whose trajectory was stored.

        Args:
            session: The transaction.
            row: The trajectory.
            versions: The policy versions that wrote in it.
        """
        version_min, version_max = min(versions, default=None), max(versions, default=None)
        tallies = self.tallies(session)
        self._changed = True
        tallies.add_trajectory(row, version_max)
        prepare_s = row.info.get("reset_s")
        self.handle(
            session,
            RolloutEnded(
                self.now_s(),
                row.rollout_id,
                row.reward,
                steps=row.n_steps,
                duration_s=row.duration_s,
                prepare_s=prepare_s if isinstance(prepare_s, float) else None,
                version_min=version_min,
                version_max=version_max,
            ),
        )

    def issue_groups(self, session: Session, group_ids: Sequence[str]) -> None:
        """Mark the groups of a batch that was issued.

        Args:
            session: The transaction.
            group_ids: The groups.
        """
        self._executor.issue_groups(session, group_ids)

    def unfinished(self, session: Session, rollout_id: str) -> AssignedRollout | None:
        """Return what an unfinished rollout was assigned as; such a rollout has no trajectory.

        Args:
            session: The transaction.
            rollout_id: The rollout.

        Returns:
            The columns of its row, None where it has ended or does not exist.
        """
        rollout = self.state(session).rollouts.get(rollout_id)
        if rollout is None:
            return None
        group = rollout.group
        return AssignedRollout(group.group_id, group.task_id, group.phase.plan.purpose, group.phase.plan.name)

    def directive(self, session: Session, rollout_id: str) -> Directive:
        """Say what a running episode does after its next step.

        Args:
            session: The transaction.
            rollout_id: Its rollout.

        Returns:
            To go on, also in a stopped phase: running episodes are still stored. To park or to cancel where the scheduler stops it.
        """
        rollout = self.state(session).rollouts.get(rollout_id)
        if rollout is None or rollout.worker is None or rollout_id not in rollout.worker.stopping:
            return Directive.CONTINUE
        return Directive.PARK if self._config.scheduling.partial_rollouts else Directive.CANCEL

    def _answer(self, session: Session, command: AssignRollout) -> AssignmentReply:
        spec = self._specs.get(command.phase)
        if spec is None:
            spec = self._specs[command.phase] = work.phase_spec(work.find_phase(session, command.phase))
        return AssignmentReply(
            item=WorkItemPayload(
                rollout_id=command.rollout_id,
                group_id=command.group_id,
                task_id=command.task_id,
                purpose=spec.purpose,
                sampling=spec.sampling,
                max_steps=command.max_steps,
                phase=command.phase,
                stored_steps=steps.count_stored(session, command.rollout_id),
                assignment=command.request_id,
            ),
            deadline_s=self._config.assignment_timeout_s,
        )
