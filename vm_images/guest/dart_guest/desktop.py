"""The desktop as the agent drives it: perform, settle, grab, encode.

Role: carry out one checked step; own both X connections and make them anew when they broke.
Rule: synchronous, called from one worker thread only (`steps`); a dead X server is SessionDown, never a crash.
Non-goals: HTTP, JSON, accessibility.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageChops

from dart_guest import events, settle
from dart_guest.xinput import CONNECTION_ERRORS, Pointer, SessionDown, XInput
from dart_guest.xshm import GrabError, ShmGrabber


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did; sizes in pixels, times in ms; `payload` as `encoding` says."""

    width: int
    height: int
    encoding: str
    settled: bool
    settle_ms: float
    events_ms: float
    grab_ms: float
    encode_ms: float
    cursor: tuple[int, int]
    payload: bytes


def encode(image: Image.Image, frame: events.Frame) -> bytes:
    """An RGB image as raw rows or a file; the fastest level of each format."""
    if frame.encoding == "raw":
        return image.tobytes()
    target = io.BytesIO()
    if frame.encoding == "png":
        image.save(target, "PNG", compress_level=1)
    elif frame.encoding == "jpeg":
        image.save(target, "JPEG", quality=frame.quality)
    else:
        image.save(target, "WEBP", quality=frame.quality, lossless=frame.quality == 100, method=0)
    return target.getvalue()


def draw_pointer(image: Image.Image, pointer: Pointer) -> None:
    """Blend the pointer's premultiplied ARGB picture into an RGB image in place, clipped at the edges."""
    words = b"".join((word & 0xFFFFFFFF).to_bytes(4, "little") for word in pointer.argb)
    picture = Image.frombytes("RGBA", (pointer.width, pointer.height), words, "raw", "BGRA")
    left, top = max(pointer.x, 0), max(pointer.y, 0)
    right = min(pointer.x + pointer.width, image.width)
    bottom = min(pointer.y + pointer.height, image.height)
    if right <= left or bottom <= top:
        return
    picture = picture.crop((left - pointer.x, top - pointer.y, right - pointer.x, bottom - pointer.y))
    veil = ImageChops.invert(picture.getchannel("A"))
    under = image.crop((left, top, right, bottom))
    shaded = ImageChops.multiply(under, Image.merge("RGB", (veil, veil, veil)))
    image.paste(ImageChops.add(shaded, picture.convert("RGB")), (left, top))


class Desktop:
    """Lazily connected; `reconnect` after a restore."""

    def __init__(self, display: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.display = display
        self.monotonic = monotonic
        self.x: XInput | None = None
        self.shm: ShmGrabber | None = None

    def connection(self) -> XInput:
        """The input connection, made on first use."""
        if self.x is None:
            self.x = XInput(self.display)
        return self.x

    def grabber(self) -> ShmGrabber:
        """The grab connection, made on first use."""
        if self.shm is None:
            self.shm = ShmGrabber(self.display)
        return self.shm

    def disconnect(self) -> None:
        """Drop both connections."""
        if self.shm is not None:
            self.shm.close()
        if self.x is not None:
            self.x.close()
        self.x = self.shm = None

    def guard(self) -> None:
        """Called after a failure: the next use connects anew."""
        self.disconnect()

    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        try:
            connection = self.connection()
        except SessionDown:
            self.guard()
            raise
        return connection.width, connection.height

    def probe(self) -> tuple[int, int]:
        """The screen size after a real round trip; SessionDown when X does not answer."""
        try:
            connection = self.connection()
            connection.pointer_position()
        except (*CONNECTION_ERRORS, SessionDown) as reason:
            self.guard()
            raise SessionDown("the X server does not answer") from reason
        return connection.width, connection.height

    def held(self) -> list[str]:
        """Names of held keys and buttons."""
        return self.x.held() if self.x is not None else []

    def step(self, request: events.StepRequest) -> StepResult:
        """Perform, settle, grab, encode; raises SessionDown, BadRequest."""
        try:
            return self.carry_out(request)
        except (*CONNECTION_ERRORS, GrabError) as reason:
            self.guard()
            raise SessionDown("the X server went away during the step") from reason

    def carry_out(self, request: events.StepRequest) -> StepResult:
        """The step itself."""
        x = self.connection()
        begin_s = self.monotonic()
        if request.settle is not None:
            x.clear_damage()
        x.perform(request.events)
        performed_s = self.monotonic()
        settled, settle_ms = False, 0.0
        if request.settle is not None:
            if request.events and request.settle.quiet_ms > 0:
                x.ask_reading()
            settled, settle_ms = settle.wait_until_settled(x, request.settle, self.monotonic)
        cursor = x.pointer_position()
        grab_at_s = self.monotonic()
        payload, grabbed_s = b"", grab_at_s
        if request.frame.encoding != "none":
            image = self.grabber().grab()
            if request.frame.cursor:
                draw_pointer(image, x.pointer_picture())
            grabbed_s = self.monotonic()
            payload = encode(image, request.frame)
        return StepResult(
            x.width,
            x.height,
            request.frame.encoding,
            settled,
            settle_ms,
            (performed_s - begin_s) * 1000,
            (grabbed_s - grab_at_s) * 1000,
            (self.monotonic() - grabbed_s) * 1000,
            cursor,
            payload,
        )

    def release_shared_memory(self) -> None:
        """Before a checkpoint: keep nothing that exists only between two processes."""
        if self.shm is not None:
            try:
                self.shm.release()
            except GrabError:
                self.shm = None
