"""How a run stands at one moment.

Role: `take_snapshot`, a pure function of the run's recipe, state, metric lines and, where the data manager answers, its numbers. Rule:
every share and rate has the formula of `dart_train.utilisation`, over the latest minutes; what is not known is None, never 0. Non-goals:
reading files and asking (`dart_train.watch.command`), showing (`dart_train.watch.page`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dart_agent.data_client.wire import DataManagerStats
from dart_envs.success import count_successes
from dart_train.config import Recipe
from dart_train.evaluation.reward_alarm import ALARM_KIND, alarm_sentences
from dart_train.evaluation.reward_marks import reward_notes
from dart_train.report.page import StageThroughput, Utilisation
from dart_train.report.throughput import episode_lines, recorded_worker_shares, update_lines, workers_lines
from dart_train.report.utilisation_rows import failing_workers
from dart_train.run.decisions.stages import WARM_START, plan_stages
from dart_train.run.phases import BASELINES, DEMO, STAGES_BY_PHASE, TRAIN, first_name
from dart_train.run.state import RunState
from dart_train.warmup.config import WARM_START_KINDS
from dart_train.watch.latest import LatestWindow, latest_throughput, latest_utilisation

MIN_EPISODES = 16
"""Training episodes from which equal rewards are worth a warning."""
WITHOUT_WORKERS = tuple(name for name, (kind, _) in BASELINES.items() if kind == "random")
"""Baselines whose actions come from no inference worker."""
PACE_UPDATES = 10
"""Latest train steps from which the remaining time is estimated."""


@dataclass(frozen=True, slots=True)
class FamilyProgress:
    """Success of a family in training episodes.

    Attributes:
        episodes: Episodes with a reward in the window.
        success: Their success rate, None where there are none.
        before: Success rate in the window before, None where there were no episodes.
    """

    episodes: int
    success: float | None
    before: float | None


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """How a run stands.

    Attributes:
        name: Name of the run.
        running: Whether a `dart-train` process works on it.
        answered: Whether the data manager answered.
        stages_s: Finished stages with their seconds.
        stage: The stage that is next or under way, None where all are finished.
        updates: Train steps made.
        wanted_updates: Train steps asked for.
        remaining_s: Estimate of the seconds until all are made or `train.max_minutes` are used up, None where it is not known.
        warmup: The newest figures of the warm start by name; none where another stage is under way.
        wanted_pages: Pages from which the warm start is asked to read.
        wanted_images: Images that the warm start is asked to see.
        window_s: Length of the window of the figures below, in seconds.
        idle_s: Seconds since the last line of the metrics, None where there is none.
        throughput: Rates of the stages of which an episode or a train step ended in the window.
        utilisation: Shares of desktops, inference workers and trainer in the window; none without a train step that ended in it.
        requests_per_worker: Mean number of requests that an inference worker computed at once in the window, None where it is not known.
        update: Figures of the latest train step by name.
        families: Success by family.
        groups: Training groups by state; none where the data manager did not answer.
        rollouts: Rollouts by state; none where the data manager did not answer.
        masked_percent: Masked episodes among all, None where it is not known.
        masked_cause: The newest cause.
        equal_rewards: Training episodes of the window where all their rewards are equal and no train step was made; 0 otherwise.
        failed_batches: Batches that were not trained on.
        failed_batch_cause: Why the newest of them was not, None where there is none.
        paused: Why the run begins no work now, None where it goes on.
        failing_workers: That inference workers fail again and again in the window; None where they do not, or it is not known.
        alarm: That the reward rises and evaluation does not, as of the newest evaluation; None where that is not so.
        incidents: What went wrong and was mended.
        rewards: One sentence each on rewards that are not the plain verdict of evaluators.
    """

    name: str
    running: bool
    answered: bool
    stages_s: Mapping[str, float]
    stage: str | None
    updates: int
    wanted_updates: int
    remaining_s: float | None
    warmup: Mapping[str, float]
    wanted_pages: int
    wanted_images: int
    window_s: float
    idle_s: float | None
    throughput: tuple[StageThroughput, ...]
    utilisation: tuple[Utilisation, ...]
    requests_per_worker: float | None
    update: Mapping[str, float]
    families: Mapping[str, FamilyProgress]
    groups: Mapping[str, int]
    rollouts: Mapping[str, int]
    masked_percent: float | None
    masked_cause: str | None
    equal_rewards: int
    failed_batches: int
    failed_batch_cause: str | None
    paused: str | None
    failing_workers: str | None
    alarm: str | None
    incidents: tuple[str, ...]
    rewards: tuple[str, ...] = ()


def take_snapshot(
    recipe: Recipe,
    state: RunState,
    lines: Sequence[Mapping[str, Any]],
    stats: DataManagerStats | None,
    *,
    running: bool,
    now_s: float,
    window_s: float,
    trained_s: float = 0.0,
) -> RunSnapshot:
    """Describe how a run stands.

    Args:
        recipe: The recipe of the run.
        state: Its progress.
        lines: Lines of its metrics file.
        stats: Numbers of its data manager, None where it does not answer.
        running: Whether a process works on the run.
        now_s: Present time, in seconds since the epoch.
        window_s: Length of the window in seconds; of a run that has ended, the last of its time.
        trained_s: Seconds of training that the trainer noted last, pauses left out.

    Returns:
        The snapshot.
    """
    last_s = max((float(line["time_s"]) for line in lines if isinstance(line.get("time_s"), int | float)), default=None)
    end_s = now_s if running or last_s is None else last_s
    stage = next((each.name for each in plan_stages(recipe) if each.name not in state.stages_s), None)
    window = LatestWindow(end_s - window_s, end_s, stage if running else None)
    recent = [line for line in lines if window.has(_time_s(line))]
    concerned = [line for line in lines if window.concerns(_time_s(line))]
    episodes = [replace(each, phase=first_name(each.phase)) for each in episode_lines(concerned)]
    updates, activity = update_lines(concerned), workers_lines(concerned)
    all_updates = [line for line in lines if line.get("kind") == "update"]
    failed = [line for line in lines if line.get("kind") == "failed_batch"]
    asked = [each for each in episodes if window.has(each.end_s) and each.phase not in (DEMO, *WITHOUT_WORKERS)]
    answered_s = sum(max(0.0, each.model_s - (each.queue_s or 0.0)) for each in asked)
    counts = None if stats is None else stats.episode_counts
    return RunSnapshot(
        name=recipe.run.name,
        running=running,
        answered=stats is not None,
        stages_s=dict(state.stages_s),
        stage=stage,
        updates=_made(all_updates),
        wanted_updates=recipe.train.updates,
        remaining_s=_remaining_s(recipe, all_updates, trained_s) if running and stage == TRAIN else None,
        warmup=_figures([line for line in lines if line.get("kind") in WARM_START_KINDS])
        if stage == WARM_START
        else {},
        wanted_pages=recipe.warmup.pages,
        wanted_images=recipe.warmup.images,
        window_s=window_s,
        idle_s=None if last_s is None else max(0.0, now_s - last_s),
        throughput=tuple(latest_throughput(episodes, updates, STAGES_BY_PHASE, window)),
        utilisation=tuple(latest_utilisation(episodes, updates, activity, recipe.desktops.count, TRAIN, window)),
        requests_per_worker=answered_s / (window_s * recipe.inference.workers) if asked else None,
        update=_figures(all_updates),
        families=_families(recipe, lines, end_s, window_s),
        groups={} if stats is None else dict(stats.groups),
        rollouts={} if stats is None else dict(stats.rollouts),
        masked_percent=100 * counts.masked / counts.episodes if counts is not None and counts.episodes else None,
        masked_cause=None if stats is None else stats.last_masked_cause,
        equal_rewards=0 if update_lines(recent) else _equal_rewards(recent),
        failed_batches=len(failed),
        failed_batch_cause=str(failed[-1].get("cause")) if failed else None,
        paused=state.paused if running else None,
        failing_workers=failing_workers(recorded_worker_shares(activity, [(end_s - window_s, end_s)])),
        alarm=_alarm(lines),
        incidents=tuple(state.incidents),
        rewards=tuple(reward_notes(recipe.reward)),
    )


def _made(updates: Sequence[Mapping[str, Any]]) -> int:
    """Train steps in the newest weights; after a trainer went on from an older checkpoint, versions are more."""
    newest = updates[-1] if updates else {}
    return int(newest.get("update", newest.get("version", 0)))


def _alarm(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """The alarm that followed the newest evaluation at once."""
    told = [line for line in lines if line.get("kind") in ("evaluation", ALARM_KIND)]
    return next(iter(alarm_sentences(told[-1:])), None)


def _time_s(line: Mapping[str, Any]) -> float:
    value = line.get("time_s")
    return float(value) if isinstance(value, int | float) else 0.0


def _figures(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The figures of the newest line."""
    return {
        name: float(value)
        for name, value in (lines[-1] if lines else {}).items()
        if isinstance(value, int | float) and name != "time_s"
    }


