"""Simulation: the guest agent of a pretended desktop. Speaks the guest protocol over sockets that the provider hands out.

Rule: the same paths, forms and error codes as the real agent (`vm_images/guest/protocol.md`), everything in memory.
`exec` knows `true`, `false`, `echo`, `date -u +%s` and `cat` (of the pretended files) and runs nothing.
Non-goals: OSWorld's paths other than `/screenshot`, `/screen_size` and `/platform`.
"""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import struct
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dart_server.clock import Clock
from dart_server.providers import sim_screen
from dart_server.providers.sim_screen import BadEvent, ScreenState

MAX_BODY_BYTES = 64 << 20
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 409: "Conflict", 503: "Service Unavailable"}


@dataclass(slots=True)
class GuestState:
    """What a snapshot keeps: screen, files by absolute path, how often it was restored, its boot id."""

    screen: ScreenState
    boot_id: str
    files: dict[str, bytes] = field(default_factory=dict)
    restores: int = 0
    session_alive: bool = True
    declared: tuple[float, float] | None = None
    """A declared time of day, and when on the clock's monotonic axis it was that."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: int
    body: bytes
    kind: str = "application/json"


class Refusal(Exception):
    """An error answer with the protocol's code."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.reply = Reply(status, json.dumps({"error": code, "detail": detail}).encode())


def _json(value: Any) -> Reply:
    return Reply(200, json.dumps(value).encode())


