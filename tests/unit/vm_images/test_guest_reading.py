"""Whether input was read: the order of the questions, who is asked, and who never answers; the X server is a fake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from dart_guest import keymap, reading, xinput
from dart_guest.events import Key
from Xlib import X, error

ATOMS = (
    "WM_PROTOCOLS",
    "_NET_WM_PING",
    "_NET_ACTIVE_WINDOW",
    "_NET_REQUEST_FRAME_EXTENTS",
    "_NET_FRAME_EXTENTS",
    "_NET_WM_PID",
)


class FakeWindow:
    """Answers what a window is asked; `sent` are the messages it got."""

    def __init__(self, identifier: int, protocols: tuple[int, ...] = (), child: FakeWindow | None = None) -> None:
        self.id = identifier
        self.protocols = protocols
        self.child = child
        self.sent: list[tuple[int, list[int]]] = []
        self.cls = "Editor"
        self.gone = False
        self.active = 0

    def get_wm_protocols(self) -> tuple[int, ...]:
        if self.gone:
            raise error.BadWindow.__new__(error.BadWindow)
        return self.protocols

    def get_attributes(self) -> None:
        if self.gone:
            raise error.BadWindow.__new__(error.BadWindow)

    def get_wm_class(self) -> tuple[str, str]:
        return ("main", self.cls)

    def query_pointer(self) -> Any:
        return SimpleNamespace(child=self.child)

    def get_full_property(self, atom: int, kind: int) -> Any:
        return SimpleNamespace(value=[4321 if atom == PID else self.active])

    def create_window(self, *shape: int, **more: Any) -> FakeWindow:
        return FakeWindow(99)

    def change_attributes(self, **attributes: int) -> None:
        pass

    def send_event(self, message: Any, event_mask: int, onerror: Any) -> None:
        self.sent.append((int(message.client_type), list(message.data[1])))


class FakeDisplay:
    """Knows the windows by their ids and owns the clock; `arrived` are events, `each_wait` is called where a real one would block."""

    def __init__(self, *windows: FakeWindow) -> None:
        self.windows = {one.id: one for window in windows for one in (window, window.child) if one is not None}
        self.now_s = 10.0
        self.arrived: list[Any] = []

    def intern_atom(self, name: str) -> int:
        return 100 + ATOMS.index(name)

    def create_resource_object(self, kind: str, identifier: int) -> FakeWindow:
        return self.windows[identifier]

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def fileno(self) -> int:
        return 0

    def pending_events(self) -> int:
        return len(self.arrived)

    def next_event(self) -> Any:
        return self.arrived.pop(0)


PING, EXTENTS, PID = 101, 104, 105


def managed(asked: reading.Reading) -> Any:
    """The window manager's answer."""
    return SimpleNamespace(type=X.PropertyNotify, window=asked.asker, atom=EXTENTS)


def pong(number: int) -> Any:
    """A program's answer."""
    return SimpleNamespace(type=X.ClientMessage, data=(32, [PING, number, 0, 0, 0]))


def scene(*, active: FakeWindow, under: FakeWindow | None = None) -> tuple[reading.Reading, FakeWindow, FakeDisplay]:
    root = FakeWindow(1, child=under)
    root.active = active.id
    display = FakeDisplay(root, active)
    return reading.Reading(display, root, lambda: display.now_s), root, display


def test_programs_are_asked_after_the_manager_and_each_once() -> None:
    editor = FakeWindow(7, (PING,))
    asked, root, _ = scene(active=editor, under=FakeWindow(3, child=editor))
    asked.ask()
    assert root.sent == [(103, [0, 0, 0, 0, 0])]
    assert not editor.sent
    assert not asked.done()
    asked.note(managed(asked))
    assert editor.sent == [(100, [PING, 1, 7, 0, 0])]
    assert not asked.done()
    asked.note(pong(1))
    assert asked.done()


def test_the_program_under_the_pointer_is_asked_too_and_old_answers_do_not_count() -> None:
    editor, menu = FakeWindow(7, (PING,)), FakeWindow(8, (PING,))
    asked, _, _ = scene(active=editor, under=menu)
    asked.ask()
    asked.note(managed(asked))
    asked.ask()
    asked.note(managed(asked))
    for number in (1, 2, 3):
        asked.note(pong(number))
    assert not asked.done()
    asked.note(pong(4))
    assert asked.done()


def test_who_takes_no_pings_or_is_gone_is_not_waited_for() -> None:
    for window in (FakeWindow(7), FakeWindow(7, (PING,))):
        window.gone = bool(window.protocols)
        asked, _, _ = scene(active=window)
        asked.ask()
        asked.note(managed(asked))
        assert asked.done()
        assert asked.pinged == 0


def test_a_program_that_closes_its_window_is_waited_for_no_longer() -> None:
    dialog = FakeWindow(7, (PING,))
    asked, _, display = scene(active=dialog)
    asked.ask()
    asked.note(managed(asked))
    assert not asked.done()
    dialog.gone = True
    display.now_s += reading.LOOK_S
    assert asked.done()


def test_a_manager_that_never_answers_is_asked_once() -> None:
    editor = FakeWindow(7, (PING,))
    asked, root, display = scene(active=editor)
    asked.ask()
    display.now_s += reading.MANAGER_LIMIT_S
    assert not asked.done()
    assert len(editor.sent) == 1
    asked.ask()
    assert len(root.sent) == 1
    assert len(editor.sent) == 2


