"""Client of the data manager: one async HTTP connection pool over its Unix socket, or its URL.

Role: implements `dart_agent.types.WorkSource` for rollout workers, and what launcher and trainer need.
Rule: every call may be repeated safely (claims carry a request id, what follows names it, reports go by rollout id), so while the data
manager restarts the client waits and repeats for `retry_timeout_s`, as it does while the database or the storage of images is away; a
refusal by the data manager is raised at once and never repeated.
Non-goals: no caching, no decisions. Imports without SQLAlchemy, FastAPI or torch.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter

from dart_agent.data_client.image_location import open_images
from dart_agent.data_client.image_store import BlobStorage
from dart_agent.data_client.payloads import StreamStepPayload, TrajectoryPayload
from dart_agent.data_client.token_stream import StreamReader
from dart_agent.data_client.wire import (
    AbandonRequest,
    AssignmentReply,
    AssignmentRequest,
    BatchFailure,
    BatchReply,
    BatchReport,
    BatchRequest,
    CountReply,
    DataManagerStats,
    EpisodeResult,
    HeartbeatRequest,
    HoldRequest,
    KeptLeasesReply,
    ParkRequest,
    PhaseSpec,
    PhaseStatus,
    ReleaseRequest,
    RestartRequest,
    ResumeRequest,
    SavedEpisodeReply,
    StoreStepReply,
    StoreStepRequest,
    StoreTrajectoryReply,
    TrajectoryPage,
    VersionRecord,
    VersionReply,
    WorkerHeartbeatReply,
)
from dart_agent.errors import StoreError, StoreRefusedError, StoreUnavailableError
from dart_agent.rollouts.episode_state import EpisodeState, SavedEpisode
from dart_agent.types import Directive, StepRecord, Trajectory, WorkItem
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.types import RgbImage
from dart_server.wire import Clock

log = logging.getLogger(__name__)
_Reply = TypeVar("_Reply", bound=BaseModel)
_RESULTS = TypeAdapter(list[EpisodeResult])
_PHASES = TypeAdapter(list[PhaseStatus])
INITIAL_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
REQUEST_TIMEOUT_S = 60.0
CONFLICT = 409
UNAVAILABLE = 503


class DataManagerError(StoreError):
    """The data manager cannot be reached, or refused; `status` is the HTTP status of a refusal."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class DataManagerRefusedError(DataManagerError, StoreRefusedError):
    """The data manager refused, or would refuse, what it was given."""


