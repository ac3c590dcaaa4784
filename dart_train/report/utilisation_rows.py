"""What desktops, inference workers and trainer did with their time, as rows of a table.

Role: pure functions from the lines of a run to `Utilisation`. Rule: every formula is that of `dart_train.utilisation`; where nothing is
recorded there is no row. Non-goals: reading lines, rates and charts (`dart_train.report.throughput`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dart_train.report.page import Utilisation
from dart_train.report.throughput import EpisodeLine, UpdateLine, WorkersLine, recorded_worker_shares, work_spans
from dart_train.utilisation import (
    Interval,
    SlotActivity,
    TrainerActivity,
    WorkerShares,
    active_intervals,
    overlap_s,
    slot_shares,
    total_s,
    trainer_shares,
)

DOWN_PERCENT = 5.0
"""Percentage of the inference workers' time from which their failures are told."""


def slot_seconds(episodes: Sequence[EpisodeLine], windows: Sequence[Interval]) -> dict[str, float]:
    """Sum what slots did inside the windows, by `SlotActivity`; what is missing they were idle.

    An episode that is only partly inside the windows counts in the same proportion with each of its parts.

    Args:
        episodes: Episodes.
        windows: Disjoint windows.

    Returns:
        Seconds by state.
    """
    spent_s: dict[str, float] = dict.fromkeys(
        (SlotActivity.RESETTING, SlotActivity.EXECUTING, SlotActivity.RUNNING, SlotActivity.QUEUED), 0.0
    )
    for each, weight in zip(episodes, inside_fractions(episodes, windows), strict=True):
        queued_s = min(each.queue_s or 0.0, each.model_s)
        spent_s[SlotActivity.RESETTING] += weight * (each.reset_s + each.evaluate_s)
        spent_s[SlotActivity.EXECUTING] += weight * each.env_s
        spent_s[SlotActivity.RUNNING] += weight * (each.model_s - queued_s)
        spent_s[SlotActivity.QUEUED] += weight * queued_s
    return spent_s


def inside_fractions(episodes: Sequence[EpisodeLine], windows: Sequence[Interval]) -> list[float]:
    """Compute how much of each episode lies inside the windows.

    Args:
        episodes: Episodes.
        windows: Disjoint windows.

    Returns:
        A fraction of each one's time, in order.
    """
    spans = [(each.begin_s, each.end_s) for each in episodes]
    return [overlap_s(span, windows) / (span[1] - span[0]) if span[1] > span[0] else 0.0 for span in spans]


def training_utilisation(
    episodes: Sequence[EpisodeLine],
    updates: Sequence[UpdateLine],
    activity: Sequence[WorkersLine],
    desktops: int,
    phase: str,
) -> list[Utilisation]:
    """What desktops, inference workers and trainer did while the policy was trained.

    Args:
        episodes: Episodes of the run.
        updates: Train steps of the run.
        activity: What its inference workers did.
        desktops: Number of desktops that the recipe asks for.
        phase: Name of the training phase.

    Returns:
        One row per quantity; none where the run has no train step.
    """
    windows = active_intervals(work_spans((), updates))
    seconds = total_s(windows)
    if seconds <= 0:
        return []
    trained = [each for each in episodes if each.phase == phase]
    return [
        *desktop_rows(trained, windows, desktops, seconds),
        *worker_rows(training_workers(updates, activity)),
        *trainer_rows(updates),
    ]


def training_workers(updates: Sequence[UpdateLine], activity: Sequence[WorkersLine]) -> WorkerShares | None:
    """Compute what the inference workers did while the policy was trained.

    Args:
        updates: Train steps of the run.
        activity: What its inference workers did.

    Returns:
        Shares of their time; None where nothing is recorded.
    """
    return recorded_worker_shares(activity, active_intervals(work_spans((), updates)))


def failing_workers(shares: WorkerShares | None) -> str | None:
    """Tell that the inference workers fail again and again: each is started again, so that nothing else shows it.

    Args:
        shares: Shares of their time; None where nothing is recorded.

    Returns:
        One sentence; None where they were down for less than `DOWN_PERCENT` of their time.
    """
    if shares is None or 100 * shares.down < DOWN_PERCENT:
        return None
    return (
        f"inference workers had failed and were not back yet for {100 * shares.down:.0f} % of their time: logs/policy-*.log says why each "
        "of them ended"
    )


