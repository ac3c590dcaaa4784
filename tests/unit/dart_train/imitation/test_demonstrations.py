"""Which demonstrations are imitated, and what of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from demonstrations import SIZE, TEST_TASK, TRAIN_TASKS, noise, write_demonstration

from dart_envs.demos.store import STEPS_FILE
from dart_envs.observations.annotated_screens import write_annotated_screen
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement
from dart_train.imitation.demonstrations import DemonstrationsUnusableError, SuiteNames, read_demonstrations


def test_actions_are_read_with_the_names_of_their_targets(tmp_path: Path) -> None:
    write_demonstration(tmp_path / "deep" / "one")
    write_demonstration(tmp_path / "two", TRAIN_TASKS[1], seed=1, says_done=False)
    found = read_demonstrations([tmp_path])
    first, second = found.episodes
    assert (first.task_id, first.instruction) == (TRAIN_TASKS[0], "Press the buttons of 0.")
    assert [(turn.action.type, turn.target) for turn in first.turns] == [
        (ActionType.CLICK, "Button 0"),
        (ActionType.CLICK, "Button 1"),
        (ActionType.DONE, ""),
    ]
    assert second.turns[-1].action.type is ActionType.DONE, "a person ends a demonstration without a step"
    assert second.turns[-1].screen.exists()
    assert not found.left_out


def test_a_target_is_called_as_the_instruction_calls_it(tmp_path: Path) -> None:
    write_demonstration(tmp_path / "one", instruction="Press the last button.")
    write_demonstration(tmp_path / "two", TRAIN_TASKS[1], instruction="Press Button 1, then Button 0.")
    write_demonstration(tmp_path / "three", TRAIN_TASKS[2], instruction="Press anything.")
    last, by_text, unsaid = read_demonstrations([tmp_path / name for name in ("one", "two", "three")]).episodes
    assert [turn.called for turn in last.turns] == ["last button", "last button", ""]
    assert [turn.called for turn in by_text.turns] == ["Button 0", "Button 1", ""]
    assert [turn.called for turn in unsaid.turns] == ["first button", "first button", ""]
    assert [turn.element.name if turn.element else "" for turn in unsaid.turns] == ["Button 0", "Button 1", ""]


def test_a_suite_of_task_files_has_no_names_for_elements(tmp_path: Path) -> None:
    assert SuiteNames(None).of("basics/press_nth/0000") is not None
    assert SuiteNames(None).of("a-task-file-with-its-own-id") is None


def test_what_is_not_solved_or_cannot_be_said_is_left_out_with_its_reason(tmp_path: Path) -> None:
    write_demonstration(tmp_path / "a", reward=0.5)
    write_demonstration(tmp_path / "b", end=None)
    curve = write_demonstration(tmp_path / "c") / STEPS_FILE
    lines = [json.loads(line) for line in curve.read_text().splitlines()]
    curve.write_text("\n".join(json.dumps(line | ({"action": None} if line["index"] == 1 else {})) for line in lines))
    found = read_demonstrations([tmp_path])
    assert not found.episodes
    assert found.left_out == {"not solved": 1, "broken off": 1, "has a step that no action can say": 1}


def test_a_task_that_is_tested_on_is_refused(tmp_path: Path) -> None:
    write_demonstration(tmp_path / "a", TEST_TASK)
    with pytest.raises(DemonstrationsUnusableError, match=r"of the test split, which must not be trained on: remove"):
        read_demonstrations([tmp_path])


@pytest.mark.parametrize("task_id", ["nowhere/press/0000", "basics/press_nth/99999"])
def test_a_task_whose_split_is_not_known_is_refused(tmp_path: Path, task_id: str) -> None:
    write_demonstration(tmp_path / "a", task_id)
    with pytest.raises(DemonstrationsUnusableError, match="cannot be imitated"):
        read_demonstrations([tmp_path])


def test_a_folder_without_demonstrations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemonstrationsUnusableError, match="holds no demonstration: record some with"):
        read_demonstrations([tmp_path])


def test_the_screens_of_a_runs_own_demonstrations_are_episodes(tmp_path: Path) -> None:
    button = A11yElement(role="push button", name="OK", x=10, y=10, w=40, h=20)
    steps = [Action(ActionType.CLICK, x=20, y=20), Action(ActionType.DONE)]
    for task, task_id in enumerate(TRAIN_TASKS[:2]):
        for step, action in enumerate(steps):
            write_annotated_screen(
                tmp_path, noise(10 * task + step), task_id=task_id, instruction="Press.", step=step, elements=[button], action=action
            )  # fmt: skip
    found = read_demonstrations([tmp_path])
    assert [episode.task_id for episode in found.episodes] == list(TRAIN_TASKS[:2])
    for episode in found.episodes:
        assert [(turn.action, turn.target) for turn in episode.turns] == [(steps[0], "OK"), (steps[1], "")]
    assert noise(0).shape == (SIZE[1], SIZE[0], 3)
