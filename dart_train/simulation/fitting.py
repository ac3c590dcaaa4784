"""Latency models from recorded runs: the metrics files of run folders.

Role: `fit_models` reads what rollout workers and trainer wrote (`metrics.jsonl`). Rule: an episode or an update that says too little is
left out; what a run does not show keeps the value of the given models. Non-goals: judging a fit (compare it with runs that it was not
fitted on).

An episode line gives reset_s, model_s and env_s as sums over its steps. A response of k tokens takes

    request_s + k (step_s + step_s_per_request n),   n = requests per worker at that time,

where n is estimated by the share of time in which the episodes that overlap with this one wait for responses. The three coefficients are a
least-squares fit without negative values; prefill and screenshots are part of request_s then. Where all responses have nearly the same
length, request_s and step_s cannot be told apart: then all of it belongs to the decoding steps, which requests share as the formula says,
and not to request_s, for which requests of the simulated engine queue.

Only episodes of training say how often a task is solved: those of an oracle or of a baseline have another policy.

Episodes of the start-up, before the first train step has ended, say nothing about the rest: they wait for workers that start. The mean of
an action is over all executed actions and not over episodes: `DONE` executes nothing, and that is more of a short episode. A number of
steps is a duration that was rounded up, so half a step is taken off before the distribution is fitted. A train step takes update_s +
tokens / tokens_per_s. The first episode of a task prepares it and starts from a copy; those that begin after that only copy; those in
between waited, and say nothing. Lines of kind `weights` say how long workers read and swap.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from dart_envs.success import SUCCESS_AT, is_success
from dart_train.config import Recipe, RecipeError
from dart_train.report.build import read_metrics
from dart_train.report.throughput import EpisodeLine, UpdateLine, episode_lines, update_lines
from dart_train.run.paths import RunPaths
from dart_train.run.phases import TRAIN, first_name
from dart_train.run.state import load_resolved_recipe
from dart_train.simulation.models import Latency, ModelFileError, SystemModels

MIN_EPISODES = 20
MIN_UPDATES = 3
MIN_LENGTH_SPREAD = 0.1
"""Standard deviation over mean of the lengths of responses, below which they count as equal."""
IMMEASURABLE = 1e9
"""Tokens per second of what is part of another fitted value."""


def fit_models(runs: Sequence[Path], start: SystemModels) -> SystemModels:
    """Fit latency models on recorded runs.

    Args:
        runs: Run folders, or metrics files. A metrics file, and a folder without a recipe, count as a run with one inference worker that
            takes the rewards of the evaluators.
        start: Values of what the runs do not show.

    Returns:
        The models.

    Raises:
        ModelFileError: A folder has no metrics or a recipe that cannot be read, or there are too few episodes of training.
    """
    episodes: list[EpisodeLine] = []
    updates: list[UpdateLine] = []
    solved: list[bool] = []
    waiting: list[tuple[float, float, float]] = []
    prepared_s: list[float] = []
    copied_s: list[float] = []
    staged_s: list[float] = []
    paused_s: list[float] = []
    for run in runs:
        lines = _lines(run)
        found = [
            each
            for each in episode_lines(lines)
            if each.finished and each.actions > 0 and first_name(each.phase) == TRAIN
        ]
        found = _after_start_up(found, update_lines(lines))
        recipe = _recipe(run)
        waiting += _waiting(found, 1 if recipe is None else recipe.inference.workers)
        episodes += found
        updates += [each for each in update_lines(lines) if each.tokens > 0]
        for first_s, later_s in _resets(lines):
            prepared_s.append(first_s)
            copied_s += later_s
        for line in lines:
            if line.get("kind") == "weights":
                staged_s += line.get("staged_s", [])
                paused_s += line.get("paused_s", [])
        success_at = SUCCESS_AT if recipe is None else recipe.reward.success_at
        solved += [is_success(float(line["reward"]), success_at) for line in lines if _is_training_reward(line)]
    if len(episodes) < MIN_EPISODES:
        names = ", ".join(str(run) for run in runs)
        raise ModelFileError(
            f"{names} has {len(episodes)} usable training episodes of {MIN_EPISODES} that are needed: give a longer run"
        )
    success = fmean(solved) if solved else 0.5
    steps = [each.actions for each in episodes]
    log_lengths = [math.log(each - 0.5) for each in steps]
    lengths = [(each.tokens or 0.0) / each.actions for each in episodes]
    tokens = fmean(lengths)
    fork_s = fmean(copied_s) if copied_s else 0.0
    desktop = start.desktop.model_copy(
        update={
            "reset_s": _latency([each - fork_s for each in prepared_s] if copied_s else prepared_s),
            "fork_s": _latency(copied_s),
            "step_s": _step_latency(episodes),
            "evaluate_s": _latency(each.evaluate_s for each in episodes),
        }
    )
    episode = start.episode.model_copy(
        update={
            "median_steps": math.exp(fmean(log_lengths)),
            "sigma": min(3.0, pstdev(log_lengths)),
            "success_alpha": max(0.05, 2 * success),
            "success_beta": max(0.05, 2 * (1 - success)),
            "response_tokens": max(1.0, tokens),
            "response_sigma": _latency(lengths, spread=math.sqrt(fmean(steps))).sigma,
            "max_response_tokens": max(1, math.ceil(4 * tokens)),
            "system_tokens": 0,
            "image_tokens": 0,
            "history_images": 0,
        }
    )
    request_s, step_s, per_request_s = _fit_responses(waiting)
    engine = start.engine.model_copy(
        update={
            "prefill_tokens_per_s": IMMEASURABLE,
            "image_s": 0.0,
            "request_s": request_s,
            "step_s": max(step_s, 1e-6),
            "step_s_per_request": per_request_s,
        }
    )
    trainer, publish = start.trainer, start.publish
    if len(updates) >= MIN_UPDATES:
        update_s, per_token_s = _nonnegative_fit(
            [(1.0, each.tokens) for each in updates], [each.step_s for each in updates]
        )
        speed = 1 / per_token_s if per_token_s > 1 / IMMEASURABLE else IMMEASURABLE
        trainer = trainer.model_copy(update={"update_s": update_s, "tokens_per_s": speed, "streams": True})
        publish = publish.model_copy(
            update={"publish_s": fmean(each.publish_s for each in updates), "publish_s_per_gib": 0.0}
        )
    if staged_s and paused_s:
        publish = publish.model_copy(
            update={"weights_gib": 1.0, "stage_s_per_gib": fmean(staged_s), "swap_s": fmean(paused_s)}
        )
    return start.model_copy(
        update={"desktop": desktop, "episode": episode, "engine": engine, "trainer": trainer, "publish": publish}
    )


def _step_latency(episodes: Sequence[EpisodeLine]) -> Latency:
    """What an executed action takes; an episode without one says nothing."""
    acted = [each for each in episodes if each.executed > 0]
    if not acted:
        return Latency(mean_s=0.0)
    executed = sum(each.executed for each in acted)
    spread = math.sqrt(executed / len(acted))
    mean_s = sum(each.env_s for each in acted) / executed
    return _latency([each.env_s / each.executed for each in acted], spread=spread).model_copy(update={"mean_s": mean_s})


def _after_start_up(episodes: Sequence[EpisodeLine], updates: Sequence[UpdateLine]) -> list[EpisodeLine]:
    """The episodes that began after the first train step; all where too few did."""
    later = [each for each in episodes if updates and each.begin_s >= updates[0].end_s]
    return later if len(later) >= MIN_EPISODES else list(episodes)


def _fit_responses(waiting: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """request_s, step_s and step_s_per_request."""
    counts, seconds = [count for count, _, _ in waiting], [spent_s for _, _, spent_s in waiting]
    if not counts:
        return 0.0, 0.0, 0.0
    if pstdev(counts) < MIN_LENGTH_SPREAD * fmean(counts):
        step_s, per_request_s = _nonnegative_fit([(count, count * load) for count, load, _ in waiting], seconds)
        return 0.0, step_s, per_request_s
    request_s, step_s, per_request_s = _nonnegative_fit(
        [(1.0, count, count * load) for count, load, _ in waiting], seconds
    )
    return request_s, step_s, per_request_s


def _lines(run: Path) -> list[dict[str, Any]]:
    if run.is_file():
        lines = []
        for text in run.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                value = json.loads(text)
            except json.JSONDecodeError:
                continue
            if isinstance(value, dict):
                lines.append(value)
        return lines
    if not RunPaths(run).metrics.is_file():
        raise ModelFileError(f"{run} has no metrics.jsonl: give the folder of a run that `dart-train run` made")
    return read_metrics(RunPaths(run))


def _recipe(run: Path) -> Recipe | None:
    """The recipe of a run; None where none is noted."""
    if not run.is_dir() or not RunPaths(run).resolved_recipe.exists():
        return None
    try:
        return load_resolved_recipe(RunPaths(run))
    except RecipeError as error:
        raise ModelFileError(str(error)) from None


def _resets(lines: Iterable[Mapping[str, Any]]) -> list[tuple[float, list[float]]]:
    """Per task: how long its first episode was prepared, and those that began when its snapshot was there."""
    by_task: dict[str, list[EpisodeLine]] = {}
    for line in lines:
        if _is_of_training(line):
            found = [each for each in episode_lines([line]) if each.finished]
            by_task.setdefault(str(line.get("task")), []).extend(found)
    resets = []
    for episodes in filter(None, by_task.values()):
        first, *later = sorted(episodes, key=lambda each: each.begin_s)
        ready_s = first.begin_s + first.reset_s
        resets.append((first.reset_s, [each.reset_s for each in later if each.begin_s >= ready_s]))
    return resets


def _is_training_reward(line: Mapping[str, Any]) -> bool:
    return line.get("kind") == "episode" and _is_of_training(line) and isinstance(line.get("reward"), int | float)


def _is_of_training(line: Mapping[str, Any]) -> bool:
    return first_name(str(line.get("phase"))) == TRAIN


def _waiting(episodes: Sequence[EpisodeLine], workers: int) -> list[tuple[float, float, float]]:
    """Per episode: tokens per response, requests per worker meanwhile, and seconds per response."""
    if not episodes:
        return []
    begins = sorted(each.begin_s for each in episodes)
    ends = sorted(each.end_s for each in episodes)
    share = sum(each.model_s for each in episodes) / max(1e-9, sum(each.end_s - each.begin_s for each in episodes))
    found = []
    for each in episodes:
        middle_s = (each.begin_s + each.end_s) / 2
        open_now = bisect_right(begins, middle_s) - bisect_left(ends, middle_s)
        others = max(0, open_now - 1) * share / workers
        count = (each.tokens or 0.0) / each.actions
        if count > 0:
            found.append((count, 1 + others, each.model_s / each.actions))
    return found


def _latency(seconds: Iterable[float], spread: float = 1.0) -> Latency:
    """A lognormal duration with the mean and the variance of a sample; spread: by how much single values vary more than the sample's."""
    values = [value for value in seconds if value > 0]
    if not values:
        return Latency(mean_s=0.0)
    mean_s = fmean(values)
    variation = pstdev(values) / mean_s * spread
    return Latency(mean_s=mean_s, sigma=min(3.0, math.sqrt(math.log(1 + variation**2))))


def _nonnegative_fit(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Least squares in which no coefficient is negative: a negative one is set to 0 and the others are fitted again."""
    width = len(rows[0]) if rows else 0
    kept = list(range(width))
    found = [0.0] * width
    while kept:
        matrix = np.asarray([[row[index] for index in kept] for row in rows], dtype=np.float64)
        scale = np.abs(matrix).max(axis=0)
        scale[scale == 0] = 1.0
        solution = np.linalg.lstsq(matrix / scale, np.asarray(values, dtype=np.float64), rcond=None)[0] / scale
        if (solution >= 0).all():
            for index, value in zip(kept, solution, strict=True):
                found[index] = float(value)
            break
        kept.pop(int(np.argmin(solution * scale)))
    return found
