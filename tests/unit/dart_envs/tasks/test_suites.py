"""What holds of every bundled suite. What is one suite's own is tested beside it."""

from __future__ import annotations

from functools import cache

import pytest

from dart_envs.tasks import Family, Split, Task, load, load_suite
from dart_envs.tasks.loader import BUNDLED_SUITES

DRAWN = 12
FAMILIES = [
    pytest.param(name, family, id=f"{name}/{family}")
    for name in sorted(BUNDLED_SUITES)
    for family in load_suite(name).families
]
WITH_EXPLOITS = [param for param in FAMILIES if param.values[0] != "basics"]


@cache
def drawn(name: str, family: str) -> tuple[Task, ...]:
    chosen = load_suite(name)
    return tuple(chosen.load(chosen.families[family].task_id(name, number)) for number in range(DRAWN))


@pytest.mark.parametrize("name", sorted(set(BUNDLED_SUITES) - {"basics"}))
def test_some_families_are_held_out_whole(name: str) -> None:
    families: dict[str, Family] = dict(load_suite(name).families)
    held_out = [family for family in families.values() if family.held_out]
    assert 0.1 <= len(held_out) / len(families) <= 0.35


@pytest.mark.parametrize(("name", "family"), FAMILIES)
def test_splits_part_a_family(name: str, family: str) -> None:
    chosen = load_suite(name)
    parts = {split: set(chosen.tasks(split, [family])) for split in Split}
    total = chosen.families[family].variations
    assert sum(map(len, parts.values())) == len(set().union(*parts.values())) == total
    if chosen.families[family].held_out:
        assert len(parts[Split.TEST]) == total
    else:
        assert len(parts[Split.TRAIN]) / total == pytest.approx(0.70, abs=0.06)
        assert len(parts[Split.VALIDATION]) / total == pytest.approx(0.15, abs=0.05)


@pytest.mark.parametrize(("name", "family"), FAMILIES)
def test_every_variation_that_is_drawn_is_a_valid_task(name: str, family: str) -> None:
    tasks = drawn(name, family)
    for task in tasks:
        assert task.unsupported == ()
        assert task.image == load_suite(name).image
        assert {"oracle", "near_miss"} <= set(task.scripts)
        assert all(1 <= len(moves) <= task.max_steps for moves in task.scripts.values())
        assert task.oracle_script != task.near_miss_script
        assert task.publish_setup == load_suite(name).families[family].publish_setup
    first = tasks[0]
    assert first == load(first.id), "the same id is the same task"
    questions = {(task.instruction, str([step.parameters for step in task.config])) for task in tasks}
    assert len(questions) >= DRAWN - 2


@pytest.mark.parametrize(("name", "family"), WITH_EXPLOITS)
def test_exploits_are_plays_of_their_own_and_run(name: str, family: str) -> None:
    for task in drawn(name, family):
        plays = [task.oracle_script, task.near_miss_script, *task.exploit_scripts]
        assert len(task.exploit_scripts) == 2
        assert len(set(plays)) == len(plays)
        for moves in task.exploit_scripts:
            for move in moves:
                if move.do == "code":
                    compile(move.text, task.id, "exec")


@pytest.mark.parametrize(("name", "family"), WITH_EXPLOITS)
def test_the_set_up_does_not_hold_the_verdict(name: str, family: str) -> None:
    """Whoever reads everything that the setup brings into the desktop finds the task's material, but not the rules it is judged by."""
    for task in drawn(name, family):
        brought = str([step.parameters for step in task.config])
        for expected in task.evaluator.expected_configs:
            if expected is not None and "rules" in expected:
                assert str(expected["rules"]) not in brought
