"""Serving the guest protocol from inside the farm's process, for desktops whose agent is not in them.

Role: HTTP/1.1 and the stepping channel over sockets that a provider hands out; a kind of guest says what to answer (`handle_request`,
`step`).
Rule: the forms and error codes of the real agent (`vm_images/guest/protocol.md`); bodies are bounded; a broken request ends its
connection only.
Non-goals: what is behind the answers (`sim_guest`, `osworld_guest`).
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dart_server.http.chunked_writes import binary_frame_header

MAX_BODY_BYTES = 64 << 20
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    409: "Conflict",
    501: "Not Implemented",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: int
    body: bytes
    content_type: str = "application/json"


class GuestRequestError(Exception):
    """An error answer with the protocol's code."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.reply = Reply(status, json.dumps({"error": code, "detail": detail}).encode())


def json_reply(value: Any) -> Reply:
    """A value as an answer."""
    return Reply(200, json.dumps(value).encode())


def frame(header: Mapping[str, Any], payload: bytes) -> bytes:
    """A step's answer."""
    head = json.dumps({**header, "nbytes": len(payload)}).encode()
    return struct.pack(">I", len(head)) + head + payload


class GuestServer(ABC):
    """`serve` sockets, `close` them all."""

    def __init__(self) -> None:
        self.hung = asyncio.Event()
        """While set, no request is answered."""
        self.running = asyncio.Event()
        """While not set, the desktop is frozen: requests wait."""
        self.running.set()
        self._connections: dict[asyncio.Task[None], socket.socket] = {}

    @abstractmethod
    async def handle_request(self, method: str, target: str, content_type: str, body: bytes) -> Reply:
        """The answer to a request; `content_type` is its content type. Raises `GuestRequestError`; ValueError, TypeError and KeyError are
        bad requests."""

    @abstractmethod
    async def step(self, request: Mapping[str, Any]) -> bytes:
        """A step's binary answer (`frame`). Raises as `handle_request`."""

    def serve(self, connection: socket.socket) -> None:
        """Answer requests on a connected socket until it closes."""
        self.run(self._serve_http(connection), connection)

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

    async def _serve_http(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ", 2)
                fields = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
                if fields.get("upgrade", "").lower() == "websocket":
                    await self._serve_channel(head, reader, writer)
                    return
                body = await _read_body(reader, fields)
                await self.running.wait()
                if self.hung.is_set():
                    await asyncio.Future()
                try:
                    reply = await self.handle_request(method, target, fields.get("content-type", ""), body)
                except GuestRequestError as error:
                    reply = error.reply
                except (ValueError, TypeError, LookupError, AttributeError) as error:
                    reply = GuestRequestError(400, getattr(error, "code", "bad_request"), str(error)).reply
                last = fields.get("connection", "").lower() == "close" or target.startswith("/v1/quiesce")
                writer.write(_head(reply, last) + reply.body)
                await writer.drain()
                if last:
                    return
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            return
        finally:
            writer.close()

    async def _serve_channel(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
                    await self.running.wait()
                    if self.hung.is_set():
                        await asyncio.Future()
                    answer = await self._channel_step(event.data)
                    _send(protocol.data_to_send(), writer)
                    writer.write(binary_frame_header(len(answer)))
                    writer.write(answer)
            _send(protocol.data_to_send(), writer)
            await writer.drain()
            if protocol.close_expected():
                return
            data = await reader.read(65536)

    async def _channel_step(self, message: bytes | bytearray | memoryview) -> bytes:
        number: Any = None
        try:
            request = json.loads(bytes(message))
            number = request.get("seq", 0)
            return await self.step(request)
        except GuestRequestError as error:
            said = json.loads(error.reply.body)
            return frame({"seq": number, **said, "status": error.reply.status, "nbytes": 0}, b"")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            code = getattr(error, "code", "bad_request")
            return frame({"seq": number, "error": code, "detail": str(error), "status": 400, "nbytes": 0}, b"")


def _send(chunks: Iterable[bytes], writer: asyncio.StreamWriter) -> None:
    for chunk in chunks:
        if chunk:
            writer.write(chunk)


def _head(reply: Reply, last: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Error')}",
        f"Content-Type: {reply.content_type}",
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
