"""Redaction: what was typed is taken out of sentences however it was typed, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.types import Purpose, SamplingParams, Trajectory, WorkItem
from dart_envs.action_formats.osworld_pyautogui import OsworldPyautoguiFormat
from dart_envs.actions import actions_to_dict
from dart_envs.observations.geometry import PointMap
from dart_train.data_commands.redaction import REDACTED, Redaction, redact_action, redact_sentence, redact_trajectory

TEXT = Redaction(text=True)
SCREEN_WH = (640, 480)


def played(*actions: Mapping[str, Any] | None) -> Trajectory:
    """A trajectory whose steps performed these actions; None: nothing."""
    item = WorkItem("roll_1", "grp_1", "s/tick/1", Purpose.TRAIN, SamplingParams(), 9, "train")
    trajectory, _ = fake_trajectory(item, steps=len(actions))
    steps = zip(trajectory.steps_S, actions, strict=True)
    return replace(trajectory, steps_S=tuple(replace(step, action=action, parse_error=None) for step, action in steps))


def program(code: str) -> dict[str, Any]:
    """What is recorded of a program of pyautogui calls."""
    parsed = OsworldPyautoguiFormat().parse(f"```python\n{code}\n```", PointMap(SCREEN_WH, SCREEN_WH))
    return actions_to_dict(parsed.actions)  # type: ignore[union-attr]  # the test fails on a ParseError


def type_text(text: str) -> dict[str, Any]:
    return {"type": "type", "text": text}


def press(*keys: str) -> dict[str, Any]:
    return {"type": "key", "keys": list(keys)}


CLICK = {"type": "click", "x": 3, "y": 4}
WAIT = {"type": "wait", "duration_s": 1.0}


@pytest.mark.parametrize(
    "actions",
    [
        pytest.param([type_text("Hunter2\n")], id="a text with Enter"),
        pytest.param([type_text("jane\tHunter2\nx\n")], id="a part of a form"),
        pytest.param([program("pyautogui.write('Hunter2', interval=0.05)")], id="characters with pauses"),
        pytest.param([program("pyautogui.typewrite(['H', 'u', 'n', 't', 'e', 'r', '2'])")], id="a list of keys"),
        pytest.param([program("pyautogui.press(['H', 'u', 'n', 't', 'e', 'r', 'num2', 'enter'])")], id="pressed keys"),
        pytest.param(
            [program("with pyautogui.hold('shift'):\n    pyautogui.press('h')\npyautogui.write('unter2')")],
            id="shift is held",
        ),
        pytest.param([press("shift", "h"), WAIT, None, *map(press, "unter2")], id="a key each step"),
        pytest.param([type_text("Hunt"), WAIT, type_text("er2")], id="two texts"),
        pytest.param([CLICK, *map(press, "Hunx"), press("backspace"), *map(press, "ter2")], id="a correction"),
    ],
)
def test_a_sentence_holds_nothing_that_was_typed(actions: Sequence[Mapping[str, Any] | None]) -> None:
    sentence = "Sign in with Hunter2 and note the hour"
    assert redact_sentence(sentence, played(*actions), TEXT) == f"Sign in with {REDACTED} and note the hour"
    redacted = redact_trajectory(replace(played(*actions), info={"a": [sentence]}, cause=sentence), TEXT)
    assert "Hunter2" not in f"{redacted.info}{redacted.cause}"


@pytest.mark.parametrize(
    "actions",
    [
        [*map(press, "s")],
        [type_text("n\n"), CLICK, type_text(" o ")],
        [press("i"), CLICK, press("n")],
        [press("i"), press("escape"), press("n")],
        [press("ctrl", "i"), press("ctrl", "n")],
        [type_text("  \n")],
    ],
)
def test_single_characters_and_chords_are_taken_out_of_no_sentence(actions: Sequence[Mapping[str, Any]]) -> None:
    sentence = "Sign in  and note the hour"
    assert redact_sentence(sentence, played(*actions), TEXT) == sentence


def test_stretches_that_overlap_are_replaced_once() -> None:
    trajectory = played(type_text("act"), CLICK, type_text("ted hunter2"), CLICK, type_text("hunter2 now"))
    assert redact_sentence("redacted hunter2 now", trajectory, TEXT) == f"red{REDACTED}"


def test_keys_that_type_are_taken_out_of_an_action() -> None:
    assert redact_action(press("shift", "p")) == press("shift", REDACTED)
    assert redact_action(press("num5")) == press(REDACTED)
    assert redact_action(press("ctrl", "shift", "p")) == press("ctrl", "shift", "p")
    assert redact_action(press("enter")) == press("enter")
    redacted = redact_action(program("pyautogui.hotkey('h', 'i')\npyautogui.write('ok', interval=0.1)"))
    assert redacted["actions"][0] == press(REDACTED, REDACTED)
    assert [event.get("text") for event in redacted["actions"][1]["events"]] == [REDACTED, None, REDACTED, None]


def test_why_a_response_was_no_action_is_taken_out_of_the_cause_and_of_info() -> None:
    trajectory = played(CLICK, None)
    error = "unknown_action: There is no action 'Hunter2'."
    step = replace(trajectory.steps_S[1], parse_error=error)
    cause = f"the answer is no action: {error}"  # as an episode ends that an answer without an action ends
    trajectory = replace(
        trajectory, steps_S=(trajectory.steps_S[0], step), cause=cause, info={"outcome": {"cause": cause}}
    )
    redacted = redact_trajectory(trajectory, TEXT)
    assert redacted.cause == f"the answer is no action: {REDACTED}"
    assert redacted.info == {"outcome": {"cause": redacted.cause}}
    assert redact_sentence(f"masked: done ({cause})", trajectory, TEXT) == f"masked: done ({redacted.cause})"
