"""What is done on a leased desktop: steps and their frames, programs, the accessibility tree; and how long each may take.

Rule of the times: the guest agent gives up first, then the farm, then its client (`client_limit_s`), so that who is late is named by the
one that can still look at the desktop. Non-goals: who may do it (`leases`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from dart_server.wire.base import Flag, Int, Number, WireModel

STEP_GRACE_S = 15.0
"""What a step may take beyond its own waiting and settling."""
EVENT_S = 0.05
"""What an event, or a character of a text, may take."""
MAX_STEP_S = 900.0
"""No step takes longer, whatever it waits for: over REST the middleware gives it up then, too."""
CALL_LIMIT_S = 30.0
"""Of a call without a limit of its own: screenshot, clock."""
PROGRAM_GRACE_S = 10.0
"""What the end of a program, or of a walk, may take beyond its own time."""
A11Y_WALK_S = 15.0
A11Y_LIMIT_S = A11Y_WALK_S + PROGRAM_GRACE_S
FILE_LIMIT_S = 150.0
EVIDENCE_PERMIT_S = 240.0
"""How long a request for evidence may wait until the host has looked into other desktops."""
EVIDENCE_LIMIT_S = 30.0
"""A look of the host ends after some seconds, whatever the desktop holds."""
PASSED_THROUGH_LIMIT_S = 300.0
"""OSWorld's slowest ordinary route answers within 120 s, and a film takes a while to come."""
TREE_ROUTES = frozenset({"accessibility", "terminal"})
"""OSWorld's routes that walk the accessibility tree, for a minute at most."""
TREE_LIMIT_S = 60.0 + PROGRAM_GRACE_S
CLIENT_GRACE_S = 30.0
"""What the farm may take beside the guest's time: two dials, two looks at the desktop's health, its own answer."""


class SettleSpec(WireModel):
    """Wait until nothing was drawn on the screen for a while.

    Attributes:
        quiet_ms: How long nothing may be drawn, milliseconds.
        cap_ms: Longest wait, milliseconds.
    """

    quiet_ms: Int = Field(default=100, ge=0, le=5_000)
    cap_ms: Int = Field(default=2_000, ge=0, le=30_000)


class FrameSpec(WireModel):
    """How the frame comes back. `raw` is RGB uint8, row-major, height x width x 3 bytes."""

    encoding: Literal["raw", "png", "webp", "jpeg", "none"] = "raw"
    quality: Int = Field(default=90, ge=1, le=100)
    cursor: Flag = False


def _with_type(schema: dict[str, Any]) -> None:
    """An event's type is never left out, though only one is possible."""
    schema["required"] = sorted({"type", *schema.get("required", ())})


class _Event(WireModel):
    model_config = ConfigDict(json_schema_extra=_with_type)


class MoveEvent(_Event):
    """Move the pointer.

    Attributes:
        x: Column, screen pixels.
        y: Row, screen pixels.
    """

    type: Literal["move"] = "move"
    x: Int
    y: Int


class ButtonEvent(_Event):
    """Press or release a mouse button.

    Attributes:
        button: 1 is left, 2 is middle, 3 is right.
    """

    type: Literal["down", "up"]
    button: Int = Field(default=1, ge=1, le=3)


class KeyEvent(_Event):
    """Press or release a key.

    Attributes:
        key: The key's name, as pyautogui writes it.
    """

    type: Literal["key_down", "key_up"]
    key: str = Field(min_length=1, max_length=64)


class TextEvent(_Event):
    """Type a text.

    Attributes:
        text: Any Unicode text.
    """

    type: Literal["text"] = "text"
    text: str


class ScrollEvent(_Event):
    """Wheel clicks; positive `dy` scrolls up, positive `dx` to the right."""

    type: Literal["scroll"] = "scroll"
    dx: Int = 0
    dy: Int = 0


class WaitEvent(_Event):
    """Wait before the next event.

    Attributes:
        ms: Milliseconds.
    """

    type: Literal["wait"] = "wait"
    ms: Int = Field(ge=0, le=60_000)


