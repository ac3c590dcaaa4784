"""The HTTP border: request ids, body limits, counting and logging of requests, the one error envelope.

Rule: whatever goes wrong, the client gets a `wire.ErrorBody` with the request id; what was not foreseen is logged under it with its trace.
Secrets never reach the log: neither headers nor bodies are logged.
"""

from __future__ import annotations

import logging
import re
import time

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dart_server import logs, wire
from dart_server.errors import FarmError
from dart_server.ids import new_id
from dart_server.metrics import Metrics
from dart_server.wire import ErrorCode

log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CODES = {401: ErrorCode.UNAUTHENTICATED, 403: ErrorCode.FORBIDDEN, 404: ErrorCode.NOT_FOUND}
RETRY_AFTER_S = "1"


class Border:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, metrics: Metrics, json_limit_bytes: int, file_limit_bytes: int) -> None:
        self._app = app
        self._metrics = metrics
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
                await self._socket(scope, receive, send)
            else:
                await self._http(scope, receive, send, request_id)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.socket_opened()
        try:
            await self._app(scope, receive, send)
        finally:
            self._metrics.socket_closed()

    async def _http(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        started = time.perf_counter()
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        limit = self._limit(scope["path"])
        too_large = FarmError(ErrorCode.INVALID, f"the body is larger than {limit} bytes", status=413)
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise too_large
            return message

        announced = HTTPConnection(scope).headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > limit:
            await envelope(too_large, request_id)(scope, receive, answer)
        else:
            await self._app(scope, limited, answer)
        route = getattr(scope.get("route"), "path", "unmatched")
        seconds = time.perf_counter() - started
        self._metrics.request(route, scope["method"], status, seconds)
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

    def _limit(self, path: str) -> int:
        guest = path.startswith("/v1/leases/") and ("/guest/" in path or path.endswith("/files"))
        return self._file_limit_bytes if guest else self._json_limit_bytes


def request_id_of(connection: HTTPConnection) -> str:
    """The id under which this request is logged."""
    return str(getattr(connection.state, "request_id", "") or new_id("req"))


def envelope(error: FarmError, request_id: str) -> JSONResponse:
    """The error as the client gets it."""
    body = wire.ErrorBody(
        error=error.code, detail=error.detail, hint=error.hint, request_id=request_id, desktop=error.desktop
    )
    headers = {}
    if error.status == 503:
        headers["retry-after"] = RETRY_AFTER_S
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(body.model_dump(mode="json"), status_code=error.status, headers=headers)


async def refuse(socket: WebSocket, error: FarmError) -> None:
    """Answer an upgrade request with an ordinary HTTP error."""
    await socket.send_denial_response(envelope(error, request_id_of(socket)))


def install_handlers(app: FastAPI) -> None:
    """Every exception of a route becomes an envelope."""

    async def farm_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, FarmError)
        return envelope(error, request_id_of(request))

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        problem = error.errors()[0]
        path = ".".join(str(part) for part in problem["loc"] if part != "body")
        detail = f"{path}: {problem['msg']}" if path else str(problem["msg"])
        return envelope(FarmError(ErrorCode.INVALID, detail), request_id_of(request))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, ErrorCode.INVALID)
        detail = (
            f"there is no route {request.method} {request.url.path}" if error.status_code == 404 else str(error.detail)
        )
        return envelope(FarmError(code, detail, status=error.status_code), request_id_of(request))

    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        request_id = request_id_of(request)
        log.error("request %s failed", request_id, exc_info=error, extra={"request_id": request_id})
        detail = f"the farm failed inside ({type(error).__name__})"
        hint = "This is a fault of the farm; its log has the trace under the request id."
        return envelope(FarmError(ErrorCode.HOST_FAULT, detail, hint=hint, status=500), request_id)

    app.add_exception_handler(FarmError, farm_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unforeseen)
