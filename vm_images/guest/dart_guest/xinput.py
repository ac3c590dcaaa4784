"""The agent's X connection: input through XTEST, damage, pointer, window list.

Role: everything that is said to the X server except grabs.
Rule: used by one thread at a time; raises SessionDown when the server is gone; leaves no state behind but what the caller
asked to be held.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from Xlib import X, display, error
from Xlib.ext import damage, xtest

from dart_guest import events, keymap, rest
from dart_guest.reading import Reading

REMAP_PAUSE_S = 0.05
"""Given to programs that cannot be asked, to read the old map before a spare key is used again for another character."""

PONG_LIMIT_S = 5.0
"""How long a program that can be asked may take to have read the keys before."""

OFFICE_CLASSES = ("libreoffice", "soffice")
"""How the class of LibreOffice's windows begins."""

ENTER_KEYSYMS = frozenset({keymap.NAMED_KEYSYMS["enter"]})

OFFICE_ACTS_S, OFFICE_LIMIT_S = 0.012, 5.0
"""Longer than LibreOffice takes to begin what it put off; how long its rest is waited for."""

PUT_DOWN_KEYSYM = keymap.NAMED_KEYSYMS["pause"]
"""A key that does nothing in LibreOffice, but makes Writer put down the characters that it collected."""

POLL_S = 0.1
"""How often what waits for an answer looks at the clock."""

DOUBLE_CLICK_S, DOUBLE_CLICK_PX = 0.55, 10
"""Two presses closer than this in time and place are taken for a double click: more than Chromium's 0.5 s and any toolkit's 8 pixels."""

SHIFT_KEYSYM, ALTGR_KEYSYM = 0xFFE1, 0xFE03
WHEEL_UP, WHEEL_DOWN, WHEEL_LEFT, WHEEL_RIGHT = 4, 5, 6, 7
CONNECTION_ERRORS = (error.ConnectionClosedError, error.DisplayError, OSError)


def overtakes(keysym: int, before: int) -> bool:
    """Whether the first is a character beyond the BMP and the one before it none."""
    return bool(before) and keymap.beyond_bmp(keysym) and not keymap.beyond_bmp(before)


class SessionDown(Exception):
    """The X server does not answer."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The pointer's picture: RGBA pixels (premultiplied ARGB words), its size and its top left on the screen."""

    x: int
    y: int
    width: int
    height: int
    argb: Sequence[int]


@dataclass(frozen=True, slots=True)
class Press:
    """A button press: which button, where, and when by the monotonic clock."""

    button: int
    x: int
    y: int
    at_s: float

    def would_double(self, earlier: Press) -> bool:
        """Whether programs would take this press and an earlier one for a double click."""
        near = max(abs(self.x - earlier.x), abs(self.y - earlier.y)) <= DOUBLE_CLICK_PX
        return near and self.button == earlier.button and 0 <= self.at_s - earlier.at_s < DOUBLE_CLICK_S