class SimGuest:
    """The agent of one pretended desktop: `serve` a socket, `copy_state`, `close`."""

    def __init__(self, state: GuestState, clock: Clock) -> None:
        self.state = state
        self.hung = asyncio.Event()
        """While set, no request is answered."""
        self._clock = clock
        self._stepping = asyncio.Lock()
        self._connections: dict[asyncio.Task[None], socket.socket] = {}

    def copy_state(self) -> GuestState:
        """A deep copy, for a snapshot or a fork; a declared clock stands still in it."""
        self.state.declared = self._declared_now()
        return copy.deepcopy(self.state)

    def go_on(self) -> None:
        """A declared clock is taken up where it stood."""
        if self.state.declared is not None:
            self.state.declared = (self.state.declared[0], self._clock.monotonic())

    def _declared_now(self) -> tuple[float, float] | None:
        if self.state.declared is None:
            return None
        time_s, since_s = self.state.declared
        now_s = self._clock.monotonic()
        return (time_s + now_s - since_s, now_s)

    def _time(self) -> float:
        declared = self._declared_now()
        return self._clock.time() if declared is None else declared[0]

    def _clock_reply(self) -> Reply:
        return _json({"time_s": self._time(), "declared": self.state.declared is not None})

    def serve(self, connection: socket.socket) -> None:
        """Answer requests on a connected socket until it closes."""
        self.run(self._converse(connection), connection)

    def run(self, service: Coroutine[Any, Any, None], connection: socket.socket) -> None:
        """Run a service of this desktop for as long as its connection lives."""
        task = asyncio.get_running_loop().create_task(service)
        self._connections[task] = connection
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def close(self) -> None:
        """Close every connection but the one whose request asks for it."""
        ending = {task: held for task, held in self._connections.items() if task is not asyncio.current_task()}
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for connection in ending.values():
            connection.close()

    async def _converse(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ", 2)
                fields = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
                if fields.get("upgrade", "").lower() == "websocket":
                    await self._channel(head, reader, writer)
                    return
                body = await _read_body(reader, fields)
                if self.hung.is_set():
                    await asyncio.Future()
                try:
                    reply = await self._answer(method, target, body)
                except Refusal as refusal:
                    reply = refusal.reply
                except (BadEvent, ValueError, TypeError, KeyError, AttributeError) as error:
                    code = error.code if isinstance(error, BadEvent) else "bad_request"
                    reply = Refusal(400, code, str(error)).reply
                last = fields.get("connection", "").lower() == "close" or target.startswith("/v1/quiesce")
                writer.write(_head(reply, last) + reply.body)
                await writer.drain()
                if last:
                    return
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            return
        finally:
            writer.close()

    async def _channel(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from websockets.frames import Frame, Opcode
        from websockets.http11 import Request
        from websockets.server import ServerProtocol

        protocol = ServerProtocol(max_size=MAX_BODY_BYTES)
        data = head
        while data:
            protocol.receive_data(data)
            for event in protocol.events_received():
                if isinstance(event, Request):
                    protocol.send_response(protocol.accept(event))
                elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                    if self.hung.is_set():
                        await asyncio.Future()
                    protocol.send_binary(await self._channel_step(event.data))
            for chunk in protocol.data_to_send():
                if chunk:
                    writer.write(chunk)
            await writer.drain()
            if protocol.close_expected():
                return
            data = await reader.read(65536)

    async def _channel_step(self, message: bytes | bytearray | memoryview) -> bytes:
        number: Any = None
        try:
            request = json.loads(bytes(message))
            number = request.get("seq", 0)
            return await self._step(request)
        except Refusal as refusal:
            said = json.loads(refusal.reply.body)
            return _frame({"seq": number, **said, "status": refusal.reply.status, "nbytes": 0}, b"")
        except (BadEvent, ValueError, TypeError, KeyError, AttributeError) as error:
            code = error.code if isinstance(error, BadEvent) else "bad_request"
            return _frame({"seq": number, "error": code, "detail": str(error), "status": 400, "nbytes": 0}, b"")

    async def _answer(self, method: str, target: str, body: bytes) -> Reply:
        url = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        match method, url.path:
            case "GET", "/v1/health":
                return _json(self._health())
            case "POST", "/v1/step":
                return Reply(200, await self._step(json.loads(body or b"{}")), "application/octet-stream")
            case "POST", "/v1/exec":
                return _json(self._exec(json.loads(body)))
            case "PUT", "/v1/files":
                self.state.files[_absolute(query)] = body
                return _json({"nbytes": len(body)})
            case "GET", "/v1/files":
                return Reply(200, self._file(_absolute(query)), "application/octet-stream")
            case "GET", "/v1/a11y":
                found = sim_screen.elements(self.state.screen)
                return _json({"elements": found, "truncated": False, "walk_ms": 0.0})
            case "GET", "/v1/windows":
                whole = {"x": 0, "y": 0, "w": self.state.screen.width, "h": self.state.screen.height}
                return _json(
                    {"windows": [{"id": 1, "title": "Sim", "class": "sim", "pid": 2, "active": True, **whole}]}
                )
            case "GET", "/v1/clock":
                return self._clock_reply()
            case "POST", "/v1/clock":
                wanted = json.loads(body)["time_s"]
                self.state.declared = None if wanted is None else (float(wanted), self._clock.monotonic())
                return self._clock_reply()
            case "POST", "/v1/quiesce":
                await self.close()
                return _json({"ok": True, "zombies": [], "processes": 1})
            case "POST", "/v1/restored":
                said = json.loads(body)
                self.state.restores += 1
                self.state.boot_id = said["entropy"][:32]
                return _json({**self._health(), "clock_offset_s": self._time() - said["realtime_s"]})
            case "GET", "/screenshot":
                image = sim_screen.draw(self.state.screen, cursor=True)
                return Reply(200, sim_screen.encode(image, "png", 90), "image/png")
            case "POST", "/screen_size":
                return _json({"width": self.state.screen.width, "height": self.state.screen.height})
            case "GET", "/platform":
                return Reply(200, b"Linux", "text/plain")
            case _:
                raise Refusal(404, "not_found", f"no such path: {method} {url.path}")

    def _health(self) -> dict[str, Any]:
        state, screen = self.state, self.state.screen
        alive = state.session_alive
        parts = {name: alive for name in ("ready", "session_alive", "x_alive", "wm_alive", "bus_alive")}
        return {
            "version": "sim",
            "protocol": 1,
            "resolution": [screen.width, screen.height],
            "boot_id": state.boot_id,
            **parts,
            "disk_full": False,
            "agent_starts": 1,
            "processes": 1,
            "restores": state.restores,
            "realtime_s": self._time(),
            "held": sorted(screen.held),
        }

    async def _step(self, request: Mapping[str, Any]) -> bytes:
        events, frame, settle = request.get("events", []), request.get("frame") or {}, request.get("settle")
        sim_screen.check(events)
        encoding, quality = frame.get("encoding", "png"), frame.get("quality", 90)
        screen = self.state.screen
        if not self.state.session_alive:
            raise Refusal(503, "session_down", "the session has ended")
        async with self._stepping:
            for event in events:
                if event["type"] == "wait":
                    await self._clock.sleep(event["ms"] / 1000)
                else:
                    sim_screen.perform(screen, event)
            image = sim_screen.draw(screen, cursor=bool(frame.get("cursor", False)))
            payload = sim_screen.encode(image, encoding, quality)
        times = {name: 0.0 for name in ("settle_ms", "events_ms", "grab_ms", "encode_ms")}
        header = {"seq": request.get("seq", 0), "width": screen.width, "height": screen.height, "encoding": encoding}
        return _frame({**header, "settled": settle is not None, **times, "cursor": list(screen.pointer)}, payload)

    def _exec(self, request: Mapping[str, Any]) -> dict[str, Any]:
        argv = request["argv"]
        answer: dict[str, Any] = {"returncode": 0, "stdout": "", "stderr": "", "timed_out": False, "truncated": False}
        answer["pid"] = 2
        match argv:
            case ["true"]:
                pass
            case ["false"]:
                answer["returncode"] = 1
            case ["date", "-u", "+%s"]:
                answer["stdout"] = f"{int(self._time())}\n"
            case ["echo", *words]:
                answer["stdout"] = " ".join(words) + "\n"
            case ["cat"]:
                answer["stdout"] = request.get("stdin") or ""
            case ["cat", path] if path in self.state.files:
                answer["stdout"] = self.state.files[path].decode("utf-8", "replace")
            case ["cat", path]:
                answer |= {"returncode": 1, "stderr": f"cat: {path}: No such file or directory\n"}
            case _:
                answer |= {"returncode": 127, "stderr": f"{argv[0]}: the simulation runs no programs\n"}
        if request.get("detach"):
            answer |= {"returncode": None, "stdout": "", "stderr": ""}
        return answer

    def _file(self, path: str) -> bytes:
        if path not in self.state.files:
            raise Refusal(404, "not_found", f"no such file: {path}")
        return self.state.files[path]


def _absolute(query: Mapping[str, str]) -> str:
    path = query.get("path", "")
    if not path.startswith("/"):
        raise Refusal(400, "bad_request", "path is not absolute")
    return path


def _frame(header: Mapping[str, Any], payload: bytes) -> bytes:
    head = json.dumps({**header, "nbytes": len(payload)}).encode()
    return struct.pack(">I", len(head)) + head + payload


def _head(reply: Reply, last: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Error')}",
        f"Content-Type: {reply.kind}",
        f"Content-Length: {len(reply.body)}",
        *(["Connection: close"] if last else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _read_body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> bytes:
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = bytearray()
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
            if len(body) > MAX_BODY_BYTES:
                raise ValueError("body too large")
        await reader.readexactly(2)
        return bytes(body)
    length = int(fields.get("content-length", "0"))
    if not 0 <= length <= MAX_BODY_BYTES:
        raise ValueError("body too large")
    return await reader.readexactly(length)
