"""Gathering what the report tells: from the store's answers and the metrics file to a `RunReport`.

Role: the only reader of a finished (or interrupted) run for people. Rule: reads through the data manager's client and the metrics file,
never the database. Non-goals: no statistics, no drawing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import DataManagerStats, EpisodeResult
from dart_agent.types import StepRecord, Trajectory
from dart_envs import tasks
from dart_envs.actions import action_from_dict
from dart_envs.observations.transforms import scale_point
from dart_train.config import Recipe
from dart_train.report.page import Chart, Curve, Example, ExampleStep, MaskedCount, RunReport
from dart_train.report.paired_evaluation import EvalItem, PairedEvaluation, compare_evaluations, task_family
from dart_train.run.paths import RunPaths
from dart_train.run.state import RunState

EXAMPLES_PER_PHASE = 4
SMOOTHING = 5


def rewards_by_item(results: Sequence[EpisodeResult]) -> dict[EvalItem, float | None]:
    """Evaluation results by item."""
    return {(result.task_id, result.repeat): result.reward for result in results}


def conclusion(verdict: PairedEvaluation | None, min_gain_points: float, *, evaluated: bool) -> str:
    """The one sentence on top of the report. evaluated: whether the evaluation after training is over."""
    if verdict is None and not evaluated:
        return "The run has no paired evaluation yet."
    if verdict is None:
        return "No evaluation item has a verdict both before and after training."
    gain = verdict.overall
    numbers = (
        f"{gain.before_percent:.1f} % → {gain.after_percent:.1f} % on {gain.episodes} validation episodes "
        f"({gain.gain_points:+.1f} points, 95 % interval {gain.gain_lower_points:+.1f} to {gain.gain_upper_points:+.1f})"
    )
    if verdict.learned(min_gain_points):
        return f"The policy learned: {numbers}."
    return f"The policy did not learn: {numbers}."


async def build_report(
    client: DataManagerClient,
    recipe: Recipe,
    paths: RunPaths,
    state: RunState,
    phases: Mapping[str, str],
) -> RunReport:
    """Gather the story of a run.

    Args:
        phases: phase names by role: `before`, `after`, and baselines under their printed names (`random policy`, ...).
    """
    results = {role: await client.results(name) for role, name in phases.items()}
    before, after = results.pop("before", []), results.pop("after", [])
    verdict = compare_evaluations(rewards_by_item(before), rewards_by_item(after))
    metrics = read_metrics(paths)
    stats = await client.stats()
    examples = []
    for role in ("before", "after"):
        if role in phases:
            examples += await _examples(client, phases[role], f"{role} training", recipe.desktops.resolution)
    return RunReport(
        name=recipe.run.name,
        recipe=recipe.model_dump(mode="json"),
        paired_evaluation=verdict,
        conclusion=conclusion(verdict, recipe.eval.min_gain_points, evaluated="after" in phases),
        baselines={name: _mean_percent(episodes) for name, episodes in results.items() if episodes},
        stages_s=state.stages_s,
        counts=_counts(stats),
        masked=masked_counts(stats),
        charts=_charts(metrics),
        examples=examples,
        incidents=tuple(state.incidents),
    )


def read_metrics(paths: RunPaths) -> list[dict[str, Any]]:
    """All complete lines of the metrics file; a torn last line is left out."""
    if not paths.metrics.exists():
        return []
    found = []
    for line in paths.metrics.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def masked_counts(stats: DataManagerStats) -> list[MaskedCount]:
    """Of all episodes, then by family, then by policy version."""
    tallies = {
        "all episodes": stats.episode_counts,
        **{family: tally for family, tally in sorted(stats.episode_counts_by_family.items())},
        **{f"policy version {version}": tally for version, tally in sorted(stats.episode_counts_by_version.items())},
    }
    return [
        MaskedCount(what, tally.episodes, tally.masked, round(100 * tally.masked_fraction, 2))
        for what, tally in tallies.items()
    ]


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
    warmup = [line for line in metrics if line.get("kind") == "warmup"]

    def curve(lines: Sequence[Mapping[str, Any]], x: str, y: str, label: str, smooth: int = 1) -> Curve:
        points = [(float(line[x]), float(line[y])) for line in lines if x in line and y in line]
        ys = [point[1] for point in points]
        return Curve(label, [point[0] for point in points], [_trailing_mean(ys, i, smooth) for i in range(len(ys))])

    families = sorted({key for line in updates for key in line if key.startswith("reward/")})
    return [
        Chart("Warm start", "images seen", "loss", [curve(warmup, "images", "loss", "loss")]),
        Chart("Reward of training rollouts", "policy version", "mean reward", [
            curve(updates, "version", "reward_mean", "all", SMOOTHING),
            *(curve(updates, "version", key, key.removeprefix("reward/"), SMOOTHING) for key in families),
        ]),
        Chart("Entropy", "policy version", "nats per token", [curve(updates, "version", "entropy", "entropy")]),
        Chart("Staleness of trained tokens", "policy version", "versions", [
            curve(updates, "version", "staleness_mean", "mean"), curve(updates, "version", "staleness_max", "max"),
        ]),
        Chart("Sampler to trainer mismatch", "policy version", "k3", [curve(updates, "version", "mismatch_k3", "k3")]),
        Chart("Gradient norm", "policy version", "norm", [curve(updates, "version", "grad_norm", "norm")]),
    ]  # fmt: skip


def _trailing_mean(values: Sequence[float], index: int, width: int) -> float:
    window = values[max(0, index - width + 1) : index + 1]
    return sum(window) / len(window)


async def _examples(client: DataManagerClient, phase: str, label: str, screen_wh: tuple[int, int]) -> list[Example]:
    chosen: dict[str, Trajectory] = {}
    async for trajectory in client.trajectories(phase):
        chosen.setdefault(task_family(trajectory.task_id), trajectory)
        if len(chosen) >= EXAMPLES_PER_PHASE:
            break
    return [
        _example(client, trajectory, f"{label} · {family}", screen_wh) for family, trajectory in sorted(chosen.items())
    ]


def _example(client: DataManagerClient, trajectory: Trajectory, title: str, screen_wh: tuple[int, int]) -> Example:
    steps = []
    for step in trajectory.steps_S:
        if not step.image_sha256:
            continue
        pixels = client.images.get(step.image_sha256[-1])
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="PNG")
        click_xy = _clicked(step, screen_wh, (pixels.shape[1], pixels.shape[0]))
        steps.append(ExampleStep(png=buffer.getvalue(), text=step.text, click_xy=click_xy))
    return Example(
        title=title,
        instruction=tasks.load(trajectory.task_id).instruction,
        reward=trajectory.reward,
        end=trajectory.end.value,
        steps_S=steps,
    )


def _clicked(step: StepRecord, screen_wh: tuple[int, int], picture_wh: tuple[int, int]) -> tuple[int, int] | None:
    """Where a step's action points, in the picture that the policy saw; None for an action without a place."""
    if step.action is None:
        return None
    action = action_from_dict(step.action)
    if action.x is None or action.y is None:
        return None
    return scale_point((action.x, action.y), screen_wh, picture_wh)
