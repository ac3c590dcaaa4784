"""The rule for masked episodes: faults that are not the policy's must stay rare, or what is learned is about the faults.

Role: `FaultWatch` stops a run whose masked share, in all or in one family, is above 2 %. Rule: only episodes since this launch count, so
that a run goes on once the cause is mended; demonstrations do not count. Non-goals: masking (`dart_envs.types.EndReason`), counting
(`dart_train.data_manager.views`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from dart_agent.store.client import DataClient
from dart_agent.store.wire import FaultTally, Stats

MAX_MASKED_SHARE = 0.02
MIN_MASKED = 10
"""So many, and one more per desktop, are needed for a share: a part that crashes once masks at most what every desktop was playing."""
CHECK_EVERY_S = 10.0
NOTHING = FaultTally(episodes=0, masked=0)


class TooManyFaults(Exception):
    """More episodes are masked than a run may lose; the message says how many, where, and the newest cause."""


class FaultWatch:
    """Looks at the data manager's tallies from `begin` on."""

    def __init__(self, client: DataClient, desktops: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._min_masked = MIN_MASKED + desktops
        self._monotonic = monotonic
        self._before: Stats | None = None
        self._checked_s = -math.inf

    async def begin(self) -> None:
        """What is stored now does not count."""
        self._before = await self._client.stats()

    async def check(self) -> None:
        """Raises TooManyFaults."""
        assert self._before is not None, "begin() comes first"
        self._checked_s = self._monotonic()
        now = await self._client.stats()
        self._judge(_since(self._before.played, now.played), "", now)
        for family, tally in now.played_by_family.items():
            self._judge(_since(self._before.played_by_family.get(family, NOTHING), tally), f" of {family}", now)

    async def check_now_and_then(self) -> None:
        """`check`, but not more often than every `CHECK_EVERY_S`."""
        if self._monotonic() - self._checked_s >= CHECK_EVERY_S:
            await self.check()

    def _judge(self, tally: FaultTally, where: str, now: Stats) -> None:
        if tally.masked >= self._min_masked and tally.share > MAX_MASKED_SHARE:
            raise TooManyFaults(
                f"{tally.masked} of {tally.episodes} episodes{where} since the start ({100 * tally.share:.1f} %) have no "
                f"verdict through faults that are not the policy's, more than {100 * MAX_MASKED_SHARE:g} %: "
                f"mend the cause, the newest is: {now.last_fault}"
            )


def in_words(stats: Stats) -> str:
    """The masked share of all episodes, and of the families and policy versions that have any."""
    shares = {family: tally for family, tally in sorted(stats.played_by_family.items())}
    shares |= {f"version {version}": tally for version, tally in sorted(stats.played_by_version.items())}
    parts = [f"{name} {100 * tally.share:.1f} %" for name, tally in shares.items() if tally.masked]
    return f"masked: {100 * stats.played.share:.1f} % of {stats.played.episodes} episodes" + (
        f" ({', '.join(parts)})" if parts else ""
    )


def _since(before: FaultTally, now: FaultTally) -> FaultTally:
    return FaultTally(episodes=now.episodes - before.episodes, masked=now.masked - before.masked)
