"""pyautogui's interface for programs of the desktop's user: `python -c "import pyautogui; ..."`, as OSWorld's agents and tasks send it.

Role: pyautogui's functions of mouse, keyboard and screen, performed by the agent's own input code on an X connection of this process.
Rule: names, arguments and defaults are pyautogui's; where it loses characters (all but ASCII, and `<`) ours types them.
Non-goals: locating pictures on the screen, message boxes, other systems than X11.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dart_guest import events, keymap

from pyautogui import tweens
from pyautogui.session import FailSafeException, Point, PyAutoGUIException, Size, x_input
from pyautogui.tweens import (
    Tween,
    easeInBounce,
    easeInElastic,
    easeInOutQuad,
    easeInQuad,
    easeOutQuad,
    linear,
)

__all__ = [
    "FAILSAFE", "KEYBOARD_KEYS", "KEY_NAMES", "PAUSE", "FailSafeException", "Point", "PyAutoGUIException", "Size", "click", "doubleClick",
    "drag", "dragRel", "dragTo", "easeInBounce", "easeInElastic", "easeInOutQuad", "easeInQuad", "easeOutQuad", "hold", "hotkey",
    "hscroll", "isValidKey", "keyDown", "keyUp", "leftClick", "linear", "middleClick", "mouseDown", "mouseUp", "move", "moveRel", "moveTo",
    "onScreen", "position", "press", "rightClick", "screenshot", "scroll", "size", "sleep", "tripleClick", "typewrite", "vscroll",
    "write",
]  # fmt: skip

FAILSAFE = True
PAUSE = 0.1
MINIMUM_DURATION = 0.1
LEFT, MIDDLE, RIGHT, PRIMARY, SECONDARY = "left", "middle", "right", "primary", "secondary"
BUTTONS = {LEFT: 1, PRIMARY: 1, MIDDLE: 2, RIGHT: 3, SECONDARY: 3, "1": 1, "2": 2, "3": 3}
MOTION_PAUSE_S = 0.01
DRAG_STEPS = 4
"""Positions on the way of a drag: programs take one single jump for no drag."""

KEYBOARD_KEYS = KEY_NAMES = sorted(
    {*keymap.NAMED_KEYSYMS, "\t", "\n", "\r", *(chr(point) for point in range(0x20, 0x7F))}
)

Place = float | Sequence[float] | None


def _perform(*planned: events.Event) -> None:
    x_input().perform(planned)


def _guard() -> None:
    if FAILSAFE and position() in _corners():
        raise FailSafeException(
            "PyAutoGUI fail-safe triggered from mouse moving to a corner of the screen. To disable this fail-safe, "
            "set pyautogui.FAILSAFE to False. DISABLING FAIL-SAFE IS NOT RECOMMENDED."
        )


def _corners() -> set[Point]:
    right, bottom = (side - 1 for side in size())
    return {Point(0, 0), Point(right, 0), Point(0, bottom), Point(right, bottom)}


def _rest(pause: bool) -> None:
    if pause and PAUSE:
        time.sleep(PAUSE)


def _pair(x: Place, y: Place) -> tuple[float | None, float | None]:
    """Two numbers, or one sequence of two."""
    if isinstance(x, Sequence):
        return x[0], x[1]
    return x, None if isinstance(y, Sequence) else y


def _place(x: Place, y: Place) -> Point:
    """The two arguments that say where; what is left out is where the pointer is."""
    first, second = _pair(x, y)
    here = position()
    return Point(here.x if first is None else int(first), here.y if second is None else int(second))


def _button(name: str | int) -> int:
    try:
        return BUTTONS[str(name).lower()]
    except KeyError:
        raise PyAutoGUIException(f"button argument must be one of {tuple(BUTTONS)}, not {name!r}") from None


def size() -> Size:
    """The screen's size."""
    x = x_input()
    return Size(x.width, x.height)


def position(x: int | None = None, y: int | None = None) -> Point:
    """Where the pointer is; arguments replace its coordinates."""
    there = x_input().pointer_position()
    return Point(there[0] if x is None else int(x), there[1] if y is None else int(y))


def onScreen(x: Place, y: Place = None) -> bool:
    """Whether a place is on the screen."""
    there, screen = _place(x, y), size()
    return 0 <= there.x < screen.width and 0 <= there.y < screen.height


