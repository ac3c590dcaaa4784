"""The content of a report: from the data manager's replies and the metrics file to a `RunReport`.

Role: `build_report` reads a finished or interrupted run. Rule: it reads through the client of the data manager and the metrics file, never
the database; what an interrupted run lacks is left out. Non-goals: statistics (`dart_train.evaluation.paired_evaluation`), rates
(`dart_train.report.throughput`), drawing (`dart_train.report.page`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import DataManagerStats, EpisodeResult, MaskedEpisodes, PhaseStatus
from dart_agent.errors import StoreRefusedError
from dart_train.config import Recipe
from dart_train.evaluation.during_training import METRICS_KIND
from dart_train.evaluation.paired_evaluation import EvalItem, PairedEvaluation, compare_evaluations
from dart_train.evaluation.results import (
    INFEASIBLE,
    PASS_AT,
    ResultRow,
    evaluations_on_test,
    read_results,
    result_rows,
    separate_infeasible,
)
from dart_train.evaluation.reward_alarm import alarm_sentences
from dart_train.evaluation.reward_marks import reward_notes, single_source
from dart_train.metrics import ROLLOUT_REWARD
from dart_train.report.examples import read_examples
from dart_train.report.learning_signal import describe_learning_signal
from dart_train.report.page import Chart, Curve, Example, FailedBatch, MaskedRow, RunReport
from dart_train.report.throughput import (
    episode_lines,
    stage_throughput,
    throughput_charts,
    update_lines,
    workers_lines,
)
from dart_train.report.utilisation_rows import failing_workers, training_utilisation, training_workers
from dart_train.run.masked_episodes import format_versions
from dart_train.run.paths import RunPaths
from dart_train.run.phases import STAGES_BY_PHASE, TEST, TRAIN, first_name, infeasible_tasks
from dart_train.run.state import RunState

SMOOTHING = 5
"""Updates over which the rewards of training batches are averaged in their chart."""


def rewards_by_item(results: Sequence[EpisodeResult]) -> dict[EvalItem, float | None]:
    """Index evaluation results by item.

    Args:
        results: Episodes that have a reward.

    Returns:
        Rewards by task and repeat.
    """
    return {(result.task_id, result.repeat): result.reward for result in results}


def conclusion(
    evaluation: PairedEvaluation | None,
    min_gain_points: float,
    *,
    evaluated: bool,
    untrained: PhaseStatus | None = None,
    infeasible: int = 0,
) -> str:
    """Write the first sentences of the report.

    Args:
        evaluation: The paired evaluation, None where there is none.
        min_gain_points: Gain in points that must be exceeded.
        evaluated: Whether the evaluation after training has finished.
        untrained: The training phase where it has ended without an update.
        infeasible: Evaluation items of infeasible tasks with a reward before and after training, which are not in the paired evaluation.

    Returns:
        Whether the policy learned, and what to do where it could not.
    """
    if untrained is not None:
        signal = describe_learning_signal(untrained)
        rest = conclusion(evaluation, min_gain_points, evaluated=evaluated, infeasible=infeasible)
        return f"Training made 0 updates: {signal} {rest}"
    if evaluation is None and not evaluated:
        return "The run has no paired evaluation yet."
    if evaluation is None and infeasible:
        return (
            "Only infeasible tasks have a reward both before and after training, and these do not tell whether the policy learned: choose "
            "tasks.families or tasks.index so that validation has tasks that can be done."
        )
    if evaluation is None:
        return "No evaluation item has a reward both before and after training."
    gain = evaluation.overall
    numbers = (
        f"{evaluation.measure} {gain.before_percent:.1f} % → {gain.after_percent:.1f} % on {gain.episodes} validation episodes "
        f"({gain.gain_points:+.1f} points, {gain.describe_interval()})"
    )
    if evaluation.learned(min_gain_points):
        return f"The policy learned: {numbers}."
    return f"The policy did not learn: {numbers}."


def conclusion_without_training(rows: Sequence[ResultRow]) -> str:
    """Write the first sentence of the report of a run with `train.updates = 0`.

    Args:
        rows: Rows of its only evaluation; empty where that has not finished.

    Returns:
        How good the policy is.
    """
    told = "The run trains nothing (train.updates = 0)"
    if not rows:
        return f"{told}, and its evaluation has not finished."
    if rows[0].name == INFEASIBLE:
        return (
            f"{told}, and its evaluation has infeasible tasks only, which do not tell how good the policy is: choose tasks.families or "
            "tasks.index so that validation has tasks that can be done."
        )
    success = rows[0].success
    assert success.lower is not None
    assert success.upper is not None
    return (
        f"{told}: the policy succeeds in {100 * success.value:.1f} % of {rows[0].episodes} validation episodes "
        f"(95 % interval {100 * success.lower:.1f} to {100 * success.upper:.1f} %)."
    )


async def build_report(
    client: DataManagerClient,
    recipe: Recipe,
    paths: RunPaths,
    state: RunState,
    phases: Mapping[str, str],
) -> RunReport:
    """Gather everything that the report of a run shows.

    Args:
        client: The data manager of the run.
        recipe: The recipe of the run.
        paths: The run folder.
        state: The progress of the run.
        phases: Names of the finished phases by role: `before`, `after`, and baselines under their displayed names.

    Returns:
        The report; what an interrupted run lacks is empty in it.

    Raises:
        MixedRewardsError: Different sources judged the episodes of one figure.
        RecipeError: It cannot be told which of the evaluated tasks are infeasible.
    """
    results = {role: await client.results(name) for role, name in phases.items()}
    for role, name in phases.items():
        single_source(results[role], f"the phase {name}")
    before, after, tested = (results.pop(role, []) for role in ("before", "after", "test"))
    single_source([*before, *after], "the paired evaluation")
    tasks = (each.task_id for episodes in (before, after, tested, *results.values()) for each in episodes)
    infeasible = infeasible_tasks(recipe, tasks)
    evaluation, apart = (
        compare_evaluations(rewards_by_item(earlier), rewards_by_item(later))
        for earlier, later in zip(*(separate_infeasible(each, infeasible) for each in (before, after)), strict=True)
    )
    baselines = {name: separate_infeasible(each, infeasible)[0] for name, each in results.items()}
    metrics = read_metrics(paths)
    episodes = [replace(episode, phase=first_name(episode.phase)) for episode in episode_lines(metrics)]
    updates, activity = update_lines(metrics), workers_lines(metrics)
    failing = failing_workers(training_workers(updates, activity))
    desktops = recipe.desktops.count
    stats = await client.stats()
    trained_nothing = TRAIN in state.stages_s and recipe.train.updates and not stats.latest_version
    untrained = await client.phase(state.phase_name(TRAIN)) if trained_nothing else None
    success_at = recipe.reward.success_at
    role, shown, told = (
        ("after", after, "evaluation after training") if recipe.train.updates else ("before", before, "evaluation")
    )
    examples = await read_examples(client, phases[role], shown, recipe.desktops.resolution, success_at) if shown else []

    def rows(episodes: Sequence[EpisodeResult]) -> list[ResultRow]:
        return result_rows(
            episodes,
            trained_families=recipe.tasks.families,
            infeasible=infeasible,
            success_at=success_at,
        )

    untrained_rows = [] if recipe.train.updates else rows(before)
    return RunReport(
        name=recipe.run.name,
        recipe=recipe.model_dump(mode="json"),
        paired_evaluation=evaluation,
        paired_infeasible=None if apart is None else apart.overall,
        conclusion=conclusion(
            evaluation,
            recipe.eval.min_gain_points,
            evaluated="after" in phases,
            untrained=untrained,
            infeasible=0 if apart is None else apart.overall.episodes,
        )
        if recipe.train.updates
        else conclusion_without_training(untrained_rows),
        untrained=untrained_rows,
        baselines={name: _mean_percent(episodes) for name, episodes in baselines.items() if episodes},
        test=rows(tested),
        test_number=await times_tested(client, state) + len(evaluations_on_test(paths.evaluations))
        if "test" in phases
        else 0,
        stages_s=state.stages_s,
        counts=_counts(stats),
        masked=masked_rows(stats),
        failed_batches=failed_batches(metrics),
        throughput=stage_throughput(episodes, updates, STAGES_BY_PHASE),
        utilisation=training_utilisation(episodes, updates, activity, desktops, TRAIN),
        throughput_charts=throughput_charts(episodes, updates, desktops, TRAIN),
        charts=_charts(metrics),
        examples=examples,
        examples_note=_examples_note(examples, told, finished=role in phases),
        incidents=(*state.incidents, *([] if failing is None else [f"During training {failing}."])),
        alarms=tuple(alarm_sentences(metrics)),
        evaluations=read_results(paths.evaluations),
        rewards=tuple(reward_notes(recipe.reward)),
    )


async def times_tested(client: DataManagerClient, state: RunState) -> int:
    """Count how often a run evaluated the test split.

    The number behind the name of its last test does not say so: a test gets a new name whenever training goes on, played or not.

    Args:
        client: The data manager of the run.
        state: The progress of the run.

    Returns:
        Number of tests of which an episode has a reward.
    """
    count = 0
    for name in state.phase_names(TEST):
        try:
            count += bool(await client.results(name))
        except StoreRefusedError:  # nothing was played under this name
            continue
    return count


def _examples_note(examples: Sequence[Example], evaluation: str, *, finished: bool) -> str:
    if not finished:
        return f"The {evaluation} has not finished, so there are no examples."
    if not examples:
        return f"No episode of the {evaluation} has a reward, so there are no examples."
    if all(example.succeeded for example in examples):
        return f"No episode of the {evaluation} failed."
    if not any(example.succeeded for example in examples):
        return f"No episode of the {evaluation} succeeded."
    return ""


def read_metrics(paths: RunPaths) -> list[dict[str, Any]]:
    """Read the metrics file of a run.

    Args:
        paths: The run folder.

    Returns:
        All complete lines; a truncated last line is left out.
    """
    if not paths.metrics.exists():
        return []
    found = []
    for line in paths.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def masked_rows(stats: DataManagerStats) -> list[MaskedRow]:
    """Make the table of masked episodes.

    Args:
        stats: The numbers of the data manager.

    Returns:
        A row of all episodes, then one per family and end reason that has masked episodes.
    """
    families = stats.episode_counts_by_family
    return [
        _masked_row("all families", "", stats.episode_counts.episodes, stats.masked_episodes),
        *(
            _masked_row(each.family, each.end.value, families[each.family].episodes, [each])
            for each in stats.masked_episodes
        ),
    ]


def failed_batches(lines: Sequence[Mapping[str, Any]]) -> list[FailedBatch]:
    """Find the batches that were not trained on.

    Args:
        lines: Lines of the metrics file.

    Returns:
        One for each, in their order.
    """
    return [
        FailedBatch(
            version=int(line.get("version", 0)),
            cause=str(line.get("cause", "")),
            trajectories=int(line.get("quarantined_trajectories", 0)),
            steps=int(line.get("quarantined_steps", 0)),
        )
        for line in lines
        if line.get("kind") == "failed_batch"
    ]


def _masked_row(family: str, cause: str, episodes: int, masked: Sequence[MaskedEpisodes]) -> MaskedRow:
    count = sum(each.episodes for each in masked)
    first = [each.first_version for each in masked if each.first_version is not None]
    last = [each.last_version for each in masked if each.last_version is not None]
    return MaskedRow(
        family=family,
        cause=cause,
        episodes=episodes,
        masked=count,
        percent=round(100 * count / episodes, 2) if episodes else 0.0,
        versions=format_versions(min(first, default=None), max(last, default=None)) if count else "",
    )


def _counts(stats: DataManagerStats) -> dict[str, int]:
    return {
        "trajectories stored": stats.trajectories,
        "steps stored": stats.steps,
        "concurrent episodes at most": stats.max_concurrent_episodes,
        "training rows used": stats.rows_used,
        "batches": sum(stats.batches.values()),
        "policy version at the end": stats.latest_version or 0,
    }


def _mean_percent(episodes: Sequence[EpisodeResult]) -> float:
    return 100.0 * sum(episode.reward for episode in episodes) / len(episodes)


def _charts(metrics: Sequence[Mapping[str, Any]]) -> list[Chart]:
    updates = [line for line in metrics if line.get("kind") == "update"]
    warmup = _last_attempt([line for line in metrics if line.get("kind") == "warmup"], "images")
    reading = _last_attempt([line for line in metrics if line.get("kind") == "reading"], "pages")
    evaluations = [line for line in metrics if line.get("kind") == METRICS_KIND]

    def curve(lines: Sequence[Mapping[str, Any]], x: str, y: str, label: str) -> Curve:
        points = _points(lines, x, y)
        return Curve(label, [point[0] for point in points], [point[1] for point in points])

    def smoothed(key: str, label: str) -> Curve:
        points = _points(updates, "version", key)
        ends = range(SMOOTHING, len(points) + 1)
        means = [fmean(y for _, y in points[end - SMOOTHING : end]) for end in ends]
        return Curve(f"{label}, mean of {SMOOTHING} updates", [points[end - 1][0] for end in ends], means, points)

    of_rollouts = any(ROLLOUT_REWARD in line for line in updates)
    title, mean = (
        ("training rollouts", ROLLOUT_REWARD) if of_rollouts else ("the members of the training batches", "reward_mean")
    )
    prefix = f"{ROLLOUT_REWARD}/" if of_rollouts else "reward/"
    families = sorted({key for line in updates for key in line if key.startswith(prefix)})
    tried = curve(evaluations, "version", "infeasible_success", INFEASIBLE)
    most = max((k for k in PASS_AT if any(f"pass_at_{k}" in line for line in evaluations)), default=None)
    reads = curve(reading, "pages", "reading_accuracy", "texts whose place is found, on screens of held-out tasks")
    return [
        *([Chart("Reading", "pages seen", "fraction of texts", [reads])] if reading else []),
        Chart("Warm start", "images seen", "loss", [curve(warmup, "images", "loss", "loss")]),
        Chart(f"Reward of {title}", "policy version", "mean reward", [
            smoothed(mean, "all"), *(smoothed(key, key.removeprefix(prefix)) for key in families),
        ]),
        Chart("Success on validation during training", "policy version", "success", [
            curve(evaluations, "version", "success", "success"),
            curve(evaluations, "version", "lower", "95 % interval, lower end"),
            curve(evaluations, "version", "upper", "95 % interval, upper end"),
            *([curve(evaluations, "version", f"pass_at_{most}", f"pass@{most}")] if most else []),
            *([tried] if tried.x else []),
        ]),
        Chart("Entropy", "policy version", "nats per token", [curve(updates, "version", "entropy", "entropy")]),
        Chart("Staleness of trained tokens", "policy version", "versions", [
            curve(updates, "version", "staleness_mean", "mean"), curve(updates, "version", "staleness_max", "max"),
        ]),
        Chart("Sampler to trainer mismatch", "policy version", "k3", [curve(updates, "version", "mismatch_k3", "k3")]),
        Chart("Gradient norm", "policy version", "norm", [curve(updates, "version", "grad_norm", "norm")]),
    ]  # fmt: skip


def _last_attempt(lines: Sequence[Mapping[str, Any]], count: str) -> Sequence[Mapping[str, Any]]:
    """The lines since a count began anew: an interrupted warm start whose state was removed is made again."""
    done = [(line[count], line["elapsed_s"]) for line in lines]
    restarts = [index for index in range(1, len(lines)) if done[index] < done[index - 1]]
    return lines[restarts[-1] :] if restarts else lines


def _points(lines: Sequence[Mapping[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    pairs = ((line.get(x), line.get(y)) for line in lines)
    return [(float(at), float(value)) for at, value in pairs if at is not None and value is not None]
