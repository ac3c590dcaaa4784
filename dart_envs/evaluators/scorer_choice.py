"""Which scorer judges a task: the builtin light metrics or OSWorld's own evaluators.

Role: `Scorer`, `decide`. Rule: decided by names alone, before a desktop is touched; what cannot be served is one sentence with the fix.
Non-goals: judging (`dart_envs.evaluators.verdict`, `dart_envs.scorer.osworld`).
"""

from __future__ import annotations

import os
from enum import StrEnum

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators.getters import GETTERS
from dart_envs.evaluators.metrics import METRICS, OSWORLD, OSWORLD_GETTERS
from dart_envs.scorer import paths
from dart_envs.scorer.catalogue import (
    OFFICIAL_GETTERS,
    OFFICIAL_METRICS,
    PACKAGES_OF_GETTER,
    PACKAGES_OF_METRIC,
    RUNNING_CODE,
)
from dart_envs.types import EvaluatorLike

SCORER_VARIABLE = "DART_SCORER"
RUN_CODE_VARIABLE = "DART_SCORER_RUNS_CODE"
INFEASIBLE = "infeasible"
"""The function of tasks that cannot be done: 1 exactly when the policy said so."""


class Scorer(StrEnum):
    """Who judges."""

    AUTO = "auto"
    """For tasks of ours: the builtin metrics, where they serve everything. For OSWorld's task files: our own where they are proven equal to
    OSWorld's for every function and getter, else OSWorld's."""
    BUILTIN = "builtin"
    OSWORLD = "osworld"


def scorer_named(name: str | None) -> Scorer:
    """A scorer by name; None: what `DART_SCORER` says, else `auto`. Raises EvaluatorError."""
    said = name or os.environ.get(SCORER_VARIABLE) or Scorer.AUTO
    try:
        return Scorer(said)
    except ValueError:
        source = "a scorer" if name else SCORER_VARIABLE
        raise EvaluatorError(f"{source} is auto, builtin or osworld, not {said!r}.") from None


def getters_of(evaluator: EvaluatorLike) -> set[str]:
    """Every kind of getter that an evaluator names."""
    return {str(config["type"]) for config in (*evaluator.results, *evaluator.expecteds) if config}


def unserved_by_own(evaluator: EvaluatorLike) -> list[str]:
    """What the builtin metrics and getters lack, in words."""
    return _lacking(evaluator, set(METRICS), set(GETTERS))


def unserved_by_official(evaluator: EvaluatorLike) -> list[str]:
    """What OSWorld's scorer lacks, whatever is installed, in words."""
    return _lacking(evaluator, OFFICIAL_METRICS, OFFICIAL_GETTERS)


def _lacking(
    evaluator: EvaluatorLike, metrics: set[str] | frozenset[str], getters: set[str] | frozenset[str]
) -> list[str]:
    funcs = set(evaluator.functions) - metrics - {INFEASIBLE}
    kinds = getters_of(evaluator) - getters
    return [f"metric {name!r}" for name in sorted(funcs)] + [f"getter {name!r}" for name in sorted(kinds)]


def proven_equal(evaluator: EvaluatorLike) -> bool:
    """Whether the builtin metrics judge all of an evaluator just as OSWorld's do; options make another metric of one."""
    return (
        set(evaluator.functions) <= set(OSWORLD)
        and getters_of(evaluator) <= OSWORLD_GETTERS
        and not any(evaluator.all_options)
        and not any(config and config.get("multi") for config in (*evaluator.results, *evaluator.expecteds))
    )


def unserved(evaluator: EvaluatorLike) -> list[str]:
    """What neither scorer has, in words; empty when one of them serves the whole evaluator."""
    builtin, osworld = unserved_by_own(evaluator), unserved_by_official(evaluator)
    if not builtin or not osworld:
        return []
    neither = [name for name in builtin if name in osworld]
    return neither or [f"one scorer that has both {builtin[0]} and {osworld[0]}"]


def packages_needed(evaluator: EvaluatorLike) -> set[str]:
    """Names on PyPI of the rare packages that an evaluator needs of OSWorld's scorer."""
    packages = {package for name in evaluator.functions for package in PACKAGES_OF_METRIC.get(name, ())}
    return packages | {package for name in getters_of(evaluator) for package in PACKAGES_OF_GETTER.get(name, ())}


def decide(evaluator: EvaluatorLike, scorer: Scorer, *, as_osworld: bool = False) -> Scorer:
    """OWN or OFFICIAL. as_osworld: the task is OSWorld's, so that what counts is OSWorld's reading of every function.

    Raises EvaluatorError, with the fix, where the one that is asked for cannot judge this evaluator.
    """
    builtin, osworld = unserved_by_own(evaluator), unserved_by_official(evaluator)
    neither = unserved(evaluator)
    if neither and scorer is Scorer.AUTO:
        raise EvaluatorError(f"Neither the builtin metrics nor OSWorld's scorer have {', '.join(neither)}.")
    if scorer is Scorer.AUTO:
        ours = not builtin and (not as_osworld or bool(osworld) or proven_equal(evaluator))
        scorer = Scorer.BUILTIN if ours else Scorer.OSWORLD
    if scorer is Scorer.BUILTIN:
        if builtin:
            raise EvaluatorError(
                f"Our builtin metrics have no {', no '.join(builtin)}; set {SCORER_VARIABLE}=auto or osworld."
            )
        return Scorer.BUILTIN
    if osworld:
        raise EvaluatorError(f"OSWorld's scorer has no {', no '.join(osworld)}.")
    check_installed(evaluator)
    return Scorer.OSWORLD


def check_installed(evaluator: EvaluatorLike) -> None:
    """Raise EvaluatorError, with the command, where OSWorld's scorer, or a package that it needs for this, is not installed."""
    record = paths.installed()
    extras = {paths.EXTRA_OF_PACKAGE[package] for package in packages_needed(evaluator)}
    lacking = sorted(extras - set(record.extras if record else ()))
    if record is None or lacking:
        option = f" --with {','.join(lacking)}" if lacking else ""
        what = "the extra " + " and ".join(lacking) + " of it" if record else "it"
        raise EvaluatorError(
            f"This task is judged by OSWorld's scorer, and {what} is not installed."
            f" Run `dart-envs scorer install{option}`."
        )
    running = sorted(set(evaluator.functions) & RUNNING_CODE)
    if running and os.environ.get(RUN_CODE_VARIABLE) != "1":
        raise EvaluatorError(
            f"The osworld metric {running[0]} runs a program that the policy wrote on this machine, with this user's rights;"
            f" set {RUN_CODE_VARIABLE}=1 where that is acceptable."
        )
