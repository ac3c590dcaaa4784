"""Routes into a leased desktop: step, channel, screenshot, accessibility, programs, files, health, OSWorld's own paths, tunnels."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse

from dart_server import wire
from dart_server.errors import ApiError, from_provider_error
from dart_server.guest import answers, limits
from dart_server.guest.channel import StepChannel
from dart_server.guest.client import DIAL_TIMEOUT_S, GuestClient, GuestReply
from dart_server.http.dependencies import Leased, LeasedUnfenced, access_of, answer_reserver_of, farm_of
from dart_server.http.middleware import deny_websocket
from dart_server.leases.service import LeaseAccess
from dart_server.providers.base import CapabilityMissing, DesktopGone, ProviderError
from dart_server.wire import ErrorCode
from dart_server.wire.desktop import (
    A11Y_LIMIT_S,
    A11Y_WALK_S,
    CALL_LIMIT_S,
    FILE_LIMIT_S,
    PROGRAM_GRACE_S,
    passed_through_limit_s,
    step_limit_s,
)
from dart_server.wire.guest_answers import check_frame, split_frame

if TYPE_CHECKING:
    from dart_server.farm import Farm

router = APIRouter(prefix="/v1/leases/{lease_id}", tags=["desktop"])
OPEN_V1 = frozenset({"v1/health", "v1/windows"})
"""Of the agent's own routes, those that may be passed through; the others have a route here or belong to the farm alone."""
TUNNEL_CHUNK = 64 * 1024
PART_NBYTES = 1024**2
_PLAIN_FIELD = re.compile(r"[ -~]{0,1024}")
AbsolutePath = Annotated[str, Query(pattern=r"^/[^\x00]*$", max_length=4096)]
Mode = Annotated[str | None, Query(pattern=r"^[0-7]{3,4}$")]


@router.post("/step", operation_id="step", response_class=Response)
async def step(lease_id: str, body: wire.StepRequest, request: Request, access: Leased) -> Response:
    """Events, settling, frame, in one round trip; the answer is the binary frame."""
    farm, reserve_bytes = farm_of(request), answer_reserver_of(request)
    started = time.perf_counter()
    headers = {"content-type": "application/json"}
    content = body.model_dump_json().encode()
    timeout_s = step_limit_s(body)

    async def call(guest: GuestClient) -> GuestReply:
        reply = await guest.request(
            "POST",
            "/v1/step",
            guest.frame_limit,
            timeout_s=timeout_s,
            headers=headers,
            content=content,
            reserve_bytes=reserve_bytes,
        )
        if reply.status < 400:
            header, payload = split_frame(reply.content)
            check_frame(header, payload, spec=body.frame, screen=access.slot.shape.resolution, seq=body.seq)
        return reply

    reply = await farm.guests.run(access, call)
    await farm.guests.raise_for_error(access, reply)
    farm.guests.record_step(access, body, reply.content, time.perf_counter() - started)
    return Response(reply.content, media_type="application/octet-stream")


@router.websocket("/channel")
async def channel(socket: WebSocket, lease_id: str) -> None:
    """Steps over one connection: a text `StepRequest` in, a binary frame out; with `?early=1` drafts before it (`wire.FrameHeader`)."""
    farm = farm_of(socket)
    try:
        access = await access_of(socket, lease_id)
        farm.guests.client(access)
    except ApiError as error:
        await deny_websocket(socket, error)
        return
    await socket.accept()
    await StepChannel(farm.guests, access, early=socket.query_params.get("early") == "1").serve(socket)


@router.get("/screenshot", operation_id="screenshot", response_class=Response)
async def screenshot(lease_id: str, request: Request, access: Leased) -> Response:
    """The screen with its cursor, as PNG."""
    farm, reserve_bytes = farm_of(request), answer_reserver_of(request)
    reply = await farm.guests.run(
        access,
        lambda guest: guest.request(
            "GET", "/screenshot", guest.frame_limit, timeout_s=CALL_LIMIT_S, reserve_bytes=reserve_bytes
        ),
    )
    await farm.guests.raise_for_error(access, reply)
    return Response(reply.content, media_type="image/png")


@router.get("/a11y", operation_id="a11y", response_model=list[wire.A11yElement])
async def a11y(lease_id: str, request: Request, access: Leased) -> Response:
    """The showing elements of the accessibility tree."""
    farm, reserve_bytes = farm_of(request), answer_reserver_of(request)
    target = f"/v1/a11y?format=json&timeout_s={A11Y_WALK_S:g}"

    async def call(guest: GuestClient) -> GuestReply | bytes:
        reply = await guest.request("GET", target, limits.A11Y, timeout_s=A11Y_LIMIT_S, reserve_bytes=reserve_bytes)
        return reply if reply.status >= 400 else await answers.decode(answers.elements, reply.content)

    return await _json_response(farm, access, call)