def _glide(target: Point, duration: float, tween: Tween, steps: int = 1) -> None:
    start = position()
    if duration > MINIMUM_DURATION:
        steps = max(steps, int(duration / MOTION_PAUSE_S))
    pause_s = duration / steps if duration > MINIMUM_DURATION else 0.0
    for step in range(1, steps + 1):
        share = tween(step / steps) if step < steps else 1.0
        at = (round(start.x + (target.x - start.x) * share), round(start.y + (target.y - start.y) * share))
        _perform(events.Move(*at))
        time.sleep(pause_s)


def moveTo(
    x: Place = None, y: Place = None, duration: float = 0.0, tween: Tween = linear, logScreenshot: bool = False,
    _pause: bool = True,
) -> None:  # fmt: skip
    """Move the pointer to a place."""
    _guard()
    _glide(_place(x, y), duration, tween)
    _rest(_pause)


def moveRel(
    xOffset: Place = None, yOffset: Place = None, duration: float = 0.0, tween: Tween = linear,
    logScreenshot: bool = False, _pause: bool = True,
) -> None:  # fmt: skip
    """Move the pointer by an offset."""
    _guard()
    _glide(_offset(xOffset, yOffset), duration, tween)
    _rest(_pause)


def _offset(x: Place, y: Place) -> Point:
    first, second = _pair(x, y)
    here = position()
    return Point(here.x + int(first or 0), here.y + int(second or 0))


def mouseDown(
    x: Place = None, y: Place = None, button: str | int = PRIMARY, duration: float = 0.0, tween: Tween = linear,
    logScreenshot: bool | None = None, _pause: bool = True,
) -> None:  # fmt: skip
    """Press a button and hold it."""
    _guard()
    number = _button(button)
    _glide(_place(x, y), duration, tween)
    _perform(events.Button(number, True))
    _rest(_pause)


def mouseUp(
    x: Place = None, y: Place = None, button: str | int = PRIMARY, duration: float = 0.0, tween: Tween = linear,
    logScreenshot: bool | None = None, _pause: bool = True,
) -> None:  # fmt: skip
    """Release a button."""
    _guard()
    number = _button(button)
    _glide(_place(x, y), duration, tween)
    _perform(events.Button(number, False))
    _rest(_pause)


def click(
    x: Place = None, y: Place = None, clicks: int = 1, interval: float = 0.0, button: str | int = PRIMARY,
    duration: float = 0.0, tween: Tween = linear, logScreenshot: bool | None = None, _pause: bool = True,
) -> None:  # fmt: skip
    """Click a number of times at a place."""
    _guard()
    number = _button(button)
    _glide(_place(x, y), duration, tween)
    if interval <= 0:
        _perform(*[events.Button(number, down) for _ in range(clicks) for down in (True, False)])
    else:
        pause = events.Wait(int(interval * 1000))
        _perform(
            *[
                step
                for _ in range(clicks)
                for step in (events.Button(number, True), events.Button(number, False), pause)
            ]
        )
    _rest(_pause)


def _clicking(clicks: int, fixed: str | None) -> Callable[..., None]:
    """`click` with a number of clicks, and a button unless the caller chooses it."""

    def clicking(
        x: Place = None,
        y: Place = None,
        interval: float = 0.0,
        button: str | int = LEFT,
        duration: float = 0.0,
        **options: Any,
    ) -> None:
        click(x, y, clicks, interval, fixed or button, duration, **options)

    return clicking


leftClick, rightClick, middleClick = _clicking(1, LEFT), _clicking(1, RIGHT), _clicking(1, MIDDLE)
doubleClick, tripleClick = _clicking(2, None), _clicking(3, None)


def _drag(target: Point, duration: float, tween: Tween, button: str | int, hold: bool) -> None:
    number = _button(button)
    if hold:
        _perform(events.Button(number, True))
    _glide(target, duration, tween, DRAG_STEPS)
    if hold:
        _perform(events.Button(number, False))


def dragTo(
    x: Place = None, y: Place = None, duration: float = 0.0, tween: Tween = linear, button: str | int = PRIMARY,
    logScreenshot: bool | None = None, _pause: bool = True, mouseDownUp: bool = True,
) -> None:  # fmt: skip
    """Drag from where the pointer is to a place."""
    _guard()
    _drag(_place(x, y), duration, tween, button, mouseDownUp)
    _rest(_pause)


def dragRel(
    xOffset: Place = 0, yOffset: Place = 0, duration: float = 0.0, tween: Tween = linear, button: str | int = PRIMARY,
    logScreenshot: bool | None = None, _pause: bool = True, mouseDownUp: bool = True,
) -> None:  # fmt: skip
    """Drag from where the pointer is by an offset."""
    _guard()
    _drag(_offset(xOffset, yOffset), duration, tween, button, mouseDownUp)
    _rest(_pause)