def _remaining_s(recipe: Recipe, updates: Sequence[Mapping[str, Any]], trained_s: float) -> float | None:
    """Seconds until all updates are made or the minutes are used up, whichever comes first."""
    latest = [_time_s(line) for line in updates[-PACE_UPDATES - 1 :]]
    if len(latest) < 2:
        return None
    by_updates_s = max(0, recipe.train.updates - _made(updates)) * (latest[-1] - latest[0]) / (len(latest) - 1)
    return min(by_updates_s, max(0.0, 60 * recipe.train.max_minutes - trained_s))


def _equal_rewards(lines: Sequence[Mapping[str, Any]]) -> int:
    """Number of training episodes where all have the same reward: no group of theirs can train."""
    rewards = [
        line["reward"]
        for line in lines
        if line.get("kind") == "episode" and _is_training(line) and isinstance(line.get("reward"), int | float)
    ]
    return len(rewards) if len(set(rewards)) == 1 and len(rewards) >= MIN_EPISODES else 0


def _is_training(line: Mapping[str, Any]) -> bool:
    return first_name(str(line.get("phase"))) == TRAIN


def _families(
    recipe: Recipe, lines: Sequence[Mapping[str, Any]], end_s: float, window_s: float
) -> dict[str, FamilyProgress]:
    """Success of each family in the window and in the one before it."""
    rewards: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for line in lines:
        age_s = end_s - _time_s(line)
        if line.get("kind") != "episode" or not _is_training(line) or not 0 <= age_s < 2 * window_s:
            continue
        reward = line.get("reward")
        if isinstance(reward, int | float):
            family = str(line.get("task", "")).split("/")[1:2]
            rewards[family[0] if family else "", int(age_s >= window_s)].append(float(reward))

    def rate(family: str, window: int) -> float | None:
        found = rewards.get((family, window))
        return count_successes(found, recipe.reward.success_at) / len(found) if found else None

    return {
        family: FamilyProgress(len(rewards.get((family, 0), ())), rate(family, 0), rate(family, 1))
        for family in recipe.tasks.families
    }
