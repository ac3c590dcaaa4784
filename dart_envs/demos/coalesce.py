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

STILL_PX = 5
"""A hand that presses a button moves no farther."""
MULTI_CLICK_S = 0.5
"""Between the end of one click and the begin of the next that makes it a double click."""
SCROLL_GAP_S, TEXT_GAP_S = 1.0, 2.0
"""Turns of the wheel, and letters, that are farther apart are two actions: the person looked at what came of the first."""
REST_S = 0.7
"""A pointer that rests so long somewhere may have been meant to: a menu opens, a tip shows."""
BEND_PX = 30
"""A drag that leaves the straight line by more is a drawn curve."""
LONGEST_WAIT_MS = 1_000
SHORTEST_WAIT_MS = 15
TIMES = (ActionType.CLICK, ActionType.DOUBLE_CLICK, ActionType.TRIPLE_CLICK)
BUTTONS = {2: ActionType.MIDDLE_CLICK, 3: ActionType.RIGHT_CLICK}
MODIFIERS = {
    "shiftleft": "shift", "shiftright": "shift", "ctrlleft": "ctrl", "ctrlright": "ctrl",
    "altleft": "alt", "altright": "alt", "winleft": "win", "winright": "win", "altgr": "altgr",
}  # fmt: skip
"""The guest's names of keys that are held, and what a chord calls them."""
LOCKS = frozenset({"capslock", "numlock", "scrolllock"})
WRITING = frozenset({"shift", "altgr"})
"""Held while text is typed: the characters that come have them in them already."""


@dataclass(frozen=True, slots=True)
class Done:
    """One thing that a person did, from `began_s` to `ended_s`. action: None where none can say it. events: what was performed, with its
    pauses. rest: the pointer went somewhere and stayed, which meant something only if the screen changed by it."""

    began_s: float
    ended_s: float
    action: Action | None
    events: tuple[InputEvent, ...]
    rest: bool = False


@dataclass(slots=True)
class _Run:
    """What may still go on: clicks at a place, turns of a wheel, letters."""

    kind: str
    began_s: float
    ended_s: float
    at: tuple[int, int]
    button: int = 1
    times: int = 0
    dx: int = 0
    dy: int = 0
    text: str = ""
    held: tuple[str, ...] = ()
    timed: list[tuple[float, InputEvent]] = field(default_factory=list)


@dataclass(slots=True)
class _Press:
    """A button that is down."""

    button: int
    began_s: float
    at: tuple[int, int]
    path: list[tuple[int, int]]
    timed: list[tuple[float, InputEvent]]


