"""Which scorer judges a task: the builtin light metrics or OSWorld's own evaluators.

Role: `Scorer`, `choose_scorer`. Rule: decided by names alone, before a desktop is touched; what cannot be served is one sentence with the
fix. Non-goals: judging (`dart_envs.evaluators.scoring`, `dart_envs.scorer.osworld`).
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from enum import StrEnum

from dart_envs.errors import EvaluatorError
from dart_envs.evaluators.getters import GETTERS
from dart_envs.evaluators.metrics import METRICS, OSWORLD_EQUIVALENT_GETTERS, OSWORLD_EQUIVALENT_METRICS
from dart_envs.scorer import paths
from dart_envs.scorer.catalogue import (
    CODE_EXECUTING_METRICS,
    GETTER_PACKAGES,
    METRIC_PACKAGES,
    OSWORLD_GETTERS,
    OSWORLD_METRICS,
)
from dart_envs.task_parts import EvaluatorLike

SCORER_VARIABLE = "DART_SCORER"
ALLOW_CODE_VARIABLE = "DART_SCORER_ALLOW_CODE"
INFEASIBLE = "infeasible"
"""The function of tasks that cannot be done: 1 exactly when the policy said so."""
NO_EVALUATOR = "no_evaluator"
"""The function of tasks that do not say how they are judged; no scorer has it."""

WHERE_NAMES_ARE = "The page `Getters and metrics` of the documentation lists all of them."

NEAREST_CUTOFF = 0.75
"""How much a name must be like an unknown one to be suggested, from 0 to 1."""


class Scorer(StrEnum):
    """Who judges."""

    AUTO = "auto"
    """For tasks of ours: the builtin metrics, where they serve everything. For OSWorld's task files: our own where they are proven equal to
    OSWorld's for every function and getter, else OSWorld's."""
    BUILTIN = "builtin"
    OSWORLD = "osworld"


def parse_scorer(name: str | None) -> Scorer:
    """A scorer by name; None: what `DART_SCORER` says, else `auto`. Raises EvaluatorError."""
    said = name or os.environ.get(SCORER_VARIABLE) or Scorer.AUTO
    try:
        return Scorer(said)
    except ValueError:
        source = "a scorer" if name else SCORER_VARIABLE
        raise EvaluatorError(f"{source} is auto, builtin or osworld, not {said!r}.") from None


def getter_types(evaluator: EvaluatorLike) -> set[str]:
    """Every kind of getter that an evaluator names."""
    return {str(config["type"]) for config in (*evaluator.result_configs, *evaluator.expected_configs) if config}


def unsupported_by_builtin(evaluator: EvaluatorLike) -> list[str]:
    """What the builtin metrics and getters lack, in words."""
    return _unsupported(evaluator, set(METRICS), set(GETTERS))


def unsupported_by_osworld(evaluator: EvaluatorLike) -> list[str]:
    """What OSWorld's scorer lacks, whatever is installed, in words."""
    return _unsupported(evaluator, OSWORLD_METRICS, OSWORLD_GETTERS)


def _unsupported(
    evaluator: EvaluatorLike, metrics: set[str] | frozenset[str], getters: set[str] | frozenset[str]
) -> list[str]:
    funcs = set(evaluator.functions) - metrics - {INFEASIBLE}
    kinds = getter_types(evaluator) - getters
    return [f"metric {name!r}" for name in sorted(funcs)] + [f"getter {name!r}" for name in sorted(kinds)]


def equals_osworld(evaluator: EvaluatorLike) -> bool:
    """Whether the builtin metrics judge all of an evaluator just as OSWorld's do; options make another metric of one."""
    return (
        set(evaluator.functions) <= set(OSWORLD_EQUIVALENT_METRICS)
        and getter_types(evaluator) <= OSWORLD_EQUIVALENT_GETTERS
        and not any(evaluator.metric_options)
        and not any(
            config and config.get("multi") for config in (*evaluator.result_configs, *evaluator.expected_configs)
        )
    )


def unsupported_parts(evaluator: EvaluatorLike) -> list[str]:
    """What neither scorer has, in words, with the nearest names that there are; empty when one of them serves the whole evaluator."""
    if NO_EVALUATOR in evaluator.functions:
        return ["evaluator"]
    builtin, osworld = unsupported_by_builtin(evaluator), unsupported_by_osworld(evaluator)
    if not builtin or not osworld:
        return []
    neither = [name for name in builtin if name in osworld]
    return [_with_nearest(part) for part in neither] or [f"one scorer that has both {builtin[0]} and {osworld[0]}"]


def _with_nearest(part: str) -> str:
    """Add to `metric 'x'` or `getter 'x'` the names like it."""
    kind, _, name = part.partition(" ")
    known = {*METRICS, *OSWORLD_METRICS, INFEASIBLE} if kind == "metric" else {*GETTERS, *OSWORLD_GETTERS}
    nearest = get_close_matches(name.strip("'"), sorted(known), cutoff=NEAREST_CUTOFF)
    if not nearest:
        return part
    return f"{part} (nearest: {', '.join(map(repr, nearest))})"


def required_packages(evaluator: EvaluatorLike) -> set[str]:
    """Names on PyPI of the rare packages that an evaluator needs of OSWorld's scorer."""
    packages = {package for name in evaluator.functions for package in METRIC_PACKAGES.get(name, ())}
    return packages | {package for name in getter_types(evaluator) for package in GETTER_PACKAGES.get(name, ())}


def choose_scorer(evaluator: EvaluatorLike, scorer: Scorer, *, osworld_semantics: bool = False) -> Scorer:
    """BUILTIN or OSWORLD. osworld_semantics: the task is OSWorld's, so that what counts is OSWorld's reading of every function.

    Raises EvaluatorError, with the fix, where the one that is asked for cannot judge this evaluator.
    """
    builtin, osworld = unsupported_by_builtin(evaluator), unsupported_by_osworld(evaluator)
    neither = unsupported_parts(evaluator)
    if neither and scorer is Scorer.AUTO:
        raise EvaluatorError(f"Neither the builtin metrics nor OSWorld's scorer have {', '.join(neither)}.")
    if scorer is Scorer.AUTO:
        ours = not builtin and (not osworld_semantics or bool(osworld) or equals_osworld(evaluator))
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
    record = paths.read_installation()
    extras = {paths.PACKAGE_EXTRAS[package] for package in required_packages(evaluator)}
    missing = sorted(extras - set(record.extras if record else ()))
    if record is None or missing:
        option = f" --with {','.join(missing)}" if missing else ""
        what = "the extra " + " and ".join(missing) + " of it" if record else "it"
        raise EvaluatorError(
            f"This task is judged by OSWorld's scorer, and {what} is not installed."
            f" Run `dart-envs scorer install{option}`."
        )
    running = sorted(set(evaluator.functions) & CODE_EXECUTING_METRICS)
    if running and os.environ.get(ALLOW_CODE_VARIABLE) != "1":
        raise EvaluatorError(
            f"The osworld metric {running[0]} runs a program that the policy wrote on this machine, with this user's rights;"
            f" set {ALLOW_CODE_VARIABLE}=1 where that is acceptable."
        )
