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
    decide,
    getters_of,
    proven_equal,
    scorer_named,
    unserved,
    unserved_by_official,
)
from dart_envs.scorer import paths
from dart_envs.scorer.catalogue import OFFICIAL_GETTERS, OFFICIAL_METRICS
from dart_envs.scorer.paths import Installed
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
        held = Installed("1.0.2", "3.11.9", extras, "pins") if there else None
        monkeypatch.setattr(paths, "installed", lambda: held)

    return say


def test_auto_takes_ours_where_it_serves_everything(record: Any) -> None:
    record("audio")
    assert decide(OWN, Scorer.AUTO) is Scorer.BUILTIN
    assert decide(OFFICIAL, Scorer.AUTO) is Scorer.OSWORLD
    assert decide(OWN, Scorer.OSWORLD) is Scorer.OSWORLD


def test_osworlds_tasks_get_osworlds_reading(record: Any) -> None:
    record()
    assert decide(OWN, Scorer.AUTO, as_osworld=True) is Scorer.BUILTIN
    lenient = evaluator(func="literal_match", result=FILE, expected={"type": "rule", "rules": "a"})
    assert decide(lenient, Scorer.AUTO) is Scorer.BUILTIN
    assert decide(lenient, Scorer.AUTO, as_osworld=True) is Scorer.OSWORLD
    with_options = evaluator(func="compare_config", result=FILE, expected=FILE, options={"containment_ok": True})
    assert decide(with_options, Scorer.AUTO, as_osworld=True) is Scorer.OSWORLD
    only_ours = evaluator(func="exists", result=FILE)
    assert decide(only_ours, Scorer.AUTO, as_osworld=True) is Scorer.BUILTIN


def test_what_cannot_judge_says_how_it_could(record: Any) -> None:
    record(there=False)
    with pytest.raises(
        EvaluatorError, match=r"OSWorld's scorer, and it is not installed.*scorer install --with audio`"
    ):
        decide(OFFICIAL, Scorer.AUTO)
    record()
    with pytest.raises(EvaluatorError, match=r"extra audio of it is not installed"):
        decide(OFFICIAL, Scorer.AUTO)
    with pytest.raises(EvaluatorError, match=f"no metric 'compare_audios'; set {SCORER_VARIABLE}=auto"):
        decide(OFFICIAL, Scorer.BUILTIN)
    both = evaluator(func=["exists", "compare_audios"], result=[FILE, FILE], expected=[None, FILE])
    assert unserved(both) == ["one scorer that has both metric 'compare_audios' and metric 'exists'"]
    with pytest.raises(EvaluatorError, match="Neither"):
        decide(both, Scorer.AUTO)


def test_the_scorer_is_named_by_argument_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SCORER_VARIABLE, raising=False)
    assert scorer_named(None) is Scorer.AUTO
    monkeypatch.setenv(SCORER_VARIABLE, "osworld")
    assert scorer_named(None) is Scorer.OSWORLD
    assert scorer_named("builtin") is Scorer.BUILTIN
    with pytest.raises(EvaluatorError, match="auto, builtin or osworld, not 'mine'"):
        scorer_named("mine")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return [load_file(path) for path in sorted((osworld_data.data() / "examples").glob("*/*.json"))]


def test_every_step_getter_metric_and_conjunction_of_osworlds_tasks_is_served(tasks: list[Task]) -> None:
    assert len(tasks) == 369
    steps = {step.type for task in tasks for step in (*task.config, *task.evaluator.postconfig)}
    assert steps - set(STEP_PARAMETERS) == NETWORK_STEPS == {"googledrive"}
    metrics = {name for task in tasks for name in task.evaluator.functions} - {INFEASIBLE}
    assert metrics <= OFFICIAL_METRICS | set(METRICS)
    kinds = {kind for task in tasks for kind in getters_of(task.evaluator)}
    assert kinds <= OFFICIAL_GETTERS | set(GETTERS)
    assert {task.evaluator.conj for task in tasks} == {"and", "or"}
    assert {task.id: unserved(task.evaluator) for task in tasks if unserved(task.evaluator)} == {}
    assert {task.id: task.unsupported for task in tasks if unserved_by_official(task.evaluator)} == {}
    assert sum(bool(task.unsupported) for task in tasks) == 8
    builtin = [task for task in tasks if proven_equal(task.evaluator)]
    print(f"{len(builtin)} of {len(tasks)} tasks are judged without the osworld scorer")
    assert len(builtin) >= 30