@router.post("/execute", operation_id="execute", response_model=wire.ExecReply)
async def execute(lease_id: str, body: wire.ExecRequest, request: Request, access: Leased) -> Response:
    """Run a program inside the desktop."""
    farm, reserve_bytes = farm_of(request), answer_reserver_of(request)
    headers = {"content-type": "application/json"}
    content = body.model_dump_json().encode()

    async def call(guest: GuestClient) -> GuestReply | bytes:
        reply = await guest.request(
            "POST",
            "/v1/exec",
            limits.EXEC,
            timeout_s=body.timeout_s + PROGRAM_GRACE_S,
            headers=headers,
            content=content,
            reserve_bytes=reserve_bytes,
        )
        return reply if reply.status >= 400 else await answers.decode(answers.ended_program, reply.content)

    return await _json_response(farm, access, call)


async def _json_response(
    farm: Farm, access: LeaseAccess, call: Callable[[GuestClient], Awaitable[GuestReply | bytes]]
) -> Response:
    """What was decoded of an answer, as the wire's JSON; the agent's own error is raised."""
    reply = await farm.guests.run(access, call)
    if isinstance(reply, GuestReply):
        await farm.guests.raise_for_error(access, reply)
        raise ApiError(ErrorCode.GUEST_ERROR, "the guest agent refused without an error")
    return _in_parts(reply, 200, {"content-type": "application/json"})


@router.get("/clock", operation_id="get_clock")
async def get_clock(lease_id: str, request: Request, access: Leased) -> wire.ClockView:
    """What time of day it is in the desktop."""
    return await _clock(request, access, "GET", None)


@router.put("/clock", operation_id="set_clock")
async def set_clock(lease_id: str, body: wire.ClockRequest, request: Request, access: Leased) -> wire.ClockView:
    """Declare the desktop's time of day, or let it follow the farm's."""
    return await _clock(request, access, "POST", {"time_s": body.time.timestamp() if body.time else None})


async def _clock(
    request: Request, access: LeaseAccess, method: str, body: dict[str, float | None] | None
) -> wire.ClockView:
    farm = farm_of(request)
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}

    async def call(guest: GuestClient) -> GuestReply | wire.ClockView:
        reply = await guest.request(
            method, "/v1/clock", limits.CLOCK, timeout_s=CALL_LIMIT_S, headers=headers, content=content
        )
        return reply if reply.status >= 400 else answers.clock(reply.content)

    told = await farm.guests.run(access, call)
    if isinstance(told, GuestReply):
        await farm.guests.raise_for_error(access, told)
        raise ApiError(ErrorCode.GUEST_ERROR, "the guest agent refused without an error")
    return told


@router.put("/files", operation_id="write_file", status_code=204)
async def write_file(
    lease_id: str, path: AbsolutePath, request: Request, access: Leased, mode: Mode = None
) -> Response:
    """Write the body to an absolute path inside the desktop, as its user; parents are made."""
    farm = farm_of(request)
    target = "/v1/files?" + urlencode({"path": path} | ({"mode": mode} if mode else {}))
    content = await request.body()
    reply = await farm.guests.run(
        access,
        lambda guest: guest.request("PUT", target, limits.ERROR, timeout_s=FILE_LIMIT_S, content=content),
    )
    await farm.guests.raise_for_error(access, reply)
    return Response(status_code=204)


@router.get("/files", operation_id="read_file", response_class=Response)
async def read_file(lease_id: str, path: AbsolutePath, request: Request, access: Leased) -> Response:
    """The bytes of a file inside the desktop."""
    farm, reserve_bytes = farm_of(request), answer_reserver_of(request)
    target = "/v1/files?" + urlencode({"path": path})
    reply = await farm.guests.run(
        access,
        lambda guest: guest.request("GET", target, limits.FILE, timeout_s=FILE_LIMIT_S, reserve_bytes=reserve_bytes),
        is_file=True,
    )
    await farm.guests.raise_for_error(access, reply)
    return _in_parts(reply.content, 200, {"content-type": "application/octet-stream"})


@router.post("/evidence", operation_id="evidence", response_class=Response)
async def evidence(lease_id: str, body: wire.EvidenceRequest, request: Request, access: Leased) -> Response:
    """Files and processes of the desktop as the host sees them at one moment; no program of the desktop takes part in the answer."""
    message = await farm_of(request).guests.evidence(access, body, answer_reserver_of(request))
    return _in_parts(message, 200, {"content-type": "application/octet-stream"})


