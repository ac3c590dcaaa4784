"""The operations of the data manager, one transaction each.

Role: what the HTTP routes call, without HTTP. Rule: every operation may be repeated; an operation happens completely or not at all;
operations run one after the other, so that the database has one writer. Non-goals: decisions (`dart_train.scheduling`), routes (`app`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_agent.data_client.image_store import BlobStorage, ImageStore
from dart_agent.data_client.payloads import TrajectoryPayload
from dart_agent.data_client.wire import (
    AbandonRequest,
    AssignmentReply,
    Batch,
    BatchFailure,
    BatchReply,
    BatchReport,
    DataManagerStats,
    EpisodeResult,
    KeptLeasesReply,
    ParkRequest,
    PhaseSpec,
    PhaseStatus,
    RestartRequest,
    ResumeRequest,
    SavedEpisodeReply,
    StoreStepReply,
    StoreStepRequest,
    TrajectoryPage,
    VersionRecord,
    VersionReply,
    WorkerHeartbeatReply,
)
from dart_agent.errors import StoreError
from dart_agent.types import Directive
from dart_train.data_manager import status, versions
from dart_train.data_manager.batches import BatchBuilder
from dart_train.data_manager.catalog import TaskCatalog
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.recovery import STORED_PARTIAL
from dart_train.data_manager.scheduler import Answers, Scheduler
from dart_train.data_manager.store import steps, work
from dart_train.data_manager.store.models import PhaseTable
from dart_train.data_manager.store.trajectories import TrajectoryStore, list_trajectories
from dart_train.scheduling.commands import IssueBatch, RepeatBatch
from dart_train.scheduling.events import (
    AskWithdrawn,
    BatchAsked,
    BatchDone,
    BatchRefused,
    HeartbeatReceived,
    PhaseStopped,
    PolicyPublished,
    RolloutAbandoned,
    RolloutParked,
    RolloutRestarted,
    WorkAsked,
    WorkerReleased,
)

NO_WORK = AssignmentReply(item=None, deadline_s=None)


class _SavedState(NamedTuple):
    """A state that was saved; version_min: the oldest version that wrote in the rollout."""

    version_min: int | None


class DataManager:
    """Operations on the trajectory database; every method raises StoreError for what it refuses.

    Args:
        store: The trajectory database.
        images: Where images are stored.
        catalog: The tasks.
        config: The configuration.
    """

    def __init__(
        self, store: TrajectoryStore, images: BlobStorage, catalog: TaskCatalog, config: DataManagerConfig
    ) -> None:
        self._store = store
        self._images = images
        self._catalog = catalog
        self._config = config
        self._scheduler = Scheduler(store, images, config)
        self._batches = BatchBuilder(store, images, config)
        self._own_answer = NO_WORK
        self._held: str | None = None
        self.on_answers: Callable[[Answers], None] = lambda answers: None
        """Called after an operation that assigned rollouts to requests that wait."""

    @property
    def has_local_database(self) -> bool:
        """Whether statements wait for no network."""
        return self._store.engine.dialect.name == "sqlite"

    @property
    def has_local_images(self) -> bool:
        """Whether looking images up waits for no network."""
        return isinstance(self._images, ImageStore)

    def waiting_briefly(self) -> AbstractContextManager[None]:
        """Make a context whose operations raise `DatabaseLockedError` at once where another process has locked the file."""
        return self._store.waiting_briefly()

    def assign(
        self,
        worker_id: str,
        request_id: str,
        *,
        desktops: int | None = None,
        kv_cache_usage: float | None = None,
        wait: bool = False,
    ) -> AssignmentReply:
        """Assign the next rollout to a worker.

        Args:
            worker_id: The worker.
            request_id: The request; a repeated request gets the same rollout.
            desktops: Desktops of the worker, None where it does not report them.
            kv_cache_usage: Fraction of the key-value cache in use of its inference workers, None where it is unknown.
            wait: Whether a later operation may answer the request (`on_answers`), until `withdraw`.

        Returns:
            The rollout and its deadline; empty where there is nothing to do now.
        """
        if self._held is not None:
            return NO_WORK
        event = WorkAsked(self._scheduler.now_s(), worker_id, request_id, desktops, kv_cache_usage, wait)
        with self._operation(request_id) as session:
            self._scheduler.handle(session, event)
        return self._own_answer

    def hold(self, reason: str | None) -> int:
        """Give neither rollouts nor batches until this is taken back; what is assigned goes on.

        Args:
            reason: Why; None: it is taken back.

        Returns:
            Number of requests for work that waited and wait no more.
        """
        self._held = reason
        if reason is None:
            return 0
        with self._operation() as session:
            waiting = list(self._scheduler.state(session).asks)
            for request_id in waiting:
                self._scheduler.handle(session, AskWithdrawn(self._scheduler.now_s(), request_id))
        return len(waiting)

    def withdraw(self, request_id: str) -> None:
        """Answer a request that waits no more.

        Args:
            request_id: The request.
        """
        with self._operation() as session:
            self._scheduler.handle(session, AskWithdrawn(self._scheduler.now_s(), request_id))

    def heartbeat(
        self,
        worker_id: str,
        desktops: int | None = None,
        kv_cache_usage: float | None = None,
        deleted_snapshots: Collection[str] = (),
    ) -> WorkerHeartbeatReply:
        """Extend the deadlines of what a worker holds.

        Args:
            worker_id: The worker.
            desktops: As in `assign`.
            kv_cache_usage: As in `assign`.
            deleted_snapshots: Obsolete snapshots that the worker has deleted.

        Returns:
            Number of its rollouts, those of them that stop, and snapshots that it may delete.
        """
        with self._operation() as session:
            now_s = self._scheduler.now_s()
            self._scheduler.handle(session, HeartbeatReceived(now_s, worker_id, desktops, kv_cache_usage))
            steps.forget_snapshots(session, deleted_snapshots)
            worker = self._scheduler.state(session).workers[worker_id]
            return WorkerHeartbeatReply(
                count=len(worker.running),
                stopping=[rollout.request_id for rollout in worker.stopping.values() if rollout.request_id is not None],
                obsolete_snapshots=steps.obsolete_snapshots(session),
            )

    def abandon(self, request: AbandonRequest) -> int:
        """Requeue a rollout that a worker abandons.

        Args:
            request: The rollout, its assignment, the cause, and whether it used up an attempt.

        Returns:
            1, or 0 where another assignment of the rollout holds, or none.
        """
        rollout_id = request.rollout_id
        with self._operation() as session:
            if not work.holds(work.find_rollout(session, rollout_id), request.assignment):
                return 0
            steps.drop(session, rollout_id)
            now_s = self._scheduler.now_s()
            self._scheduler.handle(session, RolloutAbandoned(now_s, rollout_id, request.cause, request.uses_attempt))
            return 1

    def take_back(self, rollout_id: str, assignment: str) -> None:
        """Take back an assignment that its worker has not read; stored steps are kept for whoever is assigned the rollout next.

        Args:
            rollout_id: The rollout; nothing changes where another assignment of it holds, or none.
            assignment: The request that the assignment answered.
        """
        with self._operation() as session:
            if work.holds(work.find_rollout(session, rollout_id), assignment):
                partial = STORED_PARTIAL if steps.count_stored(session, rollout_id) else None
                version_min = steps.oldest_version(session, rollout_id)
                now_s, cause = self._scheduler.now_s(), "its request was given up"
                given_up = RolloutAbandoned(
                    now_s, rollout_id, cause, uses_attempt=False, partial=partial, version_min=version_min
                )
                self._scheduler.handle(session, given_up)

    def release(self, worker_id: str | None) -> int:
        """Requeue everything that a worker holds, because it is gone; what only its next process can continue waits a short time for it.

        Args:
            worker_id: The worker; None: every worker.

        Returns:
            Number of rollouts.
        """
        with self._operation() as session:
            workers = self._scheduler.state(session).workers
            held = sum(len(worker.running) for name, worker in workers.items() if worker_id in (None, name))
            gone = None if worker_id is None else workers.get(worker_id)
            resumable = frozenset() if gone is None else steps.resumable_only_by(session, gone.worker_id, gone.running)
            self._scheduler.handle(session, WorkerReleased(self._scheduler.now_s(), worker_id, resumable))
            return held

    def check_images(self, request: StoreStepRequest | TrajectoryPayload) -> None:
        """Check that the images of a step or of a trajectory are stored; the database is not used.

        Args:
            request: What is to be stored.

        Raises:
            StoreError: An image is not stored.
            StoreUnavailableError: The storage of images does not answer.
        """
        given = [request.step] if isinstance(request, StoreStepRequest) else request.steps
        missing = self._images.missing(sha256 for step in given for sha256 in step.image_sha256_new)
        if missing:
            names = ", ".join(missing[:3])
            raise StoreError(f"rollout {request.rollout_id} names images that are not stored: {names}")

    def store_step(self, request: StoreStepRequest, *, images_checked: bool = False) -> StoreStepReply:
        """Store the newest step of an unfinished rollout, and say what its episode does next.

        Args:
            request: The step, and the episode after it; its images are stored already.
            images_checked: Whether the caller has called `check_images`.

        Returns:
            Whether it was new, and the directive: to cancel where another assignment of the rollout holds.
        """
        step = request.step
        if not images_checked:
            self.check_images(request)
        with self._operation() as session:
            if not work.holds(work.find_rollout(session, request.rollout_id), request.assignment):
                return StoreStepReply(stored=False, directive=Directive.CANCEL)
            stored = steps.append_step(session, request.rollout_id, step, self._store.placeholders)
            if stored:
                steps.save_state(session, request.rollout_id, request.state, step.index + 1, self._store.now())
            return StoreStepReply(stored=stored, directive=self._scheduler.directive(session, request.rollout_id))

    def park(self, request: ParkRequest) -> int:
        """Leave an unfinished rollout to whoever is assigned it next.

        Args:
            request: The rollout and its state, and why it could not be continued, where that is why it is left.

        Returns:
            1, or 0 where another assignment of the rollout holds, or none.
        """
        with self._operation() as session:
            saved = self._save_unfinished(session, request)
            if saved is None:
                return 0
            parked = RolloutParked(
                self._scheduler.now_s(), request.rollout_id, STORED_PARTIAL, saved.version_min, request.failed_start
            )
            self._scheduler.handle(session, parked)
            return 1

    def saved_episode(self, rollout_id: str) -> SavedEpisodeReply:
        """Read an unfinished rollout.

        Args:
            rollout_id: The rollout.

        Returns:
            Its state and its steps; empty where nothing is stored.
        """
        with self._store.begin() as session:
            state = steps.read_state(session, rollout_id)
            return SavedEpisodeReply(state=state, steps=[] if state is None else steps.read_slices(session, rollout_id))

    def kept_leases(self) -> KeptLeasesReply:
        """List the leases whose desktops unfinished rollouts are continued on."""
        with self._store.begin() as session:
            return KeptLeasesReply(leases=steps.kept_leases(session))

    def resume(self, request: ResumeRequest) -> int:
        """Save on which desktop an unfinished rollout goes on, so that nobody takes its former state for the present one.

        Args:
            request: The rollout and its state.

        Returns:
            1, or 0 where another assignment of the rollout holds, or none.
        """
        with self._operation() as session:
            return 0 if self._save_unfinished(session, request) is None else 1

    def _save_unfinished(self, session: Session, request: ParkRequest | ResumeRequest) -> _SavedState | None:
        """Save the state of a rollout with stored steps; None where another assignment of it holds, or none."""
        if not work.holds(work.find_rollout(session, request.rollout_id), request.assignment):
            return None
        stored = steps.count_stored(session, request.rollout_id)
        if not stored:
            raise StoreError(f"rollout {request.rollout_id} has no stored steps: there is nothing to continue")
        return _SavedState(steps.save_state(session, request.rollout_id, request.state, stored, self._store.now()))

    def restart(self, request: RestartRequest) -> int:
        """Drop the steps of an unfinished rollout that its worker begins anew.

        Args:
            request: The rollout and the cause.

        Returns:
            Number of steps.
        """
        with self._operation() as session:
            if not work.holds(work.find_rollout(session, request.rollout_id), request.assignment):
                return 0
            dropped = steps.drop(session, request.rollout_id)
            self._store.record_event(
                session, "rollout_restarted", rollout_id=request.rollout_id, cause=request.cause, steps=dropped
            )
            self._scheduler.handle(session, RolloutRestarted(self._scheduler.now_s(), request.rollout_id))
            return dropped

    def report(self, row: TrajectoryPayload, *, images_checked: bool = False) -> bool:
        """Store a trajectory.

        Args:
            row: The trajectory; its images are stored already.
            images_checked: As in `store_step`.

        Returns:
            False where its rollout has a trajectory already.
        """
        if not images_checked:
            self.check_images(row)
        with self._operation() as session:
            stored = self._store.add_trajectory(session, row, self._scheduler.unfinished(session, row.rollout_id))
            if stored:
                self._scheduler.complete_rollout(session, row, steps.versions(session, row))
                if row.reward is None:
                    self._store.record_event(
                        session, "trajectory_masked", rollout_id=row.rollout_id, end=row.end.value, cause=row.cause
                    )
            return stored

    def start_phase(self, spec: PhaseSpec) -> PhaseStatus:
        """Start a phase; an existing one with the same specification is not changed.

        Args:
            spec: The specification.

        Returns:
            Progress of the phase.
        """
        with self._operation() as session:
            phase = session.scalar(select(PhaseTable).where(PhaseTable.name == spec.name))
            if phase is None:
                task_ids = spec.task_ids if spec.select is None else self._catalog.select(spec.select)
                self._scheduler.start_phase(session, spec, task_ids or [])
            elif work.phase_spec(phase) != spec:
                raise StoreError(f"phase {spec.name!r} exists with another specification: choose another name")
            return self._phase_status(session, spec.name)

    def phase(self, name: str) -> PhaseStatus:
        """Read the progress of a phase.

        Args:
            name: The phase.

        Returns:
            Its progress.
        """
        with self._operation() as session:
            return self._phase_status(session, name)

    def active_phases(self) -> list[PhaseStatus]:
        """Read the progress of the phases whose rollouts are assigned.

        Returns:
            Their progress, in the order in which they were started.
        """
        with self._operation() as session:
            phases = sorted(self._scheduler.state(session).phases.values(), key=lambda phase: phase.seq)
            names = [phase.plan.name for phase in phases if phase.state == "active"]
            return [self._phase_status(session, name) for name in names]

    def stop_phase(self, name: str) -> PhaseStatus:
        """Assign no more rollouts of a phase.

        Args:
            name: The phase.

        Returns:
            Its progress.
        """
        with self._operation() as session:
            work.find_phase(session, name)
            self._scheduler.handle(session, PhaseStopped(self._scheduler.now_s(), name))
            return self._phase_status(session, name)

    def results(self, name: str) -> list[EpisodeResult]:
        """Read the rewards of a phase.

        Args:
            name: The phase.

        Returns:
            Its episodes that have a reward, ordered by task and repeat.
        """
        with self._store.begin() as session:
            return status.results(session, work.find_phase(session, name).name)

    def trajectories(self, phase: str, after: int, limit: int) -> TrajectoryPage:
        """Read a page of a phase's trajectories.

        Args:
            phase: The phase.
            after: Sequence number after which the page begins.
            limit: Greatest number of trajectories.

        Returns:
            The page.
        """
        with self._store.begin() as session:
            rows, next_after = list_trajectories(session, phase, after, limit)
            return TrajectoryPage(trajectories=rows, next_after=next_after)

    def next_batch(self, trainer_version: int, trainer_digest: str | None = None) -> BatchReply:
        """Return the next batch where there is one now.

        Args:
            trainer_version: Present version of the trainer.
            trainer_digest: Digest of its weights; None: not known.

        Returns:
            The batch, and whether one may still come.
        """
        if self._held is not None:
            return BatchReply(batch=None, training_active=True, held=self._held)
        with self._operation() as session:
            batch = self._next_batch(session, trainer_version, trainer_digest)
            active = batch is not None or self._scheduler.state(session).training_active
            return BatchReply(batch=batch, training_active=active)

    def batch_done(self, batch_id: str, report: BatchReport) -> int:
        """Record that a batch was trained on.

        Args:
            batch_id: The batch.
            report: The report of the trainer.

        Returns:
            1, or 0 where it was recorded before.
        """
        with self._operation() as session:
            reasons = self._batches.done(session, batch_id, report)
            if reasons is None:
                return 0
            tallies = self._scheduler.tallies(session)
            tallies.add_rows(reasons.items())
            tallies.end_batch("done")
            self._scheduler.handle(session, BatchDone(self._scheduler.now_s(), report.version))
            return 1

    def batch_failed(self, batch_id: str, failure: BatchFailure) -> int:
        """Set aside what makes a batch impossible to train on, and give the rest of it free.

        Args:
            batch_id: The batch.
            failure: Why, and which steps are to blame.

        Returns:
            Number of batches that failed since the last one that was trained on.
        """
        with self._operation() as session:
            was_issued = self._batches.is_issued(session, batch_id)
            failed = self._batches.fail(session, batch_id, failure)
            if was_issued:
                self._scheduler.tallies(session).end_batch("failed")
                self._scheduler.handle(session, BatchRefused(self._scheduler.now_s(), {}))
            return failed

    def publish(self, record: VersionRecord) -> VersionReply:
        """Register a published policy; a version belongs to one path and to one digest for ever.

        Args:
            record: The version with its path and its identity.

        Returns:
            The newest version.
        """
        with self._operation() as session:
            if versions.register(session, self._store, record):
                self._scheduler.handle(session, PolicyPublished(self._scheduler.now_s(), record.version))
        return self.latest()

    def latest(self) -> VersionReply:
        """Return the newest published policy."""
        with self._store.begin() as session:
            return versions.latest(session)

    def held(self) -> VersionReply:
        """Return the policy that a phase asks for which is active, or stopped and still played; the phase that was started last counts."""
        with self._store.begin() as session:
            phases = self._scheduler.state(session).phases.values()
            played = [phase for phase in phases if phase.state == "active" or phase.unfinished]
            for phase in sorted(played, key=lambda phase: -phase.seq):
                version = work.phase_spec(work.find_phase(session, phase.plan.name)).sampling.version
                if version is not None:
                    return versions.read(session, version)
            return VersionReply(policy=None)

    def stats(self) -> DataManagerStats:
        """Return the numbers of the data manager."""
        with self._operation() as session:
            return status.stats(
                session,
                self._scheduler.state(session),
                self._scheduler.tallies(session),
                self._config.curation.task_sampler.window,
            )

    @contextmanager
    def _operation(self, request_id: str | None = None) -> Iterator[Session]:
        """A transaction; what it assigned is given to those who wait once it is committed."""
        self._own_answer = NO_WORK
        with self._scheduler.transaction() as session:
            yield session
        answers = self._scheduler.take_answers()
        if answers:
            if request_id is not None:
                self._own_answer = answers.pop(request_id, NO_WORK)
            if answers:
                self.on_answers(answers)

    def _phase_status(self, session: Session, name: str) -> PhaseStatus:
        phase = self._scheduler.state(session).phases.get(name)
        if phase is None:
            raise StoreError(f"there is no phase {name!r}")
        return status.phase_status(phase, self._scheduler.tallies(session).rewards[name])

    def _next_batch(self, session: Session, trainer_version: int, trainer_digest: str | None) -> Batch | None:
        while True:
            asked = self._scheduler.handle(session, BatchAsked(self._scheduler.now_s(), trainer_version))
            decided = next((each for each in asked if isinstance(each, (RepeatBatch, IssueBatch))), None)
            if decided is None:
                return None
            refused: dict[str, str] = {}
            tallies = self._scheduler.tallies(session)
            if isinstance(decided, RepeatBatch):
                batch = self._batches.repeat(session, trainer_digest)
                if batch is None:
                    tallies.end_batch("withdrawn")
            else:
                batch, refused = self._batches.issue(session, trainer_version, trainer_digest, decided.group_ids)
                if batch is not None:
                    tallies.add_batch(batch)
            if batch is not None:
                self._scheduler.issue_groups(session, decided.group_ids)
                return batch
            self._scheduler.handle(session, BatchRefused(self._scheduler.now_s(), refused))
