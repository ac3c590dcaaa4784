"""Which scorer judges what, decided by names alone; and that OSWorld's tasks name nothing that neither serves."""

from __future__ import annotations

from typing import Any

import osworld_data
import pytest

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators import METRICS
from dart_envs.evaluators.getters import GETTERS
from dart_envs.evaluators.scorer_choice import (
    INFEASIBLE,
    SCORER_VARIABLE,
    Scorer,
    choose_scorer,
    equals_osworld,
    getter_types,
    parse_scorer,
    unsupported_by_osworld,
    unsupported_parts,
)
from dart_envs.scorer import paths
from dart_envs.scorer.catalogue import OSWORLD_GETTERS, OSWORLD_METRICS
from dart_envs.scorer.paths import Installation
from dart_envs.setup import NETWORK_STEPS, STEP_PARAMETERS
from dart_envs.tasks import Task, load_file
from dart_envs.tasks.model import Evaluator

FILE = {"type": "vm_file", "path": "/a", "dest": "a"}


def evaluator(**fields: Any) -> Evaluator:
    return Evaluator.model_validate(fields)


OWN = evaluator(func="exact_match", result=FILE, expected={"type": "rule", "rules": {"expected": "a"}})
OFFICIAL = evaluator(func="compare_audios", result=FILE, expected=FILE)


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Any:
    def say(*extras: str, there: bool = True) -> None:
        held = Installation("1.0.2", "3.11.9", extras, "pins") if there else None
        monkeypatch.setattr(paths, "read_installation", lambda: held)

    return say


def test_auto_takes_ours_where_it_serves_everything(record: Any) -> None:
    record("audio")
    assert choose_scorer(OWN, Scorer.AUTO) is Scorer.BUILTIN
    assert choose_scorer(OFFICIAL, Scorer.AUTO) is Scorer.OSWORLD
    assert choose_scorer(OWN, Scorer.OSWORLD) is Scorer.OSWORLD


def test_osworlds_tasks_get_osworlds_reading(record: Any) -> None:
    record()
    assert choose_scorer(OWN, Scorer.AUTO, osworld_semantics=True) is Scorer.BUILTIN
    lenient = evaluator(func="literal_match", result=FILE, expected={"type": "rule", "rules": "a"})
    assert choose_scorer(lenient, Scorer.AUTO) is Scorer.BUILTIN
    assert choose_scorer(lenient, Scorer.AUTO, osworld_semantics=True) is Scorer.OSWORLD
    with_options = evaluator(func="compare_config", result=FILE, expected=FILE, options={"containment_ok": True})
    assert choose_scorer(with_options, Scorer.AUTO, osworld_semantics=True) is Scorer.OSWORLD
    only_ours = evaluator(func="exists", result=FILE)
    assert choose_scorer(only_ours, Scorer.AUTO, osworld_semantics=True) is Scorer.BUILTIN


def test_what_cannot_judge_says_how_it_could(record: Any) -> None:
    record(there=False)
    with pytest.raises(
        EvaluatorError, match=r"OSWorld's scorer, and it is not installed.*scorer install --with audio`"
    ):
        choose_scorer(OFFICIAL, Scorer.AUTO)
    record()
    with pytest.raises(EvaluatorError, match=r"extra audio of it is not installed"):
        choose_scorer(OFFICIAL, Scorer.AUTO)
    with pytest.raises(EvaluatorError, match=f"no metric 'compare_audios'; set {SCORER_VARIABLE}=auto"):
        choose_scorer(OFFICIAL, Scorer.BUILTIN)
    both = evaluator(func=["exists", "compare_audios"], result=[FILE, FILE], expected=[None, FILE])
    assert unsupported_parts(both) == ["one scorer that has both metric 'compare_audios' and metric 'exists'"]
    with pytest.raises(EvaluatorError, match="Neither"):
        choose_scorer(both, Scorer.AUTO)


def test_the_scorer_is_named_by_argument_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SCORER_VARIABLE, raising=False)
    assert parse_scorer(None) is Scorer.AUTO
    monkeypatch.setenv(SCORER_VARIABLE, "osworld")
    assert parse_scorer(None) is Scorer.OSWORLD
    assert parse_scorer("builtin") is Scorer.BUILTIN
    with pytest.raises(EvaluatorError, match="auto, builtin or osworld, not 'mine'"):
        parse_scorer("mine")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [load_file(path) for path in sorted((osworld_data.data() / "examples").glob("*/*.json"))]


def test_every_step_getter_metric_and_conjunction_of_osworlds_tasks_is_served(tasks: list[Task]) -> None:
    assert len(tasks) == 369
    steps = {step.type for task in tasks for step in (*task.config, *task.evaluator.postconfig)}
    assert steps - set(STEP_PARAMETERS) == NETWORK_STEPS == {"googledrive"}
    metrics = {name for task in tasks for name in task.evaluator.functions} - {INFEASIBLE}
    assert metrics <= OSWORLD_METRICS | set(METRICS)
    kinds = {kind for task in tasks for kind in getter_types(task.evaluator)}
    assert kinds <= OSWORLD_GETTERS | set(GETTERS)
    assert {task.evaluator.conj for task in tasks} == {"and", "or"}
    assert {task.id: unsupported_parts(task.evaluator) for task in tasks if unsupported_parts(task.evaluator)} == {}
    assert {task.id: task.unsupported for task in tasks if unsupported_by_osworld(task.evaluator)} == {}
    assert sum(bool(task.unsupported) for task in tasks) == 8
    builtin = [task for task in tasks if equals_osworld(task.evaluator)]
    print(f"{len(builtin)} of {len(tasks)} tasks are judged without the osworld scorer")
    assert len(builtin) >= 30