@router.get("/health", operation_id="desktop_health")
async def health(lease_id: str, request: Request, access: LeasedUnfenced) -> wire.DesktopHealthView:
    """How the leased desktop is, or why it died and whose fault that was."""
    return await farm_of(request).guests.health(access)


async def _pass_through(lease_id: str, path: str, request: Request, access: LeaseAccess) -> Response:
    """One of the agent's OSWorld routes, request and answer unchanged."""
    parts = path.split("/")
    if "" in parts or ".." in parts or "." in parts or (parts[0] == "v1" and path not in OPEN_V1):
        raise ApiError(ErrorCode.NOT_FOUND, f"the guest route /{path} is not passed through")
    farm, reserve_bytes = farm_of(request), answer_reserver_of(request)
    target = "/" + quote(path) + (f"?{request.url.query}" if request.url.query else "")
    headers = {"content-type": request.headers["content-type"]} if "content-type" in request.headers else {}
    content = await request.body()
    reply = await farm.guests.run(
        access,
        lambda guest: guest.request(
            request.method,
            target,
            limits.PASSED_THROUGH,
            timeout_s=passed_through_limit_s(path),
            headers=headers,
            content=content,
            reserve_bytes=reserve_bytes,
        ),
        is_file=True,
    )
    passed = {k: v for k, v in reply.headers.items() if k in ("content-type", "content-disposition")}
    kept = {k: v for k, v in passed.items() if _PLAIN_FIELD.fullmatch(v)} | {wire.FROM_GUEST_HEADER: "1"}
    return _in_parts(reply.content, reply.status, kept)


def _in_parts(content: bytes, status: int, headers: dict[str, str]) -> Response:
    """An answer that the connection takes as fast as its client reads: what waits is the request's, and counted, until then."""
    if len(content) <= PART_NBYTES:
        return Response(content, status_code=status, headers=headers)
    view = memoryview(content)

    async def parts() -> AsyncIterator[memoryview]:
        for start in range(0, len(view), PART_NBYTES):
            yield view[start : start + PART_NBYTES]

    return StreamingResponse(parts(), status_code=status, headers={**headers, "content-length": str(len(view))})


def _register_pass_through() -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):

        async def route(lease_id: str, path: str, request: Request, access: Leased) -> Response:
            return await _pass_through(lease_id, path, request, access)

        route.__doc__ = _pass_through.__doc__
        router.add_api_route(
            "/guest/{path:path}",
            route,
            methods=[method],
            operation_id=f"guest_{method.lower()}",
            response_class=Response,
        )


_register_pass_through()


@router.websocket("/tunnel")
async def tunnel(socket: WebSocket, lease_id: str) -> None:
    """Bytes to and from a TCP port inside the desktop."""
    farm = farm_of(socket)
    try:
        access = await access_of(socket, lease_id)
        farm.guests.client(access)
        text = socket.query_params.get("port", "")
        if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
            raise ApiError(ErrorCode.INVALID, "port: a number from 1 to 65535 is needed")
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                dialled = await farm.provider.dial(access.slot.desktop_id, int(text))
        except CapabilityMissing as error:
            raise from_provider_error(error) from error
        except (DesktopGone, ProviderError, OSError, TimeoutError) as error:
            raise ApiError(
                ErrorCode.GUEST_ERROR, f"nothing answers on port {text} inside the desktop: {error}"
            ) from error
    except ApiError as error:
        await deny_websocket(socket, error)
        return
    dialled.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=dialled)
    try:
        await socket.accept()
        async with asyncio.TaskGroup() as group:
            outward = group.create_task(_outward(reader, socket))
            group.create_task(_inward(socket, writer, outward))
    except WebSocketDisconnect:  # the client hung up before it was let in
        return
    finally:
        writer.close()


async def _outward(reader: asyncio.StreamReader, socket: WebSocket) -> None:
    """Desktop to client, until the desktop hangs up."""
    try:
        while chunk := await reader.read(TUNNEL_CHUNK):
            await socket.send_bytes(chunk)
        await socket.close()
    except (OSError, RuntimeError, WebSocketDisconnect):
        return


async def _inward(socket: WebSocket, writer: asyncio.StreamWriter, outward: asyncio.Task[None]) -> None:
    """Client to desktop, until the client hangs up."""
    try:
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            writer.write(message.get("bytes") or (message.get("text") or "").encode())
            await writer.drain()
    except (OSError, RuntimeError, WebSocketDisconnect):
        return
    finally:
        outward.cancel()
