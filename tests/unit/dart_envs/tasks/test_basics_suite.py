from __future__ import annotations

from collections import Counter

import pytest

from dart_envs.errors import TaskError
from dart_envs.tasks import Family, Split, Suite, TaskDraft, load, load_suite, task_split
from dart_envs.tasks.basics.words import NOUNS

BASICS = load_suite("basics")
HELD_OUT = {name for name, family in BASICS.families.items() if family.held_out}


def test_the_suite_is_as_broad_as_it_says() -> None:
    assert len(BASICS.families) >= 12
    assert len({family.app for family in BASICS.families.values()}) >= 4
    assert len(HELD_OUT) >= 2
    assert sum(family.demo for family in BASICS.families.values()) == 4
    assert all(family.max_steps <= 3 for family in BASICS.families.values() if family.demo)
    assert not HELD_OUT & {name for name, family in BASICS.families.items() if family.demo}


def test_splits_never_move() -> None:
    fixed = {
        "basics/press_nth/0000": Split.TRAIN,
        "basics/choose_nth/0001": Split.VALIDATION,
        "basics/press_button/0003": Split.TEST,
    }
    assert {task_id: task_split(task_id) for task_id in fixed} == fixed
    assert load("basics/press_button/0003").split is Split.TEST


@pytest.mark.parametrize("name", sorted(BASICS.families))
def test_windows_are_placed_all_over_the_screen(name: str) -> None:
    places = [
        (step.parameters["x"], step.parameters["y"])
        for variation in range(60)
        for step in BASICS.families[name].task("basics", variation).config
        if step.type == "place_window"
    ]
    for axis in (0, 1):
        values = [place[axis] for place in places]
        assert min(values) < 0.15
        assert max(values) > 0.85


@pytest.mark.parametrize("name", ["press_nth", "press_two", "choose_nth", "tick_nth"])
def test_the_asked_position_is_spread_over_the_ordinals(name: str) -> None:
    words = Counter(
        word.strip(".,")
        for variation in range(400)
        for word in BASICS.families[name].task("basics", variation).instruction.split()
    )
    common = [words[ordinal] for ordinal in ("first", "second", "last")]
    assert min(common) > 0.15 * sum(common)


def test_the_demo_shows_no_word_that_is_asked_for() -> None:
    for name in ("press_nth", "press_two", "choose_nth", "tick_nth"):
        for variation in range(40):
            instruction = BASICS.families[name].task("basics", variation).instruction
            assert not any(noun in instruction for noun in NOUNS)


def test_the_expected_answer_is_not_in_the_set_up_alone() -> None:
    """A dialog's setup shows all words alike: nothing in it marks the one that is right."""
    for name in ("press_button", "choose_row", "tick_box", "press_nth"):
        task = BASICS.families[name].task("basics", 1)
        answer = task.evaluator.expected_configs[0]
        assert answer is not None
        shown = " ".join(str(part) for step in task.config for part in step.parameters.get("command", ()))
        assert shown.split().count(answer["rules"]["expected"]) == 1
        assert answer["rules"]["expected"] not in str([step for step in task.config if step.type != "launch_captured"])


@pytest.mark.parametrize(
    ("task_id", "words"),
    [
        ("basics/press_button/1000", "variations 0 to 999"),
        ("basics/no_such/0001", "no family 'no_such'"),
        ("basics/press_button/1", "not a task of suite basics"),
        ("basics/press_button/00x1", "not a task of suite basics"),
        ("nowhere/a/0001", "no suite 'nowhere'"),
    ],
)
def test_ids_that_do_not_exist(task_id: str, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        load(task_id)


def test_splits_and_families_that_do_not_exist() -> None:
    with pytest.raises(TaskError, match="no split 'training'; splits are train, validation, test"):
        BASICS.tasks("training")
    with pytest.raises(TaskError, match="no family 'x'"):
        BASICS.tasks("train", ["x"])


def test_two_families_of_one_name_are_refused() -> None:
    family = Family("a", "app", "about", 1, lambda _random: TaskDraft("", [], {}, [], []))
    with pytest.raises(TaskError, match="two families named a"):
        Suite.from_families("mine", [family, family])
