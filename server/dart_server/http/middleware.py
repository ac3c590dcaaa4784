"""The HTTP middleware: request ids, hosts and origins, body limits, counting and logging of requests, the one error envelope.

Rule: whatever goes wrong, the client gets a `wire.ErrorBody` with the request id; what was not foreseen is logged under it with its trace.
Secrets never reach the log: neither headers nor bodies nor paths as they came are logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dart_server import wire
from dart_server.errors import ApiError, from_provider_error
from dart_server.http.ingress.bodies import find_json_problem
from dart_server.http.ingress.connections import MAX_HEADER_BYTES
from dart_server.http.ingress.hosts import HostPolicy
from dart_server.http.ingress.limits import AUTHENTICATED, ActiveRequest, PeerLimiter, RequestLimiter
from dart_server.ids import new_id
from dart_server.observability import logs, tracing
from dart_server.observability.metrics import METHODS, Metrics, label_or_other
from dart_server.providers.base import ProviderError
from dart_server.wire import ErrorCode

log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CODES = {401: ErrorCode.UNAUTHENTICATED, 403: ErrorCode.FORBIDDEN, 404: ErrorCode.NOT_FOUND}
RETRY_AFTER_S = 1.0
SHORT_REQUEST_TIMEOUT_S = 60.0
"""A request about the farm, its keys, its history or its page is answered or given up within this, counted from the end of its body."""
DESKTOP_REQUEST_TIMEOUT_S = 900.0
"""The same for a request that waits for a desktop or works in one."""
EVENT_STREAM_TIMEOUT_S = 3660.0
"""The same for Server-Sent Events, which end themselves before (`leases.claims.EVENT_STREAM_TIMEOUT_S`)."""
LARGE_NBYTES, LARGE_S = 64 * 1024, 60.0
"""Each part of an answer that is as large as this has at least so long to be taken by its client, whenever the request's time ends."""
HEADERS = 100
DESKTOP_ROUTE_PREFIXES = ("/v1/leases", "/v1/claims", "/v1/setups", "/v1/snapshots", "/v1/desktops", "/v1/pools")
KEY_ENDED_CLOSE_CODE = 4001
"""A WebSocket was closed because its key was revoked or has expired."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FarmMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        hosts: HostPolicy,
        limits: RequestLimiter,
        peers: PeerLimiter,
        is_known: Callable[[HTTPConnection], bool],
        json_limit_bytes: int,
        file_limit_bytes: int,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._hosts = hosts
        self._limits = limits
        self._peers = peers
        self._is_known = is_known
        self._json_limit_bytes = json_limit_bytes
        self._file_limit_bytes = file_limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = HTTPConnection(scope).headers.get(wire.REQUEST_ID_HEADER, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        with logs.bound(request_id=request_id):
            if scope["type"] == "websocket":
                await self._websocket(scope, receive, send, request_id)
                return
            with tracing.request_span(label_or_other(scope["method"], METHODS), HTTPConnection(scope).headers):
                await self._http(scope, receive, send, request_id)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        try:
            self._check(scope)
            self._enter(scope)
        except ApiError as error:
            await receive()
            await error_response(error, request_id)(scope, receive, send)
            return
        self._metrics.socket_opened()
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not _cancelled_by_key_end(scope):
                raise
            await send(
                {"type": "websocket.close", "code": KEY_ENDED_CLOSE_CODE, "reason": ErrorCode.UNAUTHENTICATED.value}
            )
        finally:
            self._metrics.socket_closed()
            self._leave(scope)

    async def _http(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started = time.perf_counter()
        status = 0
        late = asyncio.timeout(request_timeout_of(scope["path"]))

        async def answer(message: Message) -> None:
            nonlocal status
            if len(message.get("body", b"")) >= LARGE_NBYTES and (ends_at := late.when()) is not None:
                late.reschedule(max(ends_at, asyncio.get_running_loop().time() + LARGE_S))
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
                message["headers"] = self._hosts.add_security_headers(scope, headers)
            await send(message)

        limit_s = request_timeout_of(scope["path"])
        try:
            self._check(scope)
            self._enter(scope)
            if self._hosts.is_cors_preflight(scope):
                await Response(status_code=204)(scope, receive, answer)
            else:
                async with late:
                    await self._app(scope, self._body(scope, receive, late, limit_s), answer)
        except TimeoutError:
            log.warning("a request was given up after %g s", limit_s)
            if not status:
                await error_response(timed_out_error(limit_s), request_id)(scope, receive, answer)
        except ApiError as error:
            await error_response(error, request_id)(scope, receive, answer)
        except asyncio.CancelledError:
            if not _cancelled_by_key_end(scope):
                raise
            if not status:
                await error_response(key_ended_error(), request_id)(scope, receive, answer)
        finally:
            self._leave(scope)
            self._count(scope, status or 500, time.perf_counter() - started, request_id)

    def _count(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.request(route, scope["method"], status, seconds)
        tracing.record_response(label_or_other(scope["method"], METHODS), route, status)
        level = logging.DEBUG if status < 400 else logging.INFO
        log.log(
            level,
            "%s %s %d %.1f ms",
            scope["method"],
            route,
            status,
            seconds * 1000,
            extra={"request_id": request_id, "lease_id": scope.get("path_params", {}).get("lease_id")},
        )

    def _check(self, scope: Scope) -> None:
        """Raises `ApiError` for what is refused whatever it asks for."""
        headers = scope["headers"]
        if len(headers) > HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
            detail = f"the request has more than {HEADERS} headers, or more than {MAX_HEADER_BYTES} bytes of them"
            raise ApiError(ErrorCode.INVALID, detail, status=431)
        self._hosts.check(scope)
        if _CONTROL.search(scope["path"]) or b"%00" in scope["query_string"]:
            raise ApiError(ErrorCode.INVALID, "the address has control characters in it")

    def _body(self, scope: Scope, receive: Receive, late: asyncio.Timeout, limit_s: float) -> Receive:
        """`receive`, which raises `ApiError` for a body that is too large, or JSON that no parser should see.

        How long a body may take is `http.ingress.connections`' rule: the request's own time begins anew with each part.
        """
        guest = _is_guest(scope["path"])
        limit = self._file_limit_bytes if guest else self._json_limit_bytes
        too_large = ApiError(ErrorCode.INVALID, f"the body is larger than {limit} bytes", status=413)
        announced = HTTPConnection(scope).headers.get("content-length", "0")
        if announced.isascii() and announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
            raise too_large
        seen = 0
        parts: list[bytes] = []

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            part = message.get("body", b"")
            if part and not late.expired():
                late.reschedule(asyncio.get_running_loop().time() + limit_s)
            seen += len(part)
            if seen > limit:
                raise too_large
            active_request = scope["state"].get("active_request")
            if part and guest and active_request is not None:
                self._limits.reserve_bytes(active_request, len(part))
            if part and not guest:
                parts.append(part)
                if not message.get("more_body", False):
                    problem = find_json_problem(b"".join(parts) if len(parts) > 1 else part)
                    if problem is not None:
                        raise ApiError(ErrorCode.INVALID, problem)
            return message

        return limited

    def _enter(self, scope: Scope) -> None:
        """Who brings no key that is known pays with its address first. Raises `too_many_requests`."""
        if not self._is_known(HTTPConnection(scope)):
            client = scope.get("client")
            scope["state"]["paying_peer"] = self._peers.acquire(client[0] if client else None)

    def _leave(self, scope: Scope) -> None:
        peer: str | None = scope["state"].pop("paying_peer", None)
        if peer is not None and scope["state"].get(AUTHENTICATED):
            self._peers.give_back(peer)
        active_request: ActiveRequest | None = scope["state"].pop("active_request", None)
        if active_request is not None:
            self._limits.release(active_request)


def request_timeout_of(path: str) -> float:
    """How long a request to this path may take, in seconds."""
    if path.startswith("/v1/claims/") and path.endswith("/events"):
        return EVENT_STREAM_TIMEOUT_S
    return DESKTOP_REQUEST_TIMEOUT_S if path.startswith(DESKTOP_ROUTE_PREFIXES) else SHORT_REQUEST_TIMEOUT_S


def timed_out_error(limit_s: float) -> ApiError:
    """The request's time is up."""
    hint = "Look whether it was done all the same before you repeat it."
    return ApiError(ErrorCode.TIMED_OUT, f"the request was not done within {limit_s:g} s and was given up", hint=hint)


