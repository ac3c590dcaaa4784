"""Puts getters and metrics together: one evaluator in, one Outcome out.

Role: post-configuration, then one (getter, getter, metric) per function, joined by `and` or `or` in OSWorld's way.
Rule: `InvalidArtifact` scores 0 for its function; `DesktopError` passes through, its owner is decided elsewhere; anything
else is an `EvaluatorError`. Non-goals: when to evaluate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import DesktopError, EvaluatorError, FarmError
from dart_envs.evaluators.artifacts import InvalidArtifact
from dart_envs.evaluators.getters import GETTERS, GetterContext
from dart_envs.evaluators.metrics import METRICS, OSWORLD_EQUIVALENT_METRICS, Metric
from dart_envs.evaluators.scorer_choice import INFEASIBLE, Scorer, choose_scorer, equals_osworld, parse_scorer
from dart_envs.evaluators.stillness import needs_standing_still, standing_still
from dart_envs.scorer import osworld
from dart_envs.setup import run_steps
from dart_envs.task_parts import EvaluatorLike
from dart_envs.types import Desktop, EndReason, Outcome
from dart_server.wire import Clock


async def evaluate(
    desktop: Desktop,
    evaluator: EvaluatorLike,
    *,
    end: EndReason | None = None,
    clock: Clock = SYSTEM_CLOCK,
    scorer: str | None = None,
    osworld_semantics: bool = False,
    task_id: str = "",
) -> Outcome:
    """Judge a desktop. end: how the episode ended, where that is known; saying FAIL is right exactly for infeasible tasks.

    scorer: `auto`, `builtin` or `osworld`; None: what `DART_SCORER` says. osworld_semantics: the task is
    OSWorld's, so that functions mean what they mean there. task_id: whose files the osworld scorer asks the asset cache for.
    Raises EvaluatorError when a function, getter or rule is wrong or a scorer is missing, and `DesktopError` when the desktop is lost.
    """
    if INFEASIBLE in evaluator.functions:
        return Outcome(1.0 if end is EndReason.FAIL else 0.0, {"func": INFEASIBLE})
    if end is EndReason.FAIL:
        return Outcome(0.0, {"cause": "the policy gave up on a task that can be done"})
    scorer_used = choose_scorer(evaluator, parse_scorer(scorer), osworld_semantics=osworld_semantics)
    metrics = {**METRICS, **OSWORLD_EQUIVALENT_METRICS} if osworld_semantics and equals_osworld(evaluator) else METRICS
    try:
        step_outputs: dict[str, str] = {}
        notes = await run_steps(
            desktop, evaluator.postconfig, clock=clock, ignore_failures=True, step_outputs=step_outputs, task_id=task_id
        )
        if scorer_used is Scorer.OSWORLD:
            outcome = await osworld.evaluate(desktop, evaluator, step_outputs=step_outputs, task_id=task_id)
        else:
            context = GetterContext(desktop, clock, step_outputs)
            outcome = await _evaluate_builtin(context, evaluator, metrics)
            if outcome.reward > 0.0 and not osworld_semantics and needs_standing_still(evaluator):
                async with standing_still(desktop):
                    outcome = await _evaluate_builtin(context, evaluator, metrics)
    except InvalidArtifact as spoiled:
        return Outcome(0.0, {"cause": str(spoiled)})
    except (DesktopError, EvaluatorError, FarmError):
        raise
    except Exception as error:
        raise EvaluatorError(f"The evaluator failed: {type(error).__name__}: {error}") from error
    return Outcome(outcome.reward, {**outcome.details, "postconfig": list(notes)}) if notes else outcome


async def _evaluate_builtin(context: GetterContext, evaluator: EvaluatorLike, metrics: Mapping[str, Metric]) -> Outcome:
    scores: list[float] = []
    parts: list[dict[str, Any]] = []
    any_is_enough = evaluator.conj == "or"
    for func, result, expected, options in zip(
        evaluator.functions, evaluator.result_configs, evaluator.expected_configs, evaluator.metric_options, strict=True
    ):
        score, cause = await _score_function(context, metrics, func, result, expected, options)
        scores.append(score)
        parts.append({"func": func, "score": score} | ({} if cause is None else {"cause": cause}))
        if score >= 1.0 if any_is_enough else score <= 0.0:
            break
    decided = max(scores) if any_is_enough else 0.0 if 0.0 in scores else sum(scores) / len(scores)
    return Outcome(decided, {"parts": parts})


async def _score_function(
    context: GetterContext,
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
        held, wanted = await _run_getter(context, result), await _run_getter(context, expected)
        score = await asyncio.to_thread(metric, held, wanted, options)  # documents of the policy may be slow to read
    except InvalidArtifact as spoiled:
        return 0.0, str(spoiled)
    return min(1.0, max(0.0, float(score))), None


async def _run_getter(context: GetterContext, config: Mapping[str, Any] | None) -> Any:
    if config is None:
        return None
    getter = GETTERS.get(str(config.get("type")))
    if getter is None:
        raise EvaluatorError(f"Getter {config.get('type')!r} is not supported; known are {', '.join(sorted(GETTERS))}.")
    return await getter(context, config)
