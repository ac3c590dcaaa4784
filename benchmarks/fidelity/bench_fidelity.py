"""Whether a reset gives back exactly the same desktop, a thousand times, whatever was done to it, and leaves nothing behind.

Role: starts a farm of its own in a fresh runtime directory. First the kinds of start are compared (`fidelity_starts`). Then one
leased desktop with open programs is saved, and again and again damaged (`fidelity_damage`), reset, and compared with the first copy:
digest of its file system (`fidelity_digest`) and settled screenshot. What the farm holds is counted before and after (`fidelity_leaks`).
Rule: the public client only, but for the counts. Needs root. Non-goals: speed of single resets (`bench_desktops`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fidelity import damage, digest, leaks
from benchmarks.fidelity import starts as fidelity_starts
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.types import RgbImage
from dart_server.hostd.layout import Layout
from dart_server.wire import DesktopShape, SettleSpec

_SETTLE = SettleSpec(quiet_ms=300, cap_ms=5_000)
_LIMITS = {"DART_DESKTOP_MEMORY_MIB": "640", "DART_DESKTOP_DISK_MIB": "128", "DART_DESKTOP_PIDS": "512"}
_WARM_UP = 10
"""Resets before the first count: caches fill, threads start."""
_EDGE = 100
_KEPT_DIFFERENCES = 20
_HOME_FILES = "find /home/user -type f -printf '%p %s %T@\\n' | sort"
_REST_S = 10.0
"""Programs write their settings some seconds after they started; a copy saved before would write them after every reset."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--resets", type=int, default=1000)
    parser.add_argument("--image", default="desktop", help="an installed image")
    parser.add_argument("--seed", type=int, default=1, help="of the damage")
    parser.add_argument(
        "--full-every", type=int, default=100, help="read the contents of the whole image every so many resets"
    )
    parser.add_argument("--no-starts", action="store_true", help="leave out the comparison of the kinds of start")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run on a farm that is started for this and stopped at the end."""
    if os.geteuid() != 0:
        raise SystemExit("bench fidelity: run it as root, it looks into the root helper")
    with (
        tempfile.TemporaryDirectory(prefix="dart-bench-") as runtime,
        tempfile.TemporaryDirectory(prefix="dart-bench-", dir="/dev/shm") as store,
    ):
        place = {"DART_RUNTIME_DIR": runtime, "DART_SNAPSHOT_DIR": store, "DART_FARM_URL": ""}
        os.environ.update(place | _LIMITS | {"DART_PROVIDER": "runc", "DART_MAX_DESKTOPS": "3"})
        layout = leaks.layout_of(Path(runtime).resolve(), Path(store).resolve())
        try:
            figures = asyncio.run(_measure(args, layout))
        finally:
            subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], check=True, stdout=sys.stderr)
        left = leaks.remains(layout)
        figures["left_behind"] = left
        figures["leaked"] += len(left)
        return figures


async def _measure(args: argparse.Namespace, layout: Layout) -> dict[str, Any]:
    shape = DesktopShape(image=args.image)
    async with await AsyncFarmClient.connect() as farm:
        starts = {} if args.no_starts else await fidelity_starts.compare(farm, shape)
        async with await farm.lease(shape) as lease:
            await _furnish(lease)
            saved = await lease.snapshot(name="fidelity")
            return await Resets(lease, saved.snapshot_id, layout, args).run() | starts


async def _furnish(lease: AsyncLease) -> None:
    """Open programs, so that there is something to come back."""
    await lease.write_file("/home/user/letter.txt", b"Dear reader,\n\nthis is what a reset brings back.\n")
    await lease.exec(["mousepad", "/home/user/letter.txt"], detach=True)
    await lease.exec(["thunar", "/home/user"], detach=True)
    for title in ("letter.txt", "user"):
        async with asyncio.timeout(60):
            while not await lease.activate_window(title):  # noqa: ASYNC110 - what is waited for is outside this process
                await asyncio.sleep(0.1)
    await lease.activate_window("letter.txt")
    earlier = ""
    while (now := (await lease.exec(["sh", "-c", _HOME_FILES])).stdout) != earlier:
        earlier = now
        await asyncio.sleep(_REST_S)
    await lease.step([], SettleSpec(quiet_ms=1_500, cap_ms=20_000))


class Resets:
    """Damage, reset, compare; over and over."""

    def __init__(self, lease: AsyncLease, snapshot_id: str, layout: Layout, args: argparse.Namespace) -> None:
        self._lease = lease
        self._snapshot_id = snapshot_id
        self._layout = layout
        self._args = args
        self._seconds: list[float] = []
        self._differences: list[dict[str, Any]] = []
        self._equal: Counter[str] = Counter()
        self._damage: Counter[str] = Counter()

    async def run(self) -> dict[str, Any]:
        """All resets; the figures."""
        await self._reset()
        listing = await self._listing()
        full = await self._digest("full")
        screen = await self._screen()
        chosen = random.Random(self._args.seed)
        before = await self._census()
        for number in range(1, self._args.resets + 1):
            kinds = await damage.damage(self._lease, chosen)
            self._damage.update(kinds)
            self._seconds.append(await self._reset())
            shown = await self._screen()
            depth = "full" if number % self._args.full_every == 0 else "changing"
            digests_equal = await self._digest(depth) == (full if depth == "full" else listing.digest)
            box = _differing(shown, screen)
            self._equal.update(digests=digests_equal, screens=box is None)
            if not (digests_equal and box is None) and len(self._differences) < _KEPT_DIFFERENCES:
                paths = [] if digests_equal else listing.differences(await self._listing())
                found = {"reset": number, "damage": kinds, "paths": paths, "screen_box": box}
                self._differences.append(found)
            if number == min(_WARM_UP, self._args.resets):
                before = await self._census()
            if number % 25 == 0:
                recent = statistics.median(self._seconds[-25:])
                print(
                    f"reset {number}: p50 {recent:.3f} s, differing {len(self._differences)}",
                    file=sys.stderr,
                    flush=True,
                )
        after = await self._census()
        return self._figures(before, after, len(listing.lines))

    def _figures(self, before: leaks.Census, after: leaks.Census, files: int) -> dict[str, Any]:
        ordered = sorted(self._seconds)
        grown = after.grown(before)
        return {
            "image": self._args.image,
            "resets": len(self._seconds),
            "digests_equal": self._equal["digests"],
            "screens_equal": self._equal["screens"],
            "leaked": sum(grown.values()),
            "leaked_by_kind": grown,
            "reset_p50_s": round(statistics.median(ordered), 4),
            "reset_p95_s": round(ordered[int(len(ordered) * 0.95)], 4),
            "reset_p50_first100_s": round(statistics.median(self._seconds[:_EDGE]), 4),
            "reset_p50_last100_s": round(statistics.median(self._seconds[-_EDGE:]), 4),
            "reset_slope_ms_per_100": round(_slope(self._seconds) * 1e5, 3),
            "memory_growth_mib": round((after.memory_kib - before.memory_kib) / 1024, 1),
            "files_compared": files,
            "excluded": digest.EXCLUDED,
            "damage": dict(self._damage),
            "differences": self._differences,
        }

    async def _reset(self) -> float:
        began_s = time.monotonic()
        await self._lease.reset(snapshot_id=self._snapshot_id)
        return time.monotonic() - began_s

    async def _screen(self) -> RgbImage:
        """The settled screen."""
        return (await self._lease.step([], _SETTLE)).image

    async def _digest(self, depth: str) -> str:
        return (await self._inside(depth, "digest")).split()[0]

    async def _listing(self) -> digest.Listing:
        return digest.Listing(tuple((await self._inside("changing", "lines")).rstrip("\n").split("\n")))

    async def _inside(self, depth: str, form: str) -> str:
        arguments = [json.dumps(sorted(digest.EXCLUDED)), json.dumps(digest.CHANGING), depth, form]
        command = ["python3", "-I", "-S", "-c", digest.INSIDE, *arguments]
        done = await self._lease.exec(command, user="root", timeout_s=120)
        if done.returncode != 0:
            raise RuntimeError(f"the digest failed inside: {done.stderr[-500:]}")
        return done.stdout

    async def _census(self) -> leaks.Census:
        """Each count at its least over a few looks: what is being removed, and a call that is on its way, are no leaks."""
        looks = []
        for _ in range(10):
            await asyncio.sleep(0.2)
            looks.append(leaks.Census.take(self._layout))
        return leaks.Census.least(looks)


def _differing(mine: RgbImage, theirs: RgbImage) -> list[int] | None:
    """Left, top, right and bottom of the pixels that differ; None when none does."""
    rows, columns = np.nonzero((mine != theirs).any(axis=2))
    return None if not rows.size else [int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())]


def _slope(values: list[float]) -> float:
    """Seconds per reset by which the time grows: least squares over the number of the reset."""
    if len(values) < 2:
        return 0.0
    return statistics.linear_regression(range(len(values)), values).slope
