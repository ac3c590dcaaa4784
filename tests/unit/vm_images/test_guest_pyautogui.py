"""Our pyautogui: what OSWorld's tasks and agents send becomes the right input, in order."""

import random
from collections.abc import Sequence

import pyautogui
import pytest
from dart_guest import events, keymap
from pyautogui import tweens


class Screen:
    """Stands for the X connection: remembers where the pointer is and what is performed."""

    width, height = 640, 400

    def __init__(self) -> None:
        self.pointer = (100, 100)
        self.done: list[events.Event] = []

    def pointer_position(self) -> tuple[int, int]:
        return self.pointer

    def perform(self, planned: Sequence[events.Event]) -> None:
        for event in planned:
            if isinstance(event, events.Move):
                self.pointer = (event.x, event.y)
            self.done.append(event)

    def keys(self) -> list[str]:
        """Keys as +name and -name, texts as they are."""
        shown = []
        for event in self.done:
            if isinstance(event, events.Key):
                shown.append(("+" if event.down else "-") + event.name)
            elif isinstance(event, events.Text):
                shown.append("".join(chr(keysym & 0xFFFFFF) for keysym in event.keysyms))
        return shown

    def buttons(self) -> list[tuple[int, bool]]:
        return [(event.button, event.down) for event in self.done if isinstance(event, events.Button)]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    made = Screen()
    monkeypatch.setattr(pyautogui, "x_input", lambda: made)
    monkeypatch.setattr(pyautogui, "PAUSE", 0)
    return made


@pytest.mark.parametrize(
    ("call", "buttons", "pointer"),
    [
        ("click(10, 20)", [1], (10, 20)),
        ("click()", [1], (100, 100)),
        ("click((30, 40))", [1], (30, 40)),
        ("click(x=5, y=6, clicks=2, button='right')", [3, 3], (5, 6)),
        ("rightClick(1, 2)", [3], (1, 2)),
        ("middleClick()", [2], (100, 100)),
        ("doubleClick(7, 8)", [1, 1], (7, 8)),
        ("tripleClick(x=7, y=8)", [1, 1, 1], (7, 8)),
        ("moveTo(9, 9, 0, pyautogui.easeInOutQuad)", [], (9, 9)),
        ("moveRel(-10, 5)", [], (90, 105)),
        ("move(0, 5)", [], (100, 105)),
        ("dragTo(300, 200, button='left')", [1], (300, 200)),
        ("drag(10, 0)", [1], (110, 100)),
        ("moveTo()", [], (100, 100)),
    ],
)
def test_pointer_calls(screen: Screen, call: str, buttons: list[int], pointer: tuple[int, int]) -> None:
    eval(f"pyautogui.{call}", {"pyautogui": pyautogui})  # noqa: S307 - the calls are those of this list
    assert screen.buttons() == [(button, down) for button in buttons for down in (True, False)]
    assert screen.pointer == pointer


def test_a_drag_moves_between_press_and_release(screen: Screen) -> None:
    pyautogui.dragTo(140, 100)
    kinds = [type(event).__name__ for event in screen.done]
    assert kinds == ["Button", "Move", "Move", "Move", "Move", "Button"]


@pytest.mark.parametrize(
    ("call", "keys"),
    [
        ("hotkey('ctrl', 's')", ["+ctrl", "+s", "-s", "-ctrl"]),
        ("hotkey('ctrl', 'S')", ["+ctrl", "+s", "-s", "-ctrl"]),
        ("hotkey(['ctrl', 'shift', 't'])", ["+ctrl", "+shift", "+t", "-t", "-shift", "-ctrl"]),
        ("press('enter')", ["+enter", "-enter"]),
        ("press(['left', 'left'])", ["+left", "-left", "+left", "-left"]),
        ("press('tab', presses=2)", ["+tab", "-tab", "+tab", "-tab"]),
        ("press('nosuchkey')", []),
        ("keyDown('shift')", ["+shift"]),
        ("keyUp('shift')", ["-shift"]),
        ("typewrite('a<b')", ["a<b"]),
        ("write('Grüße, Жук')", ["Grüße, Жук"]),
        ("typewrite(['a', 'enter'])", ["+a", "-a", "+enter", "-enter"]),
        ("write('ab', interval=0.001)", ["+a", "-a", "+b", "-b"]),
    ],
)
def test_keyboard_calls(screen: Screen, call: str, keys: list[str]) -> None:
    eval(f"pyautogui.{call}", {"pyautogui": pyautogui})  # noqa: S307 - the calls are those of this list
    assert screen.keys() == keys


def test_held_keys_are_let_go_when_the_block_fails(screen: Screen) -> None:
    with pytest.raises(KeyError), pyautogui.hold("shift"):
        raise KeyError
    assert screen.keys() == ["+shift", "-shift"]


def test_the_fail_safe_corner(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    screen.pointer = (639, 399)
    with pytest.raises(pyautogui.FailSafeException):
        pyautogui.click()
    assert screen.done == []
    monkeypatch.setattr(pyautogui, "FAILSAFE", False)
    pyautogui.click()
    assert screen.buttons() == [(1, True), (1, False)]


def test_unknown_buttons_are_refused_before_anything_moves(screen: Screen) -> None:
    with pytest.raises(pyautogui.PyAutoGUIException, match="button"):
        pyautogui.click(1, 1, button="thumb")
    assert screen.done == []


def test_wheel_and_places(screen: Screen) -> None:
    pyautogui.scroll(-3, x=50, y=60)
    pyautogui.hscroll(2)
    assert screen.done == [events.Move(50, 60), events.Scroll(0, -3), events.Scroll(2, 0)]
    assert pyautogui.size() == (640, 400)
    assert pyautogui.position() == (50, 60)
    assert pyautogui.onScreen(639, 399)
    assert not pyautogui.onScreen(640, 0)


@pytest.mark.parametrize(
    "name", ["easeInQuad", "easeOutQuad", "easeInOutQuad", "easeInBounce", "easeInElastic", "easeInOutSine"]
)
def test_curves_start_and_end_where_they_should(name: str) -> None:
    curve: tweens.Tween = getattr(pyautogui, name)
    assert curve(0.0) == pytest.approx(0.0, abs=1e-3)
    assert curve(1.0) == pytest.approx(1.0, abs=1e-3)
    assert all(-2 < curve(random.Random(step).random()) < 3 for step in range(50))


def test_every_key_of_the_list_is_known() -> None:
    assert all(pyautogui.isValidKey(key) for key in pyautogui.KEYBOARD_KEYS)
    assert keymap.key_keysym("Enter") == keymap.key_keysym("enter")
