"""What comes back over the wire of one step: pixels, refusals, and how long to wait for them.

Role: pure decoding for `lease`. Rule: no I/O; anything malformed is a `FarmError` with code `bad_frame`.
Non-goals: splitting messages (`channel`).
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from pydantic import ValidationError

from dart_envs.errors import DartEnvError, FarmError, GuestError
from dart_envs.farm.transport import error_from_envelope
from dart_envs.types import RgbImage
from dart_server.wire import (
    ChannelError,
    ErrorBody,
    ErrorCode,
    FrameHeader,
    InputEvent,
    SettleSpec,
    TextEvent,
    WaitEvent,
)

STEP_GRACE_S = 20.0
TYPING_S_PER_CHARACTER = 0.05


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
