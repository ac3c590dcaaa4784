"""The last steps of each desktop: what was done, and a small picture of what was there then.

Rule: bounded, by steps per desktop and by bytes in all; the step itself only leaves a note, the picture is made in a thread, at most
`PICTURES_PER_S` in all and one per `MIN_PICTURE_INTERVAL_S` and desktop, of its latest frame. Nothing is asked of the guest: pictures are
those that the step's own frame had. Each step tells whose it was. Non-goals: the training record (`dart_agent.data_client`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass

from PIL import Image

from dart_server import wire
from dart_server.dashboard.camera import make_thumbnail, thumbnail_jpeg
from dart_server.records import LeaseRecord
from dart_server.wire import Clock
from dart_server.wire.guest_answers import MalformedAnswer, check_draft, check_frame, split_frame

log = logging.getLogger(__name__)
MAX_STEPS = 120
"""Steps kept per desktop."""
MAX_PICTURE_BYTES = 48 * 1024**2
"""Bytes of pictures kept in all."""
MIN_PICTURE_INTERVAL_S = 0.4
PICTURES_PER_S = 8.0
MAX_PENDING_FRAMES = 4
"""Frames that may wait to become pictures: a raw one has six megabytes."""
MAX_TEXT_LENGTH = 200
MAX_EVENTS_PER_STEP = 40
"""Events told of one step."""


@dataclass(slots=True, eq=False)
class ReplayStep:
    """One step of a desktop. `at_s`: seconds since 1970; `picture`: a small JPEG, None when none was made."""

    number: int
    at_s: float
    owner: str
    lease_id: str
    fencing_token: int
    events: list[wire.InputEvent]
    duration_s: float
    picture: bytes | None = None


@dataclass(frozen=True, slots=True)
class _UnmadePicture:
    """A step whose picture is due, with what the guest answered."""

    step: ReplayStep
    request: wire.StepRequest
    screen: tuple[int, int]
    frame: bytes | bytearray
    draft: bytes | bytearray | None


class Replay:
    """The rings of all desktops."""

    def __init__(self, clock: Clock, steps: int = MAX_STEPS, nbytes: int = MAX_PICTURE_BYTES) -> None:
        self._clock = clock
        self._steps = steps
        self._limit_nbytes = nbytes
        self._rings: OrderedDict[str, deque[ReplayStep]] = OrderedDict()
        self._numbers = itertools.count(1)
        self._waiting: OrderedDict[str, _UnmadePicture] = OrderedDict()
        self._pictured_s: dict[str, float] = {}
        self._arrived = asyncio.Event()
        self.nbytes = 0

    def record(
        self,
        lease: LeaseRecord,
        desktop_id: str,
        fencing_token: int,
        request: wire.StepRequest,
        frame: bytes | bytearray,
        duration_s: float,
        draft: bytes | bytearray | None = None,
    ) -> None:
        """A step was done; `frame` is the guest's binary answer, which is read later and only if a picture is due.

        Where a frame came early, it has no payload, and `draft` is the message with its picture.
        """
        if self._steps == 0 or not (request.events or request.settle is not None):
            return  # a mere look
        step = ReplayStep(
            number=next(self._numbers),
            at_s=self._clock.time(),
            owner=lease.owner,
            lease_id=lease.lease_id,
            fencing_token=fencing_token,
            events=[truncate_text(event) for event in request.events[:MAX_EVENTS_PER_STEP]],
            duration_s=duration_s,
        )
        ring = self._rings.setdefault(desktop_id, deque())
        self._rings.move_to_end(desktop_id)
        ring.append(step)
        if len(ring) > self._steps:
            self._drop(ring)
        if request.frame.encoding == "none":
            return
        due = (
            self._clock.monotonic() - self._pictured_s.get(desktop_id, -MIN_PICTURE_INTERVAL_S)
            >= MIN_PICTURE_INTERVAL_S
        )
        if due and (desktop_id in self._waiting or len(self._waiting) < MAX_PENDING_FRAMES):
            self._waiting[desktop_id] = _UnmadePicture(step, request, lease.shape.resolution, frame, draft)
            self._arrived.set()

    def _drop(self, ring: deque[ReplayStep]) -> None:
        gone = ring.popleft()
        self.nbytes -= len(gone.picture or b"")
        gone.picture = None

    def steps(self, desktop_id: str) -> list[ReplayStep]:
        """The steps of a desktop, oldest first."""
        return list(self._rings.get(desktop_id, ()))

    def prune(self, desktop_ids: set[str]) -> None:
        """Forget desktops that are gone."""
        for desktop_id in self._rings.keys() - desktop_ids:
            ring = self._rings.pop(desktop_id)
            while ring:
                self._drop(ring)
        for desktop_id in self._pictured_s.keys() - desktop_ids:
            del self._pictured_s[desktop_id]

    async def make_thumbnails(self) -> None:
        """Turn frames into pictures, for ever."""
        while True:
            await self._arrived.wait()
            while self._waiting:
                desktop_id, waiting = self._waiting.popitem(last=False)
                self._pictured_s[desktop_id] = self._clock.monotonic()
                await self._make(desktop_id, waiting)
                await self._clock.sleep(1 / PICTURES_PER_S)
            self._arrived.clear()

    async def _make(self, desktop_id: str, waiting: _UnmadePicture) -> None:
        step = waiting.step
        try:
            picture = await asyncio.to_thread(frame_thumbnail, waiting)
        except MalformedAnswer as error:
            log.info("a step's frame is no picture: %s", error)
            return
        except Exception:  # logged: one picture must not end the task that makes all of them
            log.exception("a picture of a step could not be made", extra={"desktop_id": desktop_id})
            return
        if not any(kept is step for kept in self._rings.get(desktop_id, ())):
            return  # it was dropped meanwhile
        step.picture = picture
        self.nbytes += len(picture)
        while self.nbytes > self._limit_nbytes and self._rings:
            desktop_id = next(iter(self._rings))
            ring = self._rings[desktop_id]
            while ring and self.nbytes > self._limit_nbytes:
                self._drop(ring)
            if not ring:
                del self._rings[desktop_id]


def frame_thumbnail(waiting: _UnmadePicture) -> bytes:
    """The picture of a step's frame, or of the draft of an early one, as a small JPEG. Raises `MalformedAnswer`."""
    header, payload = split_frame(waiting.frame)
    draft = None if waiting.draft is None else check_draft(waiting.draft, waiting.request.seq)
    size, spec = waiting.screen, waiting.request.frame
    payload = check_frame(header, payload, spec=spec, screen=size, seq=waiting.request.seq, draft=draft)
    if spec.encoding == "raw":
        # Pillow takes any buffer of bytes; a view saves a copy of six megabytes.
        return thumbnail_jpeg(Image.frombuffer("RGB", size, payload, "raw", "RGB", 0, 1))  # type: ignore[arg-type]
    return make_thumbnail(bytes(payload), spec.encoding, size)


def truncate_text(event: wire.InputEvent) -> wire.InputEvent:
    """The same event, a long text cut."""
    if isinstance(event, wire.TextEvent) and len(event.text) > MAX_TEXT_LENGTH:
        return wire.TextEvent(text=event.text[:MAX_TEXT_LENGTH] + "…")
    return event
