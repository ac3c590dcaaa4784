"""Evaluation on validation while training goes on.

Role: every `eval.every_updates` updates or `eval.every_minutes` minutes, a phase of episodes on a share of the desktops, and a line of
metrics with what it found.
Rule: training waits for nothing here, and what is unfinished when it ends is stopped. With `eval.during_workers` one version plays an
evaluation; what a killed process left of it is stopped, and so is one of which no episode ends for `limits.stall_minutes`. Otherwise
inference workers go on to newer versions meanwhile, so that a line covers several versions, which it names; an episode that two versions
wrote does not count. Infeasible tasks are apart. The weights of the best versions stay (`best_versions`). Non-goals: which phase gets a
desktop (`dart_train.scheduling`), the choice of a checkpoint (`selection`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import EpisodeResult
from dart_agent.metrics_file import MetricsReader, append_metrics
from dart_envs.success import SUCCESS_AT
from dart_server.wire import Clock
from dart_train.config import Recipe
from dart_train.config.evaluation import EvalSection
from dart_train.evaluation.best_versions import BestVersions
from dart_train.evaluation.results import PASS_AT, separate_infeasible
from dart_train.evaluation.reward_alarm import find_reward_alarm
from dart_train.evaluation.reward_marks import single_source
from dart_train.evaluation.statistics import pass_rate, success_rate
from dart_train.run import phases
from dart_train.run.decisions.waits import FIX, Stall

log = logging.getLogger(__name__)

METRICS_KIND = "evaluation"
LOOK_S = 1.0
"""Seconds between two looks at the newest version or at a running evaluation."""


@contextlib.asynccontextmanager
async def evaluated_during_training(
    client: DataManagerClient, recipe: Recipe, first_version: int, metrics: Path, weights: Path, clock: Clock
) -> AsyncIterator[None]:
    """Evaluate as long as the context lasts, where the recipe asks for it; the best versions are held from its beginning.

    Args:
        client: The data manager.
        recipe: The recipe.
        first_version: The newest version when training began.
        metrics: File to which a line per evaluation is added.
        weights: Directory of published versions.
        clock: Clock of what is waited for.

    Yields:
        Nothing.

    Raises:
        Exception: What an evaluation could not go on from; it ends what the context does at once.
    """
    lines = MetricsReader(metrics).read_new()
    evaluated = [line for line in _comparable(lines, recipe) if line.get("kind") == METRICS_KIND]
    with BestVersions(weights, recipe.eval.keep_best, evaluated) as best:
        left = await client.held_version()
        if left is not None:
            await client.stop_phase(phases.during_training(recipe, left.version).name)
        if not recipe.eval.during_training:
            yield
            return
        try:
            async with asyncio.TaskGroup() as group:
                evaluations = group.create_task(
                    _evaluate_repeatedly(client, recipe, first_version, metrics, best, clock)
                )
                yield
                evaluations.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures


async def _evaluate_repeatedly(
    client: DataManagerClient, recipe: Recipe, first_version: int, metrics: Path, best: BestVersions, clock: Clock
) -> None:
    last, last_s = first_version, clock.monotonic()
    while True:
        newest = await client.latest_version()
        if newest is not None and is_due(recipe.eval, last, newest.version, clock.monotonic() - last_s):
            last, last_s = newest.version, clock.monotonic()
            best.begin(newest)
            await _evaluate_once(client, recipe, newest.version, metrics, best, clock)
            best.end()
        await clock.sleep(LOOK_S)


def is_due(settings: EvalSection, last: int, newest: int, waited_s: float) -> bool:
    """Say whether enough updates were made, or enough time passed, for the next evaluation.

    Args:
        settings: When evaluations come.
        last: The version that was evaluated last; at first the one that training began with.
        newest: The newest version.
        waited_s: Seconds since that evaluation began, or training.

    Returns:
        True where the newest version is evaluated now.
    """
    by_updates = settings.every_updates > 0 and newest // settings.every_updates > last // settings.every_updates
    by_time = settings.every_minutes is not None and newest > last and waited_s >= 60 * settings.every_minutes
    return by_updates or by_time


async def _evaluate_once(
    client: DataManagerClient, recipe: Recipe, version: int, metrics: Path, best: BestVersions, clock: Clock
) -> None:
    evaluation = phases.during_training(recipe, version)
    name = evaluation.name
    view = await client.start_phase(evaluation)
    if view.state != "active":  # weights that were lost in a crash had this number, and were evaluated
        return
    try:
        minutes = recipe.limits.stall_minutes
        stall = Stall(60 * minutes, clock.monotonic())
        while view.state == "active":
            await clock.sleep(LOOK_S)
            view = await client.phase(name)
            stalled = stall.is_stalled(clock.monotonic(), (view.done, view.failed, view.masked))
            if stalled and evaluation.sampling.version is not None:
                log.warning("%s is stopped, none of its episodes ended for %g minutes: %s", name, minutes, FIX)
                await client.stop_phase(name)
                return
    except asyncio.CancelledError:
        await client.stop_phase(name)
        raise
    results = await client.results(name)
    infeasible = phases.infeasible_tasks(recipe, (each.task_id for each in results))
    line = describe_evaluation(results, recipe.reward.success_at, infeasible)
    if line is not None:
        found = {
            "kind": METRICS_KIND,
            "version": version,
            "temperature": phases.during_temperature(recipe),
            **line,
        }
        append_metrics(metrics, found)
        best.rank(found)
        alarm = find_reward_alarm(_comparable(MetricsReader(metrics).read_new(), recipe))
        if alarm is not None:
            append_metrics(metrics, alarm.as_line(clock.time()))


def _comparable(lines: Sequence[dict[str, Any]], recipe: Recipe) -> list[dict[str, Any]]:
    """Leave out evaluations at another temperature than the recipe's, which may have changed when the run went on."""
    temperature = phases.during_temperature(recipe)
    return [line for line in lines if line.get("kind") != METRICS_KIND or line.get("temperature", 0.0) == temperature]


