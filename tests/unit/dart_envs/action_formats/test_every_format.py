"""What holds for every action format: round trips, prompts with the images that they name, texts that never raise."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from action_format_cases import past_turns, point_map, sample_action, turn_shape, turn_texts
from hostile_answers import READERS, check_reading, hostile_answers

from dart_agent.prompts.builder import preset
from dart_envs.action_formats import FORMATS, ParsedAnswer, ParseError, format_names, make_format
from dart_envs.errors import ActionError, ActionFault
from dart_envs.types import Action, ActionType

DOCS = Path(__file__).resolve().parents[4] / "docs"
SCREENS = [(1920, 1080), (640, 400), (3840, 2160)]


@pytest.mark.parametrize("screen_wh", SCREENS, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_read_back(name: str, screen_wh: tuple[int, int]) -> None:
    action_format, chance = make_format(name), random.Random(f"{name}/{screen_wh}")
    points = point_map(action_format, screen_wh)
    written: set[ActionType] = set()
    for kind in sorted(action_format.expresses) * 40:
        action = sample_action(kind, points, chance)
        try:
            answer = action_format.format([action], points, thought="Click OK")
        except ActionError:
            continue
        parsed = action_format.parse(answer, points, (1, 1))
        assert isinstance(parsed, ParsedAnswer), (answer, parsed)
        assert parsed.actions == (action,), answer
        assert parsed.action == action
        assert "Click OK" in parsed.thought
        written.add(kind)
    assert written == action_format.expresses


@pytest.mark.parametrize("name", FORMATS)
def test_several_actions_are_written_and_read_back_in_order(name: str) -> None:
    action_format = make_format(name)
    points = point_map(action_format)
    x, y = points.to_screen(100, 50) or (0, 0)
    actions = (
        Action(ActionType.CLICK, x=x, y=y),
        Action(ActionType.TYPE, text="a'b"),
        Action(ActionType.KEY, keys=("enter",)),
    )
    parsed = action_format.parse(action_format.format(actions, points), points)
    assert isinstance(parsed, ParsedAnswer)
    assert parsed.actions == actions


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_does_not_express_is_refused(name: str) -> None:
    action_format, chance = make_format(name), random.Random(name)
    points = point_map(action_format)
    for kind in set(ActionType) - action_format.expresses:
        with pytest.raises(ActionError, match="cannot express"):
            action_format.format([sample_action(kind, points, chance)], points)
    with pytest.raises(ActionError):
        action_format.format([Action(ActionType.CLICK, x=9_999, y=0)], points)


def test_a_package_adds_a_format_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", "dart_envs.action_formats.qwen:Qwen3VlFormat", "dart_envs.action_formats")
    monkeypatch.setattr("dart_envs.action_formats.entry_points", lambda group: [entry] if group == entry.group else [])
    assert format_names() == (*FORMATS, "mine")
    assert make_format("mine").coordinates == "thousandths"
    with pytest.raises(ValueError, match=r"no action format 'yours'; there are uitars-1\.5, .*, mine"):
        make_format("yours")


def test_the_table_of_the_docs_is_true() -> None:
    lines = (DOCS / "envs.md").read_text(encoding="utf-8").splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("| canonical action |"))
    columns = [re.findall(r"`([^`]+)`", cell) for cell in lines[head].strip("|").split("|")[1:]]
    assert sorted(name for names in columns for name in names) == sorted(FORMATS)
    rows = {}
    for line in lines[head + 2 : head + 2 + len(ActionType)]:
        kind, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[ActionType(kind.strip("`"))] = [cell.startswith("yes") for cell in cells]
    for index, names in enumerate(columns):
        for name in names:
            assert {kind for kind, row in rows.items() if row[index]} == make_format(name).expresses, name


@pytest.mark.parametrize("shown", [0, 2, 4])
@pytest.mark.parametrize("name", FORMATS)
def test_a_prompt_has_an_image_part_for_each_picture(name: str, shown: int) -> None:
    messages = make_format(name).messages("Open {the} settings", past_turns(4, shown), (1932, 1092))
    kinds = [kind for _, parts in turn_shape(messages) for kind in parts]
    assert kinds.count("image") == shown + 1
    assert turn_shape(messages)[-1][0] == "user"
    assert sum("Open {the} settings" in text for text in turn_texts(messages, "user")) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_answers_without_an_action_say_so(name: str) -> None:
    action_format = make_format(name)
    for text in ("", "   ", "I do not know what to do here."):
        parsed = action_format.parse(text, point_map(action_format))
        assert isinstance(parsed, ParseError)
        assert parsed.fault is ActionFault.NO_ACTION, (name, text, parsed)


HOSTILE = [
    "[" * 100_000,
    "{" * 100_000,
    '{"a":' * 20_000,
    "(" * 100_000,
    "'" * 100_000,
    "\\" * 100_000,
    " " * 100_000,
    "\n" * 100_000,
    "Action:" * 15_000,
    "Action: \n" * 11_000,
    "<tool_call>" * 9_000,
    "<tool_call></tool_call>" * 4_500,
    "</think>" * 12_000,
    "```" * 33_000,
    "```python\n" * 10_000,
    "9" * 100_000,
    "-" * 100_000,
    "Action: click(start_box='" + "1 " * 50_000,
    "Action: click(start_box='(1,2)'" + " " * 100_000,
    "Action: type(content='" + "'\t" * 50_000,
    "Action: type(content='" + "', a" * 25_000,
    "Action: click(" + ", a=1" * 20_000,
    "<tool_call>" + "9" * 100_000,
    '<tool_call>{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": ['
    + "9" * 100_000
    + ", 1]}}",
    '{"actions": [' + '{"type": "wait"},' * 6_000,
    "pyautogui.click(" + "(" * 20_000,
    "x = " + "1+" * 50_000 + "1",
    "pyautogui.press('a')\n" * 5_000,
    "\ud800" * 1_000,
]


@pytest.mark.parametrize("name", FORMATS)
def test_long_answers_are_read_in_a_time_that_grows_with_their_length(name: str) -> None:
    """A reader that is quadratic takes minutes for one of these; the limit is generous, because hosts are busy."""
    action_format = make_format(name)
    points = point_map(action_format)
    for text in HOSTILE:
        started_s = time.process_time()
        action_format.parse(text, points)
        assert time.process_time() - started_s < 1.0, text[:60]


def test_hostile_outputs_perform_nothing_or_what_the_screen_has() -> None:
    """The long form is `make fuzz`."""
    readings: Counter[tuple[str, bool]] = Counter()
    faults: Counter[ActionFault] = Counter()
    for reader in READERS:
        spec = preset(reader)
        for answer in hostile_answers(reader, 400, seed=7):
            try:
                parsed = spec.parse(answer.text, answer.points, answer.pointer)
                fault = check_reading(parsed, answer.points.screen_wh)
            except Exception as error:
                raise AssertionError(f"{reader} on {answer.text!r}") from error
            readings[reader, fault is None] += 1
            if fault is not None:
                faults[fault] += 1
    assert set(readings) == {(reader, read) for reader in READERS for read in (True, False)}
    assert set(faults) == set(ActionFault) - {ActionFault.REFUSED}