def _is_guest(path: str) -> bool:
    return path.startswith("/v1/leases/") and ("/guest/" in path or path.endswith("/files"))


def _cancelled_by_key_end(scope: Scope) -> bool:
    """Whether the task was cancelled because its key ended; the cancellation is over then."""
    active_request: ActiveRequest | None = scope["state"].get("active_request")
    task = asyncio.current_task()
    if active_request is None or not active_request.key_ended or task is None:
        return False
    task.uncancel()
    return True


def key_ended_error() -> ApiError:
    """The key was revoked, or its time is up."""
    return ApiError(ErrorCode.UNAUTHENTICATED, "the key was revoked or has expired", hint="Ask for a new key.")


def request_id_of(connection: HTTPConnection) -> str:
    """The id under which this request is logged."""
    return str(getattr(connection.state, "request_id", "") or new_id("req"))


def error_response(error: ApiError, request_id: str) -> JSONResponse:
    """The error as the client gets it."""
    body = wire.ErrorBody(
        error=error.code, detail=error.detail, hint=error.hint, request_id=request_id, desktop=error.desktop
    )
    headers = {}
    if error.status in (429, 503):
        headers["retry-after"] = str(math.ceil(error.retry_after_s or RETRY_AFTER_S))
    if error.status in (413, 431):
        headers["connection"] = "close"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(body.model_dump(mode="json"), status_code=error.status, headers=headers)


