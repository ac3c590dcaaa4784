"""Simulation: the screen of a pretended desktop. A few widgets, drawn with Pillow, that react to input events, or a declared dialog in
their place (`dialog`).

Rule: a pure function of its state; equal states draw equal pixels on every machine with the same Pillow.
Non-goals: looking like a real desktop.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image, ImageDraw

from dart_server.providers.sim.dialog import Box, Dialog

BUTTONS = ("Red", "Green", "Blue", "Count")
_COLOURS = {"Red": (200, 40, 40), "Green": (40, 160, 60), "Blue": (40, 80, 200), "Count": (120, 120, 120)}
_BACKGROUND = (236, 236, 236)


class InvalidEvent(ValueError):
    """An event that the protocol does not know, or with a field of the wrong kind; `code` is the protocol's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class ScreenState:
    """All that the screen remembers: `lit` is the colour button pressed last, `count` the presses of Count, `dialog` what is shown in
    place of the widgets.
    """

    width: int
    height: int
    lit: str = ""
    count: int = 0
    text: str = ""
    focused: bool = False
    pointer: tuple[int, int] = (0, 0)
    pressed_on: str = ""
    held: set[str] = field(default_factory=set)
    dialog: Dialog | None = None


def widgets(state: ScreenState) -> dict[str, Box]:
    """Name of each widget to its (left, top, right, bottom) in pixels."""
    if state.dialog is not None:
        return state.dialog.boxes()
    cell, top, bottom = state.width // len(BUTTONS), state.height // 8, state.height * 3 // 8
    boxes = {name: (i * cell + 4, top, (i + 1) * cell - 4, bottom) for i, name in enumerate(BUTTONS)}
    boxes["Text"] = (4, state.height // 2, state.width - 4, state.height // 2 + state.height // 8)
    return boxes


def check(events: Iterable[Mapping[str, Any]]) -> None:
    """Refuse malformed events before any of them is performed."""
    fields: dict[str, dict[str, type]] = {
        "move": {"x": int, "y": int},
        "down": {},
        "up": {},
        "key_down": {"key": str},
        "key_up": {"key": str},
        "text": {"text": str},
        "scroll": {},
        "wait": {"ms": int},
        "release_all": {},
    }
    for event in events:
        kind = event.get("type")
        if not isinstance(kind, str) or kind not in fields:
            raise InvalidEvent("bad_request", f"unknown event type {kind!r}")
        for name, wanted in fields[kind].items():
            if not isinstance(event.get(name), wanted):
                raise InvalidEvent("bad_request", f"{kind}: {name} is not {wanted.__name__}")
        key = event["key"] if "key" in fields[kind] else "a"
        if len(key) != 1 and not key.isalnum():
            raise InvalidEvent("unknown_key", f"there is no key {key!r}")


def perform(state: ScreenState, event: Mapping[str, Any]) -> None:
    """Apply one checked event (`wait` changes nothing here)."""
    match event["type"]:
        case "move":
            x, y = event["x"], event["y"]
            state.pointer = (min(max(x, 0), state.width - 1), min(max(y, 0), state.height - 1))
        case "down":
            state.held.add(f"button{event.get('button', 1)}")
            state.pressed_on = _at(state) if event.get("button", 1) == 1 else ""
        case "up":
            state.held.discard(f"button{event.get('button', 1)}")
            if event.get("button", 1) == 1:
                _click(state)
        case "key_down":
            state.held.add(event["key"])
            _key(state, event["key"])
        case "key_up":
            state.held.discard(event["key"])
        case "text":
            for character in event["text"]:
                _key(state, {"\n": "enter", "\t": "tab"}.get(character, character))
        case "release_all":
            state.held.clear()


def _at(state: ScreenState) -> str:
    x, y = state.pointer
    inside = (name for name, (left, top, right, low) in widgets(state).items() if left <= x < right and top <= y < low)
    return next(inside, "")


def _click(state: ScreenState) -> None:
    target = _at(state)
    if state.dialog is not None:
        if target and target == state.pressed_on:
            state.dialog.click(target)
    elif target == state.pressed_on:
        state.focused = target == "Text"
        if target == "Count":
            state.count += 1
        elif target in BUTTONS:
            state.lit = target
    state.pressed_on = ""


def _key(state: ScreenState, key: str) -> None:
    if not state.focused:
        return
    if key == "backspace":
        state.text = state.text[:-1]
    elif key == "space":
        state.text += " "
    elif len(key) == 1:
        state.text += key


def draw(state: ScreenState, *, cursor: bool = False) -> Image.Image:
    """The screen, RGB, (height, width)."""
    image = Image.new("RGB", (state.width, state.height), _BACKGROUND)
    pen = ImageDraw.Draw(image)
    if state.dialog is not None:
        state.dialog.draw(pen)
    for name, box in () if state.dialog is not None else widgets(state).items():
        if name == "Text":
            pen.rectangle(box, fill=(255, 255, 255), outline=(0, 90, 200) if state.focused else (90, 90, 90))
            shown = state.text.encode("ascii", "replace").decode("ascii")
        else:
            pen.rectangle(
                box, fill=_COLOURS[name] if name in (state.lit, "Count") else (210, 210, 210), outline=(0, 0, 0)
            )
            shown = f"{name} {state.count}" if name == "Count" else name
        pen.text((box[0] + 4, (box[1] + box[3]) // 2 - 6), shown, fill=(0, 0, 0))
    if cursor:
        x, y = state.pointer
        pen.line((x, y, x + 8, y + 8), fill=(0, 0, 0))
    return image


def encode(image: Image.Image, encoding: str, quality: int) -> bytes:
    """Pixels as the protocol's `raw`, `png`, `webp`, `jpeg` or `none`. Raises InvalidEvent for anything else."""
    if encoding == "none":
        return b""
    if encoding == "raw":
        return image.tobytes()
    if encoding not in ("png", "webp", "jpeg"):
        raise InvalidEvent("bad_request", f"unknown encoding {encoding!r}")
    file = io.BytesIO()
    settings: dict[str, Any] = {"png": {}, "jpeg": {"quality": quality}}.get(
        encoding, {"quality": quality, "lossless": quality == 100}
    )
    image.save(file, encoding.upper(), **settings)
    return file.getvalue()


def elements(state: ScreenState) -> list[dict[str, Any]]:
    """The accessibility tree, flat."""
    if state.dialog is not None:
        return state.dialog.elements()
    found = []
    for name, (left, top, right, bottom) in widgets(state).items():
        is_text = name == "Text"
        found.append(
            {
                "role": "entry" if is_text else "push button",
                "name": name,
                "text": state.text if is_text else (str(state.count) if name == "Count" else ""),
                "states": ["showing", "visible", *(["focused"] if is_text and state.focused else [])],
                "x": left,
                "y": top,
                "w": right - left,
                "h": bottom - top,
                "app": "sim",
                "window": "Sim",
            }
        )
    return found
