"""Throughput of a run, from the lines of `metrics.jsonl`.

Role: pure functions from metric lines to episodes and train steps, and from these to rates and charts. Rule: a line that lacks a value, or
that is not what a present component writes, is left out; no line at all is an empty result, never an error; every formula is that of
`dart_train.utilisation`. Non-goals: shares of time (`dart_train.report.utilisation_rows`), reading files (`dart_train.report.build`),
drawing (`dart_train.report.page`).

Four kinds of lines are read. `episode` (a rollout worker, when an episode ends) and `abandoned` (when one is given back unfinished):
`time_s`, `phase`, `duration_s`, `reset_s`, `model_s`, `queue_s` (the part of `model_s` in which no engine computed the request), `env_s`,
`evaluate_s`, `steps`, `tokens`. `update` (the trainer, after a train step): `time_s`, `rows_trained`, `tokens`, `step_s`, `publish_s`,
`wait_s`, `lag_mean_s`, `lag_p95_s`. `workers` (the inference component, every few seconds): `time_s`, `window_s`, and by worker the
seconds of the window in which it was `serving`, `updating` and `down`. Times are seconds since the epoch, durations are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dart_envs.types import EndReason
from dart_train.report.page import Chart, Curve, StageThroughput
from dart_train.utilisation import (
    Interval,
    WorkerActivity,
    WorkerShares,
    active_intervals,
    overlap_s,
    per_minute,
    total_s,
    worker_shares,
)

TRAIN_STAGE = "train"
"""The stage that train steps belong to."""
MAX_BINS = 40
MIN_BIN_S = 15.0


@dataclass(frozen=True, slots=True)
class EpisodeLine:
    """One episode that ended, or that was given back.

    Attributes:
        phase: Name of the phase that it belongs to.
        begin_s: When it began, in seconds since the epoch.
        end_s: When it ended, in seconds since the epoch.
        actions: Number of steps.
        tokens: Sampled tokens, None where the line does not say.
        reset_s: Seconds in which the desktop was prepared.
        model_s: Seconds of waiting for the policy's responses.
        env_s: Seconds of performing actions.
        queue_s: The part of `model_s` in which no engine computed the request; None where the line does not say.
        evaluate_s: Seconds in which its desktop was evaluated.
        executed: Number of steps whose action the environment executed: all but one that ends the episode (`DONE`, `FAIL`).
        finished: Whether it ended; False: it was abandoned, and begins anew elsewhere or never.
    """

    phase: str
    begin_s: float
    end_s: float
    actions: float
    tokens: float | None
    reset_s: float
    model_s: float
    env_s: float
    queue_s: float | None = None
    evaluate_s: float = 0.0
    executed: float = 0.0
    finished: bool = True


@dataclass(frozen=True, slots=True)
class UpdateLine:
    """One train step.

    Attributes:
        begin_s: When the trainer began to wait for the batch, in seconds since the epoch.
        end_s: When the new version was published, in seconds since the epoch.
        rows: Trained rows (steps of trajectories).
        tokens: Trained tokens.
        step_s: Seconds of computing.
        publish_s: Seconds of saving and publishing.
        wait_s: Seconds of waiting for the batch.
        lag_s: Mean seconds from the end of a trajectory of the batch to the end of the train step; None where the line does not say.
    """

    begin_s: float
    end_s: float
    rows: float
    tokens: float
    step_s: float
    publish_s: float
    wait_s: float
    lag_s: float | None = None


def episode_lines(metrics: Iterable[Mapping[str, Any]]) -> list[EpisodeLine]:
    """Select the episodes of a metrics file.

    Args:
        metrics: Lines of the file.

    Returns:
        One value per usable line of kind `episode` or `abandoned`, in order.
    """
    found = []
    for line in metrics:
        end_s, duration_s = _number(line, "time_s"), _number(line, "duration_s")
        if line.get("kind") not in ("episode", "abandoned") or end_s is None or duration_s is None:
            continue
        actions = _number(line, "steps") or 0.0
        found.append(
            EpisodeLine(
                phase=str(line.get("phase")),
                begin_s=end_s - duration_s,
                end_s=end_s,
                actions=actions,
                tokens=_number(line, "tokens"),
                reset_s=_number(line, "reset_s") or 0.0,
                model_s=_number(line, "model_s") or 0.0,
                env_s=_number(line, "env_s") or 0.0,
                queue_s=_number(line, "queue_s"),
                evaluate_s=_number(line, "evaluate_s") or 0.0,
                executed=max(0.0, actions - (line.get("end") in (EndReason.DONE, EndReason.FAIL))),
                finished=line.get("kind") == "episode",
            )
        )
    return found


def update_lines(metrics: Iterable[Mapping[str, Any]]) -> list[UpdateLine]:
    """Select the train steps of a metrics file.

    Args:
        metrics: Lines of the file.

    Returns:
        One value per usable line of kind `update`, in order.
    """
    found = []
    for line in metrics:
        end_s = _number(line, "time_s")
        if line.get("kind") != "update" or end_s is None:
            continue
        step_s, publish_s, wait_s = (_number(line, key) or 0.0 for key in ("step_s", "publish_s", "wait_s"))
        found.append(
            UpdateLine(
                begin_s=end_s - step_s - publish_s - wait_s,
                end_s=end_s,
                rows=_number(line, "rows_trained") or 0.0,
                tokens=_number(line, "tokens") or 0.0,
                step_s=step_s,
                publish_s=publish_s,
                wait_s=wait_s,
                lag_s=_number(line, "lag_mean_s"),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class WorkersLine:
    """What the inference workers did in a few seconds.

    Attributes:
        begin_s: Begin of the window, in seconds since the epoch.
        end_s: Its end.
        workers: Number of workers.
        seconds: Seconds by `WorkerActivity`, summed over the workers; what is missing they were idle.
    """

    begin_s: float
    end_s: float
    workers: int
    seconds: Mapping[str, float]


def workers_lines(metrics: Iterable[Mapping[str, Any]]) -> list[WorkersLine]:
    """Select what the inference workers did.

    Args:
        metrics: Lines of a metrics file.

    Returns:
        One value per usable line of kind `workers`, in order.
    """
    found = []
    for line in metrics:
        end_s, window_s, workers = _number(line, "time_s"), _number(line, "window_s"), line.get("workers")
        if line.get("kind") != "workers" or end_s is None or not window_s or not isinstance(workers, Mapping):
            continue
        each = [seconds for seconds in workers.values() if isinstance(seconds, Mapping)]
        found.append(
            WorkersLine(
                begin_s=end_s - window_s,
                end_s=end_s,
                workers=len(each),
                seconds={
                    state: sum(_number(seconds, state) or 0.0 for seconds in each)
                    for state in (WorkerActivity.SERVING, WorkerActivity.UPDATING, WorkerActivity.DOWN)
                },
            )
        )
    return found


def recorded_worker_shares(activity: Sequence[WorkersLine], windows: Sequence[Interval]) -> WorkerShares | None:
    """Compute the shares of the inference workers' time inside the windows.

    Args:
        activity: What the workers did.
        windows: Disjoint windows.

    Returns:
        The shares; None where nothing is recorded inside the windows.
    """
    total_worker_s = 0.0
    seconds: dict[str, float] = {}
    for each in activity:
        inside_s = overlap_s((each.begin_s, each.end_s), windows)
        total_worker_s += inside_s * each.workers
        for state, spent_s in each.seconds.items():
            seconds[state] = seconds.get(state, 0.0) + spent_s * inside_s / (each.end_s - each.begin_s)
    # Each number of a line is rounded, so that their sum may exceed the window by a trace.
    return worker_shares(seconds, 1, max(total_worker_s, sum(seconds.values()))) if total_worker_s > 0 else None


def stage_throughput(
    episodes: Sequence[EpisodeLine], updates: Sequence[UpdateLine], stages: Mapping[str, str]
) -> list[StageThroughput]:
    """Rates of every stage that ran episodes.

    Args:
        episodes: Finished episodes of the run.
        updates: Train steps of the run; they belong to the stage `train`.
        stages: Stage by phase name; a phase that is not named is a stage of its own.

    Returns:
        One row per stage, in the order in which the stages began.
    """
    rows = []
    for stage, members in members_by_stage(episodes, updates, stages).items():
        trained = updates if stage == TRAIN_STAGE else ()
        seconds = total_s(active_intervals(work_spans(members, trained)))
        if seconds > 0:
            rows.append(stage_rates(stage, members, trained, seconds))
    return rows


def members_by_stage(
    episodes: Iterable[EpisodeLine], updates: Sequence[UpdateLine], stages: Mapping[str, str]
) -> dict[str, list[EpisodeLine]]:
    """Sort episodes into their stages.

    Args:
        episodes: Episodes.
        updates: Train steps; where there are some, there is a stage of training.
        stages: Stage by phase name; a phase that is not named is a stage of its own.

    Returns:
        Episodes by stage, in the order in which the stages began.
    """
    by_stage: dict[str, list[EpisodeLine]] = {}
    for episode in sorted(episodes, key=lambda each: each.begin_s):
        by_stage.setdefault(stages.get(episode.phase, episode.phase), []).append(episode)
    if updates:
        by_stage.setdefault(TRAIN_STAGE, [])
    return by_stage


def stage_rates(
    stage: str, members: Sequence[EpisodeLine], trained: Sequence[UpdateLine], seconds: float
) -> StageThroughput:
    """Compute the rates of a stage.

    Args:
        stage: Its name.
        members: Its episodes.
        trained: Its train steps.
        seconds: The time in which they ended.

    Returns:
        The rates.
    """
    tokens = [each.tokens for each in members if each.tokens is not None]
    return StageThroughput(
        stage=stage,
        minutes=seconds / 60,
        episodes_per_min=per_minute(sum(each.finished for each in members), seconds),
        actions_per_min=per_minute(sum(each.actions for each in members), seconds),
        sampled_tokens_per_s=sum(tokens) / seconds if len(tokens) == len(members) and any(tokens) else None,
        trained_rows_per_min=per_minute(sum(each.rows for each in trained), seconds) if trained else None,
        trained_tokens_per_s=sum(each.tokens for each in trained) / seconds if trained else None,
        lag_s=mean_lag(trained),
    )


def mean_lag(updates: Sequence[UpdateLine]) -> float | None:
    """Compute the mean lag of the trajectories of train steps.

    Args:
        updates: Train steps.

    Returns:
        Seconds from the end of a trajectory to the end of the train step that used it: the mean over train steps of their means. None
        where none is recorded.
    """
    lags = [each.lag_s for each in updates if each.lag_s is not None]
    return sum(lags) / len(lags) if lags else None


def work_spans(episodes: Iterable[EpisodeLine], updates: Iterable[UpdateLine]) -> list[Interval]:
    """List when episodes and train steps were going on.

    Args:
        episodes: Episodes.
        updates: Train steps.

    Returns:
        Begin and end of each.
    """
    return [(each.begin_s, each.end_s) for each in episodes] + [(each.begin_s, each.end_s) for each in updates]


def throughput_charts(
    episodes: Sequence[EpisodeLine], updates: Sequence[UpdateLine], desktops: int, phase: str
) -> list[Chart]:
    """Rates and utilisation over the time of the run.

    Args:
        episodes: Finished episodes of the run.
        updates: Train steps of the run.
        desktops: Number of desktops that the recipe asks for.
        phase: Name of the training phase.

    Returns:
        Charts over minutes since the first episode or train step, without pauses; none where the run has neither.
    """
    windows = active_intervals(work_spans(episodes, updates))
    seconds = total_s(windows)
    if seconds <= 0:
        return []
    bin_s = max(MIN_BIN_S, seconds / MAX_BINS)
    bins = max(1, math.ceil(seconds / bin_s))
    widths_s = [min(bin_s, seconds - index * bin_s) for index in range(bins)]
    minutes = [(index * bin_s + width_s / 2) / 60 for index, width_s in enumerate(widths_s)]

    def rate(spans: Iterable[tuple[Interval, float]], unit_s: float = 60.0) -> list[float]:
        """Amount per `unit_s` in every bin; an amount is spread evenly over its span."""
        sums = [0.0] * bins
        for (begin_s, end_s), amount in spans:
            begin, end = _elapsed(begin_s, windows), _elapsed(end_s, windows)
            first, last = (min(bins - 1, int(at / bin_s)) for at in (begin, end))
            for index in range(first, last + 1):
                part = min(end, (index + 1) * bin_s) - max(begin, index * bin_s)
                sums[index] += amount * (max(0.0, part) / (end - begin) if end > begin else 1.0)
        return [unit_s * total / width_s for total, width_s in zip(sums, widths_s, strict=True)]

    spans = [(each.begin_s, each.end_s) for each in episodes]
    updated = [(each.begin_s, each.end_s) for each in updates]
    work = [
        Curve("episodes", minutes, rate([(s, float(e.finished)) for s, e in zip(spans, episodes, strict=True)])),
        Curve("actions", minutes, rate([(span, each.actions) for span, each in zip(spans, episodes, strict=True)])),
    ]
    tokens = []
    if any(each.tokens for each in episodes):
        sampled = [(span, each.tokens or 0.0) for span, each in zip(spans, episodes, strict=True)]
        tokens.append(Curve("sampled", minutes, rate(sampled, 1.0)))
    if updates:
        work.append(Curve("trained rows", minutes, rate([(s, u.rows) for s, u in zip(updated, updates, strict=True)])))
        tokens.append(
            Curve("trained", minutes, rate([(s, u.tokens) for s, u in zip(updated, updates, strict=True)], 1.0))
        )
    busy = [(span, (span[1] - span[0]) / desktops) for span in spans]
    computed = [((u.begin_s + u.wait_s, u.begin_s + u.wait_s + u.step_s), u.step_s) for u in updates]
    use = [Curve("desktops in use", minutes, [100 * value for value in rate(busy, 1.0)])]
    if computed:
        use.append(Curve("trainer training", minutes, [100 * value for value in rate(computed, 1.0)]))
    charts = [
        Chart("Throughput", "minutes since the first episode", "per minute", work),
        Chart("Tokens", "minutes since the first episode", "tokens per second", tokens),
        Chart("Utilisation", "minutes since the first episode", "percent", use),
    ]
    return [chart for chart in charts if chart.curves]


def _number(line: Mapping[str, Any], key: str) -> float | None:
    value = line.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable and value is not None else None


def _elapsed(at_s: float, windows: Sequence[Interval]) -> float:
    """Seconds of the windows that lie before a moment."""
    return overlap_s((-math.inf, at_s), windows)
