"""The binary WebSocket channel to one leased desktop: many steps over one connection.

Role: match answers to requests by their `seq`, and split binary frames. Rule: an answer whose request has
timed out is dropped, never given to another request; a broken channel fails everything that waits on it at
once; a draft is kept until the frame says whether it is the step's picture. Non-goals: reopening, blame (`lease` does both).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from dart_envs.errors import DartEnvError, FarmError
from dart_envs.farm.transport import CONNECT_TIMEOUT_S, Transport, error_from_response
from dart_server.wire import StepRequest
from dart_server.wire.messages import Connect, HandshakeRefused, MessageSocket, SocketClosed

HEADER_PREFIX_NBYTES = 4


class ChannelClosedError(DartEnvError):
    """The connection ended; `sent` says whether the request may have reached the desktop."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


def split_frame(message: bytes | bytearray) -> tuple[dict[str, Any], memoryview]:
    """Header and payload (a view of the message) of one binary message. Raises `ValueError` when it is not
    one."""
    end = HEADER_PREFIX_NBYTES + int.from_bytes(message[:HEADER_PREFIX_NBYTES], "big")
    if len(message) < end or end == HEADER_PREFIX_NBYTES:
        raise ValueError("the frame is shorter than its header says")
    header = json.loads(message[HEADER_PREFIX_NBYTES:end])
    if not isinstance(header, dict):
        raise ValueError("the frame's header is not an object")
    payload = memoryview(message)[end:]
    if len(payload) != header.get("nbytes", 0):
        raise ValueError("the frame's payload is not as long as its header says")
    return header, payload


async def open_message_socket(transport: Transport, path: str, headers: Mapping[str, str]) -> MessageSocket:
    """Open the channel's connection to the farm. Raises `FarmError`, or what the refusal's envelope says."""
    address = transport.address
    parts = urlsplit(address.base_url)
    loop = asyncio.get_running_loop()
    connect: Connect
    if address.socket_path:
        connect = partial(loop.create_unix_connection, path=address.socket_path)
    else:
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        connect = partial(loop.create_connection, host=parts.hostname, port=port, ssl=tls or None)
    try:
        return await MessageSocket.open(
            connect,
            parts.netloc,
            parts.path + path,
            headers={**transport.auth_headers(), **headers},
            timeout_s=CONNECT_TIMEOUT_S,
        )
    except HandshakeRefused as refused:
        raise error_from_response(refused.status, refused.body, what=f"WS {path}") from refused
    except (OSError, TimeoutError) as error:
        raise transport.unreachable(error) from error


class LeaseChannel:
    """An open channel. Requests may overlap; each gets the answer that carries its own `seq`."""

    def __init__(self, socket: MessageSocket) -> None:
        self._socket = socket
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], memoryview]]] = {}
        self._early_images: dict[int, memoryview] = {}
        """Pictures that came ahead of their frames, by `seq`."""
        self._closed: ChannelClosedError | None = None
        self._reader = asyncio.create_task(self._read(), name="dart-channel-reader")

    @property
    def closed(self) -> bool:
        """True once nothing can be sent any more."""
        return self._closed is not None

    async def request(self, request: StepRequest, timeout_s: float) -> tuple[dict[str, Any], memoryview]:
        """Send one request and wait for its own answer: the frame's header and payload.

        Raises `ChannelClosedError`, or `FarmError` with code `timeout`.
        """
        if self._closed is not None:
            raise ChannelClosedError(str(self._closed), sent=False)
        answer: asyncio.Future[tuple[dict[str, Any], memoryview]] = asyncio.get_running_loop().create_future()
        self._waiting[request.seq] = answer
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    self._socket.send(request.model_dump_json())
                except SocketClosed as closed:
                    raise ChannelClosedError(f"The channel to the desktop closed ({closed}).", sent=False) from closed
                return await answer
        except TimeoutError as error:
            raise FarmError(f"The desktop did not answer within {timeout_s:.0f} s.", code="timeout") from error
        finally:
            self._waiting.pop(request.seq, None)
            self._early_images.pop(request.seq, None)
            if answer.done() and not answer.cancelled():
                answer.exception()

    async def _read(self) -> None:
        reason = "The channel to the desktop closed."
        try:
            while True:
                self._deliver(*split_frame(await self._socket.receive()))
        except SocketClosed as closed:
            reason = f"The channel to the desktop closed ({closed})."
        except (ValueError, UnicodeDecodeError) as error:
            reason = f"The channel to the desktop carried something that is not a frame: {error}."
        finally:
            self._fail(reason)
        await self._socket.aclose()

    def _deliver(self, header: dict[str, Any], payload: memoryview) -> None:
        seq = header.get("seq")
        answer = self._waiting.get(seq) if isinstance(seq, int) else None
        if not isinstance(seq, int) or answer is None or answer.done():
            return
        if header.get("draft"):
            self._early_images[seq] = payload
        elif header.get("early"):
            answer.set_result((header, self._early_images.pop(seq, payload)))
        else:
            answer.set_result((header, payload))

    def _fail(self, reason: str) -> None:
        self._closed = ChannelClosedError(reason, sent=True)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosedError(reason, sent=True))

    async def aclose(self) -> None:
        """Close the connection; whoever waits gets `ChannelClosedError`. Idempotent."""
        if self._closed is None:
            self._fail("The channel was closed by this client.")
        await self._socket.aclose()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