def test_a_manager_that_is_late_once_is_asked_again() -> None:
    editor = FakeWindow(7, (PING,))
    asked, root, display = scene(active=editor)
    asked.ask()
    asked.note(managed(asked))
    asked.ask()
    display.now_s += reading.MANAGER_LIMIT_S
    asked.done()
    assert len(editor.sent) == 2
    asked.ask()
    assert len(root.sent) == 3


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> xinput.XInput:
    """An XInput on the fake, with one spare key and a program that takes pings and answers when it is waited for."""
    made = object.__new__(xinput.XInput)
    editor = FakeWindow(7, (PING,))
    made.reading, made.root, made.display = scene(active=editor)
    made.monotonic = lambda: made.display.now_s
    made.sleep = lambda seconds: made.written.append(("sleep", seconds))  # type: ignore[attr-defined]
    made.keymap = keymap.Keymap([[0x61, 0x41], [0]], 8)
    made.held_keys, made.held_names, made.held_buttons = {}, {}, set()
    made.map_changed = made.damaged = False
    made.last_keysym = 0
    made.damage_event = 90
    made.written = []  # type: ignore[attr-defined]
    monkeypatch.setattr(
        made.display,
        "change_keyboard_mapping",
        lambda code, rows: made.written.append(("map", rows[0][0])),
        raising=False,  # type: ignore[attr-defined]
    )
    monkeypatch.setattr(xinput.xtest, "fake_input", lambda *_, **__: None)
    return made


def test_a_spare_key_changes_when_its_program_has_read_it_and_is_pressed_when_the_change_was_read(
    keyboard: xinput.XInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = keyboard.written  # type: ignore[attr-defined]

    def answer(*_: Any) -> None:
        keyboard.display.now_s += 0.01
        keyboard.display.arrived.append(pong(keyboard.reading.pings))
        done.append(("pong", keyboard.reading.pings))

    def press(_display: Any, kind: int, keycode: int) -> None:
        if kind == X.KeyPress:
            done.append(("press", keycode))

    monkeypatch.setattr(xinput.select, "select", answer)
    monkeypatch.setattr(xinput.xtest, "fake_input", press)
    keyboard.type_text([0x1000416, 0x1000417])
    assert done == [
        ("map", 0x1000416), ("pong", 1), ("press", 9), ("pong", 2), ("map", 0x1000417), ("pong", 3), ("press", 9),
    ]  # fmt: skip


def test_a_program_that_does_not_answer_is_waited_for_no_longer_than_the_limit(
    keyboard: xinput.XInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_time(_r: Any, _w: Any, _x: Any, timeout_s: float) -> None:
        keyboard.display.now_s += timeout_s

    monkeypatch.setattr(xinput.select, "select", pass_time)
    begun_s = keyboard.display.now_s
    keyboard.await_reader()
    assert keyboard.display.now_s - begun_s == pytest.approx(xinput.PONG_LIMIT_S)


def test_a_program_that_does_not_say_that_it_takes_pings_is_asked_once_to_find_out(
    keyboard: xinput.XInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyboard.display.windows[7].protocols = ()

    def pass_time(_r: Any, _w: Any, _x: Any, timeout_s: float) -> None:
        keyboard.display.now_s += timeout_s

    monkeypatch.setattr(xinput.select, "select", pass_time)
    begun_s = keyboard.display.now_s
    for _ in range(3):
        keyboard.await_reader()
    assert keyboard.display.now_s - begun_s == pytest.approx(reading.UNSURE_LIMIT_S, abs=xinput.POLL_S)
    assert keyboard.written == [("sleep", xinput.REMAP_PAUSE_S)] * 3  # type: ignore[attr-defined]


def test_without_an_active_window_keys_are_given_a_fixed_time(keyboard: xinput.XInput) -> None:
    keyboard.root.active = 0
    keyboard.await_reader()
    assert keyboard.written == [("sleep", xinput.REMAP_PAUSE_S)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", ["Editor", "libreoffice-writer"])
def test_libreoffice_is_given_no_keys_that_it_would_take_in_the_wrong_order(
    keyboard: xinput.XInput, monkeypatch: pytest.MonkeyPatch, cls: str
) -> None:
    keyboard.display.windows[7].cls = cls
    keyboard.keymap = keymap.Keymap([[0x61, 0x41], [0xFF0D], [0], [0], [0xFF13]], 8)
    done: list[str] = []

    def answer(*_: Any) -> None:
        keyboard.display.now_s += 0.01
        keyboard.display.arrived.append(pong(keyboard.reading.pings))
        done.append("read")

    def press(_display: Any, kind: int, keycode: int) -> None:
        if kind == X.KeyPress:
            done.append({8: "a", 9: "enter", 10: "😀", 11: "😁", 12: "pause"}[keycode])

    monkeypatch.setattr(xinput.select, "select", answer)
    monkeypatch.setattr(xinput.xtest, "fake_input", press)
    monkeypatch.setattr(xinput.rest, "await_rest", lambda pid, *_: done.append(f"rest {pid}"))
    keyboard.type_text([keymap.character_keysym(character) for character in "aa😀😁\na"])
    waited = ["read", "rest 4321"] if cls != "Editor" else []
    put_down = ["pause"] if cls != "Editor" else []
    assert done == ["read", "a", "a", *put_down, "😀", "😁", "enter", *waited, "a"]
    done.clear()
    keyboard.key(Key("enter", 0xFF0D, True))
    keyboard.key(Key("enter", 0xFF0D, False))
    keyboard.type_text([0x61])
    assert done == ["enter", *waited, "a"]