def _wheel(dx: int, dy: int, x: Place, y: Place, pause: bool) -> None:
    _guard()
    if x is not None or y is not None:
        _glide(_place(x, y), 0.0, linear)
    _perform(events.Scroll(dx, dy))
    _rest(pause)


def scroll(
    clicks: float, x: Place = None, y: Place = None, logScreenshot: bool | None = None, _pause: bool = True
) -> None:
    """Turn the wheel, up when positive."""
    _wheel(0, int(clicks), x, y, _pause)


def hscroll(
    clicks: float, x: Place = None, y: Place = None, logScreenshot: bool | None = None, _pause: bool = True
) -> None:
    """Turn the wheel sideways, right when positive."""
    _wheel(int(clicks), 0, x, y, _pause)


def isValidKey(key: str) -> bool:
    """Whether a key name can be pressed."""
    try:
        keymap.key_keysym(key)
    except keymap.UnknownKey:
        return False
    return True


def _stroke(key: str, down: bool) -> None:
    """Press or release; as in pyautogui a name that nothing is known of does nothing."""
    if isValidKey(key):
        _perform(events.Key(key, keymap.key_keysym(key), down))


def keyDown(key: str, logScreenshot: bool | None = None, _pause: bool = True) -> None:
    """Press a key and hold it."""
    _guard()
    _stroke(key, True)
    _rest(_pause)


def keyUp(key: str, logScreenshot: bool | None = None, _pause: bool = True) -> None:
    """Release a key."""
    _guard()
    _stroke(key, False)
    _rest(_pause)


def press(
    keys: str | Sequence[str],
    presses: int = 1,
    interval: float = 0.0,
    logScreenshot: bool | None = None,
    _pause: bool = True,
) -> None:
    """Press and release a key, or several one after the other."""
    named = [keys] if isinstance(keys, str) else list(keys)
    for _ in range(int(presses)):
        for key in named:
            _guard()
            _stroke(key, True)
            _stroke(key, False)
        time.sleep(interval)
    _rest(_pause)


@contextlib.contextmanager
def hold(keys: str | Sequence[str], logScreenshot: bool | None = None, _pause: bool = True) -> Iterator[None]:
    """Keys held down for a block."""
    named = [keys] if isinstance(keys, str) else list(keys)
    _guard()
    for key in named:
        _stroke(key, True)
    _rest(_pause)
    try:
        yield
    finally:
        for key in reversed(named):
            _stroke(key, False)
        _rest(_pause)


def hotkey(
    *keys: str | Sequence[str], interval: float = 0.0, logScreenshot: bool | None = None, _pause: bool = True
) -> None:
    """Press keys in order and release them in reverse."""
    named = [keys[0]] if len(keys) == 1 and isinstance(keys[0], str) else list(keys)
    if len(named) == 1 and not isinstance(named[0], str):
        named = list(named[0])
    chord = [key if len(key) > 1 else key.lower() for key in named if isinstance(key, str)]
    _guard()
    for key in chord:
        _stroke(key, True)
        time.sleep(interval)
    for key in reversed(chord):
        _stroke(key, False)
        time.sleep(interval)
    _rest(_pause)


def typewrite(
    message: str | Sequence[str], interval: float = 0.0, logScreenshot: bool | None = None, _pause: bool = True
) -> None:
    """Type a text, or press the keys of a list."""
    _guard()
    if isinstance(message, str) and interval <= 0:
        _perform(events.Text(tuple(keymap.character_keysym(one) for one in message if isValidKey(one))))
    else:
        for key in message:
            _stroke(key, True)
            _stroke(key, False)
            time.sleep(interval)
    _rest(_pause)


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def screenshot(imageFilename: str | None = None, region: Sequence[int] | None = None) -> Any:
    """The screen (or x, y, width, height of it) as a PIL image, written to a file when one is named."""
    from dart_guest.xshm import ShmGrabber

    grabber = ShmGrabber(os.environ.get("DISPLAY", ":0"))
    try:
        image = grabber.grab()
    finally:
        grabber.close()
    if region is not None:
        left, top, width, height = region
        image = image.crop((left, top, left + width, top + height))
    if imageFilename is not None:
        image.save(imageFilename)
    return image


def __getattr__(name: str) -> Any:
    """pytweening's other curves, which pyautogui passes on."""
    if name.startswith("ease"):
        return getattr(tweens, name)
    raise AttributeError(f"module 'pyautogui' of this desktop has no attribute {name!r}")


write, move, drag, vscroll = typewrite, moveRel, dragRel, scroll