class DataManagerClient:
    """Async client. Use as a context manager, or call `aclose()`.

    address: the Unix socket (a path) or the URL. images: where blobs are, or the storage. key: of the URL; a Unix socket needs none.
    desktops: those of the worker that asks for work with it. kv_cache_usage: tells the fraction of the key-value cache that is in use on
    the inference workers which that worker asks, None where it is unknown; read with each request for work and each heartbeat.
    """

    def __init__(
        self,
        address: Path | str,
        images: BlobStorage | Path | str,
        *,
        key: str | None = None,
        retry_timeout_s: float = 60.0,
        assignment_wait_s: float = 2.0,
        desktops: int | None = None,
        kv_cache_usage: Callable[[], float | None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = address
        self.images: BlobStorage = open_images(images) if isinstance(images, (Path, str)) else images
        self._retry_timeout_s = retry_timeout_s
        self._assignment_wait_s = assignment_wait_s
        self._desktops = desktops
        self._kv_cache_usage = kv_cache_usage or (lambda: None)
        self._clock = clock
        socket = str(address) if isinstance(address, Path) else None
        self._http = httpx.AsyncClient(
            # A transport of its own: httpx would send the key to the proxy that HTTP_PROXY names.
            transport=transport or httpx.AsyncHTTPTransport(uds=socket),
            base_url="http://data" if isinstance(address, Path) else address,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=REQUEST_TIMEOUT_S,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def acquire(self, worker_id: str) -> WorkItem | None:
        """Next rollout; None when there was nothing to do for `assignment_wait_s`. Waiting there costs less than asking often."""
        request = AssignmentRequest(
            worker_id=worker_id,
            request_id=uuid.uuid4().hex,
            wait_s=self._assignment_wait_s,
            desktops=self._desktops,
            kv_cache_usage=self._kv_cache_usage(),
        )
        reply = await self._post("/work/assign", request, AssignmentReply)
        return None if reply.item is None else reply.item.to_value()

    async def heartbeat(self, worker_id: str, deleted_snapshots: Sequence[str] = ()) -> WorkerHeartbeatReply:
        """Extend the deadlines of everything `worker_id` holds, and say which obsolete snapshots it has deleted."""
        request = HeartbeatRequest(
            worker_id=worker_id,
            desktops=self._desktops,
            kv_cache_usage=self._kv_cache_usage(),
            deleted_snapshots=list(deleted_snapshots),
        )
        return await self._post("/work/heartbeat", request, WorkerHeartbeatReply)

    async def report(self, trajectory: Trajectory, images: Mapping[str, RgbImage], *, stored_steps: int = 0) -> None:
        """Store images, then the trajectory. Idempotent. Raises DataManagerError when a hash does not fit its image.

        stored_steps: so many of its steps are stored already and are not sent again, unless the data manager holds others.
        """
        await self._put_images(images)
        for left_out in dict.fromkeys((stored_steps, 0)):
            try:
                payload = await asyncio.to_thread(TrajectoryPayload.from_value, trajectory, left_out)
            except ValueError as error:
                raise DataManagerRefusedError(f"rollout {trajectory.rollout_id} cannot be stored: {error}") from error
            try:
                await self._post("/trajectories", payload, StoreTrajectoryReply)
                return
            except DataManagerError as error:
                if not left_out or error.status != CONFLICT:
                    raise

    async def store_step(
        self,
        item: WorkItem,
        steps_S: Sequence[StepRecord],
        segment: int,
        images: Mapping[str, RgbImage],
        state: EpisodeState,
    ) -> tuple[int, Directive]:
        """Store the newest step of an unfinished rollout with its images. Idempotent by rollout and index.

        Args:
            item: The rollout, as it was assigned.
            steps_S: Its steps; the last one is stored.
            segment: Segment of the step before.
            images: New images by hash.
            state: The episode after the step.

        Returns:
            The segment of the step, and what the episode does next.
        """
        await self._put_images(images)
        step = StreamStepPayload.from_value(steps_S[-1], steps_S[-2] if len(steps_S) > 1 else None, segment)
        request = StoreStepRequest(rollout_id=item.rollout_id, assignment=item.assignment, step=step, state=state)
        return step.segment, (await self._post("/rollouts/steps", request, StoreStepReply)).directive

    async def park(self, item: WorkItem, state: EpisodeState, *, failed_start: str | None = None) -> bool:
        """Leave an unfinished rollout to whoever is assigned it next.

        Args:
            item: The rollout, as it was assigned.
            state: The episode after its last stored step.
            failed_start: Why it could not be continued now, which uses up an attempt; None: it was stopped at a step.

        Returns:
            False where the assignment holds no more: an earlier call came through, or somebody else has the rollout.
        """
        cause = None if failed_start is None else failed_start[:500]
        request = ParkRequest(rollout_id=item.rollout_id, assignment=item.assignment, state=state, failed_start=cause)
        return (await self._post("/work/park", request, CountReply)).count > 0

    async def saved_episode(self, rollout_id: str) -> SavedEpisode | None:
        """What is stored of an unfinished rollout, None where nothing is."""
        reply = SavedEpisodeReply.model_validate_json(await self._call("GET", f"/rollouts/{rollout_id}/state"))
        if reply.state is None:
            return None
        reader = StreamReader()
        return SavedEpisode(reply.state, tuple(step.to_value(reader) for step in reply.steps))

    async def resume(self, item: WorkItem, state: EpisodeState) -> None:
        """Say on which desktop an unfinished rollout goes on. Idempotent."""
        request = ResumeRequest(rollout_id=item.rollout_id, assignment=item.assignment, state=state)
        await self._post("/work/resume", request, CountReply)

    async def restart(self, item: WorkItem, cause: str) -> None:
        """Drop the stored steps of an unfinished rollout that this worker begins anew."""
        request = RestartRequest(rollout_id=item.rollout_id, assignment=item.assignment, cause=cause[:500])
        await self._post("/work/restart", request, CountReply)

    async def abandon(self, item: WorkItem, cause: str, *, uses_attempt: bool = True) -> None:
        """Give a claimed rollout back; it is handed out again. Idempotent by rollout and assignment."""
        request = AbandonRequest(
            rollout_id=item.rollout_id, assignment=item.assignment, cause=cause[:500], uses_attempt=uses_attempt
        )
        await self._post("/work/abandon", request, CountReply)

    async def release_worker(self, worker_id: str | None) -> int:
        """A worker (None: every worker) is gone: its rollouts are handed out again at once."""
        return (await self._post("/work/release", ReleaseRequest(worker_id=worker_id), CountReply)).count

    async def hold_work(self, reason: str | None) -> int:
        """Hand out neither work nor batches, for a reason; None: do so again. A data manager that is started anew knows nothing of it."""
        return (await self._post("/work/hold", HoldRequest(reason=reason), CountReply)).count

    async def kept_leases(self) -> list[str]:
        """References of the leases whose desktops unfinished rollouts are continued on."""
        return KeptLeasesReply.model_validate_json(await self._call("GET", "/work/leases")).leases

    async def start_phase(self, spec: PhaseSpec) -> PhaseStatus:
        """Start a phase, or look at it when it exists with the same specification."""
        return await self._post("/phases", spec, PhaseStatus)

    async def phase(self, name: str) -> PhaseStatus:
        """Progress of a phase."""
        return PhaseStatus.model_validate_json(await self._call("GET", f"/phases/{name}"))

    async def active_phases(self) -> list[PhaseStatus]:
        """Progress of the phases whose work is handed out, in the order in which they were started."""
        return _PHASES.validate_json(await self._call("GET", "/phases"))

    async def stop_phase(self, name: str) -> PhaseStatus:
        """Hand out no more work of this phase; what runs now is still stored."""
        return PhaseStatus.model_validate_json(await self._call("POST", f"/phases/{name}/stop"))

    async def results(self, phase: str) -> list[EpisodeResult]:
        """Verdict of every (task, repeat) item of a phase so far, ordered by task and repeat."""
        return _RESULTS.validate_json(await self._call("GET", f"/phases/{phase}/results"))

    async def trajectories(self, phase: str, *, page: int = 100) -> AsyncIterator[Trajectory]:
        """All stored trajectories of a phase, oldest first."""
        after: int | None = 0
        while after is not None:
            query = {"phase": phase, "after": after, "limit": page}
            reply = TrajectoryPage.model_validate_json(await self._call("GET", "/trajectories", params=query))
            for row in reply.trajectories:
                yield row.to_value()
            after = reply.next_after

    async def next_batch(self, trainer_version: int, wait_s: float = 30.0, digest: str | None = None) -> BatchReply:
        """The next training batch for weights of this version and digest, or the unfinished one again after a restart of the trainer."""
        request = BatchRequest(trainer_version=trainer_version, trainer_digest=digest, wait_s=wait_s)
        return await self._post("/batches/next", request, BatchReply, timeout_s=wait_s + REQUEST_TIMEOUT_S)

    async def batch_done(self, batch_id: str, report: BatchReport) -> None:
        """The batch was trained on. Idempotent."""
        await self._post(f"/batches/{batch_id}/done", report, CountReply)

    async def batch_failed(self, batch_id: str, failure: BatchFailure) -> int:
        """The batch cannot be trained on; returns how many failed in a row. Idempotent."""
        return (await self._post(f"/batches/{batch_id}/failed", failure, CountReply)).count

    async def publish_version(self, record: VersionRecord) -> None:
        """Register a published policy. Idempotent by number, path and digest."""
        await self._post("/versions", record, VersionReply)

    async def latest_version(self) -> VersionRecord | None:
        """The newest published policy."""
        return VersionReply.model_validate_json(await self._call("GET", "/versions/latest")).policy

    async def held_version(self) -> VersionRecord | None:
        """The policy that an evaluation which is being played asks for."""
        return VersionReply.model_validate_json(await self._call("GET", "/versions/held")).policy

    async def stats(self) -> DataManagerStats:
        """The data manager in numbers."""
        return DataManagerStats.model_validate_json(await self._call("GET", "/stats"))

    async def _put_images(self, images: Mapping[str, RgbImage]) -> None:
        """Store images; storage that does not answer is tried again as long as the data manager is."""
        give_up_at_s = self._clock.monotonic() + self._retry_timeout_s
        pause_s = INITIAL_BACKOFF_S
        for sha256, image in images.items():
            while True:
                try:
                    stored = await asyncio.to_thread(self.images.put, image)
                    break
                except StoreUnavailableError as error:
                    if self._clock.monotonic() >= give_up_at_s:
                        raise
                    log.warning("%s; trying again in %g s", error, pause_s)
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_BACKOFF_S)
            if stored != sha256:
                raise DataManagerRefusedError(f"image {sha256} has the content hash {stored}")

    async def _post(
        self, path: str, body: BaseModel, reply: type[_Reply], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> _Reply:
        content = body.model_dump_json().encode()
        return reply.model_validate_json(await self._call("POST", path, content=content, timeout_s=timeout_s))

    async def _call(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> bytes:
        give_up_at_s = self._clock.monotonic() + self._retry_timeout_s
        pause_s = INITIAL_BACKOFF_S
        headers = {"content-type": "application/json"} if content is not None else None
        while True:
            reply: httpx.Response | None = None
            try:
                reply = await self._http.request(
                    method, path, content=content, params=params, headers=headers, timeout=timeout_s
                )
            except httpx.TransportError as error:
                if self._clock.monotonic() >= give_up_at_s:
                    raise DataManagerError(
                        f"the data manager does not answer on {self.address} ({type(error).__name__}): is it running?"
                    ) from error
            if reply is None or reply.status_code == UNAVAILABLE:
                if reply is not None and self._clock.monotonic() >= give_up_at_s:
                    raise DataManagerError(f"data manager: {_detail(reply)}", reply.status_code)
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_BACKOFF_S)
                continue
            if reply.is_success:
                return reply.content
            raise DataManagerRefusedError(
                f"data manager: {_detail(reply)} ({method} {path}, {reply.status_code})", reply.status_code
            )


def _detail(reply: httpx.Response) -> str:
    try:
        body = reply.json()
    except ValueError:
        return reply.text[:300]
    return str(body.get("detail", body))[:1000] if isinstance(body, dict) else str(body)[:1000]
