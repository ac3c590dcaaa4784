"""Resets from a standby pool at a fixed rate, for providers that restore nothing.

Role: one leased desktop is reset when the clock says so, whether the farm keeps up or not. Rule: a reset's time counts from the moment it
was due, so that a farm that falls behind cannot hide it; a hit is a reset for which an untouched desktop was ready at that moment;
every desktop is marked and every new one is checked, outside the timed part, to bear no mark. Non-goals: live restores
(`desktops_restore`).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

from benchmarks.desktops.restore import percentile
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape, DesktopState

STANDBYS = 6
SETTINGS = {
    "DART_WARM_DESKTOPS": str(STANDBYS),
    "DART_MAX_DESKTOPS": str(2 * STANDBYS + 2),
    "DART_PARALLEL_PROVIDER_CALLS": str(STANDBYS),
}
"""For a farm that is started for this: room for the leased desktop, the standby, and as many that are leaving; a desktop that waits for its
screen to come to rest keeps no other from booting."""
FILL_LIMIT_S = 120.0
POLL_S = 0.2
MARK = "/home/user/used"


async def measure_standby(
    farm: AsyncFarmClient, shape: DesktopShape, seconds: float, *, every_s: float = 1.0, standbys: int = STANDBYS
) -> dict[str, Any]:
    """`reset_p50_s`, `reset_p95_s`, `reset_max_s`, `standby_hit_rate` and `resets` of `seconds` at one reset per `every_s`.

    Begins when `standbys` desktops wait, as the farm's own setting must allow. Raises RuntimeError when they do not, or when a reset gives
    a used desktop.
    """
    lease = await farm.lease(shape, ttl_s=300.0, wait_s=300.0)
    try:
        await _filled(farm, standbys)
        taken_s: list[float] = []
        hits = 0
        began_s = time.monotonic()
        for number in range(int(seconds / every_s)):
            await lease.write_file(MARK, b"")
            due_s = began_s + number * every_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            hits += (await lease.reset()).standby
            taken_s.append(time.monotonic() - due_s)
            if await lease.read_file(MARK) is not None:
                raise RuntimeError("a reset gave a desktop that had been used")
    finally:
        await lease.release()
    figures = {
        "reset_p50_s": round(statistics.median(taken_s), 3),
        "reset_p95_s": round(percentile(taken_s, 95), 3),
        "reset_max_s": round(max(taken_s), 3),
        "standby_hit_rate": round(hits / len(taken_s), 4),
        "resets": len(taken_s),
        "standbys": standbys,
    }
    print(f"standby: {figures}", file=sys.stderr)
    return figures


async def _filled(farm: AsyncFarmClient, standbys: int) -> None:
    """Return once that many desktops wait. Raises RuntimeError after FILL_LIMIT_S."""
    limit_s = time.monotonic() + FILL_LIMIT_S
    while sum(desktop.state is DesktopState.READY for desktop in await farm.desktops()) < standbys:
        if time.monotonic() > limit_s:
            raise RuntimeError(f"{standbys} waiting desktops were not there after {FILL_LIMIT_S:.0f} s")
        await asyncio.sleep(POLL_S)
