"""From what a person's hands did to the actions that they meant.

Role: `Coalescer`, fed with input events as the guest got them, gives clicks (double and triple), drags, scrolls, typed text, chords, and
rests of the pointer. Rule: pure, on the times it is given, in seconds on any one axis; nothing is lost: every action carries its events,
and what no canonical action can say (a click with a modifier, a drawn curve) has events alone. Non-goals: pictures, files, performing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dart_envs.actions import MAX_KEYS, MAX_TEXT_LENGTH, MAX_WHEEL_CLICKS
from dart_envs.key_names import is_key
from dart_envs.types import Action, ActionType
from dart_server.wire import ButtonEvent, InputEvent, KeyEvent, MoveEvent, ScrollEvent, TextEvent, WaitEvent

CLICK_RADIUS_PX = 5
"""A hand that presses a button moves no farther."""
MULTI_CLICK_GAP_S = 0.5
"""Between the end of one click and the begin of the next that makes it a double click."""
SCROLL_GAP_S, TEXT_GAP_S = 1.0, 2.0
"""Turns of the wheel, and letters, that are farther apart are two actions: the person looked at what came of the first."""
MIN_HOVER_S = 0.7
"""A pointer that rests so long somewhere may have been meant to: a menu opens, a tip shows."""
MAX_DRAG_DEVIATION_PX = 30
"""A drag that leaves the straight line by more is a drawn curve."""
MAX_WAIT_MS = 1_000
MIN_WAIT_MS = 15
CLICK_TYPES = (ActionType.CLICK, ActionType.DOUBLE_CLICK, ActionType.TRIPLE_CLICK)
BUTTON_CLICK_TYPES = {2: ActionType.MIDDLE_CLICK, 3: ActionType.RIGHT_CLICK}
MODIFIERS = {
    "shiftleft": "shift", "shiftright": "shift", "ctrlleft": "ctrl", "ctrlright": "ctrl",
    "altleft": "alt", "altright": "alt", "winleft": "win", "winright": "win", "altgr": "altgr",
}  # fmt: skip
"""The guest's names of keys that are held, and what a chord calls them."""
LOCKS = frozenset({"capslock", "numlock", "scrolllock"})
TEXT_MODIFIERS = frozenset({"shift", "altgr"})
"""Held while text is typed: the characters that come have them in them already."""


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """One thing that a person did, from `start_s` to `end_s`.

    action: None where none can say it. events: what was performed, with its pauses. is_hover: the pointer went somewhere and stayed,
    which meant something only if the screen changed by it.
    """

    start_s: float
    end_s: float
    action: Action | None
    events: tuple[InputEvent, ...]
    is_hover: bool = False


@dataclass(slots=True)
class _PendingAction:
    """What may still go on: clicks at a place, turns of a wheel, letters."""

    kind: str
    start_s: float
    end_s: float
    at: tuple[int, int]
    button: int = 1
    times: int = 0
    dx: int = 0
    dy: int = 0
    text: str = ""
    held: tuple[str, ...] = ()
    timed: list[tuple[float, InputEvent]] = field(default_factory=list)


@dataclass(slots=True)
class _ButtonPress:
    """A button that is down."""

    button: int
    start_s: float
    at: tuple[int, int]
    path: list[tuple[int, int]]
    timed: list[tuple[float, InputEvent]]


