"""The data manager's verbs: one transaction each.

Role: what the HTTP routes call, without HTTP. Rule: every verb may be repeated; a verb either happens whole or not at all; all verbs run
on one thread, so the store has one writer. Non-goals: rules (`dart_train.curation`), routes (`app`).
"""

from __future__ import annotations

from sqlalchemy import func, select

from dart_agent.errors import StoreError
from dart_agent.store import work
from dart_agent.store.blobs import Storage
from dart_agent.store.models import PhaseRow, VersionTable
from dart_agent.store.rows import TrajectoryRow
from dart_agent.store.trajectories import Store, page_of_trajectories
from dart_agent.store.wire import (
    BatchReply,
    BatchReport,
    ClaimReply,
    EpisodeResult,
    PhaseSpec,
    PhaseView,
    Stats,
    TrajectoryPage,
    VersionRecord,
    VersionReply,
)
from dart_train.data_manager import views
from dart_train.data_manager.batches import BatchMaker
from dart_train.data_manager.catalog import TaskCatalog
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.scheduler import Scheduler

ABANDONED_COUNTS = True
"""An abandoned rollout used up an attempt: a task that can never start must not be tried for ever."""


class DataManager:
    """Verbs on the store. Every method raises StoreError for what it refuses."""

    def __init__(self, store: Store, images: Storage, catalog: TaskCatalog, config: DataManagerConfig) -> None:
        self._store = store
        self._images = images
        self._catalog = catalog
        self._config = config
        self._scheduler = Scheduler(store, config)
        self._batches = BatchMaker(store, config)

    def claim(self, worker_id: str, request_id: str) -> ClaimReply:
        """The next rollout for a worker."""
        with self._store.begin() as session:
            rollout = self._scheduler.claim(session, worker_id, request_id)
            if rollout is None:
                return ClaimReply(item=None, deadline_s=None)
            return ClaimReply(item=work.work_item(rollout), deadline_s=self._config.claim_timeout_s)

    def heartbeat(self, worker_id: str) -> int:
        """Extend what a worker holds."""
        with self._store.begin() as session:
            return work.extend_claims(session, worker_id, self._store.now() + self._config.claim_timeout_s)

    def abandon(self, rollout_id: str, cause: str) -> None:
        """A worker gives a rollout back."""
        with self._store.begin() as session:
            rollout = work.find_rollout(session, rollout_id)
            if rollout.state == "claimed":
                self._scheduler.hand_back(session, rollout, cause, counts=ABANDONED_COUNTS)

    def release(self, worker_id: str | None) -> int:
        """A worker (None: every worker) is gone."""
        with self._store.begin() as session:
            held = work.claims_of(session, worker_id)
            for rollout in held:
                self._scheduler.hand_back(session, rollout, "worker is gone", counts=False)
            return len(held)

    def report(self, row: TrajectoryRow) -> bool:
        """Store a trajectory; False when its rollout has one already."""
        missing = self._images.missing(sha256 for step in row.steps for sha256 in step.image_sha256)
        if missing:
            raise StoreError(f"rollout {row.rollout_id} names images that are not stored: {', '.join(missing[:3])}")
        with self._store.begin() as session:
            stored = self._store.add_trajectory(session, row)
            if stored:
                self._scheduler.settle(session, row.rollout_id, masked=row.reward is None)
                if row.reward is None:
                    self._store.log(
                        session, "trajectory_masked", rollout_id=row.rollout_id, end=row.end.value, cause=row.cause
                    )
            return stored

    def start_phase(self, spec: PhaseSpec) -> PhaseView:
        """Start a phase; an existing one with the same specification is left as it is."""
        with self._store.begin() as session:
            phase = session.scalar(select(PhaseRow).where(PhaseRow.name == spec.name))
            if phase is None:
                task_ids = spec.task_ids if spec.select is None else self._catalog.select(spec.select)
                phase = work.create_phase(self._store, session, spec, task_ids or [])
            elif work.phase_spec(phase) != spec:
                raise StoreError(f"phase {spec.name!r} exists with another specification: choose another name")
            return views.phase_view(session, phase)

    def phase(self, name: str) -> PhaseView:
        """Progress of a phase."""
        with self._store.begin() as session:
            return views.phase_view(session, work.find_phase(session, name))

    def stop_phase(self, name: str) -> PhaseView:
        """Hand out nothing more of a phase."""
        with self._store.begin() as session:
            phase = work.find_phase(session, name)
            self._scheduler.stop_phase(session, phase)
            session.flush()
            return views.phase_view(session, phase)

    def results(self, name: str) -> list[EpisodeResult]:
        """Verdicts of a phase."""
        with self._store.begin() as session:
            return views.results(session, work.find_phase(session, name).name)

    def trajectories(self, phase: str, after: int, limit: int) -> TrajectoryPage:
        """A page of a phase's trajectories."""
        with self._store.begin() as session:
            rows, next_after = page_of_trajectories(session, phase, after, limit)
            return TrajectoryPage(trajectories=rows, next_after=next_after)

    def next_batch(self, trainer_version: int) -> BatchReply:
        """The next batch if there is one now."""
        with self._store.begin() as session:
            self._scheduler.expire(session)
            batch = self._batches.next(session, trainer_version)
            return BatchReply(batch=batch, training=batch is not None or views.training(session))

    def batch_done(self, batch_id: str, report: BatchReport) -> int:
        """A batch was trained on."""
        with self._store.begin() as session:
            return self._batches.done(session, batch_id, report)

    def publish(self, record: VersionRecord) -> VersionReply:
        """Register a published policy; a number belongs to one path for ever."""
        with self._store.begin() as session:
            known = session.get(VersionTable, record.version)
            if known is None:
                session.add(VersionTable(version=record.version, path=record.path, created_s=self._store.now()))
                self._store.log(session, "version_published", version=record.version)
            elif known.path != record.path:
                raise StoreError(f"version {record.version} is registered with another path: {known.path}")
        return self.latest()

    def latest(self) -> VersionReply:
        """The newest published policy."""
        with self._store.begin() as session:
            newest = session.scalar(select(func.max(VersionTable.version)))
            row = None if newest is None else session.get(VersionTable, newest)
            return VersionReply(latest=None if row is None else VersionRecord(version=row.version, path=row.path))

    def stats(self) -> Stats:
        """The data manager in numbers."""
        with self._store.begin() as session:
            return views.stats(session, self._config.curation.task_sampler.window)
