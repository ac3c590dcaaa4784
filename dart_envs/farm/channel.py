"""The binary WebSocket channel to one leased desktop: many steps over one connection.

This module matches answers to requests by their `seq`, splits binary frames, and decodes their pixels and errors. An
answer whose request has timed out is dropped and never given to another request. A broken channel fails all waiting
requests at once. An early picture is kept until the frame says whether it is the step's picture. The module does not
reopen channels and does not assign faults (`lease` does both).
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import ValidationError

from dart_envs.errors import DartEnvError, FarmTimeoutError, GuestError
from dart_envs.farm.transport import CONNECT_TIMEOUT_S, Transport, error_from_envelope, error_from_response
from dart_envs.types import RgbImage
from dart_server.wire import (
    ChannelError,
    ErrorBody,
    ErrorCode,
    FrameHeader,
    FrameSpec,
    StepRequest,
)
from dart_server.wire.guest_answers import MalformedAnswer, check_frame, check_picture, split_frame
from dart_server.wire.messages import Connect, HandshakeRefused, MessageSocket, SocketClosed


class ChannelClosedError(DartEnvError):
    """The connection ended.

    Args:
        message: What happened.
        sent: Whether the request may have reached the desktop.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


async def open_message_socket(transport: Transport, path: str, headers: Mapping[str, str]) -> MessageSocket:
    """Open the channel's connection to the farm.

    Args:
        transport: The connection to the farm.
        path: The route of the channel.
        headers: Headers beside those of the transport.

    Returns:
        The open socket.

    Raises:
        DartEnvError: If the farm cannot be reached, or as the refusal's error envelope says.
    """
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
    """An open channel.

    Requests may overlap; each one gets the answer that carries its own `seq`.

    Args:
        socket: The open socket.
    """

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
        """Send one request and wait for its answer.

        Args:
            request: The step, with a `seq` that no other waiting request has.
            timeout_s: Seconds to wait.

        Returns:
            Header and payload of the frame.

        Raises:
            ChannelClosedError: If the connection ended.
            FarmTimeoutError: If the answer did not arrive in time.
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
            raise FarmTimeoutError(f"The desktop did not answer within {timeout_s:.0f} s.", code="timeout") from error
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
        except MalformedAnswer as error:
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
            answer.set_result(({**header, "early": False}, self._early_images.pop(seq, payload)))
        else:
            answer.set_result((header, payload))

    def _fail(self, reason: str) -> None:
        self._closed = ChannelClosedError(reason, sent=True)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelClosedError(reason, sent=True))

    async def aclose(self) -> None:
        """Close the connection; waiting requests get `ChannelClosedError`. Idempotent."""
        if self._closed is None:
            self._fail("The channel was closed by this client.")
        await self._socket.aclose()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


def decode_frame(
    header: dict[str, Any], payload: memoryview, spec: FrameSpec, screen: tuple[int, int], seq: int
) -> tuple[FrameHeader, RgbImage]:
    """Decode a frame, which is what was asked for or is refused.

    Args:
        header: The frame's header.
        payload: The frame's picture. A raw frame takes over its memory when that is writable.
        spec: What was asked for.
        screen: (width, height) of the screen in pixels.
        seq: Number of the step.

    Returns:
        The header, and uint8 `[H, W, 3]`, writable and not shared; `[0, 0, 3]` where no image was asked for.

    Raises:
        MalformedAnswer: If size, encoding or number are others, or the picture cannot be decoded.
    """
    check_frame(header, payload, spec=spec, screen=screen, seq=seq)
    try:
        parsed = FrameHeader.model_validate(header)
    except ValidationError as error:
        raise MalformedAnswer("the frame's header is not what the protocol says") from error
    width, height = screen
    if spec.encoding == "none":
        return parsed, np.zeros((0, 0, 3), dtype=np.uint8)
    if spec.encoding == "raw":
        pixels = np.frombuffer(payload, dtype=np.uint8).reshape(height, width, 3)
        return parsed, pixels if pixels.flags.writeable else pixels.copy()
    return parsed, _decode_picture(bytes(payload), spec.encoding, screen)


def _decode_picture(file: bytes, encoding: str, screen: tuple[int, int]) -> RgbImage:
    from PIL import Image

    check_picture(file, encoding, screen)
    try:
        with Image.open(io.BytesIO(file), formats=(encoding.upper(),)) as picture:
            if picture.size != screen:
                raise MalformedAnswer("a picture of two sizes")
            return np.array(picture.convert("RGB"), dtype=np.uint8)
    except Exception as error:
        raise MalformedAnswer(f"a {encoding} picture that cannot be decoded: {error}") from error


def envelope_code(content: bytes) -> ErrorCode | None:
    """Read the code of the farm's own error envelope.

    Args:
        content: Body of an answer.

    Returns:
        The code, or None when the body is not an envelope.
    """
    try:
        return ErrorBody.model_validate_json(content).error
    except ValidationError:
        return None


def channel_error(header: dict[str, Any]) -> DartEnvError:
    """Return the exception for a message whose header is a `ChannelError`.

    Args:
        header: Header of the message, with an `error`.

    Returns:
        The exception; the caller raises it.
    """
    try:
        error = ChannelError.model_validate(header)
    except ValidationError:
        return GuestError(
            f"The desktop refused the step: {header.get('detail', header['error'])}", code=str(header["error"])
        )
    body = ErrorBody(error=error.error, detail=error.detail, request_id=f"seq-{error.seq}", desktop=error.desktop)
    return error_from_envelope(body, error.status)
