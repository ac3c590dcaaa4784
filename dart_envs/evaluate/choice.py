"""Which scorer judges a task: our own light metrics or OSWorld's own evaluators.

Role: `Scorer`, `decide`. Rule: decided by names alone, before a desktop is touched; what cannot be served is one sentence with the cure.
Non-goals: judging (`dart_envs.evaluate.verdict`, `dart_envs.scorer.official`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from dart_envs.errors import EvaluatorError
from dart_envs.evaluate.getters import GETTERS
from dart_envs.evaluate.metrics import METRICS
from dart_envs.scorer import places
from dart_envs.scorer.catalogue import OFFICIAL_GETTERS, OFFICIAL_METRICS, PACKAGES_OF_GETTER, PACKAGES_OF_METRIC

SCORER_VARIABLE = "DART_SCORER"
INFEASIBLE = "infeasible"
"""The function of tasks that cannot be done: 1 exactly when the policy said so."""


class Scorer(StrEnum):
    """Who judges."""

    AUTO = "auto"
    """Our own metrics where they serve every function and getter of the task, else OSWorld's."""
    OWN = "own"
    OFFICIAL = "official"


class Functions(Protocol):
    """What is looked at of an evaluator."""

    @property
    def functions(self) -> Sequence[str]: ...

    @property
    def results(self) -> Sequence[Mapping[str, Any] | None]: ...

    @property
    def expecteds(self) -> Sequence[Mapping[str, Any] | None]: ...


def scorer_named(name: str | None) -> Scorer:
    """A scorer by name; None: what `DART_SCORER` says, else `auto`. Raises EvaluatorError."""
    said = name or os.environ.get(SCORER_VARIABLE) or Scorer.AUTO
    try:
        return Scorer(said)
    except ValueError:
        source = "a scorer" if name else SCORER_VARIABLE
        raise EvaluatorError(f"{source} is auto, own or official, not {said!r}.") from None


def getters_of(evaluator: Functions) -> set[str]:
    """Every kind of getter that an evaluator names."""
    return {str(config["type"]) for config in (*evaluator.results, *evaluator.expecteds) if config}


def unserved_by_own(evaluator: Functions) -> list[str]:
    """What our own metrics and getters lack, in words."""
    return _lacking(evaluator, set(METRICS), set(GETTERS))


def unserved_by_official(evaluator: Functions) -> list[str]:
    """What the official scorer lacks, whatever is installed, in words."""
    return _lacking(evaluator, OFFICIAL_METRICS, OFFICIAL_GETTERS)


def _lacking(evaluator: Functions, metrics: set[str] | frozenset[str], getters: set[str] | frozenset[str]) -> list[str]:
    funcs = set(evaluator.functions) - metrics - {INFEASIBLE}
    kinds = getters_of(evaluator) - getters
    return [f"metric {name!r}" for name in sorted(funcs)] + [f"getter {name!r}" for name in sorted(kinds)]


def unserved(evaluator: Functions) -> list[str]:
    """What neither scorer has, in words; empty when one of them serves the whole evaluator."""
    own, official = unserved_by_own(evaluator), unserved_by_official(evaluator)
    if not own or not official:
        return []
    neither = [name for name in own if name in official]
    return neither or [f"one scorer that has both {own[0]} and {official[0]}"]


def packages_needed(evaluator: Functions) -> set[str]:
    """Names on PyPI of the rare packages that an evaluator needs of the official scorer."""
    packages = {package for name in evaluator.functions for package in PACKAGES_OF_METRIC.get(name, ())}
    return packages | {package for name in getters_of(evaluator) for package in PACKAGES_OF_GETTER.get(name, ())}


def decide(evaluator: Functions, scorer: Scorer) -> Scorer:
    """OWN or OFFICIAL. Raises EvaluatorError, with the cure, where the one that is asked for cannot judge this evaluator."""
    own = unserved_by_own(evaluator)
    neither = unserved(evaluator)
    if neither and scorer is Scorer.AUTO:
        raise EvaluatorError(f"Neither our own metrics nor OSWorld's official scorer have {', '.join(neither)}.")
    if scorer is Scorer.OWN or (scorer is Scorer.AUTO and not own):
        if own:
            raise EvaluatorError(
                f"Our own metrics have no {', no '.join(own)}; set {SCORER_VARIABLE}=auto or official."
            )
        return Scorer.OWN
    official = unserved_by_official(evaluator)
    if official:
        raise EvaluatorError(f"OSWorld's official scorer has no {', no '.join(official)}.")
    record = places.installed()
    extras = {places.EXTRA_OF_PACKAGE[package] for package in packages_needed(evaluator)}
    lacking = sorted(extras - set(record.extras if record else ()))
    if record is None or lacking:
        option = f" --with {','.join(lacking)}" if lacking else ""
        reason = f"; our own metrics have no {', no '.join(own)}" if own else ""
        what = "the extra " + " and ".join(lacking) + " of it" if record else "it"
        raise EvaluatorError(
            f"This task is judged by OSWorld's official scorer, and {what} is not installed{reason}."
            f" Run `dart-envs scorer install{option}`."
        )
    return Scorer.OFFICIAL
