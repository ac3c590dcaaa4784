"""The staleness budget: how many training groups may be under way, and how many of them may be filled at the same time.

Role: pure formulas. Rule: a group is opened only where its oldest tokens are expected to be within `max_staleness` versions of the trainer
when the group is trained on. Non-goals: measuring (`measures`), withholding what is stale nevertheless (`dart_train.curation.staleness`).

Symbols, all measured: D desktops that train, G rollouts of a group, L mean seconds of an episode, M expected seconds of the longest of G
episodes, U seconds between two updates, B groups of a batch, S `max_staleness`, v versions by which the inference workers are behind the
trainer, p fraction of finished groups that can train, P groups that are filled at the same time, r reserve in versions.

1. A group that is filled together with P - 1 others gets every P-th desktop that becomes free, one every P L / D seconds, so it has started
   after P G L / D seconds and closes after

       T(P) = P G L / D + M.

   It then waits for the trainer for at most one update, where no other groups wait before it. Its oldest tokens are in time when
   v + (T(P) + U) / U <= S, hence

       P <= ((S - v - 1) U - M) D / (G L),   and at least 1: a smaller P than 1 closes no group earlier.

2. While the first desktop prepares a task (prepare_s), the desktops that become free would wait for its snapshot if they took rollouts of
   the same group. prepare_s D / L desktops become free in that time, so P = prepare_s D / L groups keep all of them busy. More than
   that has no use and makes data older.

3. The trainer takes B groups per version. A group behind N others is trained on N / B versions later (Little's law); hence at most
   (S + 1 - v - r) B groups are under way (being filled, running, ready or in the trainer), where an open one counts p, because the rest
   is dropped. At least 2 B are allowed where S >= 1: with one batch in the trainer and none being filled, desktops and trainer would take
   turns. At least B are allowed where S = 0, because fewer make no batch. The reserve r is there because groups differ in how long they
   take, so that they are not trained on in the order of their opening. It is adjusted after every batch by the fraction that was stale in
   it: an integral controller with the target of 2 %. Where the least number is too many for S, more than that is withheld.
   Source: the admission rule of AReaL (arXiv 2505.24298, section 5.1), which counts trajectories and knows neither v nor p nor r.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor


def closing_time_s(
    parallel_groups: int, *, group_size: int, desktops: int, episode_s: float, longest_episode_s: float
) -> float:
    """Compute the expected time from the opening of a group to its closing (formula 1).

    Args:
        parallel_groups: P, groups that are filled at the same time.
        group_size: G, rollouts of a group.
        desktops: D, desktops that train.
        episode_s: L, mean seconds of an episode.
        longest_episode_s: M, expected seconds of the longest of G episodes.

    Returns:
        Seconds.
    """
    return parallel_groups * group_size * episode_s / desktops + longest_episode_s


def most_parallel_groups(
    *,
    group_size: int,
    desktops: int,
    episode_s: float,
    longest_episode_s: float,
    update_s: float,
    max_staleness: int,
    version_lag: float,
) -> int:
    """Compute how many groups may be filled at the same time (formula 1).

    Args:
        group_size: G, rollouts of a group.
        desktops: D, desktops that train.
        episode_s: L, mean seconds of an episode; above 0.
        longest_episode_s: M, expected seconds of the longest of G episodes.
        update_s: U, seconds between two updates.
        max_staleness: S, in versions.
        version_lag: v, versions by which the inference workers are behind the trainer.

    Returns:
        The greatest P, at least 1.
    """
    left_s = (max_staleness - version_lag - 1) * update_s - longest_episode_s
    return max(1, floor(left_s * desktops / (group_size * episode_s)))


def useful_parallel_groups(*, prepare_s: float, desktops: int, episode_s: float) -> int:
    """Compute with how many groups no desktop waits for another one's setup (formula 2).

    Args:
        prepare_s: Seconds in which the first desktop of a group is prepared.
        desktops: D, desktops that train.
        episode_s: L, mean seconds of an episode; above 0.

    Returns:
        P, at least 1 and at most D.
    """
    return min(max(1, desktops), max(1, ceil(prepare_s * desktops / episode_s)))


def groups_under_way_limit(*, batch_groups: int, max_staleness: int, version_lag: float, reserve: float) -> float:
    """Compute how many groups may be under way (formula 3).

    Args:
        batch_groups: B, groups of a batch.
        max_staleness: S, in versions.
        version_lag: v, versions by which the inference workers are behind the trainer.
        reserve: r, in versions.

    Returns:
        The limit, at least 2 B; at least B where S = 0.
    """
    return batch_groups * max(_least_batches(max_staleness), max_staleness + 1 - version_lag - reserve)


def largest_reserve(max_staleness: int, version_lag: float) -> float:
    """Compute the reserve above which the limit of groups under way does not fall any more (formula 3).

    Args:
        max_staleness: S, in versions.
        version_lag: v, versions by which the inference workers are behind the trainer.

    Returns:
        Versions, at least 0.
    """
    return max(0.0, max_staleness + 1 - version_lag - _least_batches(max_staleness))


def _least_batches(max_staleness: int) -> float:
    return min(2.0, max_staleness + 1.0)


def expected_longest_s(sorted_durations_s: Sequence[float], group_size: int) -> float:
    """Estimate the expected longest of G episodes from a sample of episodes.

    The expectation of the largest of G draws from the empirical distribution: with x_1 <= ... <= x_n,
    sum of x_i ((i / n)^G - ((i - 1) / n)^G).

    Args:
        sorted_durations_s: The sample in ascending order, not empty.
        group_size: G.

    Returns:
        Seconds.
    """
    n = len(sorted_durations_s)
    return sum(
        duration_s * ((rank / n) ** group_size - ((rank - 1) / n) ** group_size)
        for rank, duration_s in enumerate(sorted_durations_s, start=1)
    )
