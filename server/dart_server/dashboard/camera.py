"""Pictures of leased desktops, for everyone who looks.

Role: one request at a time per lease, its answer shared by all who want one as old; small copies of them. Rule: a picture is taken like a
step without events: no waiting for a settled screen, no lock; it counts only when the desktop was the lease's all the time, so that nobody
sees what another tenant does. Desktops without a lease are not looked at: a standby stays untouched.
Non-goals: rights (who may look is asked before), protocols.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass, field

from PIL import Image

from dart_server.dashboard.tiles import Pixels, decode, open_picture
from dart_server.guest.client import GuestUnreachable
from dart_server.records import LeaseRecord, Slot
from dart_server.wire import Clock, DesktopState, FrameSpec, LeaseState, StepRequest
from dart_server.wire.guest_answers import MalformedAnswer, check_frame, check_picture, split_frame

QUALITY = 90
SCREENSHOT_TIMEOUT_S = 10.0
"""A picture waits behind the step that the desktop is doing."""
THUMBNAIL_SIZE = (640, 360)
"""Largest size of a small picture, in pixels."""
THUMBNAIL_QUALITY = 72
_SPEC = FrameSpec(encoding="jpeg", quality=QUALITY, cursor=True)
_REQUEST = StepRequest(frame=_SPEC).model_dump_json().encode()


class ViewClosed(Exception):
    """The lease has ended: there is nothing more to see under it."""


class ImageUnavailable(Exception):
    """None now: the desktop is being reset, is broken, or did not answer."""


@dataclass(slots=True, eq=False)
class Screenshot:
    """One screen. `number` grows only when the screen changed; `at_s` is on the clock's monotonic axis."""

    number: int
    jpeg: bytes
    width: int
    height: int
    at_s: float
    _pixels: Pixels | None = field(default=None, repr=False)
    _thumbnail: bytes | None = field(default=None, repr=False)

    def pixels(self) -> Pixels:
        """RGB, uint8 [H, W, 3]; takes milliseconds the first time. Black where the picture cannot be decoded."""
        if self._pixels is None:
            self._pixels = decode(self.jpeg, (self.width, self.height))
        return self._pixels

    def thumbnail(self) -> bytes:
        """A JPEG of at most `THUMBNAIL_SIZE`; takes milliseconds the first time. Black where the picture cannot be decoded."""
        if self._thumbnail is None:
            try:
                self._thumbnail = make_thumbnail(self.jpeg, "jpeg", (self.width, self.height))
            except MalformedAnswer:
                self._thumbnail = thumbnail_jpeg(Image.new("RGB", (self.width, self.height)))
        return self._thumbnail


def make_thumbnail(file: bytes, encoding: str, size: tuple[int, int]) -> bytes:
    """A picture file of `size` pixels as a JPEG of at most `THUMBNAIL_SIZE`. Raises `MalformedAnswer`."""
    with open_picture(file, encoding, size) as image:
        image.draft("RGB", THUMBNAIL_SIZE)
        return thumbnail_jpeg(image.convert("RGB"))


def thumbnail_jpeg(image: Image.Image) -> bytes:
    """An image as a JPEG of at most `THUMBNAIL_SIZE`."""
    image.thumbnail(THUMBNAIL_SIZE, Image.Resampling.BOX, reducing_gap=2.0)
    target = io.BytesIO()
    image.save(target, "JPEG", quality=THUMBNAIL_QUALITY)
    return target.getvalue()


class ScreenCapture:
    """Looks at the desktop of one lease, wherever its resets take it."""

    def __init__(self, lease: LeaseRecord, clock: Clock) -> None:
        self._lease = lease
        self._clock = clock
        self._taking: asyncio.Task[Screenshot] | None = None
        self._last: Screenshot | None = None

    async def screenshot(self, max_age_s: float) -> Screenshot:
        """The screen as it was at most `max_age_s` ago. Raises `ViewClosed`, `ImageUnavailable`."""
        slot = current_slot(self._lease)
        last = self._last
        if last is not None and self._clock.monotonic() - last.at_s <= max_age_s:
            return last
        if self._taking is None:
            self._taking = asyncio.get_running_loop().create_task(self._take(slot))
            self._taking.add_done_callback(self._taken)
        return await asyncio.shield(self._taking)

    async def next_screenshot(
        self, shown: Callable[[], Screenshot | None], interval: Callable[[], float]
    ) -> Screenshot:
        """The next screen that differs from `shown()`, looking every `interval()` seconds. Raises `ViewClosed`; waits while there is
        none."""
        while True:
            try:
                picture = await self.screenshot(interval() / 2)
            except ImageUnavailable:
                pass
            else:
                before = shown()
                if before is None or picture.number != before.number:
                    return picture
            await self._clock.sleep(interval())

    def _taken(self, task: asyncio.Task[Screenshot]) -> None:
        self._taking = None
        if not task.cancelled():
            task.exception()

    async def _take(self, slot: Slot) -> Screenshot:
        guest, fencing_token = slot.guest, slot.fencing_token
        if guest is None or slot.state is not DesktopState.LEASED:
            raise ImageUnavailable("the desktop is being reset")
        headers = {"content-type": "application/json"}
        try:
            reply = await guest.request(
                "POST",
                "/v1/step",
                guest.frame_limit,
                timeout_s=SCREENSHOT_TIMEOUT_S,
                headers=headers,
                content=_REQUEST,
            )
        except GuestUnreachable as error:
            raise ImageUnavailable(str(error)) from error
        if current_slot(self._lease) is not slot or slot.fencing_token != fencing_token or slot.guest is not guest:
            raise ImageUnavailable("the desktop was reset meanwhile")
        if reply.status != 200:
            raise ImageUnavailable("the desktop's session does not answer")
        try:
            header, payload = split_frame(reply.content)
            screen = width, height = slot.shape.resolution
            check_frame(header, payload, spec=_SPEC, screen=screen, seq=0)
            check_picture(payload, "jpeg", screen)
        except MalformedAnswer as error:
            raise ImageUnavailable(f"the guest agent sent a broken frame: {error}") from error
        jpeg = bytes(payload)
        last, now = self._last, self._clock.monotonic()
        if last is not None and last.jpeg == jpeg:
            last.at_s = now
            return last
        self._last = Screenshot(last.number + 1 if last else 1, jpeg, width, height, now)
        return self._last


def current_slot(lease: LeaseRecord) -> Slot:
    """The desktop that is the lease's now. Raises `ViewClosed`."""
    slot = lease.slot
    if slot is None or lease.state is not LeaseState.ACTIVE or slot.lease_id != lease.lease_id:
        raise ViewClosed("the lease has ended")
    return slot


class ScreenCaptures:
    """The cameras of all leases that somebody looks at, or looked at lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._captures: dict[str, ScreenCapture] = {}

    def for_lease(self, lease: LeaseRecord) -> ScreenCapture:
        """The lease's camera."""
        return self._captures.setdefault(lease.lease_id, ScreenCapture(lease, self._clock))

    async def thumbnail(self, lease: LeaseRecord, max_age_s: float) -> tuple[Screenshot, bytes]:
        """A small picture of the lease's screen. Raises `ViewClosed`, `ImageUnavailable`."""
        picture = await self.for_lease(lease).screenshot(max_age_s)
        return picture, await asyncio.to_thread(picture.thumbnail)

    def prune(self, active: set[str]) -> None:
        """Forget the pictures of leases that have ended."""
        for lease_id in self._captures.keys() - active:
            del self._captures[lease_id]
