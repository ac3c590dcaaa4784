"""HTTP routes of the data manager.

Role: one route per operation of `service.DataManager`; waits for work and for batches. Rule: operations run one after the other, so that
the database has one writer, and on a thread, so that the event loop stays free; only those that touch a few rows of a local file run on
the event loop, when nothing else runs, and again on the thread where another process has locked the file; images of reported steps in
storage over a network are looked up before that, on threads of their own; a refusal is 409 with a sentence, a malformed body 422, and a
database that is away 503, after which the client tries again; what every episode calls does not pass through the framework's routing
(`HotRoutes`). Non-goals: decisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Lock
from typing import ParamSpec, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from dart_agent.data_client.payloads import TrajectoryPayload
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
from dart_agent.errors import StoreError, StoreUnavailableError
from dart_envs.clock import SYSTEM_CLOCK, timeout, wait_first
from dart_server.wire import Clock
from dart_train.data_manager.scheduler import Answers
from dart_train.data_manager.service import DataManager
from dart_train.data_manager.store.database import DatabaseLockedError

log = logging.getLogger(__name__)
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_Body = TypeVar("_Body", bound=BaseModel)

BATCH_RECHECK_S = 5.0
"""A waiting trainer checks again this often even if nothing was reported: an expired assignment can complete a group."""


_Handler = Callable[[Request, bytes], Awaitable[BaseModel]]


class HotRoutes:
    """Middleware that answers POST requests to exact paths itself, and passes all others on.

    Matching routes, resolving parameters and making a response cost the framework more than such a request's operation.

    Args:
        app: The application behind it.
        handlers: By path.
    """

    def __init__(self, app: ASGIApp, handlers: Mapping[str, _Handler]) -> None:
        self._app = app
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        hot = scope["type"] == "http" and scope["method"] == "POST"
        handler = self._handlers.get(scope["path"]) if hot else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            content = (await handler(request, await _body(receive))).model_dump_json().encode()
        except ClientDisconnect:
            return
        except StoreUnavailableError as error:
            response = await _unavailable(request, error)
        except StoreError as error:
            response = await _refused(request, error)
        except RequestValidationError as error:
            response = await _malformed(request, error)
        else:
            length = str(len(content)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})
            return
        await response(scope, receive, send)


class _SerialExecutor:
    """Runs operations one after the other, and notifies a waiting trainer of changes.

    Args:
        manager: What the operations are of.
    """

    def __init__(self, manager: DataManager) -> None:
        self._here = manager.has_local_database
        self._waiting_briefly = manager.waiting_briefly
        self._one = Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._changed = asyncio.Condition()
        self.changes = 0

    async def run(self, operation: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        """Run one operation after those before it, on the thread."""

        def alone() -> _Result:
            with self._one:
                return operation(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._thread, alone)

    async def run_short(
        self, operation: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs
    ) -> _Result:
        """Run an operation on a few rows: at once where no other one runs, because to change threads twice would take as long as it."""
        if self._here and self._one.acquire(blocking=False):
            try:
                with self._waiting_briefly():
                    return operation(*args, **kwargs)
            except DatabaseLockedError:
                pass  # it waits on the thread, and no other request with it
            finally:
                self._one.release()
        return await self.run(operation, *args, **kwargs)

    async def notify(self) -> None:
        """Wake the waiting requests."""
        async with self._changed:
            self.changes += 1
            self._changed.notify_all()

    async def wait(self, clock: Clock, seen: int, timeout_s: float) -> None:
        """Wait until there are more than `seen` changes, at most `timeout_s`."""
        try:
            async with timeout(clock, timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.changes > seen)
        except TimeoutError:
            return

    def close(self) -> None:
        """Finish what runs."""
        self._thread.shutdown()


def _deliver(
    loop: asyncio.AbstractEventLoop, waiting: dict[str, asyncio.Future[AssignmentReply]], answers: Answers
) -> None:
    """Give answers, which were made on the thread of the writer, to the requests that wait on the event loop."""

    def give() -> None:
        for request_id, reply in answers.items():
            future = waiting.get(request_id)
            if future is not None and not future.done():
                future.set_result(reply)

    loop.call_soon_threadsafe(give)


def create_app(manager: DataManager, clock: Clock = SYSTEM_CLOCK) -> FastAPI:
    """Make the application over a data manager.

    Args:
        manager: The data manager.
        clock: Clock of waits.

    Returns:
        The application.
    """
    writer = _SerialExecutor(manager)
    waiting: dict[str, asyncio.Future[AssignmentReply]] = {}

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        manager.on_answers = lambda answers: _deliver(loop, waiting, answers)
        yield
        writer.close()

    app = FastAPI(title="DART data manager", lifespan=lifespan, openapi_url=None)
    app.state.writer = writer
    app.add_exception_handler(StoreError, _refused)
    app.add_exception_handler(StoreUnavailableError, _unavailable)
    app.add_exception_handler(RequestValidationError, _malformed)

    async def assign(request: Request, content: bytes) -> AssignmentReply:
        body = _parse(content, AssignmentRequest)
        answer: asyncio.Future[AssignmentReply] = asyncio.get_running_loop().create_future()
        waiting[body.request_id] = answer  # before it is asked, so that no answer is missed
        try:
            reply = await writer.run_short(
                manager.assign,
                body.worker_id,
                body.request_id,
                desktops=body.desktops,
                kv_cache_usage=body.kv_cache_usage,
                wait=body.wait_s > 0,
            )
            waits = reply.item is None and body.wait_s > 0
            if waits:
                await wait_first(clock, body.wait_s, [answer])
                if not answer.done():
                    await writer.run(manager.withdraw, body.request_id)
                if answer.done():
                    reply = answer.result()
        finally:
            if waiting.get(body.request_id) is answer:
                del waiting[body.request_id]
        if waits and reply.item is not None and await request.is_disconnected():
            await writer.run(manager.take_back, reply.item.rollout_id, body.request_id)
        return reply

    async def check_remote_images(body: StoreStepRequest | TrajectoryPayload) -> bool:
        """Check images that are looked up over a network, while other operations run; False where the operation checks them."""
        if manager.has_local_images:
            return False
        await asyncio.to_thread(manager.check_images, body)
        return True

    async def store_step(_request: Request, content: bytes) -> StoreStepReply:
        body = _parse(content, StoreStepRequest)
        checked = await check_remote_images(body)
        return await writer.run_short(manager.store_step, body, images_checked=checked)

    async def report(_request: Request, content: bytes) -> StoreTrajectoryReply:
        body = _parse(content, TrajectoryPayload)
        checked = await check_remote_images(body)
        stored = await writer.run_short(manager.report, body, images_checked=checked)
        await writer.notify()
        return StoreTrajectoryReply(stored=stored)

    async def next_batch(_request: Request, content: bytes) -> BatchReply:
        body = _parse(content, BatchRequest)
        give_up_at_s = clock.monotonic() + body.wait_s
        while True:
            seen = writer.changes
            reply = await writer.run(manager.next_batch, body.trainer_version, body.trainer_digest)
            left_s = give_up_at_s - clock.monotonic()
            if reply.batch is not None:
                await writer.notify()
            if reply.batch is not None or not reply.training_active or left_s <= 0:
                return reply
            await writer.wait(clock, seen, min(left_s, BATCH_RECHECK_S))

    app.add_middleware(
        HotRoutes,
        handlers={
            "/work/assign": assign,
            "/rollouts/steps": store_step,
            "/trajectories": report,
            "/batches/next": next_batch,
        },
    )

    @app.post("/work/heartbeat")
    async def heartbeat(body: HeartbeatRequest) -> WorkerHeartbeatReply:
        return await writer.run(
            manager.heartbeat,
            body.worker_id,
            desktops=body.desktops,
            kv_cache_usage=body.kv_cache_usage,
            deleted_snapshots=body.deleted_snapshots,
        )

    @app.post("/work/abandon")
    async def abandon(body: AbandonRequest) -> CountReply:
        count = await writer.run(manager.abandon, body)
        await writer.notify()
        return CountReply(count=count)

    @app.post("/work/release")
    async def release(body: ReleaseRequest) -> CountReply:
        count = await writer.run(manager.release, body.worker_id)
        await writer.notify()
        return CountReply(count=count)

    @app.post("/work/hold")
    async def hold(body: HoldRequest) -> CountReply:
        count = await writer.run(manager.hold, body.reason)
        await writer.notify()
        return CountReply(count=count)

    @app.post("/work/park")
    async def park(body: ParkRequest) -> CountReply:
        count = await writer.run(manager.park, body)
        await writer.notify()
        return CountReply(count=count)

    @app.get("/work/leases")
    async def kept_leases() -> KeptLeasesReply:
        return await writer.run(manager.kept_leases)

    @app.post("/work/resume")
    async def resume(body: ResumeRequest) -> CountReply:
        return CountReply(count=await writer.run(manager.resume, body))

    @app.post("/work/restart")
    async def restart(body: RestartRequest) -> CountReply:
        return CountReply(count=await writer.run(manager.restart, body))

    @app.get("/rollouts/{rollout_id}/state")
    async def saved_episode(rollout_id: str) -> SavedEpisodeReply:
        return await writer.run(manager.saved_episode, rollout_id)

    @app.get("/trajectories")
    async def trajectories(
        phase: str, after: int = 0, limit: int = Query(default=100, ge=1, le=1000)
    ) -> TrajectoryPage:
        return await writer.run(manager.trajectories, phase, after, limit)

    @app.post("/phases")
    async def start_phase(body: PhaseSpec) -> PhaseStatus:
        view = await writer.run(manager.start_phase, body)
        await writer.notify()
        return view

    @app.get("/phases")
    async def active_phases() -> list[PhaseStatus]:
        return await writer.run(manager.active_phases)

    @app.get("/phases/{name}")
    async def phase(name: str) -> PhaseStatus:
        return await writer.run(manager.phase, name)

    @app.post("/phases/{name}/stop")
    async def stop_phase(name: str) -> PhaseStatus:
        view = await writer.run(manager.stop_phase, name)
        await writer.notify()
        return view

    @app.get("/phases/{name}/results")
    async def results(name: str) -> list[EpisodeResult]:
        return await writer.run(manager.results, name)

    @app.post("/batches/{batch_id}/done")
    async def batch_done(batch_id: str, body: BatchReport) -> CountReply:
        return CountReply(count=await writer.run(manager.batch_done, batch_id, body))

    @app.post("/batches/{batch_id}/failed")
    async def batch_failed(batch_id: str, body: BatchFailure) -> CountReply:
        return CountReply(count=await writer.run(manager.batch_failed, batch_id, body))

    @app.post("/versions")
    async def publish(body: VersionRecord) -> VersionReply:
        return await writer.run(manager.publish, body)

    @app.get("/versions/latest")
    async def latest() -> VersionReply:
        return await writer.run(manager.latest)

    @app.get("/versions/held")
    async def held() -> VersionReply:
        return await writer.run(manager.held)

    @app.get("/stats")
    async def stats() -> DataManagerStats:
        return await writer.run(manager.stats)

    return app


async def _body(receive: Receive) -> bytes:
    """The body of a request."""
    parts = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _parse(content: bytes, model: type[_Body]) -> _Body:
    """Parse a body that is large or comes often, without the detour over dictionaries."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(status_code=409, content={"error": "refused", "detail": str(error)})


async def _unavailable(_request: Request, error: Exception) -> JSONResponse:
    log.warning("%s", error)
    return JSONResponse(status_code=503, content={"error": "unavailable", "detail": str(error)})


async def _malformed(_request: Request, error: Exception) -> JSONResponse:
    detail = str(error)
    if isinstance(error, RequestValidationError):
        detail = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
    return JSONResponse(status_code=422, content={"error": "invalid", "detail": detail[:1000]})