def trainer_rows(updates: Sequence[UpdateLine]) -> list[Utilisation]:
    """What the trainer did.

    Args:
        updates: Train steps.

    Returns:
        One row per state, over the time of the train steps without pauses; none where there is no time.
    """
    seconds = total_s(active_intervals(work_spans((), updates)))
    if seconds <= 0:
        return []
    trainer = trainer_shares(
        {
            TrainerActivity.TRAINING: sum(each.step_s for each in updates),
            TrainerActivity.PUBLISHING: sum(each.publish_s for each in updates),
        },
        seconds,
    )
    return [
        Utilisation(
            "trainer: training",
            100 * trainer.training,
            "Percentage of the wall-clock time of training in which the trainer computed a train step.",
        ),
        Utilisation(
            "trainer: saving and publishing",
            100 * trainer.publishing,
            "Percentage of the wall-clock time of training in which the trainer wrote a checkpoint and the weights of the new version.",
        ),
        Utilisation(
            "trainer: waiting",
            100 * trainer.waiting,
            "Percentage of the wall-clock time of training in which the trainer waited for a batch.",
        ),
    ]


def desktop_rows(
    trained: Sequence[EpisodeLine], windows: Sequence[Interval], desktops: int, seconds: float
) -> list[Utilisation]:
    """What the desktops did.

    Args:
        trained: Episodes of training.
        windows: Disjoint windows; the time of an episode outside of them does not count.
        desktops: Number of desktops that the recipe asks for.
        seconds: The time of each desktop.

    Returns:
        One row per quantity; none where there is no episode.
    """
    if not trained:
        return []
    inside = [overlap_s((each.begin_s, each.end_s), windows) for each in trained]
    spent_s = slot_seconds(trained, windows)
    # A run that was continued with fewer desktops had more of them before.
    slots = max(desktops, sum(inside) / seconds, sum(spent_s.values()) / seconds)
    slot = slot_shares(spent_s, slots, seconds)
    of_slots = f"Percentage of the time of the {desktops} desktops of the recipe during training in which"
    return [
        Utilisation(
            "desktops in use",
            100 * sum(inside) / (slots * seconds),
            f"Mean number of concurrent training episodes during training, in percent of the {desktops} desktops of the recipe.",
        ),
        Utilisation(
            "environments: utilisation",
            100 * slot.utilisation,
            "Environment utilisation: executing actions plus waiting for a request that an engine computes.",
        ),
        Utilisation(
            "environments: resetting",
            100 * slot.resetting,
            f"{of_slots} an episode prepared its desktop, or its desktop was evaluated.",
        ),
        Utilisation(
            "environments: executing",
            100 * slot.executing,
            f"{of_slots} an episode performed an action and waited for the screen.",
        ),
        Utilisation(
            "environments: waiting for a running request",
            100 * slot.running,
            f"{of_slots} an episode waited for a response that an engine computed, or that is not recorded as queued.",
        ),
        Utilisation(
            "environments: waiting for a queued request",
            100 * slot.queued,
            f"{of_slots} an episode waited for a response that no engine computed.",
        ),
        Utilisation("environments: idle", 100 * slot.idle, f"{of_slots} none of these was recorded."),
    ]


def worker_rows(shares: WorkerShares | None) -> list[Utilisation]:
    """What the inference workers did.

    Args:
        shares: Shares of their time; None where nothing is recorded.

    Returns:
        One row per state.
    """
    if shares is None:
        return []
    of_workers = "Percentage of the time of all inference workers during training in which a worker"
    return [
        Utilisation("inference workers: serving", 100 * shares.serving, f"{of_workers} computed at least one request."),
        Utilisation(
            "inference workers: new weights",
            100 * shares.updating,
            f"{of_workers} took new weights, or stood still until others had.",
        ),
        Utilisation("inference workers: idle", 100 * shares.idle, f"{of_workers} had no request."),
        Utilisation("inference workers: down", 100 * shares.down, f"{of_workers} had failed and did not answer yet."),
    ]
