"""Resets of a live desktop to a prepared state, from frozen copies kept ahead of need, at a fixed rate.

Role: opens LibreOffice Calc on a leased desktop of provider `runc`, takes a snapshot, asks for a pool of frozen copies of it, and resets
when the clock says so, whether the farm keeps up or not. Rule: a reset's time counts from the moment it was due; a hit is one that found
a copy ready; every desktop is marked, and every new one is checked, outside the timed part, to bear no mark and to show Calc.
Non-goals: providers that restore nothing (`desktops_standby`).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from benchmarks.desktops.restore import APPS, check_open, open_app, percentile
from benchmarks.farm.load import say
from benchmarks.farm.process import FarmProcess, own_farm
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape, PoolSpec

COPIES = 4
POOL = "calc"
MARK = "/home/user/used"
FILL_LIMIT_S = 180.0
SETTINGS = {
    "DART_PROVIDER": "runc",
    "DART_MAX_DESKTOPS": str(2 * COPIES + 2),
    "DART_WARM_DESKTOPS": "0",
    "DART_LOG_LEVEL": "warning",
}


def measure_standby(seconds: float, *, image: str, every_s: float, app: str = "calc") -> dict[str, Any]:
    """p50, p95 and maximum in milliseconds, hit rate and number of resets."""
    with own_farm(SETTINGS) as farm:
        figures = asyncio.run(_measure(farm, seconds, image, every_s, app))
    say(f"standby: {figures}")
    return figures


async def _measure(farm: FarmProcess, seconds: float, image: str, every_s: float, app: str) -> dict[str, Any]:
    opened = APPS[app]
    async with await AsyncFarmClient.connect(f"unix://{farm.uds}", farm.key) as client:
        lease = await client.lease(DesktopShape(image=image), ttl_s=300.0, wait_s=300.0)
        try:
            await open_app(lease, opened)
            snapshot = await lease.snapshot(name=app)
            spec = PoolSpec(shape=lease.shape, snapshot_id=snapshot.snapshot_id, standby=COPIES)
            await client.set_pool(POOL, spec)
            await _filled(client)
            took_s: list[float] = []
            hits = 0
            began_s = time.monotonic()
            for number in range(max(2, int(seconds / every_s))):
                await lease.write_file(MARK, b"")
                due_s = began_s + number * every_s
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                hits += (await lease.reset(snapshot_id=snapshot.snapshot_id)).standby
                took_s.append(time.monotonic() - due_s)
                if await lease.read_file(MARK) is not None:
                    raise RuntimeError("a reset gave a desktop that had been used")
                await check_open(lease, opened)
        finally:
            await lease.release()
    return {
        "p50_ms": round(statistics.median(took_s) * 1000, 1),
        "p95_ms": round(percentile(took_s, 95) * 1000, 1),
        "max_ms": round(max(took_s) * 1000, 1),
        "hit_rate": round(hits / len(took_s), 4),
        "resets": len(took_s),
        "copies": COPIES,
        "image": image,
        "app": app,
    }


async def _filled(client: AsyncFarmClient) -> None:
    """Return once all copies wait. Raises RuntimeError after `FILL_LIMIT_S`."""
    limit_s = time.monotonic() + FILL_LIMIT_S
    while (view := await client.pool(POOL)).standby < COPIES:
        if time.monotonic() > limit_s:
            raise RuntimeError(f"{COPIES} frozen copies were not there after {FILL_LIMIT_S:.0f} s: {view}")
        await asyncio.sleep(0.2)
