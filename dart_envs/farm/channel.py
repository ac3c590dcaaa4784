"""The binary WebSocket channel to one leased desktop: many steps over one connection.

Role: match answers to requests by their `seq`, split binary frames, decode their pixels and refusals, and say how long a step may take.
Rule: an answer whose request has timed out is dropped, never given to another request; a broken channel fails everything that waits on it
at once; a draft is kept until the frame says whether it is the step's picture. Non-goals: reopening, blame (`lease` does both).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import ValidationError

from dart_envs.errors import DartEnvError, FarmError, GuestError
from dart_envs.farm.transport import CONNECT_TIMEOUT_S, Transport, error_from_envelope, error_from_response
from dart_envs.types import RgbImage
from dart_server.wire import (
    ChannelError,
    ErrorBody,
    ErrorCode,
    FrameHeader,
    InputEvent,
    SettleSpec,
    StepRequest,
    TextEvent,
    WaitEvent,
)
from dart_server.wire.messages import Connect, HandshakeRefused, MessageSocket, SocketClosed

STEP_GRACE_S = 20.0
TYPING_S_PER_CHARACTER = 0.05
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


def step_timeout_s(events: list[InputEvent], settle: SettleSpec | None) -> float:
    """How long a step may take before its answer is given up, seconds."""
    seconds = STEP_GRACE_S + (settle.cap_ms / 1000 if settle else 0.0)
    for event in events:
        if isinstance(event, WaitEvent):
            seconds += event.ms / 1000
        elif isinstance(event, TextEvent):
            seconds += TYPING_S_PER_CHARACTER * len(event.text)
    return seconds


def decode_image(header: FrameHeader, payload: bytes | memoryview) -> RgbImage:
    """Pixels of a frame, uint8 [H, W, 3], writable and not shared; an empty image where none was asked
    for. A raw frame takes the payload's memory over when that may be written."""
    if header.encoding == "none":
        return np.zeros((0, 0, 3), dtype=np.uint8)
    if header.encoding == "raw":
        expected = header.height * header.width * 3
        if len(payload) != expected:
            raise FarmError(f"A raw frame has {len(payload)} bytes where {expected} were announced.", code="bad_frame")
        pixels = np.frombuffer(payload, dtype=np.uint8).reshape(header.height, header.width, 3)
        return pixels if pixels.flags.writeable else pixels.copy()
    from PIL import Image

    with Image.open(io.BytesIO(payload)) as picture:
        return np.array(picture.convert("RGB"), dtype=np.uint8)


def envelope_code(content: bytes) -> ErrorCode | None:
    """The code of the farm's own error envelope; None when the answer is not one."""
    try:
        return ErrorBody.model_validate_json(content).error
    except ValidationError:
        return None


def channel_error(header: dict[str, Any]) -> DartEnvError:
    """The exception for a binary message whose header is a `ChannelError`."""
    try:
        error = ChannelError.model_validate(header)
    except ValidationError:
        return GuestError(
            f"The desktop refused the step: {header.get('detail', header['error'])}", code=str(header["error"])
        )
    body = ErrorBody(error=error.error, detail=error.detail, request_id=f"seq-{error.seq}", desktop=error.desktop)
    return error_from_envelope(body, error.status)
