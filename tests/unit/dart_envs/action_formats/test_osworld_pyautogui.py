"""Programs of pyautogui calls: fences, OSWorld's three words, canonical actions where there are any, and what is refused."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from action_format_cases import past_turns, turn_shape

from dart_envs.action_formats import ParsedAnswer, ParseError, make_format
from dart_envs.errors import ActionFault
from dart_envs.observations.geometry import PointMap
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import ButtonEvent, KeyEvent

FORMAT = make_format("osworld-pyautogui")
POINTS = PointMap((1920, 1080), (1920, 1080))
HERE = (700, 300)


def read(answer: str) -> ParsedAnswer:
    parsed = FORMAT.parse(answer, POINTS, HERE)
    assert isinstance(parsed, ParsedAnswer), parsed
    return parsed


@pytest.mark.parametrize(
    "answer",
    [
        "pyautogui.click(3, 4)",
        "import pyautogui\nimport time\npyautogui.FAILSAFE = False\npyautogui.click(x=3, y=4)",
        "I click it.\n```python\npyautogui.click(3, 4)\n```",
        "```\npyautogui.click(3, 4)\n```",
        "```py\npyautogui.click(3, 4)",
        "```python pyautogui.click(3, 4)```",
        "First:\n```\nNot this\n```\nthen:\n```python\npyautogui.click(3, 4)\n```\n",
    ],
)
def test_the_code_is_found_in_its_fence_or_without_one(answer: str) -> None:
    assert read(answer).action == Action(ActionType.CLICK, x=3, y=4)


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("WAIT", Action(ActionType.WAIT, duration_s=2.0)),
        ("It is done.\n```\nDONE\n```", Action(ActionType.DONE)),
        ("```FAIL```", Action(ActionType.FAIL)),
        (
            "pyautogui.moveTo(1, 2)\npyautogui.dragTo(3, 4, button='left')",
            Action(ActionType.DRAG, x=1, y=2, x2=3, y2=4),
        ),
        ("pyautogui.scroll(-3, x=1, y=2)", Action(ActionType.SCROLL, x=1, y=2, dy=-3)),
        ("pyautogui.write('a', interval=0)", Action(ActionType.TYPE, text="a")),
        ("pyautogui.hotkey('ctrl', 's')", Action(ActionType.KEY, keys=("ctrl", "s"))),
        ("time.sleep(3)", Action(ActionType.WAIT, duration_s=3.0)),
        ("pass", Action(ActionType.WAIT, duration_s=0.0)),
        ("import pyautogui", Action(ActionType.WAIT, duration_s=0.0)),
    ],
)
def test_calls_that_a_canonical_action_says_become_one(answer: str, action: Action) -> None:
    parsed = FORMAT.parse(answer, POINTS, HERE) if answer != "pass" else FORMAT.parse("```\npass\n```", POINTS, HERE)
    assert isinstance(parsed, ParsedAnswer), parsed
    assert parsed.action == action


def test_a_program_is_one_step() -> None:
    parsed = read(
        "```python\npyautogui.click(3, 4)\ntime.sleep(0.5)\npyautogui.write('a')\npyautogui.press('enter')\nDONE\n```"
    )
    kinds = [one.type for one in parsed.actions if isinstance(one, Action)]
    assert kinds == ["click", "wait", "type", "key", "done"]
    assert isinstance(parsed.action, DecodedAction)
    assert parsed.action.end is ActionType.DONE


def test_calls_without_a_point_happen_at_the_pointer() -> None:
    action = read("pyautogui.mouseDown()\npyautogui.moveRel(10, 0)\npyautogui.mouseUp()").action
    assert isinstance(action, DecodedAction)
    assert [event.type for event in action.events] == ["down", "move", "up"]
    assert action.events[1].model_dump() == {"type": "move", "x": 710, "y": 300}


def test_keys_held_by_with_are_released() -> None:
    action = read("with pyautogui.hold('shift'):\n    pyautogui.click(3, 4)").action
    assert isinstance(action, DecodedAction)
    assert [event.type for event in action.events if isinstance(event, KeyEvent | ButtonEvent)] == [
        *("key_down", "down", "up", "key_up")
    ]


def test_pictures_and_programs_take_turns() -> None:
    shape = turn_shape(FORMAT.messages("Go", past_turns(2, 2), (1920, 1080)))
    assert shape[1:] == [("user", ["text", "image"]), *[("assistant", ["text"]), ("user", ["image"])] * 2]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("I do not know.", ActionFault.NO_ACTION),
        ("```python\npyautogui.click(3,\n```", ActionFault.BAD_SYNTAX),
        ("```python\nclick it\n```", ActionFault.BAD_SYNTAX),
        ("pyautogui.fly(3)", ActionFault.UNKNOWN_ACTION),
        ("import pyautogui\nimport os\nos.system('true')", ActionFault.UNKNOWN_ACTION),
        ("time.sleep(1)\n__import__('os').system('true')", ActionFault.UNKNOWN_ACTION),
        ("x = 3\npyautogui.click(x, 4)", ActionFault.UNKNOWN_ACTION),
        ("for i in range(3):\n    pyautogui.click(3, 4)", ActionFault.UNKNOWN_ACTION),
        ("pyautogui.click(*open('/etc/passwd'))", ActionFault.BAD_VALUE),
        ("pyautogui.click(1920, 4)", ActionFault.OUT_OF_SCREEN),
        ("pyautogui.click(-1, 4)", ActionFault.OUT_OF_SCREEN),
        ("pyautogui.press()", ActionFault.MISSING_FIELD),
        ("pyautogui.scroll()", ActionFault.MISSING_FIELD),
        ("pyautogui.press('nosuchkey')", ActionFault.BAD_VALUE),
        ("pyautogui.click(1e999, 4)", ActionFault.BAD_VALUE),
        ("pyautogui.press('a')\n" * 700, ActionFault.TOO_MANY),
        ("pyautogui.press('a', presses=100)\n" * 11, ActionFault.TOO_MANY),
        ("# " + "x" * 20_000 + "\npyautogui.press('a')", ActionFault.TOO_MANY),
        ("time.sleep(61)", ActionFault.BAD_VALUE),
    ],
)
def test_what_performs_nothing_has_a_cause(answer: str, fault: ActionFault, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_given: Any, **_named: Any) -> None:
        raise AssertionError("the code of an answer is read, never run")

    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, refused)
    parsed = FORMAT.parse(answer, POINTS, HERE)
    monkeypatch.undo()
    assert isinstance(parsed, ParseError)
    assert parsed.fault is fault, parsed


@pytest.mark.parametrize(
    "code", ["pyautogui.click({}, 1)", "pyautogui.click([1, {}, 2])", "time.sleep({})", "pyautogui.press({})"]
)
def test_a_hexadecimal_number_of_more_digits_than_python_writes_is_refused(code: str) -> None:
    answer = "```python\n" + code.format("0x" + "9" * 5_000) + "\n```"
    parsed = FORMAT.parse(answer, POINTS, HERE)
    assert isinstance(parsed, ParseError)
    assert parsed.fault is ActionFault.BAD_VALUE