async def deny_websocket(socket: WebSocket, error: ApiError) -> None:
    """Answer an upgrade request with an ordinary HTTP error."""
    await socket.send_denial_response(error_response(error, request_id_of(socket)))


def _methods(app: FastAPI, request: Request) -> set[str]:
    """Every method that the path of a request has."""
    found: set[str] = set()
    for route in app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found


def _wrong(problem: Mapping[str, Any]) -> str:
    """What is wrong with a request's fields, in one sentence."""
    if problem["type"] == "json_invalid":
        return f"the body is not JSON: {problem['ctx']['error']} at character {problem['loc'][-1]}"
    path = ".".join(str(part) for part in problem["loc"] if part != "body")
    if not path and problem["type"] == "missing":
        return "the request needs a body of JSON"
    return f"{path}: {problem['msg']}" if path else str(problem["msg"])


def install_exception_handlers(app: FastAPI) -> None:
    """Every exception of a route becomes an envelope."""

    async def farm_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error_response(error, request_id_of(request))

    async def provider_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ProviderError)
        return error_response(from_provider_error(error), request_id_of(request))

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(ApiError(ErrorCode.INVALID, _wrong(error.errors()[0])), request_id_of(request))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, ApiError):
            return error_response(error.__cause__, request_id_of(request))
        if error.status_code == 400:
            return error_response(ApiError(ErrorCode.INVALID, str(error.detail)), request_id_of(request))
        code = _CODES.get(error.status_code, ErrorCode.INVALID)
        detail, hint = str(error.detail), None
        methods = ", ".join(sorted(_methods(app, request))) if error.status_code == 405 else ""
        if error.status_code == 404:
            detail, hint = (
                f"there is no route {request.method} {request.url.path}",
                "GET /openapi.json describes them all.",
            )
        elif methods:
            detail = f"{request.url.path} does not take {request.method}, only {methods}"
        reply = error_response(ApiError(code, detail, status=error.status_code, hint=hint), request_id_of(request))
        reply.headers.update(error.headers or {})
        if methods:
            reply.headers["allow"] = methods
        return reply

    async def hung_up(request: Request, error: Exception) -> JSONResponse:
        return error_response(ApiError(ErrorCode.INVALID, "the body did not come to its end"), request_id_of(request))

    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        request_id = request_id_of(request)
        log.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
        detail = f"the farm failed inside ({type(error).__name__})"
        hint = "This is a fault of the farm; its log has the trace under the request id."
        return error_response(ApiError(ErrorCode.HOST_FAULT, detail, hint=hint, status=500), request_id)

    app.add_exception_handler(ApiError, farm_error)
    app.add_exception_handler(ProviderError, provider_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, hung_up)
    app.add_exception_handler(Exception, unforeseen)
