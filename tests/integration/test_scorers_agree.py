"""Our own metrics against OSWorld's, on generated cases: the same score wherever both serve a name for OSWorld's tasks."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from osworld_cases import GENERATORS, Case, generated, profiles

from dart_envs.evaluators.artifacts import GuestFile, InvalidArtifact
from dart_envs.evaluators.getters.chrome import PREFERENCE_READERS, read_profile
from dart_envs.evaluators.metrics import OSWORLD_EQUIVALENT_METRICS
from dart_envs.scorer import paths
from dart_envs.scorer.catalogue import OSWORLD_GETTERS, OSWORLD_METRICS
from dart_envs.scorer.workers import ScorerWorker

pytestmark = pytest.mark.skipif(
    paths.read_installation() is None, reason="OSWorld's scorer is not installed: run `dart-envs scorer install`"
)
WITHOUT_RULES = frozenset({"is_utc_0"})


@pytest.fixture(scope="module")
def worker() -> Iterator[ScorerWorker]:
    with ScorerWorker(paths.scorer_folder()) as worker:
        yield worker


def official(worker: ScorerWorker, case: Case, folder: Path) -> float:
    """The score in OSWorld's scorer, a result that it cannot read being 0 there as in an evaluation."""
    func, result, rules = case
    if isinstance(result, GuestFile):
        path = folder / "result"
        path.write_bytes(result.content)
        result = str(path)
    request: dict[str, Any] = {"op": "metric", "func": func, "result": result}
    answer = worker.request(request | ({} if func in WITHOUT_RULES else {"expected": rules}), timeout_s=20.0)
    assert "failed" not in answer, (case, answer)
    return float(answer["score"])


def own(case: Case) -> float:
    func, result, rules = case
    try:
        return OSWORLD_EQUIVALENT_METRICS[func](result, rules, {})
    except InvalidArtifact:
        return 0.0


def compare(worker: ScorerWorker, folder: Path, func: str, count: int, seed: int) -> None:
    cases = generated(func, count, seed)
    verdicts = [own(case) for case in cases]
    wrong = [(case, ours) for case, ours in zip(cases, verdicts, strict=True) if official(worker, case, folder) != ours]
    assert not wrong, wrong[:3]
    assert set(verdicts) == {0.0, 1.0}, f"the cases of {func} show one verdict alone"


def test_every_metric_of_osworlds_reading_is_compared() -> None:
    assert set(GENERATORS) == set(OSWORLD_EQUIVALENT_METRICS)


def test_the_catalogue_is_what_the_scorer_has(worker: ScorerWorker) -> None:
    hello = worker.request({"op": "hello"}, timeout_s=30.0)
    assert set(hello["metrics"]) - {"infeasible"} == OSWORLD_METRICS
    assert set(hello["getters"]) == OSWORLD_GETTERS


@pytest.mark.parametrize("func", sorted(GENERATORS))
def test_a_sample_of_each(worker: ScorerWorker, tmp_path: Path, func: str) -> None:
    compare(worker, tmp_path, func, count=60, seed=0)


def compare_getter(worker: ScorerWorker, kind: str, count: int, seed: int) -> None:
    for content in profiles(kind, count, seed):
        encoded = None if content is None else base64.b64encode(content).decode()
        answer = worker.request({"op": "getter", "type": kind, "content": encoded}, timeout_s=20.0)
        try:
            held = {"value": read_profile(kind, content)}
        except InvalidArtifact:
            assert "raised" in answer, (kind, content, answer)
        else:
            assert held == answer, (kind, content)


@pytest.mark.parametrize("kind", [*PREFERENCE_READERS, "bookmarks"])
def test_a_sample_of_each_getter_of_the_profile(worker: ScorerWorker, kind: str) -> None:
    compare_getter(worker, kind, count=60, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*PREFERENCE_READERS, "bookmarks"])
def test_many_of_each_getter_of_the_profile(worker: ScorerWorker, kind: str) -> None:
    compare_getter(worker, kind, count=3000, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("func", sorted(GENERATORS))
def test_many_of_each(worker: ScorerWorker, tmp_path: Path, func: str) -> None:
    compare(worker, tmp_path, func, count=3000, seed=1)