def describe_evaluation(
    results: Sequence[EpisodeResult], success_at: float = SUCCESS_AT, infeasible: Collection[str] = ()
) -> dict[str, Any] | None:
    """Compute what an evaluation during training found.

    Args:
        results: Its episodes that have a reward.
        success_at: Least reward of a solved episode.
        infeasible: Ids of tasks that cannot be done.

    Returns:
        Success with its 95 % interval, pass@k as `pass_at_K` as far as tasks have K episodes that count, how many episodes count and how
        many do not, the versions, and what judged it; where episodes of infeasible tasks count, their success and number, which are in none
        of the other figures. None where no episode of a feasible task counts.

    Raises:
        MixedRewardsError: Several sources judged it.
    """
    feasible, impossible = separate_infeasible(results, infeasible)
    rewards, versions = _counted(feasible)
    success = success_rate(rewards, success_at)
    source = single_source(results, "an evaluation during training")
    if success is None or source is None:
        return None
    return {
        "success": success.value,
        "reward_source": source.value,
        "lower": success.lower,
        "upper": success.upper,
        **{
            f"pass_at_{k}": found.value for k in PASS_AT[1:] if (found := pass_rate(rewards, k, success_at)) is not None
        },
        "episodes": len(versions),
        "mixed_episodes": len(feasible) - len(versions),
        "first_version": min(versions),
        "last_version": max(versions),
        **_describe_infeasible(impossible, success_at),
    }


def _describe_infeasible(episodes: Sequence[EpisodeResult], success_at: float) -> dict[str, Any]:
    rewards, versions = _counted(episodes)
    success = success_rate(rewards, success_at)
    return {} if success is None else {"infeasible_success": success.value, "infeasible_episodes": len(versions)}


def _counted(episodes: Sequence[EpisodeResult]) -> tuple[dict[str, list[float]], list[int]]:
    """Rewards by task, and versions, of the episodes that one version wrote."""
    rewards: dict[str, list[float]] = defaultdict(list)
    versions: list[int] = []
    for each in episodes:
        if each.version_min is not None and each.version_min == each.version_max:
            rewards[each.task_id].append(each.reward)
            versions.append(each.version_min)
    return rewards, versions
