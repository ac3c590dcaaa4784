"""The stepping channel: the client's WebSocket on one side, the guest agent's on the other.

Rule: a request is validated, passed on, answered, one at a time. The frame goes through as the bytes it came as, once its header says
that it is what was asked for: a frame of ours is never one that the guest wrote. Errors are frames too (`wire.ChannelError`). The right to
call is checked for every message, so a reset or an expiry ends the channel at its next message.
A client that opens the channel with `early=1` is sent a step's picture ahead of the frame where the guest offers it.
"""

from __future__ import annotations

import struct
import time
from contextlib import suppress

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError

from dart_server import wire
from dart_server.errors import ApiError
from dart_server.guest.access import MAX_CODE_LENGTH, MAX_DETAIL_LENGTH, GuestAccess
from dart_server.guest.client import GuestChannel, GuestClient, GuestMalformed, GuestUnreachable
from dart_server.leases.service import LeaseAccess
from dart_server.wire import ErrorCode
from dart_server.wire.desktop import step_limit_s
from dart_server.wire.guest_answers import MalformedAnswer, check_draft, check_frame, split_frame

CLOSE_AFTER = frozenset({ErrorCode.FENCED, ErrorCode.LEASE_EXPIRED, ErrorCode.DESKTOP_FAILED})
MAX_CHANNELS = 8
"""Channels into one desktop at a time: each holds frames in the farm's memory."""
CLOSE_CODE = 4000
"""The channel ended for the reason that the last frame tells."""


def error_frame(seq: int | None, error: ApiError) -> bytes:
    """A `ChannelError` as a binary frame."""
    header = wire.ChannelError(
        seq=seq, error=error.code, detail=error.detail, status=error.status, desktop=error.desktop
    )
    data = header.model_dump_json().encode()
    return struct.pack(">I", len(data)) + data


class StepChannel:
    """One client's channel into one leased desktop."""

    def __init__(self, guests: GuestAccess, access: LeaseAccess, *, early: bool = False) -> None:
        self._guests = guests
        self._access = access
        self._early = early
        self._channel: GuestChannel | None = None
        self._client: GuestClient | None = None

    async def serve(self, socket: WebSocket) -> None:
        """Relay until the client hangs up or the right to call ends."""
        try:
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                seq: int | None = None
                try:
                    request = wire.StepRequest.model_validate_json(message.get("text") or "")
                    seq = request.seq
                    frame: bytes | bytearray = await self.step(request, socket)
                except ValidationError as error:
                    frame = error_frame(seq, ApiError(ErrorCode.INVALID, first_problem(error)))
                except ApiError as error:
                    await socket.send_bytes(error_frame(seq, error))
                    if error.code in CLOSE_AFTER:
                        await socket.close(CLOSE_CODE, error.code.value)
                        return
                    continue
                await socket.send({"type": "websocket.send", "bytes": frame})
        except WebSocketDisconnect:
            return
        finally:
            if self._client is not None and self._channel is not None:
                await self._client.close_channel(self._channel)

    async def step(self, request: wire.StepRequest, socket: WebSocket) -> bytearray:
        """One step: the guest's frame as it came, a draft before it. Raises `ApiError`."""
        client = self._guests.client(self._access)
        if self._channel is None or client is not self._client:
            if client.open_channels >= MAX_CHANNELS:
                hint = "Close one, or use one channel for all steps."
                raise ApiError(ErrorCode.TOO_MANY_REQUESTS, f"the desktop has {MAX_CHANNELS} channels open", hint=hint)
            self._client, self._channel = client, client.channel(early=self._early)

        message: bytearray | None = None
        picture: memoryview | None = None

        async def pass_on(draft: bytearray) -> None:
            nonlocal message, picture
            message, picture = draft, check_draft(draft, request.seq)
            # Whoever hung up is noticed at the next message; the guest's answer is still read.
            with suppress(WebSocketDisconnect):
                await socket.send({"type": "websocket.send", "bytes": draft})

        started = time.perf_counter()
        try:
            frame = await self._channel.step(request.model_dump_json(), step_limit_s(request), pass_on)
            duration_s = time.perf_counter() - started
            header, payload = split_frame(frame)
            if "error" not in header:
                screen = self._access.slot.shape.resolution
                check_frame(header, payload, spec=request.frame, screen=screen, seq=request.seq, draft=picture)
        except (GuestMalformed, MalformedAnswer) as error:
            raise await self._guests.malformed(self._access, error) from error
        except GuestUnreachable as error:
            raise await self._guests.diagnose(self._access, error) from error
        if "error" in header:
            status = header.get("status")
            raise await self._guests.guest_refusal(
                self._access,
                str(header["error"])[:MAX_CODE_LENGTH],
                str(header.get("detail", ""))[:MAX_DETAIL_LENGTH],
                status if isinstance(status, int) else 502,
            )
        self._guests.record_step(self._access, request, frame, duration_s, message)
        return frame


def first_problem(error: ValidationError) -> str:
    """The first thing wrong with a request, with its path, in one sentence."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    return f"{path}: {problem['msg']}" if path else problem["msg"]
