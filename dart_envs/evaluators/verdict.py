"""Puts getters and metrics together: one evaluator in, one Outcome out.

Role: post-configuration, then one (getter, getter, metric) per function, joined by `and` or `or` in OSWorld's way.
Rule: `InvalidArtifact` scores 0 for its function; `DesktopError` passes through, its owner is decided elsewhere; anything
else is an `EvaluatorError`. Non-goals: when to evaluate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import DesktopError, EvaluatorError, FarmError
from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.getters import GETTERS, Probe
from dart_envs.evaluators.metrics import METRICS, OSWORLD, Metric
from dart_envs.evaluators.scorer_choice import INFEASIBLE, Scorer, decide, proven_equal, scorer_named
from dart_envs.scorer import osworld
from dart_envs.setup import run_steps
from dart_envs.types import Desktop, EndReason, EvaluatorLike, Outcome
from dart_server.wire import Clock


async def evaluate(
    desktop: Desktop,
    evaluator: EvaluatorLike,
    *,
    end: EndReason | None = None,
    clock: Clock = SYSTEM_CLOCK,
    scorer: str | None = None,
    as_osworld: bool = False,
    task_id: str = "",
) -> Outcome:
    """Judge a desktop. end: how the episode ended, where that is known; saying FAIL is right exactly for infeasible tasks.

    scorer: `auto`, `builtin` or `osworld`; None: what `DART_SCORER` says. as_osworld: the task is
    OSWorld's, so that functions mean what they mean there. task_id: whose files the osworld scorer asks the asset cache for.
    Raises EvaluatorError when a function, getter or rule is wrong or a scorer is missing, and `DesktopError` when the desktop is lost.
    """
    if INFEASIBLE in evaluator.functions:
        return Outcome(1.0 if end is EndReason.FAIL else 0.0, {"func": INFEASIBLE})
    if end is EndReason.FAIL:
        return Outcome(0.0, {"cause": "the policy gave up on a task that can be done"})
    judged_by = decide(evaluator, scorer_named(scorer), as_osworld=as_osworld)
    metrics = {**METRICS, **OSWORLD} if as_osworld and proven_equal(evaluator) else METRICS
    try:
        kept: dict[str, str] = {}
        notes = await run_steps(desktop, evaluator.postconfig, clock=clock, lenient=True, kept=kept, task_id=task_id)
        if judged_by is Scorer.OSWORLD:
            outcome = await osworld.judge(desktop, evaluator, kept=kept, task_id=task_id)
        else:
            outcome = await _judge(Probe(desktop, clock, kept), evaluator, metrics)
    except (DesktopError, EvaluatorError, FarmError):
        raise
    except Exception as error:
        raise EvaluatorError(f"The evaluator failed: {type(error).__name__}: {error}") from error
    return Outcome(outcome.reward, {**outcome.details, "postconfig": list(notes)}) if notes else outcome


async def _judge(probe: Probe, evaluator: EvaluatorLike, metrics: Mapping[str, Metric]) -> Outcome:
    scores: list[float] = []
    parts: list[dict[str, Any]] = []
    any_is_enough = evaluator.conj == "or"
    for func, result, expected, options in zip(
        evaluator.functions, evaluator.results, evaluator.expecteds, evaluator.all_options, strict=True
    ):
        score, cause = await _score(probe, metrics, func, result, expected, options)
        scores.append(score)
        parts.append({"func": func, "score": score} | ({} if cause is None else {"cause": cause}))
        if score >= 1.0 if any_is_enough else score <= 0.0:
            break
    decided = max(scores) if any_is_enough else 0.0 if 0.0 in scores else sum(scores) / len(scores)
    return Outcome(decided, {"parts": parts})


async def _score(
    probe: Probe,
    metrics: Mapping[str, Metric],
    func: str,
    result: Mapping[str, Any] | None,
    expected: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[float, str | None]:
    metric = metrics.get(func)
    if metric is None:
        raise EvaluatorError(f"Metric {func!r} is not supported; known are {', '.join(sorted(METRICS))}.")
    try:
        score = metric(await _get(probe, result), await _get(probe, expected), options)
    except InvalidArtifact as spoiled:
        return 0.0, str(spoiled)
    return min(1.0, max(0.0, float(score))), None


async def _get(probe: Probe, config: Mapping[str, Any] | None) -> Any:
    if config is None:
        return None
    getter = GETTERS.get(str(config.get("type")))
    if getter is None:
        raise EvaluatorError(f"Getter {config.get('type')!r} is not supported; known are {', '.join(sorted(GETTERS))}.")
    return await getter(probe, config)
