"""Rates and shares of the latest minutes of a run.

Role: pure functions from episodes and train steps to the rows of the report's tables. Rule: what ended in the window counts with
all that it did, also where it began before: a line is written at the end, so that nothing is known of what goes on. In the mean that is
what was done in the window. Amounts are divided by the part of the window in which their stage was active. Non-goals: formulas
(`dart_train.report.throughput`, `dart_train.report.utilisation_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dart_train.report.page import StageThroughput, Utilisation
from dart_train.report.throughput import (
    TRAIN_STAGE,
    EpisodeLine,
    UpdateLine,
    WorkersLine,
    members_by_stage,
    recorded_worker_shares,
    stage_rates,
    work_spans,
)
from dart_train.report.utilisation_rows import desktop_rows, trainer_rows, worker_rows
from dart_train.utilisation import PAUSE_S, Interval, active_intervals, total_s

EVER: Interval = (-math.inf, math.inf)
"""The window in which all of an episode counts."""


@dataclass(frozen=True, slots=True)
class LatestWindow:
    """The latest part of a run.

    Attributes:
        begin_s: Its begin, in seconds since the epoch.
        end_s: Its end: now, or the end of the run.
        under_way: The stage that goes on at its end; None: none does.
    """

    begin_s: float
    end_s: float
    under_way: str | None = None

    def has(self, end_s: float) -> bool:
        """Say whether something ended in the window.

        Args:
            end_s: When it ended.

        Returns:
            True where it did.
        """
        return self.begin_s < end_s <= self.end_s

    def concerns(self, end_s: float) -> bool:
        """Say whether something may tell that a stage was active in the window.

        Args:
            end_s: When it ended.

        Returns:
            False where it ended more than a pause before the window.
        """
        return self.begin_s - PAUSE_S <= end_s <= self.end_s

    def active(self, stage: str, spans: Iterable[Interval]) -> list[Interval]:
        """Find when a stage was active in the window.

        Args:
            stage: The stage.
            spans: Begin and end of its episodes and train steps, also of those that ended before the window.

        Returns:
            Disjoint intervals inside the window. A stage that is under way is active until the end, unless that is a pause.
        """
        last = [(self.end_s, self.end_s)] if stage == self.under_way else []
        cut = [
            (max(begin_s, self.begin_s), min(end_s, self.end_s)) for begin_s, end_s in active_intervals([*spans, *last])
        ]
        return [(begin_s, end_s) for begin_s, end_s in cut if begin_s < end_s]


def latest_throughput(
    episodes: Sequence[EpisodeLine], updates: Sequence[UpdateLine], stages: Mapping[str, str], window: LatestWindow
) -> list[StageThroughput]:
    """Compute the rates of every stage of which an episode or a train step ended in the window.

    Args:
        episodes: Episodes that concern the window.
        updates: Train steps that concern the window.
        stages: Stage by phase name; a phase that is not named is a stage of its own.
        window: The window.

    Returns:
        One row per stage, in the order in which the stages began; its minutes are those of the window.
    """
    rows = []
    for stage, members in members_by_stage(episodes, updates, stages).items():
        trained = updates if stage == TRAIN_STAGE else ()
        seconds = total_s(window.active(stage, work_spans(members, trained)))
        ended = [each for each in members if window.has(each.end_s)]
        ended_steps = [each for each in trained if window.has(each.end_s)]
        if seconds > 0 and (ended or ended_steps):
            rows.append(stage_rates(stage, ended, ended_steps, seconds))
    return rows


def latest_utilisation(
    episodes: Sequence[EpisodeLine],
    updates: Sequence[UpdateLine],
    activity: Sequence[WorkersLine],
    desktops: int,
    phase: str,
    window: LatestWindow,
) -> list[Utilisation]:
    """What desktops, inference workers and trainer did.

    Args:
        episodes: Episodes that concern the window.
        updates: Train steps that concern the window.
        activity: What the inference workers did.
        desktops: Number of desktops that the recipe asks for.
        phase: Name of the training phase.
        window: The window.

    Returns:
        One row per quantity; none where no train step ended in the window. The shares of desktops are of the episodes that ended in the
        window, over the time of all desktops in it; those of the trainer are of the train steps that ended in it, over their own time.
    """
    ended_steps = [each for each in updates if window.has(each.end_s)]
    trained = [each for each in episodes if each.phase == phase]
    active = window.active(TRAIN_STAGE, work_spans(trained, updates))
    seconds = total_s(active)
    if not ended_steps or seconds <= 0:
        return []
    return [
        *desktop_rows([each for each in trained if window.has(each.end_s)], [EVER], desktops, seconds),
        *worker_rows(recorded_worker_shares(activity, active)),
        *trainer_rows(ended_steps),
    ]
