"""A farm that speaks the wire contract and nothing else, with faults on demand: what the client is tested
against."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from dart_server.wire import FROM_GUEST_HEADER, ErrorBody, ErrorCode

KEY = "test-key"
STATUS = {
    ErrorCode.LEASE_EXPIRED: 410,
    ErrorCode.FENCED: 409,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.NO_CAPACITY: 503,
    ErrorCode.QUOTA_EXCEEDED: 429,
    ErrorCode.DRAINING: 503,
    ErrorCode.NOT_FOUND: 404,
}
ROUTES_WITHOUT_TOKEN = {
    "healthz",
    "claim",
    "heartbeat",
    "release",
    "attach",
    "queue",
    "claim_view",
    "claim_events",
    "cancel",
    "farm",
    "view",
}
FENCED_ROUTES = {"reset", "execute"}
"""Routes that refuse an old fencing token."""


class FakeFarmServer:
    """Answers of the farm. `refuse` maps a route's name to the errors of its next calls; `silent` steps are
    never answered."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.refuse: dict[str, list[ErrorBody]] = {}
        self.health: dict[str, Any] = {"alive": True, "cause": "ok", "fault_owner": "none"}
        self.files: dict[str, bytes] = {}
        self.fencing_token = 1
        self.reset_id: str | None = None
        self.reset_failures: list[ErrorBody] = []
        """The errors of the next resets, which fail after the fencing token has grown."""
        self.steps: list[dict[str, Any]] = []
        self.unanswered_steps: set[int] = set()
        self.drop: set[int] = set()
        self.late: list[bytes] = []
        self.channel_error: dict[str, Any] | None = None
        self.frames: list[bytes] = []
        """Messages that take the place of the next steps' frames."""
        self.drafts: list[bool] = []
        """For the next steps: a picture ahead of the answer, which is the one of the answer or not."""
        self.claim_delay_s = 0.0
        self.delay_s: dict[str, float] = {}
        """How long a route takes to answer."""
        self.held_answers: dict[str, asyncio.Event] = {}
        """Routes that are carried out, and answer once their event is set."""
        self.status: dict[str, int] = {}
        """The status of a route's refusals, where it is not that of their code."""
        self.client_request_ids: list[str] = []
        self.retry_after_s: int | None = None
        self.from_guest: set[str] = set()
        """Routes whose refusals are passed through from the desktop."""
        self.drop_responses: set[str] = set()
        """Routes whose next call is carried out, but the connection breaks before its answer."""
        self.claim: dict[str, Any] = {}
        self.claim_updates: list[dict[str, Any]] = []
        """What the events of the claim tell, one after the other; the stream breaks off after the last one."""
        self.streams = True

    def error(self, name: str, code: ErrorCode, **extra: Any) -> None:
        """The next call of `name` is refused with `code`."""
        body = ErrorBody(error=code, detail=f"{name} says {code}.", request_id="r", **extra)
        self.refuse.setdefault(name, []).append(body)

    def _refusal(self, name: str, request: Request | WebSocket) -> Response | None:
        self.requests.append(name)
        if name != "healthz" and request.headers.get("authorization") != f"Bearer {KEY}":
            body = ErrorBody(error=ErrorCode.UNAUTHENTICATED, detail="No key.", request_id="r")
            return Response(body.model_dump_json(), 401)
        if waiting := self.refuse.get(name):
            body = waiting.pop(0)
            headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
            if name in self.from_guest:
                headers[FROM_GUEST_HEADER] = "1"
            return Response(body.model_dump_json(), self.status.get(name, STATUS.get(body.error, 502)), headers)
        if name in FENCED_ROUTES and request.headers["x-dart-fencing-token"] != str(self.fencing_token):
            body = ErrorBody(error=ErrorCode.FENCED, detail="That fencing token is old.", request_id="r")
            return Response(body.model_dump_json(), STATUS[ErrorCode.FENCED])
        if name not in ROUTES_WITHOUT_TOKEN and "x-dart-lease-token" not in request.headers:
            return Response(status_code=400)
        return None

    def app(self) -> Starlette:
        lease = "/v1/leases/{lease_id}"

        def route(path: str, method: str, name: str) -> Route:
            async def endpoint(request: Request) -> Response:
                refused = self._refusal(name, request)
                await asyncio.sleep(self.delay_s.get(name, 0.0))
                answer = refused if refused is not None else await getattr(self, f"_{name}")(request)
                if name in self.held_answers:
                    await self.held_answers[name].wait()
                if name in self.drop_responses:
                    self.drop_responses.discard(name)
                    return StreamingResponse(truncated_body(), headers={"content-length": "100"})
                return answer

            return Route(path, endpoint, methods=[method])

        return Starlette(
            routes=[
                route("/healthz", "GET", "healthz"),
                route("/v1/leases", "POST", "claim"),
                route("/v1/farm", "GET", "farm"),
                route("/v1/claims", "POST", "queue"),
                route("/v1/claims/{claim_id}", "GET", "claim_view"),
                route("/v1/claims/{claim_id}", "DELETE", "cancel"),
                route("/v1/claims/{claim_id}/events", "GET", "claim_events"),
                route(f"{lease}/attach", "POST", "attach"),
                route(f"{lease}/renew", "POST", "renew"),
                route(f"{lease}/heartbeat", "POST", "heartbeat"),
                route(lease, "DELETE", "release"),
                route(lease, "GET", "view"),
                route(f"{lease}/health", "GET", "health"),
                route(f"{lease}/reset", "POST", "reset"),
                route(f"{lease}/execute", "POST", "execute"),
                route(f"{lease}/files", "GET", "read"),
                route(f"{lease}/files", "PUT", "write"),
                route(f"{lease}/guest/setup/activate_window", "POST", "activate"),
                route(f"{lease}/guest/v1/windows", "GET", "windows"),
                WebSocketRoute(f"{lease}/channel", self._channel),
                WebSocketRoute(f"{lease}/tunnel", self._tunnel),
            ]
        )

    async def _healthz(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _claim(self, request: Request) -> Response:
        body = await request.json()
        self.client_request_ids.append(body["client_request_id"])
        await asyncio.sleep(self.claim_delay_s)
        return JSONResponse(self.granted("lease_1", shape=body["shape"], ttl_s=body["ttl_s"]))

    def granted(self, lease_id: str, **fields: Any) -> dict[str, Any]:
        """A lease as the farm gives it."""
        return {
            "lease_id": lease_id,
            "token": "secret",
            "fencing_token": self.fencing_token,
            "desktop_id": "desk_1",
            "shape": {"resolution": [64, 64]},
            "image_digest": "sha256:00",
            "setup_key": None,
            "ttl_s": 30.0,
            "expires_at": "2030-01-01T00:00:00Z",
            **fields,
        }

    async def _queue(self, request: Request) -> Response:
        body = await request.json()
        self.client_request_ids.append(body["client_request_id"])
        names = (
            "client_request_id",
            "count",
            "priority",
            "setup_key",
            "snapshot_id",
            "match_labels",
            "labels",
            "ttl_s",
        )
        self.claim = {
            "claim_id": "claim_1",
            "owner": "key_1",
            "state": "waiting",
            "position": 2,
            "shape": body["shape"],
            "created_at": "2030-01-01T00:00:00Z",
            "deadline_at": "2030-01-01T00:10:00Z",
            **{name: body[name] for name in names},
            **self.claim,
        }
        return JSONResponse(self.claim, 202)

    async def _claim_view(self, request: Request) -> Response:
        if float(request.query_params.get("wait_s", 0)) > 0 and self.claim_updates:
            self.claim |= self.claim_updates.pop(0)
        return JSONResponse(self.claim)

    async def _claim_events(self, _request: Request) -> Response:
        if not self.streams:
            return Response("no such thing", 404)

        async def tell() -> AsyncIterator[str]:
            yield ": hello\n\n"
            while self.claim_updates:
                self.claim |= self.claim_updates.pop(0)
                yield f"event: position\ndata: {json.dumps(self.claim)}\n\n"
            if self.claim["state"] == "waiting":
                raise ConnectionAbortedError

        return StreamingResponse(tell(), media_type="text/event-stream")

    async def _cancel(self, _request: Request) -> Response:
        if self.claim["state"] == "waiting":
            self.claim |= {"state": "cancelled", "position": None}
        return Response(status_code=204)

    async def _attach(self, request: Request) -> Response:
        if (await request.json())["takeover"]:
            self.fencing_token, self.reset_id = self.fencing_token + 1, None
        return JSONResponse(self.granted(request.path_params["lease_id"]))

    async def _renew(self, request: Request) -> Response:
        return JSONResponse({"ttl_s": (await request.json())["ttl_s"], "expires_at": "2031-01-01T00:00:00Z"})

    async def _farm(self, _request: Request) -> Response:
        numbers = {"max_desktops": 1, "desktops": {}, "leases_active": 0, "snapshots": 0, "snapshot_bytes": 0}
        return JSONResponse({"version": "0", "provider": "x", "capabilities": {}, "snapshot_quota_bytes": 0, **numbers})

    async def _heartbeat(self, _request: Request) -> Response:
        return JSONResponse({"expires_at": "2030-01-01T00:00:00Z"})

    async def _view(self, request: Request) -> Response:
        view = {
            "lease_id": request.path_params["lease_id"],
            "state": "active",
            "desktop_id": "desk_1",
            "fencing_token": self.fencing_token,
            "owner": "key_1",
            "shape": {"resolution": [64, 64]},
            "setup_key": None,
            "created_at": "2030-01-01T00:00:00Z",
            "expires_at": "2030-01-01T00:00:00Z",
            "labels": {},
            "reset_id": self.reset_id,
        }
        return JSONResponse(view)

    async def _release(self, _request: Request) -> Response:
        return Response(status_code=204)

    async def _health(self, _request: Request) -> Response:
        return JSONResponse(self.health)

    async def _reset(self, request: Request) -> Response:
        body = await request.json()
        self.fencing_token, self.reset_id = self.fencing_token + 1, body["reset_id"]
        if self.reset_failures:
            failure = self.reset_failures.pop(0)
            return Response(failure.model_dump_json(), STATUS.get(failure.error, 502))
        reply = {
            "fencing_token": self.fencing_token,
            "desktop_id": "desk_2",
            "setup_key": body["setup_key"],
            "restored": True,
            "duration_s": 0.1,
        }
        return JSONResponse(reply)

    async def _execute(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"returncode": 0, "stdout": json.dumps(body), "stderr": "", "timed_out": False})

    async def _read(self, request: Request) -> Response:
        content = self.files.get(request.query_params["path"])
        if content is not None:
            return Response(content)
        body = ErrorBody(error=ErrorCode.GUEST_ERROR, detail="not_found", request_id="r")
        return Response(body.model_dump_json(), 404)

    async def _write(self, request: Request) -> Response:
        self.files[request.query_params["path"]] = await request.body()
        return Response(status_code=204)

    async def _windows(self, _request: Request) -> Response:
        return JSONResponse({"windows": [{"id": 1, "title": "note.txt - Editor"}, {"id": 2, "title": "closing"}]})

    async def _activate(self, request: Request) -> Response:
        known = (await request.json())["window_name"] == "note.txt - Editor"
        return Response(status_code=200 if known else 404)

    async def _channel(self, socket: WebSocket) -> None:
        refused = self._refusal("channel", socket)
        if refused is not None:
            await socket.send_denial_response(refused)
            return
        await socket.accept()
        fencing_token = socket.headers["x-dart-fencing-token"]
        try:
            while True:
                request = json.loads(await socket.receive_text())
                number = len(self.steps)
                self.steps.append({**request, "fencing_token": fencing_token})
                if number in self.drop:
                    await socket.close(1011)
                    return
                if self.frames:
                    await socket.send_bytes(self.frames.pop(0))
                elif self.channel_error is not None:
                    header, self.channel_error = {**self.channel_error, "seq": request["seq"], "nbytes": 0}, None
                    await socket.send_bytes(pack(header, b""))
                elif number in self.unanswered_steps:
                    self.late.append(frame(request["seq"], 77))
                else:
                    for answer in self.late:
                        await socket.send_bytes(answer)
                    self.late.clear()
                    if not self.drafts or socket.query_params.get("early") != "1":
                        await socket.send_bytes(frame(request["seq"], number))
                        continue
                    draft = {"draft": True, "seq": request["seq"], "nbytes": 64 * 64 * 3}
                    await socket.send_bytes(pack(draft, bytes([200 + number]) * 64 * 64 * 3))
                    await socket.send_bytes(frame(request["seq"], number, early=self.drafts.pop(0)))
        except WebSocketDisconnect:
            return

    async def _tunnel(self, socket: WebSocket) -> None:
        refused = self._refusal("tunnel", socket)
        if refused is not None:
            await socket.send_denial_response(refused)
            return
        await socket.accept()
        try:
            while True:
                chunk = await socket.receive_bytes()
                await socket.send_bytes(socket.query_params["port"].encode() + b":" + chunk)
        except WebSocketDisconnect:
            return


async def truncated_body() -> AsyncIterator[bytes]:
    """An answer whose connection breaks in the middle."""
    yield b"{"
    raise ConnectionAbortedError


def pack(header: dict[str, Any], payload: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(4, "big") + encoded + payload


def frame(seq: int, value: int, *, early: bool = False) -> bytes:
    """A raw 64x64 frame filled with `value`, or without its picture."""
    payload = b"" if early else bytes([value]) * 64 * 64 * 3
    header = {"seq": seq, "width": 64, "height": 64, "encoding": "raw", "settled": True, "settle_ms": 1.0}
    header |= {"early": True} if early else {}
    return pack({**header, "grab_ms": 1.0, "cursor": [0, 0], "nbytes": len(payload), "extra": 1}, payload)


@asynccontextmanager
async def serving(farm: FakeFarmServer, socket_path: Path) -> AsyncIterator[str]:
    """The farm on a Unix socket; yields its URL."""
    config = uvicorn.Config(
        farm.app(), uds=str(socket_path), log_level="critical", ws="websockets-sansio", lifespan="off"
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield f"unix://{socket_path}"
    finally:
        server.force_exit = True
        await server.shutdown()