class XInput:
    """One X connection with keyboard map, held keys and a damage object on the root window."""

    def __init__(
        self, name: str, sleep: Callable[[float], None] = time.sleep, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.sleep = sleep
        self.monotonic = monotonic
        self.last_press: Press | None = None
        try:
            self.display: Any = display.Display(name)
        except CONNECTION_ERRORS as reason:
            raise SessionDown(f"no X server answers on {name}") from reason
        self.screen = self.display.screen()
        self.root = self.screen.root
        self.width = int(self.screen.width_in_pixels)
        self.height = int(self.screen.height_in_pixels)
        self.display.damage_query_version()
        self.display.xfixes_query_version()
        self.damage = self.root.damage_create(damage.DamageReportNonEmpty)
        self.damage_event = int(self.display.extension_event.DamageNotify)
        # A key repeats only when it is pressed again, however slow the machine is between press and release.
        self.display.change_keyboard_control(auto_repeat_mode=X.AutoRepeatModeOff)
        self.held_keys: dict[int, list[int]] = {}
        """keysym -> keycodes pressed for it, in order of pressing."""
        self.held_names: dict[int, str] = {}
        self.last_keysym = 0
        """The key that was pressed last; see keep_order."""
        self.held_buttons: set[int] = set()
        self.keymap = self.read_keymap()
        self.map_changed = self.damaged = False
        self.reading = Reading(self.display, self.root, monotonic)
        self.display.sync()

    def read_keymap(self) -> keymap.Keymap:
        """The server's keyboard map now."""
        first = self.display.display.info.min_keycode
        count = self.display.display.info.max_keycode - first + 1
        rows = self.display.get_keyboard_mapping(first, count)
        return keymap.Keymap([[int(symbol) for symbol in row] for row in rows], first)

    def renew_keymap(self) -> None:
        """Take over what another program wrote to the keyboard map since the last look; our own characters stay where they are."""
        self.read_events()
        if not self.map_changed:
            return
        self.map_changed = False
        now = self.read_keymap()
        if now.spares != self.keymap.spares or now.borrowed != self.keymap.borrowed:
            self.keymap = now

    def perform(self, planned: Sequence[events.Event], *, by_hand: bool = False) -> None:
        """Perform events in order and return when the server has taken them all.

        The first press is never the second half of a double click that an earlier call began: it waits where it would be, unless these
        events are a person's (`by_hand`). Clicks of one call follow each other at once.
        """
        self.renew_keymap()
        earlier = None if by_hand else self.last_press
        for event in planned:
            match event:
                case events.Move(x, y):
                    where = (min(max(x, 0), self.width - 1), min(max(y, 0), self.height - 1))
                    xtest.fake_input(self.display, X.MotionNotify, x=where[0], y=where[1])
                case events.Button(button, down):
                    if down:
                        self.part_from(earlier, button)
                        earlier = None
                    self.button(button, down)
                case events.Key():
                    self.key(event)
                case events.Text(keysyms):
                    self.type_text(keysyms)
                case events.Scroll(dx, dy):
                    self.scroll(dx, dy)
                case events.Wait(ms):
                    self.display.sync()
                    self.sleep(ms / 1000)
                case events.ReleaseAll():
                    self.release_all()
        self.display.sync()

    def part_from(self, earlier: Press | None, button: int) -> None:
        """Wait while a press here would make a double click with an earlier one; note the press."""
        x, y = self.pointer_position()
        press = Press(button, x, y, self.monotonic())
        if earlier is not None and press.would_double(earlier):
            self.sleep(DOUBLE_CLICK_S - (press.at_s - earlier.at_s))
        self.last_press = Press(button, x, y, self.monotonic())

    def button(self, button: int, down: bool) -> None:
        """Press or release a button."""
        xtest.fake_input(self.display, X.ButtonPress if down else X.ButtonRelease, button)
        if down:
            self.held_buttons.add(button)
        else:
            self.held_buttons.discard(button)

    def scroll(self, dx: int, dy: int) -> None:
        """Wheel clicks as buttons 4 to 7."""
        for clicks, positive, negative in ((dy, WHEEL_UP, WHEEL_DOWN), (dx, WHEEL_RIGHT, WHEEL_LEFT)):
            wheel = positive if clicks > 0 else negative
            for _ in range(abs(clicks)):
                xtest.fake_input(self.display, X.ButtonPress, wheel)
                xtest.fake_input(self.display, X.ButtonRelease, wheel)

    def press(self, keycode: int) -> None:
        """Key down."""
        xtest.fake_input(self.display, X.KeyPress, keycode)

    def lift(self, keycode: int) -> None:
        """Key up."""
        xtest.fake_input(self.display, X.KeyRelease, keycode)

    def key(self, event: events.Key) -> None:
        """Hold or let go the key of a keysym, with the modifiers it needs and that are not held already."""
        if event.down:
            if event.keysym in self.held_keys:
                return
            self.keep_order(event.keysym)
            stroke = self.stroke(event.keysym)
            pressed = [*self.modifier_keycodes(stroke), stroke.keycode]
            for keycode in pressed:
                self.press(keycode)
            self.held_keys[event.keysym] = pressed
            self.held_names[event.keysym] = event.name
        else:
            self.held_names.pop(event.keysym, None)
            pressed = self.held_keys.pop(event.keysym, []) or [self.stroke(event.keysym).keycode]
            for keycode in reversed(pressed):
                self.lift(keycode)

    def modifier_keycodes(self, stroke: keymap.Stroke) -> list[int]:
        """Keycodes of the modifiers that a stroke needs and that nobody holds."""
        wanted = {keymap.SHIFT: SHIFT_KEYSYM, keymap.ALTGR: ALTGR_KEYSYM}
        held = {keycode for pressed in self.held_keys.values() for keycode in pressed}
        keycodes = [self.stroke(wanted[modifier]).keycode for modifier in stroke.modifiers]
        return [keycode for keycode in keycodes if keycode not in held]

    def type_text(self, keysyms: Sequence[int]) -> None:
        """Type a text; characters that the map lacks are put on spare keys first, as many as fit at once."""
        for run in self.keymap.batches(keysyms):
            self.borrow_keys(run)
            for keysym in run:
                self.keep_order(keysym)
                stroke = self.stroke(keysym)
                pressed = [*self.modifier_keycodes(stroke), stroke.keycode]
                for keycode in pressed:
                    self.press(keycode)
                for keycode in reversed(pressed):
                    self.lift(keycode)

    def keep_order(self, keysym: int) -> None:
        """Do what is needed before a key that LibreOffice would take before the one that was pressed last.

        It acts on Enter later than on what it reads next, and Writer puts a character beyond the BMP, which reaches it as input of an input
        method, before those that it still collects.
        """
        before, self.last_keysym = self.last_keysym, keysym
        if before not in ENTER_KEYSYMS and not overtakes(keysym, before):
            return
        office = self.reading.focused_pid(OFFICE_CLASSES)
        if office and before in ENTER_KEYSYMS:
            self.await_reader()
            rest.await_rest(office, OFFICE_ACTS_S, OFFICE_LIMIT_S, self.sleep, self.monotonic)
        elif office and not self.held_keys:
            put_down = self.stroke(PUT_DOWN_KEYSYM).keycode
            self.press(put_down)
            self.lift(put_down)

    def stroke(self, keysym: int) -> keymap.Stroke:
        """The stroke for a keysym, borrowing a spare key when the map has none."""
        found = self.keymap.find(keysym)
        if found is None:
            self.borrow_keys([keysym])
            found = self.keymap.find(keysym)
        if found is None:
            raise keymap.UnknownKey(f"no key makes keysym {keysym:#x}")
        return found

    def borrow_keys(self, keysyms: Sequence[int]) -> None:
        """Write missing keysyms to spare keys, after all keys so far and before the next are read."""
        missing = self.keymap.missing(keysyms)
        if not missing:
            return
        keep = frozenset(keysyms) | frozenset(self.held_keys)
        reused = set(self.keymap.borrowed.values())
        changes = self.keymap.borrow(missing, keep)
        if reused & changes.keys():
            self.await_reader()
        for keycode, keysym in changes.items():
            self.display.change_keyboard_mapping(keycode, [[keysym, keysym]])
        # A program may look keys up over another connection than the one that it gets them by (Chromium does).
        self.await_reader()

    def await_reader(self) -> None:
        """Wait until the program that has the keyboard has read every key and change of the map so far; one that cannot be asked is given
        a fixed time."""
        self.display.sync()
        self.reading.ask_focused()
        deadline_s = self.monotonic() + PONG_LIMIT_S
        while not self.reading.done() and (left_s := deadline_s - self.monotonic()) > 0:
            self.read_events()
            if not self.reading.done():
                select.select([self.display.fileno()], [], [], min(left_s, POLL_S))
        if not self.reading.pinged:
            self.sleep(REMAP_PAUSE_S)

    def release_all(self) -> None:
        """Let go every key and button that is held."""
        for keysym in list(self.held_keys):
            self.key(events.Key("", keysym, False))
        for button in list(self.held_buttons):
            self.button(button, False)

    def held(self) -> list[str]:
        """Names of what is held, for health."""
        return [*self.held_names.values(), *(f"button{button}" for button in sorted(self.held_buttons))]

    def paint_root(self, pixel: int) -> None:
        """Give the bare screen one colour (0xRRGGBB)."""
        self.root.change_attributes(background_pixel=pixel)
        self.root.clear_area()
        self.display.sync()

    def paint_picture(self, picture: Any) -> None:
        """Put a PIL image (RGB, as large as the screen) on the bare screen."""
        pixmap = self.root.create_pixmap(picture.width, picture.height, self.screen.root_depth)
        context = pixmap.create_gc()
        pixmap.put_pil_image(context, 0, 0, picture)
        self.root.change_attributes(background_pixmap=pixmap)
        self.root.clear_area()
        context.free()
        pixmap.free()
        self.display.sync()

    def clear_damage(self) -> None:
        """Forget damage seen so far, so that the next drawing reports again."""
        self.display.damage_subtract(self.damage)
        self.drain()

    def drain(self) -> bool:
        """Read all pending events; True when damage was among them, or among those read since the last call."""
        self.read_events()
        seen, self.damaged = self.damaged, False
        return seen

    def read_events(self) -> None:
        """Read all pending events and remember what they tell."""
        while self.display.pending_events():
            event = self.display.next_event()
            self.damaged = self.damaged or event.type == self.damage_event
            self.map_changed = self.map_changed or event.type == X.MappingNotify
            self.reading.note(event)

    def ask_reading(self) -> None:
        """Ask whether all input so far was read; `input_read` tells."""
        self.reading.ask()

    def input_read(self) -> bool:
        """See settle.Screen."""
        return self.reading.done()

    def wait_for_damage(self, timeout_s: float) -> bool:
        """See settle.Screen."""
        deadline_s = time.monotonic() + timeout_s
        read_before = self.reading.done()
        while True:
            if self.drain():
                self.display.damage_subtract(self.damage)
                self.display.flush()
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self.reading.done() != read_before:
                return False
            select.select([self.display.fileno()], [], [], left_s if read_before else min(left_s, POLL_S))

    def pointer_position(self) -> tuple[int, int]:
        """Where the pointer is; a round trip."""
        answer = self.root.query_pointer()
        return int(answer.root_x), int(answer.root_y)

    def pointer_picture(self) -> Pointer:
        """What the pointer looks like and where its picture lies."""
        image = self.display.xfixes_get_cursor_image(self.root)
        return Pointer(image.x - image.xhot, image.y - image.yhot, image.width, image.height, image.cursor_image)

    def close(self) -> None:
        """Drop the connection; a dead server is no error."""
        try:
            self.display.close()
        except CONNECTION_ERRORS:
            return
