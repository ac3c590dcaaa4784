"""What is done on a leased desktop: steps and their frames, programs, the accessibility tree. Non-goals: who may do it (`leases`)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from dart_server.wire.base import Flag, Int, Number, WireModel


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
