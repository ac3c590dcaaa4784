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

from dart_guest import events, pixels, settle
from dart_guest.xinput import CONNECTION_ERRORS, Pointer, SessionDown, XInput
from dart_guest.xshm import GrabError, ShmGrabber


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did; sizes in pixels, times in ms; `payload` as `encoding` says; `early`: it was offered before and is still true."""

    width: int
    height: int
    encoding: str
    settled: bool
    settle_ms: float
    events_ms: float
    grab_ms: float
    encode_ms: float
    cursor: tuple[int, int]
    payload: bytes | bytearray
    early: bool = False


Offer = Callable[[bytes | bytearray], None]
"""Is given an encoded picture."""

FIRST_COST_S = 0.015
"""What a picture is taken to cost before one was measured."""


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


class StepPicture:
    """The picture of one step (`settle.Picture`): taken once, and again only when it no longer shows the screen."""

    def __init__(
        self,
        x: XInput,
        grabber: Callable[[], ShmGrabber],
        frame: events.Frame,
        costs: dict[str, float],
        monotonic: Callable[[], float],
        offer: Offer | None,
    ) -> None:
        self.x = x
        self.grabber = grabber
        self.frame = frame
        self.costs = costs
        self.monotonic = monotonic
        self.offer = offer
        self.offered: bytes | bytearray | None = None
        self.payload: bytes | bytearray | None = None
        self.pointer: Pointer | None = None
        self.grab_ms = self.encode_ms = 0.0

    def cost_s(self) -> float:
        """See settle.Picture: what the last one of this encoding took."""
        return self.costs.get(self.frame.encoding, FIRST_COST_S)

    def spoil(self) -> None:
        """See settle.Picture."""
        self.payload = None

    def take(self) -> None:
        """See settle.Picture; the first one is offered at once."""
        self.shoot()
        if self.offer is not None and self.offered is None and self.payload is not None:
            self.offered = self.payload
            self.offer(self.payload)

    def shoot(self) -> None:
        """Grab and encode. The grab goes over another connection: the server must have subtracted the damage before."""
        begin_s = self.monotonic()
        self.pointer = self.x.pointer_picture() if self.frame.cursor else None
        self.x.display.sync()
        grabber = self.grabber()
        if self.frame.encoding == "raw" and self.pointer is None:
            address = grabber.fetch()
            grabbed_s = self.monotonic()
            self.payload = pixels.rows(address, grabber.width, grabber.height)
        else:
            image = grabber.grab()
            if self.pointer is not None:
                draw_pointer(image, self.pointer)
            grabbed_s = self.monotonic()
            self.payload = encode(image, self.frame)
        end_s = self.monotonic()
        self.grab_ms, self.encode_ms = (grabbed_s - begin_s) * 1000, (end_s - grabbed_s) * 1000
        self.costs[self.frame.encoding] = end_s - begin_s

    def finish(self) -> bytes | bytearray:
        """The encoded picture; the pointer moves and changes without damage, so one that was drawn is compared."""
        if self.frame.encoding == "none":
            return b""
        if self.payload is None or (self.pointer is not None and self.pointer != self.x.pointer_picture()):
            self.shoot()
        return self.payload or b""


class Desktop:
    """Lazily connected; `reconnect` after a restore."""

    def __init__(self, display: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.display = display
        self.monotonic = monotonic
        self.x: XInput | None = None
        self.shm: ShmGrabber | None = None
        self.costs: dict[str, float] = {}
        """Encoding -> seconds that the last picture took."""

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

    def step(self, request: events.StepRequest, offer: Offer | None = None) -> StepResult:
        """Perform, settle, grab, encode; raises SessionDown, BadRequest. `offer` is given a picture that will be right unless something
        is drawn before the screen counts as settled."""
        try:
            return self.carry_out(request, offer)
        except (*CONNECTION_ERRORS, GrabError) as reason:
            self.guard()
            raise SessionDown("the X server went away during the step") from reason

    def carry_out(self, request: events.StepRequest, offer: Offer | None) -> StepResult:
        """The step itself."""
        x = self.connection()
        begin_s = self.monotonic()
        if request.settle is not None:
            x.clear_damage()
        x.perform(request.events, by_hand=request.by_hand)
        performed_s = self.monotonic()
        settled, settle_ms = False, 0.0
        picture = StepPicture(x, self.grabber, request.frame, self.costs, self.monotonic, offer)
        if request.settle is not None:
            if request.events and request.settle.quiet_ms > 0:
                x.ask_reading()
            ahead = picture if request.frame.encoding != "none" else None
            settled, settle_ms = settle.wait_until_settled(x, request.settle, self.monotonic, ahead)
        payload = picture.finish()
        return StepResult(
            x.width,
            x.height,
            request.frame.encoding,
            settled,
            settle_ms,
            (performed_s - begin_s) * 1000,
            picture.grab_ms,
            picture.encode_ms,
            x.pointer_position(),
            payload,
            picture.offered is not None and payload is picture.offered,
        )

    def release_shared_memory(self) -> None:
        """Before a checkpoint: keep nothing that exists only between two processes."""
        if self.shm is not None:
            try:
                self.shm.release()
            except GrabError:
                self.shm = None
