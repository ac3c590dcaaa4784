"""`/v1`: health, step, channel, exec, accessibility, windows.

Role: protocol.md's fast path, and the desktop's clock. Files and checkpoint verbs are in `files` and `lifecycle`.
Rule: a handler checks, hands over to the agent, and writes the answer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeGuard

from aiohttp import WSMsgType, web

from dart_guest import events, session, windows
from dart_guest.clock import EARLIEST_S, LATEST_S, DesktopClock
from dart_guest.desktop import StepResult
from dart_guest.events import BadRequest
from dart_guest.http import agent_of, describe, failure, json_body
from dart_guest.keymap import UnknownKey
from dart_guest.xinput import SessionDown

CHANNEL_MESSAGE_LIMIT = 4 * 1024 * 1024
PIECE_NBYTES = 128 * 1024
CLOSE_WAIT_S = 0.1
"""How long a peer is waited for that does not answer a close: a checkpoint is waiting too."""

DEFAULT_EXEC_S = 60.0
LONGEST_EXEC_S = 3600.0

routes = web.RouteTableDef()


@routes.get("/v1/health")
async def health(request: web.Request) -> web.Response:
    """How the desktop is."""
    return web.json_response(await agent_of(request).health())


Reply = tuple[bytes, bytes | bytearray]
"""A binary answer: length and header, then the payload."""


def packed(header: Mapping[str, Any], payload: bytes | bytearray = b"") -> Reply:
    """Length and header; the payload is not copied."""
    head = json.dumps({**header, "nbytes": len(payload)}).encode()
    return len(head).to_bytes(4, "big") + head, payload


def step_reply(seq: int | None, result: StepResult) -> Reply:
    """A step's binary answer; without the picture where that went ahead as a draft."""
    header = {
        "seq": seq,
        "width": result.width,
        "height": result.height,
        "encoding": result.encoding,
        "settled": result.settled,
        "settle_ms": round(result.settle_ms, 2),
        "events_ms": round(result.events_ms, 2),
        "grab_ms": round(result.grab_ms, 2),
        "encode_ms": round(result.encode_ms, 2),
        "cursor": list(result.cursor),
    }
    return packed(header | {"early": True}) if result.early else packed(header, result.payload)


@routes.post("/v1/step")
async def step(request: web.Request) -> web.StreamResponse:
    """One step, one round trip."""
    agent = agent_of(request)
    wanted = events.parse_step(await json_body(request))
    result = await agent.on_desktop(partial(agent.desktop.step, wanted))
    head, payload = step_reply(wanted.seq, result)
    answer = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    answer.content_length = len(head) + len(payload)
    await answer.prepare(request)
    await answer.write(head)
    for piece in pieces(payload):
        await answer.write(piece)
    return answer


def pieces(payload: bytes | bytearray) -> Iterator[memoryview]:
    """A payload in parts: asyncio before 3.12 moves all that is unsent again after each part that was sent."""
    view = memoryview(payload)
    return (view[begin : begin + PIECE_NBYTES] for begin in range(0, len(view), PIECE_NBYTES))


async def send_binary(request: web.Request, reply: Reply) -> None:
    """One binary WebSocket message, as a single frame written in pieces."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the peer hung up")
    head, payload = reply
    size = len(head) + len(payload)
    transport.write(b"\x82\x7f" + size.to_bytes(8, "big") + head)
    for piece in pieces(payload):
        transport.write(piece)
        await request.writer.drain()


class Drafts:
    """Sends pictures ahead of a step's answer; called from the step thread. A draft's header begins with `{"draft": true`."""

    def __init__(self, request: web.Request, seq: int | None) -> None:
        self.request = request
        self.seq = seq
        self.loop = asyncio.get_running_loop()
        self.sending: list[concurrent.futures.Future[None]] = []

    def offer(self, payload: bytes | bytearray) -> None:
        """Begin to send a picture."""
        draft = send_binary(self.request, packed({"draft": True, "seq": self.seq}, payload))
        self.sending.append(asyncio.run_coroutine_threadsafe(draft, self.loop))

    async def sent(self) -> None:
        """Wait until all are on their way. Raises ConnectionResetError."""
        for one in self.sending:
            await asyncio.wrap_future(one)


async def channel_step(request: web.Request, wanted: events.StepRequest) -> StepResult:
    """One step of a channel; on one that was opened with `early=1` the picture may go ahead."""
    agent = agent_of(request)
    if request.query.get("early") != "1":
        return await agent.on_desktop(partial(agent.desktop.step, wanted))
    drafts = Drafts(request, wanted.seq)
    try:
        return await agent.on_desktop(partial(agent.desktop.step, wanted, drafts.offer))
    finally:
        await drafts.sent()


@routes.get("/v1/channel")
async def channel(request: web.Request) -> web.WebSocketResponse:
    """Many steps over one socket."""
    agent = agent_of(request)
    socket = web.WebSocketResponse(timeout=CLOSE_WAIT_S, max_msg_size=CHANNEL_MESSAGE_LIMIT, compress=False)
    await socket.prepare(request)
    agent.channels.add(socket)
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            await send_binary(request, channel_error(None, BadRequest("requests are text messages")))
            continue
        seq: int | None = None
        try:
            raw = json.loads(message.data)
            candidate = raw.get("seq") if isinstance(raw, dict) else None
            seq = candidate if isinstance(candidate, int) else None
            wanted = events.parse_step(raw)
            reply = step_reply(wanted.seq, await channel_step(request, wanted))
        except json.JSONDecodeError as error:
            reply = channel_error(None, BadRequest(f"not JSON: {error}"))
        except (BadRequest, UnknownKey, SessionDown) as error:
            reply = channel_error(seq, error)
        await send_binary(request, reply)
    return socket


def channel_error(seq: int | None, error: Exception) -> Reply:
    """An error in the channel's form."""
    status, code, detail = describe(error)
    return packed({"seq": seq, "error": code, "detail": detail, "status": status})


