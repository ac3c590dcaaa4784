"""Guest input events: the checked form of what a step asks for.

Role: turn the JSON of `/v1/step` into frozen values, or say in one sentence what is wrong.
Rule: everything is checked before anything is performed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dart_guest import keymap

MAX_EVENTS = 4096
MAX_TEXT = 100_000
MAX_WAIT_MS = 60_000
MAX_SCROLL = 1000
ENCODINGS = ("raw", "png", "webp", "jpeg", "none")


class BadRequest(ValueError):
    """A request that cannot be carried out as written; `code` is the protocol's error code."""

    def __init__(self, message: str, code: str = "bad_request") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Move:
    """Pointer to (x, y), in pixels."""

    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Button:
    """Press or release of button 1 (left), 2 (middle) or 3 (right)."""

    button: int
    down: bool


@dataclass(frozen=True, slots=True)
class Key:
    """Press or release of the key that makes `keysym`; `name` is what the caller called it."""

    name: str
    keysym: int
    down: bool


@dataclass(frozen=True, slots=True)
class Text:
    """A text to type, as keysyms."""

    keysyms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scroll:
    """Wheel clicks: dy > 0 up, dx > 0 right."""

    dx: int
    dy: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause."""

    ms: int


@dataclass(frozen=True, slots=True)
class ReleaseAll:
    """Release whatever is held."""


Event = Move | Button | Key | Text | Scroll | Wait | ReleaseAll


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until nothing was drawn for `quiet_ms`, at least `min_ms`, at most `cap_ms`."""

    quiet_ms: float
    cap_ms: float
    min_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Frame:
    """How the answer's picture is encoded; `quality` 1..100; `cursor`: draw the pointer into it."""

    encoding: str = "png"
    quality: int = 90
    cursor: bool = False


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One checked step. `by_hand`: a person's, at the person's own pace."""

    seq: int | None
    events: tuple[Event, ...]
    settle: Settle | None
    frame: Frame
    by_hand: bool = False


def number(raw: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    """An integer field within [low, high]; a float with no fraction counts as one."""
    value = raw.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{name!r} must be an integer from {low} to {high}, not {value!r}")
    return value


def milliseconds(raw: Mapping[str, Any], name: str, default: float) -> float:
    """A time in ms from 0 to 60000."""
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_WAIT_MS:
        raise BadRequest(f"{name!r} must be a number of milliseconds from 0 to {MAX_WAIT_MS}, not {value!r}")
    return float(value)


def mapping(raw: object, what: str, known: frozenset[str]) -> Mapping[str, Any]:
    """A JSON object with known keys only."""
    if not isinstance(raw, dict):
        raise BadRequest(f"{what} must be an object")
    unknown = sorted(str(key) for key in raw.keys() - known)
    if unknown:
        raise BadRequest(f"{what} has unknown fields: {', '.join(unknown)}")
    return raw


def parse_event(raw: object) -> Event:
    """One event; raises BadRequest."""
    if not isinstance(raw, dict):
        raise BadRequest("an event must be an object")
    kind = raw.get("type")
    rest = {key: value for key, value in raw.items() if key != "type"}
    try:
        if kind == "move":
            fields = mapping(rest, "move", frozenset({"x", "y"}))
            return Move(number(fields, "x", -65536, 65536), number(fields, "y", -65536, 65536))
        if kind in ("down", "up"):
            fields = mapping(rest, kind, frozenset({"button"}))
            return Button(number(fields, "button", 1, 3), kind == "down")
        if kind in ("key_down", "key_up"):
            name = mapping(rest, kind, frozenset({"key"})).get("key")
            if not isinstance(name, str) or not name:
                raise BadRequest("'key' must be a key name or one character")
            return Key(name, keymap.key_keysym(name), kind == "key_down")
        if kind == "text":
            text = mapping(rest, "text", frozenset({"text"})).get("text")
            if not isinstance(text, str) or len(text) > MAX_TEXT:
                raise BadRequest(f"'text' must be a string of at most {MAX_TEXT} characters")
            typed = text.replace("\r\n", "\n")
            return Text(tuple(keymap.character_keysym(character) for character in typed))
        if kind == "scroll":
            fields = mapping(rest, "scroll", frozenset({"dx", "dy"}))
            return Scroll(
                number(fields, "dx", -MAX_SCROLL, MAX_SCROLL, 0), number(fields, "dy", -MAX_SCROLL, MAX_SCROLL, 0)
            )
        if kind == "wait":
            return Wait(number(mapping(rest, "wait", frozenset({"ms"})), "ms", 0, MAX_WAIT_MS))
    except keymap.UnknownKey as error:
        raise BadRequest(str(error), "unknown_key") from error
    if kind == "release_all":
        mapping(rest, "release_all", frozenset())
        return ReleaseAll()
    raise BadRequest(f"unknown event type {kind!r}")


def parse_step(raw: object) -> StepRequest:
    """The whole request; raises BadRequest with the position of a bad event."""
    fields = mapping(raw, "a step", frozenset({"seq", "events", "settle", "frame", "by_hand"}))
    seq = fields.get("seq")
    if seq is not None and (isinstance(seq, bool) or not isinstance(seq, int)):
        raise BadRequest("'seq' must be an integer")
    listed = fields.get("events") or []
    if not isinstance(listed, list) or len(listed) > MAX_EVENTS:
        raise BadRequest(f"'events' must be a list of at most {MAX_EVENTS} events")
    events: list[Event] = []
    for position, one in enumerate(listed):
        try:
            events.append(parse_event(one))
        except BadRequest as error:
            raise BadRequest(f"event {position}: {error}", error.code) from error
    by_hand = fields.get("by_hand", False)
    if not isinstance(by_hand, bool):
        raise BadRequest("'by_hand' must be true or false")
    return StepRequest(
        seq, tuple(events), parse_settle(fields.get("settle")), parse_frame(fields.get("frame")), by_hand
    )


def parse_settle(raw: object) -> Settle | None:
    """`null` or the settle object."""
    if raw is None:
        return None
    fields = mapping(raw, "'settle'", frozenset({"quiet_ms", "cap_ms", "min_ms"}))
    return Settle(
        milliseconds(fields, "quiet_ms", 60), milliseconds(fields, "cap_ms", 1500), milliseconds(fields, "min_ms", 0)
    )


def parse_frame(raw: object) -> Frame:
    """The frame object, or the default."""
    if raw is None:
        return Frame()
    fields = mapping(raw, "'frame'", frozenset({"encoding", "quality", "cursor"}))
    encoding = fields.get("encoding", "png")
    if encoding not in ENCODINGS:
        raise BadRequest(f"'encoding' must be one of {', '.join(ENCODINGS)}, not {encoding!r}")
    cursor = fields.get("cursor", False)
    if not isinstance(cursor, bool):
        raise BadRequest("'cursor' must be true or false")
    return Frame(encoding, number(fields, "quality", 1, 100, 90), cursor)
