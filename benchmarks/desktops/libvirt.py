"""Live restores of virtual machines: how long a client waits for one, and whether disk and memory came back each time.

Role: `measure_libvirt` on a farm whose provider is `libvirt`. Rule: a restore counts from the client's call to its answer, which comes
after the guest was probed; each is proven by a file (disk) and by a program's own count, which lives in memory only. One that brings back
anything else is an error, not a figure. Non-goals: starting the farm; judging the figures.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_server.wire import DesktopShape

NOTE, COUNT = "/home/user/dart-bench-note", "/home/user/dart-bench-count"
COUNTER = (
    "import itertools, os, time\n"
    f"for n in itertools.count():\n open('{COUNT}.new', 'w').write(str(n)); os.replace('{COUNT}.new', '{COUNT}'); time.sleep(0.05)\n"
)
PASSES_S = 1.5
"""How long the desktop lives on before each restore, so that its count is far from the saved one."""
CLAIM_S = 400.0


class NotRestored(Exception):
    """A restore did not bring disk or memory back."""


async def measure_libvirt(
    farm: AsyncFarmClient, *, rounds: int = 20, shape: DesktopShape | None = None
) -> dict[str, Any]:
    """Restores of one idle desktop in place.

    Keys: `restore_idle_p50_s`, `restore_idle_p95_s`, `restore_idle_max_s`, `snapshot_s`, `rounds`. Raises `NotRestored`.
    """
    lease = await farm.lease(shape or DesktopShape(), wait_s=CLAIM_S)
    try:
        return await _measured(lease, rounds)
    finally:
        await lease.release()


async def _measured(lease: AsyncLease, rounds: int) -> dict[str, Any]:
    await lease.exec(["python3", "-c", COUNTER], detach=True)
    while await _count(lease) < 10:  # noqa: ASYNC110 - what is waited for is in the desktop
        await asyncio.sleep(0.1)
    await lease.write_file(NOTE, b"saved")
    earliest = await _count(lease)
    started_s = time.perf_counter()
    saved = await lease.snapshot(name="bench")
    snapshot_s = time.perf_counter() - started_s
    times_s = []
    for number in range(rounds):
        await lease.write_file(NOTE, f"lost {number}".encode())
        await asyncio.sleep(PASSES_S)
        late = await _count(lease)
        started_s = time.perf_counter()
        await lease.reset(snapshot_id=saved.snapshot_id)
        times_s.append(time.perf_counter() - started_s)
        await _prove(lease, earliest, late)
    times_s.sort()
    return {
        "restore_idle_p50_s": round(statistics.median(times_s), 3),
        "restore_idle_p95_s": round(times_s[min(len(times_s) - 1, int(0.95 * len(times_s)))], 3),
        "restore_idle_max_s": round(times_s[-1], 3),
        "snapshot_s": round(snapshot_s, 3),
        "rounds": rounds,
    }


async def _prove(lease: AsyncLease, earliest: int, late: int) -> None:
    """Raises `NotRestored` unless the file is the saved one and the count went back and goes on from there."""
    note, now = await lease.read_file(NOTE), await _count(lease)
    if note != b"saved":
        raise NotRestored(f"the disk did not come back: the note says {note!r}")
    if not earliest <= now < late:
        raise NotRestored(f"the memory did not come back: the count is {now}, saved at {earliest}, lost at {late}")
    deadline_s = time.monotonic() + 10.0
    while await _count(lease) <= now:
        if time.monotonic() > deadline_s:
            raise NotRestored(f"the program did not go on: its count stays at {now}")


async def _count(lease: AsyncLease) -> int:
    raw = await lease.read_file(COUNT)
    return int(raw) if raw else -1