InputEvent = Annotated[
    MoveEvent | ButtonEvent | KeyEvent | TextEvent | ScrollEvent | WaitEvent, Field(discriminator="type")
]


class StepRequest(WireModel):
    """One round trip: input events, wait until the screen settled, the frame. `seq` comes back in the frame's header."""

    seq: Int = 0
    events: list[InputEvent] = Field(default_factory=list, max_length=2_000)
    settle: SettleSpec | None = None
    frame: FrameSpec = FrameSpec()


def step_limit_s(request: StepRequest) -> float:
    """How long the farm lets the guest take for a step, in seconds."""
    waits_ms = sum(event.ms for event in request.events if isinstance(event, WaitEvent))
    settle_ms = request.settle.cap_ms if request.settle else 0
    characters = sum(len(event.text) for event in request.events if isinstance(event, TextEvent))
    needed_s = STEP_GRACE_S + (waits_ms + settle_ms) / 1000 + EVENT_S * (len(request.events) + characters)
    return min(MAX_STEP_S, needed_s)


def passed_through_limit_s(path: str) -> float:
    """How long the farm lets the guest take for one of OSWorld's routes, in seconds. path: below `/guest/`."""
    return TREE_LIMIT_S if path.strip("/") in TREE_ROUTES else PASSED_THROUGH_LIMIT_S


def client_limit_s(farm_limit_s: float) -> float:
    """How long a client waits for an answer that the farm gives up after `farm_limit_s`, in seconds."""
    return farm_limit_s + CLIENT_GRACE_S


class FrameHeader(BaseModel):
    """JSON header of a binary frame: 4 bytes big-endian header length, this header, then `nbytes` of payload.

    On a channel that was opened with `early=1` a draft may come first, at most one for a step: a message of the same form whose header is
    `{"draft": true, "seq": ..., "nbytes": ...}`. A frame with `early` true has no payload: its picture is that of the draft.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    seq: int
    width: int
    height: int
    encoding: str
    settled: bool
    settle_ms: float
    grab_ms: float
    cursor: tuple[int, int]
    nbytes: int
    early: bool = False


class ExecRequest(WireModel):
    """Run a program inside the desktop (never through a shell of ours)."""

    argv: list[str] = Field(min_length=1, max_length=256)
    timeout_s: Number = Field(default=30.0, gt=0, le=600)
    user: Literal["user", "root"] = "user"
    env: dict[str, str] = Field(default_factory=dict)
    stdin: str | None = None
    detach: Flag = Field(default=False, description="start it and return at once")


class ExecReply(WireModel):
    """What the program said. `returncode` is None when it timed out or was detached."""

    returncode: int | None
    stdout: str
    stderr: str
    timed_out: bool = False


EARLIEST_CLOCK = datetime(2001, 9, 10, tzinfo=UTC)
LATEST_CLOCK = datetime(2096, 10, 1, tzinfo=UTC)


class ClockRequest(WireModel):
    """Declare the desktop's time of day: it is `time` now and goes on from there.

    Snapshots and their copies continue it from where it was frozen, however old they are.

    Attributes:
        time: The time of day to declare; None returns to the farm's own.
    """

    time: AwareDatetime | None

    @field_validator("time")
    @classmethod
    def _usable(cls, value: datetime | None) -> datetime | None:
        if value is not None and not EARLIEST_CLOCK <= value <= LATEST_CLOCK:
            raise ValueError(f"a desktop's clock goes from {EARLIEST_CLOCK:%Y-%m-%d} to {LATEST_CLOCK:%Y-%m-%d}")
        return value


class ClockView(WireModel):
    """What time of day it is in the desktop, and whether it was declared."""

    time: AwareDatetime
    declared: bool


class A11yElement(WireModel):
    """One showing element of the accessibility tree; `x`, `y`, `w`, `h` in screen pixels."""

    role: str
    name: str
    text: str = ""
    states: list[str] = Field(default_factory=list)
    x: int
    y: int
    w: int
    h: int