class Coalescer:
    """Feed it in order; what is finished comes out, the rest with a later `feed` or `flush`."""

    def __init__(self, pointer: tuple[int, int] = (0, 0)) -> None:
        self._pointer = pointer
        self._pointer_moved_s: float | None = None
        self._press: _ButtonPress | None = None
        self._pending: _PendingAction | None = None
        self._held_modifiers: dict[str, bool] = {}
        """The modifiers that are down, by the guest's name, and whether something was done with them."""

    @property
    def pending_s(self) -> float | None:
        """When the earliest thing that is not finished began; None while there is none."""
        begun = [one.start_s for one in (self._press, self._pending) if one is not None]
        if self._pointer_moved_s is not None:
            begun.append(self._pointer_moved_s)
        return min(begun, default=None)

    def feed(self, at_s: float, events: Iterable[InputEvent]) -> Iterator[RecordedAction]:
        """What is finished by these events, which came at once."""
        yield from self.flush(at_s, force=False)
        for event in events:
            match event:
                case MoveEvent():
                    yield from self._move(at_s, event)
                case ButtonEvent(type="down"):
                    yield from self._down(at_s, event)
                case ButtonEvent():
                    yield from self._up(at_s, event)
                case ScrollEvent():
                    yield from self._scroll(at_s, event)
                case KeyEvent(type="key_down"):
                    yield from self._key_down(at_s, event)
                case KeyEvent():
                    yield from self._key_up(at_s, event)
                case TextEvent():
                    yield from self._write(at_s, event.text, event)
                case WaitEvent():
                    pass

    def flush(self, now_s: float, *, force: bool = True) -> Iterator[RecordedAction]:
        """What cannot go on any more at this time; with `force` whatever was begun, since nothing more comes."""
        run = self._pending
        if run is not None:
            gap_s = {"click": MULTI_CLICK_GAP_S, "scroll": SCROLL_GAP_S, "text": TEXT_GAP_S}[run.kind]
            if force or now_s - run.end_s > gap_s:
                yield from self._finish_pending()

    # The pointer.

    def _move(self, at_s: float, event: MoveEvent) -> Iterator[RecordedAction]:
        place = (event.x, event.y)
        if self._press is not None:
            self._press.path.append(place)
            self._press.timed.append((at_s, event))
        elif place != self._pointer:
            yield from self._finish_hover(at_s)
            self._pointer_moved_s = at_s
        self._pointer = place

    def _finish_hover(self, now_s: float) -> Iterator[RecordedAction]:
        """The pointer goes on from where it was, or something else is done there than pressing."""
        start_s, self._pointer_moved_s = self._pointer_moved_s, None
        if start_s is None or now_s - start_s < MIN_HOVER_S or self._pending is not None:
            return
        x, y = self._pointer
        yield RecordedAction(start_s, now_s, Action(ActionType.MOVE, x=x, y=y), (MoveEvent(x=x, y=y),), is_hover=True)

    def _down(self, at_s: float, event: ButtonEvent) -> Iterator[RecordedAction]:
        self._pointer_moved_s = None
        run = self._pending
        goes_on = (
            run is not None
            and run.kind == "click"
            and run.button == event.button
            and run.times < len(CLICK_TYPES)
            and _distance(run.at, self._pointer) <= CLICK_RADIUS_PX
        )
        if not goes_on:
            yield from self._finish_pending()
        if self._press is not None:  # a second button while one is down: one gesture of both
            self._press.timed.append((at_s, event))
            return
        move = MoveEvent(x=self._pointer[0], y=self._pointer[1])
        self._press = _ButtonPress(event.button, at_s, self._pointer, [self._pointer], [(at_s, move), (at_s, event)])

    def _up(self, at_s: float, event: ButtonEvent) -> Iterator[RecordedAction]:
        press = self._press
        if press is None:
            return  # it went down before anybody listened
        press.timed.append((at_s, event))
        if event.button != press.button:
            return
        self._press = None
        held = self._use_modifiers()
        both = len({one.button for _, one in press.timed if isinstance(one, ButtonEvent)}) > 1
        if both or (max(_distance(press.at, point) for point in press.path) > CLICK_RADIUS_PX):
            yield from self._finish_pending()
            straight = press.button == 1 and not both and _max_deviation(press.path) <= MAX_DRAG_DEVIATION_PX
            action = None
            if straight and not held:
                (x, y), (x2, y2) = press.at, self._pointer
                action = Action(ActionType.DRAG, x=x, y=y, x2=x2, y2=y2)
            yield RecordedAction(press.start_s, at_s, action, _with_modifiers(held, _with_waits(press.timed)))
            return
        if self._pending is not None and self._pending.kind != "click":
            yield from self._finish_pending()
        if self._pending is None:
            self._pending = _PendingAction("click", press.start_s, at_s, press.at, press.button, held=held)
        run = self._pending
        run.times, run.end_s = run.times + 1, at_s
        run.timed += press.timed
        if press.button != 1 or run.times == len(CLICK_TYPES):
            yield from self._finish_pending()

    def _scroll(self, at_s: float, event: ScrollEvent) -> Iterator[RecordedAction]:
        self._pointer_moved_s = None
        held, run = self._use_modifiers(), self._pending
        if (
            run is None
            or run.kind != "scroll"
            or run.held != held
            or _distance(run.at, self._pointer) > CLICK_RADIUS_PX
        ):
            yield from self._finish_pending()
            run = self._pending = _PendingAction("scroll", at_s, at_s, self._pointer, held=held)
            run.timed.append((at_s, MoveEvent(x=self._pointer[0], y=self._pointer[1])))
        if max(abs(run.dx + event.dx), abs(run.dy + event.dy)) > MAX_WHEEL_CLICKS:
            yield from self._finish_pending()
            yield from self._scroll(at_s, event)
            return
        run.dx, run.dy, run.end_s = run.dx + event.dx, run.dy + event.dy, at_s
        run.timed.append((at_s, event))

    # The keyboard.

    def _key_down(self, at_s: float, event: KeyEvent) -> Iterator[RecordedAction]:
        key = event.key
        if key in MODIFIERS:
            self._held_modifiers.setdefault(key, False)
            return
        held = self._pressed_modifiers()
        letter = key[3:] if key.startswith("num") and key[3:].isdigit() else key
        letter = " " if letter == "space" else letter
        if len(letter) == 1 and letter.isprintable() and set(held) <= TEXT_MODIFIERS:
            self._use_modifiers()
            yield from self._write(at_s, letter, TextEvent(text=letter))
            return
        yield from self._finish_hover(at_s)
        yield from self._finish_pending()
        self._use_modifiers()
        name = letter.lower() if len(letter) == 1 else letter
        keys = (*held, name)
        sayable = all(is_key(one) for one in keys) and len(keys) <= MAX_KEYS and key not in LOCKS
        action = Action(ActionType.KEY, keys=keys) if sayable else None
        pressed = (KeyEvent(type="key_down", key=key), KeyEvent(type="key_up", key=key))
        yield RecordedAction(at_s, at_s, action, _with_modifiers(held, pressed))

    def _key_up(self, at_s: float, event: KeyEvent) -> Iterator[RecordedAction]:
        used = self._held_modifiers.pop(event.key, None)
        if used is not False:
            return  # no modifier, or one that was held for something
        name = MODIFIERS[event.key]
        if name in TEXT_MODIFIERS:
            return  # pressed and let go alone they do nothing
        yield from self._finish_pending()
        action = Action(ActionType.KEY, keys=(name,))
        pressed = (KeyEvent(type="key_down", key=event.key), event)
        yield RecordedAction(at_s, at_s, action, pressed)

    def _write(self, at_s: float, text: str, event: InputEvent) -> Iterator[RecordedAction]:
        yield from self._finish_hover(at_s)
        if (
            self._pending is None
            or self._pending.kind != "text"
            or len(self._pending.text) + len(text) > MAX_TEXT_LENGTH
        ):
            yield from self._finish_pending()
            self._pending = _PendingAction("text", at_s, at_s, self._pointer)
        self._pending.text += text
        self._pending.end_s = at_s
        self._pending.timed.append((at_s, event))

    def _pressed_modifiers(self) -> tuple[str, ...]:
        """The modifiers that are down, each once, in the order they went down."""
        return tuple(dict.fromkeys(MODIFIERS[name] for name in self._held_modifiers))

    def _use_modifiers(self) -> tuple[str, ...]:
        self._held_modifiers = dict.fromkeys(self._held_modifiers, True)
        return self._pressed_modifiers()

    def _finish_pending(self) -> Iterator[RecordedAction]:
        run, self._pending = self._pending, None
        if run is None:
            return
        action: Action | None
        x, y = run.at
        if run.kind == "text":
            action = Action(ActionType.TYPE, text=run.text)
        elif run.kind == "scroll":
            action = Action(ActionType.SCROLL, x=x, y=y, dx=run.dx, dy=run.dy)
        else:
            action = Action(BUTTON_CLICK_TYPES.get(run.button, CLICK_TYPES[run.times - 1]), x=x, y=y)
        if run.held:
            action = None
        yield RecordedAction(run.start_s, run.end_s, action, _with_modifiers(run.held, _with_waits(run.timed)))


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    return math.dist(one, other)


