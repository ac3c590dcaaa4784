"""Input as X requests: order, modifiers, spare keys, clamping; the server is a recorder."""

from types import SimpleNamespace
from typing import Any

import pytest
from dart_guest import events, keymap, xinput
from dart_guest.desktop import draw_pointer, encode
from PIL import Image
from Xlib import X

SHIFT_CODE, A_CODE, FIVE_CODE, SPARE = 50, 38, 14, 200


class Recorder:
    """Stands for the display: notes what is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.pointer = (0, 0)
        self.now_s = 50.0
        self.arrived: list[int] = []

    def pending_events(self) -> int:
        return len(self.arrived)

    def next_event(self) -> Any:
        return SimpleNamespace(type=self.arrived.pop(0))

    def sync(self) -> None:
        self.asked.append(("sync",))

    def change_keyboard_mapping(self, keycode: int, rows: list[list[int]]) -> None:
        self.asked.append(("map", keycode, rows[0][0]))


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> xinput.XInput:
    """An XInput on a recorder, with keys for a, 5, % and Shift and one spare key."""
    made = object.__new__(xinput.XInput)
    made.display = Recorder()
    made.width, made.height = 640, 400
    rows = [[0]] * 248
    rows = [list(row) for row in rows]
    rows[A_CODE - 8], rows[FIVE_CODE - 8], rows[SHIFT_CODE - 8] = [0x61, 0x41], [0x35, 0x25], [0xFFE1]
    for index, row in enumerate(rows):
        if not any(row) and index != SPARE - 8:
            row[0] = 0x1000
    made.keymap = keymap.Keymap(rows)
    made.held_keys, made.held_names, made.held_buttons = {}, {}, set()
    made.sleep = lambda seconds: made.display.asked.append(("sleep", seconds))
    made.monotonic = lambda: made.display.now_s
    made.last_press = None
    made.map_changed = made.damaged = False
    made.last_keysym = 0
    made.reading = SimpleNamespace(note=lambda event: None, focused_pid=lambda classes: 0)  # type: ignore[assignment]
    made.damage_event = 90
    monkeypatch.setattr(made, "await_reader", lambda: made.display.asked.append(("read",)), raising=True)
    monkeypatch.setattr(made, "read_keymap", lambda: keymap.Keymap([list(row) for row in rows]), raising=True)
    monkeypatch.setattr(made, "pointer_position", lambda: made.display.pointer, raising=True)
    kinds = {X.KeyPress: "press", X.KeyRelease: "lift", X.ButtonPress: "down", X.ButtonRelease: "up"}

    def fake_input(display: Recorder, kind: int, detail: int = 0, x: int = 0, y: int = 0) -> None:
        if kind == X.MotionNotify:
            display.pointer = (x, y)
        display.asked.append(("move", x, y) if kind == X.MotionNotify else (kinds[kind], detail))

    monkeypatch.setattr(xinput.xtest, "fake_input", fake_input)
    return made


def asked(connection: xinput.XInput, *performed: events.Event) -> list[tuple[Any, ...]]:
    """What a list of events makes of requests, syncs left out."""
    connection.display.asked.clear()
    connection.perform(performed)
    return [one for one in connection.display.asked if one != ("sync",)]


def text(words: str) -> events.Text:
    return events.Text(tuple(keymap.character_keysym(character) for character in words))


def key(name: str, down: bool) -> events.Key:
    return events.Key(name, keymap.key_keysym(name), down)


def test_pointer_and_buttons(connection: xinput.XInput) -> None:
    click = (events.Move(5, 6), events.Button(1, True), events.Button(1, False))
    assert asked(connection, *click) == [("move", 5, 6), ("down", 1), ("up", 1)]
    assert asked(connection, events.Move(-3, 9999)) == [("move", 0, 399)]


CLICK = (events.Button(1, True), events.Button(1, False))


def test_clicks_of_two_steps_are_never_a_double_click(connection: xinput.XInput) -> None:
    waits = ("sleep", pytest.approx(0.45))
    asked(connection, events.Move(5, 6), *CLICK)
    connection.display.now_s += 0.1
    assert asked(connection, events.Move(9, 9), *CLICK) == [("move", 9, 9), waits, ("down", 1), ("up", 1)]
    connection.display.now_s += 0.6
    assert asked(connection, *CLICK) == [("down", 1), ("up", 1)]


def test_a_person_makes_a_double_click_of_two_steps(connection: xinput.XInput) -> None:
    connection.perform(CLICK)
    connection.display.now_s += 0.1
    connection.perform(CLICK, by_hand=True)
    assert not any(one[0] == "sleep" for one in connection.display.asked)
    connection.display.now_s += 0.1
    connection.perform(CLICK)
    assert any(one[0] == "sleep" for one in connection.display.asked)


def test_clicks_of_one_step_and_clicks_elsewhere_do_not_wait(connection: xinput.XInput) -> None:
    twice = [("down", 1), ("up", 1)] * 2
    assert asked(connection, *CLICK, *CLICK) == twice
    assert asked(connection, events.Move(200, 0), *CLICK, *CLICK) == [("move", 200, 0), *twice]
    right = (events.Button(3, True), events.Button(3, False))
    assert asked(connection, *right) == [("down", 3), ("up", 3)]


def test_scroll_directions(connection: xinput.XInput) -> None:
    assert asked(connection, events.Scroll(0, 2)) == [("down", 4), ("up", 4)] * 2
    assert asked(connection, events.Scroll(-1, -1)) == [("down", 5), ("up", 5), ("down", 6), ("up", 6)]


def test_text_takes_shift_where_it_is_needed(connection: xinput.XInput) -> None:
    assert asked(connection, text("aA")) == [
        ("press", A_CODE), ("lift", A_CODE),
        ("press", SHIFT_CODE), ("press", A_CODE), ("lift", A_CODE), ("lift", SHIFT_CODE),
    ]  # fmt: skip


def test_a_held_shift_is_not_pressed_again(connection: xinput.XInput) -> None:
    asked(connection, key("shift", True))
    assert asked(connection, key("%", True), key("%", False)) == [("press", FIVE_CODE), ("lift", FIVE_CODE)]
    assert connection.held() == ["shift"]


def test_release_all_lets_everything_go(connection: xinput.XInput) -> None:
    asked(connection, key("%", True), events.Button(3, True))
    assert connection.held() == ["%", "button3"]
    assert asked(connection, events.ReleaseAll()) == [("lift", FIVE_CODE), ("lift", SHIFT_CODE), ("up", 3)]
    assert connection.held() == []


def test_missing_characters_are_mapped_before_they_are_typed(connection: xinput.XInput) -> None:
    assert asked(connection, text("aЖЖ")) == [
        ("map", SPARE, 0x1000416), ("read",), ("press", A_CODE), ("lift", A_CODE),
        ("press", SPARE), ("lift", SPARE), ("press", SPARE), ("lift", SPARE),
    ]  # fmt: skip
    assert asked(connection, text("Ж")) == [("press", SPARE), ("lift", SPARE)]


def test_programs_get_time_before_a_spare_key_changes_its_meaning(connection: xinput.XInput) -> None:
    asked(connection, text("Ж"))
    assert asked(connection, text("好"))[:4] == [("read",), ("map", SPARE, 0x100597D), ("read",), ("press", SPARE)]


def test_the_pointer_is_blended_and_clipped() -> None:
    image = Image.new("RGB", (3, 2), (100, 100, 100))
    opaque, clear, half = 0xFFFF0000, 0x00000000, 0x80000080
    draw_pointer(image, xinput.Pointer(-1, 0, 3, 1, [opaque, half, clear]))
    assert image.getpixel((0, 0)) == (49, 49, 177)
    assert image.getpixel((1, 0)) == (100, 100, 100)
    draw_pointer(image, xinput.Pointer(2, 1, 2, 2, [opaque] * 4))
    assert image.getpixel((2, 1)) == (255, 0, 0)
    draw_pointer(image, xinput.Pointer(50, 50, 2, 2, [opaque] * 4))


@pytest.mark.parametrize(("encoding", "head"), [("png", b"\x89PNG"), ("jpeg", b"\xff\xd8"), ("webp", b"RIFF")])
def test_encodings(encoding: str, head: bytes) -> None:
    image = Image.new("RGB", (4, 2), (1, 2, 3))
    assert encode(image, events.Frame(encoding, 100)).startswith(head)
    assert encode(image, events.Frame("raw")) == bytes([1, 2, 3] * 8)


def test_what_another_program_wrote_to_a_spare_key_is_used_and_not_overwritten(connection: xinput.XInput) -> None:
    assert asked(connection, text("Ж"))[0] == ("map", SPARE, 0x1000416)
    rows = [list(row) for row in connection.keymap.rows]
    rows[SPARE - 8] = [0x1000417, 0x1000417]
    connection.read_keymap = lambda: keymap.Keymap(rows)  # type: ignore[method-assign]
    connection.display.arrived.append(X.MappingNotify)
    assert asked(connection, text("З")) == [("press", SPARE), ("lift", SPARE)]
    assert ("map", SPARE, 0x1000416) in asked(connection, text("Ж"))


def test_damage_that_input_finds_waiting_is_not_lost_to_the_settling(connection: xinput.XInput) -> None:
    connection.display.arrived.append(connection.damage_event)
    asked(connection, events.Move(1, 1))
    assert connection.drain()
    assert not connection.drain()
