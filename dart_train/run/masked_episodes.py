"""The limit of masked episodes: faults that are not the policy's must stay rare.

Role: `MaskedEpisodeGuard` stops a run whose masked fraction, in all or in one family, is above 2 %. Rule: only episodes since this launch
count, so that a run resumes once the cause is fixed; demonstrations do not count. Non-goals: masking (`dart_envs.types.EndReason`),
counting (`dart_train.data_manager.status`).
"""

from __future__ import annotations

import math

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import DataManagerStats, EpisodeCounts
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

MAX_MASKED_FRACTION = 0.02
MIN_MASKED = 10
"""At least this many, and one more per desktop, must be masked: one crash masks at most the episode of every desktop."""
CHECK_INTERVAL_S = 10.0
NOTHING = EpisodeCounts(episodes=0, masked=0)


class TooManyMaskedEpisodes(Exception):
    """More episodes are masked than a run may lose; the message says how many, where, and the newest cause."""


class MaskedEpisodeGuard:
    """Compares the counts of the data manager with those at `start`.

    Args:
        client: The data manager.
        desktops: Desktops of the run.
        clock: Clock of the check interval.
    """

    def __init__(self, client: DataManagerClient, desktops: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._min_masked = MIN_MASKED + desktops
        self._clock = clock
        self._before: DataManagerStats | None = None
        self._checked_s = -math.inf

    async def start(self) -> None:
        """Remember the present counts; they do not count in a check."""
        self._before = await self._client.stats()

    async def check(self) -> None:
        """Check the masked fractions.

        Raises:
            TooManyMaskedEpisodes: A fraction is above the limit.
        """
        assert self._before is not None, "start() comes first"
        self._checked_s = self._clock.monotonic()
        now = await self._client.stats()
        self._check_counts(_since(self._before.episode_counts, now.episode_counts), "", now)
        for family, tally in now.episode_counts_by_family.items():
            self._check_counts(
                _since(self._before.episode_counts_by_family.get(family, NOTHING), tally), f" of {family}", now
            )

    async def check_if_due(self) -> None:
        """Check, but not more often than every `CHECK_INTERVAL_S` seconds.

        Raises:
            TooManyMaskedEpisodes: A fraction is above the limit.
        """
        if self._clock.monotonic() - self._checked_s >= CHECK_INTERVAL_S:
            await self.check()

    def _check_counts(self, tally: EpisodeCounts, where: str, now: DataManagerStats) -> None:
        if tally.masked >= self._min_masked and tally.masked_fraction > MAX_MASKED_FRACTION:
            raise TooManyMaskedEpisodes(
                f"{tally.masked} of {tally.episodes} episodes{where} since the start ({100 * tally.masked_fraction:.1f} %) are "
                f"masked, because of faults that are not the policy's, more than {100 * MAX_MASKED_FRACTION:g} %: "
                f"fix the cause; the newest one is: {now.last_masked_cause}"
            )


def format_masked_fractions(stats: DataManagerStats) -> str:
    """Format the masked fractions for display.

    Args:
        stats: The numbers of the data manager.

    Returns:
        The masked fraction of all episodes, that of every family that has masked episodes, and the range of their policy versions.
    """
    parts = [
        f"{family} {100 * counts.masked_fraction:.1f} %"
        for family, counts in sorted(stats.episode_counts_by_family.items())
        if counts.masked
    ]
    versions = [version for version, counts in stats.episode_counts_by_version.items() if counts.masked]
    if versions:
        parts.append(format_versions(min(versions), max(versions)))
    return f"masked: {100 * stats.episode_counts.masked_fraction:.1f} % of {stats.episode_counts.episodes} episodes" + (
        f" ({', '.join(parts)})" if parts else ""
    )


def format_versions(first: int | None, last: int | None) -> str:
    """Format a range of policy versions for display.

    Args:
        first: The oldest version, None where no policy responded.
        last: The newest version.

    Returns:
        For instance `version 3` or `versions 3 to 17`.
    """
    if first is None or last is None:
        return "no version"
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _since(before: EpisodeCounts, now: EpisodeCounts) -> EpisodeCounts:
    return EpisodeCounts(episodes=now.episodes - before.episodes, masked=now.masked - before.masked)