def _max_deviation(path: list[tuple[int, int]]) -> float:
    """The farthest that a path leaves the straight line from its begin to its end, pixels."""
    (x, y), (x2, y2) = path[0], path[-1]
    length = math.dist((x, y), (x2, y2))
    if length == 0:
        return max(math.dist((x, y), point) for point in path)
    return max(abs((x2 - x) * (y - py) - (x - px) * (y2 - y)) / length for px, py in path)


def _with_waits(timed: list[tuple[float, InputEvent]]) -> tuple[InputEvent, ...]:
    """The events with waits between those that were apart."""
    paced: list[InputEvent] = []
    for index, (at_s, event) in enumerate(timed):
        gap_ms = round(1000 * (at_s - timed[index - 1][0])) if index else 0
        if gap_ms >= MIN_WAIT_MS:
            paced.append(WaitEvent(ms=min(gap_ms, MAX_WAIT_MS)))
        paced.append(event)
    return tuple(paced)


def _with_modifiers(held: tuple[str, ...], events: tuple[InputEvent, ...]) -> tuple[InputEvent, ...]:
    """The events while keys are held."""
    down = tuple(KeyEvent(type="key_down", key=key) for key in held)
    up = tuple(KeyEvent(type="key_up", key=key) for key in reversed(held))
    return (*down, *events, *up)
