"""Rolling weight updates: one worker after the other takes the new policy, the others serve on.

Role: `rolling_update` brings a pool to a published version; `follow_versions` does so whenever a newer one appears. Rule: at most one
worker is paused at a time; versions that appear while a roll is under way are skipped in favour of the newest; a worker that is down
takes the version when it comes back (the pool sees to it). Non-goals: publishing (`dart_train.model.weights`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dart_agent.errors import StoreError, WeightUpdateError, WorkerError
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.settings import PublishedWeights
from dart_agent.types import PolicyVersion
from dart_envs.clock import SystemClock
from dart_server.wire import Clock

logger = logging.getLogger(__name__)

MAX_REFUSALS = 3


@dataclass(frozen=True, slots=True)
class RollingUpdateReport:
    """What one rolling update cost. `paused_s`: per updated worker, how long its requests stood still."""

    version: PolicyVersion
    updated: tuple[str, ...]
    paused_s: tuple[float, ...]
    total_s: float


async def rolling_update(
    pool: VllmPool, published: PublishedWeights, *, clock: Clock | None = None
) -> RollingUpdateReport:
    """Bring every worker that serves to `published`, one at a time.

    Raises WeightUpdateError when the weights are refused; the pool then stays with the version it had.
    """
    clock = clock or SystemClock()
    began_s = clock.monotonic()
    previous, pool.target = pool.target, published
    names: list[str] = []
    paused_s: list[float] = []
    for member in pool.ready:
        try:
            times = await pool.update(member)
        except WeightUpdateError:
            pool.target = previous
            raise
        except WorkerError as error:
            logger.warning(
                "%s missed version %d and will take it later: %s", member.client.name, published.version, error
            )
            continue
        if times is not None:
            names.append(member.client.name)
            paused_s.append(times.pause_s + times.load_s)
    return RollingUpdateReport(published.version, tuple(names), tuple(paused_s), clock.monotonic() - began_s)


async def follow_versions(
    pool: VllmPool,
    latest: Callable[[], Awaitable[PublishedWeights | None]],
    *,
    clock: Clock | None = None,
    poll_s: float = 0.5,
    on_update: Callable[[RollingUpdateReport], None] | None = None,
) -> None:
    """Roll to whatever `latest` returns, for ever; cancel it to stop.

    A store that does not answer is asked again. Raises WeightUpdateError when one version is refused three times in a row (once may
    mean that a newer one has replaced it on disk meanwhile).
    """
    clock = clock or SystemClock()
    refusals = 0
    while True:
        try:
            published = await latest()
        except StoreError as error:
            logger.warning("the newest policy version is not known: %s", error)
            published = None
        if published is not None and (pool.target is None or published.version > pool.target.version):
            try:
                report = await rolling_update(pool, published, clock=clock)
            except WeightUpdateError:
                refusals += 1
                if refusals == MAX_REFUSALS:
                    raise
            else:
                refusals = 0
                logger.info("version %d on %s in %.2f s", report.version, ", ".join(report.updated), report.total_s)
                if on_update is not None:
                    on_update(report)
        await clock.sleep(poll_s)