class Coalescer:
    """Feed it in order; what is finished comes out, the rest with a later `feed` or `flush`."""

    def __init__(self, pointer: tuple[int, int] = (0, 0)) -> None:
        self._pointer = pointer
        self._moved_s: float | None = None
        self._press: _Press | None = None
        self._run: _Run | None = None
        self._held: dict[str, bool] = {}
        """The modifiers that are down, by the guest's name, and whether something was done with them."""

    @property
    def pending_s(self) -> float | None:
        """When the earliest thing that is not finished began; None while there is none."""
        begun = [one.began_s for one in (self._press, self._run) if one is not None]
        if self._moved_s is not None:
            begun.append(self._moved_s)
        return min(begun, default=None)

    def feed(self, at_s: float, events: Iterable[InputEvent]) -> Iterator[Done]:
        """What is finished by these events, which came at once."""
        yield from self.flush(at_s, all_of_it=False)
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

    def flush(self, now_s: float, *, all_of_it: bool = True) -> Iterator[Done]:
        """What cannot go on any more at this time; with `all_of_it` whatever was begun, since nothing more comes."""
        run = self._run
        if run is not None:
            gap_s = {"click": MULTI_CLICK_S, "scroll": SCROLL_GAP_S, "text": TEXT_GAP_S}[run.kind]
            if all_of_it or now_s - run.ended_s > gap_s:
                yield from self._end_run()

    # The pointer.

    def _move(self, at_s: float, event: MoveEvent) -> Iterator[Done]:
        place = (event.x, event.y)
        if self._press is not None:
            self._press.path.append(place)
            self._press.timed.append((at_s, event))
        elif place != self._pointer:
            yield from self._end_rest(at_s)
            self._moved_s = at_s
        self._pointer = place

    def _end_rest(self, now_s: float) -> Iterator[Done]:
        """The pointer goes on from where it was, or something else is done there than pressing."""
        began_s, self._moved_s = self._moved_s, None
        if began_s is None or now_s - began_s < REST_S or self._run is not None:
            return
        x, y = self._pointer
        yield Done(began_s, now_s, Action(ActionType.MOVE, x=x, y=y), (MoveEvent(x=x, y=y),), rest=True)

    def _down(self, at_s: float, event: ButtonEvent) -> Iterator[Done]:
        self._moved_s = None
        run = self._run
        goes_on = (
            run is not None
            and run.kind == "click"
            and run.button == event.button
            and run.times < len(TIMES)
            and _apart(run.at, self._pointer) <= STILL_PX
        )
        if not goes_on:
            yield from self._end_run()
        if self._press is not None:  # a second button while one is down: one gesture of both
            self._press.timed.append((at_s, event))
            return
        move = MoveEvent(x=self._pointer[0], y=self._pointer[1])
        self._press = _Press(event.button, at_s, self._pointer, [self._pointer], [(at_s, move), (at_s, event)])

    def _up(self, at_s: float, event: ButtonEvent) -> Iterator[Done]:
        press = self._press
        if press is None:
            return  # it went down before anybody listened
        press.timed.append((at_s, event))
        if event.button != press.button:
            return
        self._press = None
        held = self._use_modifiers()
        both = len({one.button for _, one in press.timed if isinstance(one, ButtonEvent)}) > 1
        if both or (max(_apart(press.at, point) for point in press.path) > STILL_PX):
            yield from self._end_run()
            straight = press.button == 1 and not both and _bend(press.path) <= BEND_PX
            action = None
            if straight and not held:
                (x, y), (x2, y2) = press.at, self._pointer
                action = Action(ActionType.DRAG, x=x, y=y, x2=x2, y2=y2)
            yield Done(press.began_s, at_s, action, _with_keys(held, _paced(press.timed)))
            return
        if self._run is not None and self._run.kind != "click":
            yield from self._end_run()
        if self._run is None:
            self._run = _Run("click", press.began_s, at_s, press.at, press.button, held=held)
        run = self._run
        run.times, run.ended_s = run.times + 1, at_s
        run.timed += press.timed
        if press.button != 1 or run.times == len(TIMES):
            yield from self._end_run()

    def _scroll(self, at_s: float, event: ScrollEvent) -> Iterator[Done]:
        self._moved_s = None
        held, run = self._use_modifiers(), self._run
        if run is None or run.kind != "scroll" or run.held != held or _apart(run.at, self._pointer) > STILL_PX:
            yield from self._end_run()
            run = self._run = _Run("scroll", at_s, at_s, self._pointer, held=held)
            run.timed.append((at_s, MoveEvent(x=self._pointer[0], y=self._pointer[1])))
        if max(abs(run.dx + event.dx), abs(run.dy + event.dy)) > MAX_WHEEL_CLICKS:
            yield from self._end_run()
            yield from self._scroll(at_s, event)
            return
        run.dx, run.dy, run.ended_s = run.dx + event.dx, run.dy + event.dy, at_s
        run.timed.append((at_s, event))

    # The keyboard.

    def _key_down(self, at_s: float, event: KeyEvent) -> Iterator[Done]:
        key = event.key
        if key in MODIFIERS:
            self._held.setdefault(key, False)
            return
        held = self._chord()
        letter = key[3:] if key.startswith("num") and key[3:].isdigit() else key
        letter = " " if letter == "space" else letter
        if len(letter) == 1 and letter.isprintable() and set(held) <= WRITING:
            self._use_modifiers()
            yield from self._write(at_s, letter, TextEvent(text=letter))
            return
        yield from self._end_rest(at_s)
        yield from self._end_run()
        self._use_modifiers()
        name = letter.lower() if len(letter) == 1 else letter
        keys = (*held, name)
        sayable = all(is_key(one) for one in keys) and len(keys) <= MAX_KEYS and key not in LOCKS
        action = Action(ActionType.KEY, keys=keys) if sayable else None
        pressed = (KeyEvent(type="key_down", key=key), KeyEvent(type="key_up", key=key))
        yield Done(at_s, at_s, action, _with_keys(held, pressed))

    def _key_up(self, at_s: float, event: KeyEvent) -> Iterator[Done]:
        used = self._held.pop(event.key, None)
        if used is not False:
            return  # no modifier, or one that was held for something
        name = MODIFIERS[event.key]
        if name in WRITING:
            return  # pressed and let go alone they do nothing
        yield from self._end_run()
        action = Action(ActionType.KEY, keys=(name,))
        pressed = (KeyEvent(type="key_down", key=event.key), event)
        yield Done(at_s, at_s, action, pressed)

    def _write(self, at_s: float, text: str, event: InputEvent) -> Iterator[Done]:
        yield from self._end_rest(at_s)
        if self._run is None or self._run.kind != "text" or len(self._run.text) + len(text) > MAX_TEXT_LENGTH:
            yield from self._end_run()
            self._run = _Run("text", at_s, at_s, self._pointer)
        self._run.text += text
        self._run.ended_s = at_s
        self._run.timed.append((at_s, event))

    def _chord(self) -> tuple[str, ...]:
        """The modifiers that are down, each once, in the order they went down."""
        return tuple(dict.fromkeys(MODIFIERS[name] for name in self._held))

    def _use_modifiers(self) -> tuple[str, ...]:
        self._held = dict.fromkeys(self._held, True)
        return self._chord()

    def _end_run(self) -> Iterator[Done]:
        run, self._run = self._run, None
        if run is None:
            return
        action: Action | None
        x, y = run.at
        if run.kind == "text":
            action = Action(ActionType.TYPE, text=run.text)
        elif run.kind == "scroll":
            action = Action(ActionType.SCROLL, x=x, y=y, dx=run.dx, dy=run.dy)
        else:
            action = Action(BUTTONS.get(run.button, TIMES[run.times - 1]), x=x, y=y)
        if run.held:
            action = None
        yield Done(run.began_s, run.ended_s, action, _with_keys(run.held, _paced(run.timed)))