def strings(raw: object, what: str) -> list[str]:
    """A non-empty list of strings."""
    if not isinstance(raw, list) or not raw or not all(isinstance(item, str) for item in raw):
        raise BadRequest(f"{what!r} must be a non-empty list of strings")
    return raw


def seconds(raw: object, what: str, longest_s: float) -> float:
    """A positive time."""
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 < raw <= longest_s:
        raise BadRequest(f"{what!r} must be a number of seconds up to {longest_s:g}, not {raw!r}")
    return float(raw)


@routes.post("/v1/exec")
async def execute(request: web.Request) -> web.Response:
    """Run a program."""
    known = frozenset({"argv", "timeout_s", "user", "env", "cwd", "stdin", "detach"})
    body = events.mapping(await json_body(request), "the request", known)
    argv = strings(body.get("argv"), "argv")
    user = body.get("user", session.USER)
    if user not in (session.USER, "root"):
        raise BadRequest(f"'user' must be 'user' or 'root', not {user!r}")
    env = body.get("env") or {}
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise BadRequest("'env' must map names to strings")
    cwd, stdin = body.get("cwd"), body.get("stdin")
    if not isinstance(cwd, str | None) or not isinstance(stdin, str | None):
        raise BadRequest("'cwd' and 'stdin' must be strings or null")
    runner = agent_of(request).runner
    if body.get("detach", False):
        try:
            pid = await runner.launch(argv, user=user, env=env, cwd=cwd)
        except (OSError, ValueError) as error:
            return failure(400, "bad_request", f"{argv[0]} could not be started: {error}")
        return web.json_response(
            {"returncode": None, "stdout": "", "stderr": "", "timed_out": False, "truncated": False, "pid": pid}
        )
    limit_s = seconds(body.get("timeout_s", DEFAULT_EXEC_S), "timeout_s", LONGEST_EXEC_S)
    fed = stdin.encode() if stdin is not None else None
    ended = await runner.run(argv, timeout_s=limit_s, user=user, env=env, cwd=cwd, stdin=fed)
    return web.json_response(
        {
            "returncode": ended.returncode,
            "stdout": ended.stdout.decode(errors="replace"),
            "stderr": ended.stderr.decode(errors="replace"),
            "timed_out": ended.timed_out,
            "truncated": ended.truncated,
            "pid": ended.pid,
        }
    )


@routes.get("/v1/a11y")
async def accessibility(request: web.Request) -> web.Response:
    """The accessibility tree."""
    form = request.query.get("format", "json")
    if form not in ("json", "xml"):
        raise BadRequest(f"'format' must be json or xml, not {form!r}")
    try:
        limit = float(request.query.get("timeout_s", "10"))
    except ValueError as error:
        raise BadRequest("'timeout_s' must be a number") from error
    return web.json_response(await agent_of(request).walker.walk(form, seconds(limit, "timeout_s", 120)))


@routes.get("/v1/windows")
async def window_list(request: web.Request) -> web.Response:
    """The window manager's windows."""
    agent = agent_of(request)
    found = await agent.on_desktop(lambda: windows.listed(agent.desktop.connection()))
    return web.json_response({"windows": [window.to_json() for window in found]})


def clock_reply(clock: DesktopClock) -> web.Response:
    """The answer of `/v1/clock`."""
    return web.json_response({"time_s": clock.now_s(), "declared": clock.declared})


@routes.get("/v1/clock")
async def get_clock(request: web.Request) -> web.Response:
    """What time it is in the desktop."""
    return clock_reply(agent_of(request).clock)


@routes.post("/v1/clock")
async def set_clock(request: web.Request) -> web.Response:
    """Declare the time of day, or follow the host again."""
    clock = agent_of(request).clock
    body = events.mapping(await json_body(request), "the request", frozenset({"time_s"}))
    wanted = body.get("time_s")
    if wanted is not None and not (is_number(wanted) and EARLIEST_S <= wanted <= LATEST_S):
        raise BadRequest(f"'time_s' must be seconds since 1970 from {EARLIEST_S:.0f} to {LATEST_S:.0f}, or null")
    if not clock.usable:
        return failure(503, "no_clock", "this desktop was started without a clock of its own")
    clock.declare(None if wanted is None else float(wanted))
    return clock_reply(clock)


def is_number(value: object) -> TypeGuard[int | float]:
    """JSON's numbers, without its truth values."""
    return isinstance(value, int | float) and not isinstance(value, bool)
