"""Evaluation on validation while training goes on.

Role: every `eval.every_updates` updates or `eval.every_minutes` minutes, a phase of episodes on a share of the desktops, and a line of
metrics with what it found.
Rule: training waits for nothing here. What is unfinished when it ends is stopped, and so is what a killed process left. With
`eval.during_workers` one version plays an evaluation; one of which no episode ends for `limits.stall_minutes` is stopped. Otherwise
inference workers go on to newer versions meanwhile, so that a line covers several versions, which it names; an episode that two versions
wrote does not count. Infeasible tasks are apart. The weights of the best versions stay (`best_versions`). A pause of the run ends nothing
and counts as no wait. Non-goals: which phase gets a desktop (`dart_train.scheduling`), the choice of a checkpoint (`selection`).
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
from dart_agent.data_client.wire import EpisodeResult, PhaseSpec
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
from dart_train.run.disk import Pauses

log = logging.getLogger(__name__)

METRICS_KIND = "evaluation"
LOOK_S = 1.0
"""Seconds between two looks at the newest version or at a running evaluation."""


@contextlib.asynccontextmanager
async def evaluated_during_training(
    client: DataManagerClient,
    recipe: Recipe,
    first_version: int,
    metrics: Path,
    weights: Path,
    clock: Clock,
    pauses: Pauses | None = None,
) -> AsyncIterator[None]:
    """Evaluate as long as the context lasts, where the recipe asks for it; the best versions are held from its beginning.

    Args:
        client: The data manager.
        recipe: The recipe.
        first_version: The newest version when training began.
        metrics: File to which a line per evaluation is added.
        weights: Directory of published versions.
        clock: Clock of what is waited for.
        pauses: How the run pauses; None: it never does.

    Yields:
        Nothing.

    Raises:
        Exception: What an evaluation could not go on from; it ends what the context does at once.
    """
    lines = MetricsReader(metrics).read_new()
    evaluated = [line for line in _comparable(lines, recipe) if line.get("kind") == METRICS_KIND]
    with BestVersions(weights, recipe.eval.keep_best, evaluated) as best:
        evaluations = _Evaluations(client, recipe, metrics, best, clock, pauses or Pauses(clock))
        await evaluations.stop()
        if not recipe.eval.during_training:
            yield
            return
        try:
            async with asyncio.TaskGroup() as group:
                repeated = group.create_task(evaluations.repeat(first_version))
                yield
                repeated.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        await evaluations.stop()


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


class _Evaluations:
    """The evaluations of one training, one after the other; those of an earlier process have the same names."""

    def __init__(
        self,
        client: DataManagerClient,
        recipe: Recipe,
        metrics: Path,
        best: BestVersions,
        clock: Clock,
        pauses: Pauses,
    ) -> None:
        self._client = client
        self._recipe = recipe
        self._metrics = metrics
        self._best = best
        self._clock = clock
        self._pauses = pauses

    async def stop(self) -> None:
        """Stop what is played; nobody would read what it finds."""
        for each in await self._pauses.ask(self._client.active_phases):
            if phases.first_name(each.name) == phases.EVAL_DURING:
                await self._stop(each.name)

    async def repeat(self, first_version: int) -> None:
        """Evaluate whenever it is due, until cancelled."""
        last, last_s = first_version, self._clock.monotonic()
        while True:
            newest = await self._pauses.ask(self._client.latest_version)
            waited_s = self._clock.monotonic() - last_s
            if newest is not None and is_due(self._recipe.eval, last, newest.version, waited_s):
                last, last_s = newest.version, self._clock.monotonic()
                self._best.begin(newest)
                await self._evaluate(phases.during_training(self._recipe, newest.version), newest.version)
                self._best.end()
            await self._clock.sleep(LOOK_S)

    async def _evaluate(self, evaluation: PhaseSpec, version: int) -> None:
        view = await self._pauses.ask(lambda: self._client.start_phase(evaluation))
        if view.state != "active":  # weights that were lost in a crash had this number, and were evaluated
            return
        minutes = self._recipe.limits.stall_minutes
        stall = Stall(60 * minutes, self._clock.monotonic())
        while view.state == "active":
            await self._clock.sleep(LOOK_S)
            view = await self._pauses.ask(lambda: self._client.phase(evaluation.name))
            now_s = self._clock.monotonic()
            if self._pauses.reason is not None:
                stall.since_s = now_s
            stalled = stall.is_stalled(now_s, (view.done, view.failed, view.masked))
            if stalled and evaluation.sampling.version is not None:
                log.warning(
                    "%s is stopped, none of its episodes ended for %g minutes: %s", evaluation.name, minutes, FIX
                )
                await self._stop(evaluation.name)
                return
        await self._tell(await self._pauses.ask(lambda: self._client.results(evaluation.name)), version)

    async def _stop(self, name: str) -> None:
        await self._pauses.ask(lambda: self._client.stop_phase(name))

    async def _tell(self, results: Sequence[EpisodeResult], version: int) -> None:
        """Write the line of an evaluation, and what the alarm says of it."""
        recipe = self._recipe
        infeasible = phases.infeasible_tasks(recipe, (each.task_id for each in results))
        line = describe_evaluation(results, recipe.reward.success_at, infeasible)
        if line is None:
            return
        found = {"kind": METRICS_KIND, "version": version, "temperature": phases.during_temperature(recipe), **line}
        await self._pauses.write(lambda: append_metrics(self._metrics, found))
        self._best.rank(found)
        alarm = find_reward_alarm(_comparable(MetricsReader(self._metrics).read_new(), recipe))
        if alarm is not None:
            told = alarm.as_line(self._clock.time())
            await self._pauses.write(lambda: append_metrics(self._metrics, told))


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