def _apart(one: tuple[int, int], other: tuple[int, int]) -> float:
    return math.dist(one, other)


def _bend(path: list[tuple[int, int]]) -> float:
    """The farthest that a path leaves the straight line from its begin to its end, pixels."""
    (x, y), (x2, y2) = path[0], path[-1]
    length = math.dist((x, y), (x2, y2))
    if length == 0:
        return max(math.dist((x, y), point) for point in path)
    return max(abs((x2 - x) * (y - py) - (x - px) * (y2 - y)) / length for px, py in path)


def _paced(timed: list[tuple[float, InputEvent]]) -> tuple[InputEvent, ...]:
    """The events with waits between those that were apart."""
    paced: list[InputEvent] = []
    for index, (at_s, event) in enumerate(timed):
        gap_ms = round(1000 * (at_s - timed[index - 1][0])) if index else 0
        if gap_ms >= SHORTEST_WAIT_MS:
            paced.append(WaitEvent(ms=min(gap_ms, LONGEST_WAIT_MS)))
        paced.append(event)
    return tuple(paced)


def _with_keys(held: tuple[str, ...], events: tuple[InputEvent, ...]) -> tuple[InputEvent, ...]:
    """The events while keys are held."""
    down = tuple(KeyEvent(type="key_down", key=key) for key in held)
    up = tuple(KeyEvent(type="key_up", key=key) for key in reversed(held))
    return (*down, *events, *up)
