"""Live restores of prepared desktops, as a client sees them: the old desktop destroyed, the new one restored and probed.

Cold start of Calc = boot of the image + launch of Calc on a booted desktop (profile and page cache warm in both).

Role: prepares one desktop per application (idle, Calc, Chromium, GIMP), snapshots it, resets to the snapshot again and again, forks it, and
weighs what a copy takes. Rule: every restored desktop is checked, outside the timed part, to show the application's window; everything goes
through the public client. Non-goals: stepping speed, other providers' standby pools.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.desktops.weight import pss_mib, written_mib
from dart_envs.actions import decode_action
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.types import Action, ActionType
from dart_server.providers.base import DesktopSpec
from dart_server.providers.runc.provider import RuncProvider
from dart_server.settings import FarmSettings
from dart_server.wire import A11yElement, DesktopShape, FrameSpec, InputEvent, SettleSpec

FORKS = 8
FORK_ROUNDS = 5
BOOTS = 3
WINDOW_LIMIT_S = 120.0
LOOK_S = 0.05
STILL_S = 2.0
WALKS = 5
SHEET_SETTLE = SettleSpec(quiet_ms=300, cap_ms=5_000)


@dataclass(frozen=True, slots=True)
class App:
    """What is open on the prepared desktop: its command, and a part of its window's title."""

    argv: tuple[str, ...]
    title: str


APPS = {
    "idle": App((), ""),
    "calc": App(("soffice", "--calc", "--norestore", "--nologo"), "LibreOffice Calc"),
    "chromium": App(("chromium", "about:blank"), "Chromium"),
    "gimp": App(("gimp", "--no-splash"), "GNU Image Manipulation Program"),
}


async def measure_restores(
    farm: AsyncFarmClient, shape: DesktopShape, apps: Sequence[str], resets: int
) -> dict[str, Any]:
    """Restore times in seconds, per application, with the pause that the saved desktop felt and the time of an accessibility tree.

    Forks and cold start of Calc; MiB of memory and disk per copy.
    """
    figures: dict[str, Any] = {"resets": resets}
    for name in apps:
        lease = await farm.lease(shape, ttl_s=300.0, wait_s=300.0)
        try:
            figures |= await _one(farm, lease, name, resets)
        finally:
            await lease.release()
    return figures


async def _one(farm: AsyncFarmClient, lease: AsyncLease, name: str, resets: int) -> dict[str, Any]:
    app = APPS[name]
    launches_s = [await open_app(lease, app)]
    snapshot = await lease.snapshot(name=name)
    assert snapshot.pause_ms is not None, "the snapshot was made now"
    taken_s = []
    for _ in range(resets):
        began_s = time.perf_counter()
        await lease.reset(snapshot_id=snapshot.snapshot_id)
        taken_s.append(time.perf_counter() - began_s)
        await check_open(lease, app)
    p50_s, p95_s = statistics.median(taken_s), percentile(taken_s, 95)
    print(f"{name}: restore p50 {p50_s:.3f} s, p95 {p95_s:.3f} s", file=sys.stderr)
    figures: dict[str, Any] = {
        f"restore_{name}_p50_s": round(p50_s, 3),
        f"restore_{name}_p95_s": round(p95_s, 3),
        f"snapshot_{name}_mib": round(snapshot.bytes / 2**20, 1),
        f"pause_{name}_ms": round(snapshot.pause_ms, 1),
        f"a11y_{name}_p50_ms": round(await walk_ms(lease), 1),
    }
    if name == "calc":
        figures |= await changed_sheet_walks(lease)
        for _ in range(2):
            await lease.reset()
            launches_s.append(await open_app(lease, app))
        booted_s, launched_s = statistics.median(await boots_s(lease.shape)), statistics.median(launches_s)
        figures |= {
            "boot_s": round(booted_s, 2),
            "launch_calc_s": round(launched_s, 2),
            "cold_start_calc_s": round(booted_s + launched_s, 2),
            "cold_start_calc_over_restore": round((booted_s + launched_s) / p50_s, 1),
        }
        figures |= await _forks(farm, lease.shape, snapshot.snapshot_id, app)
    await farm.delete_snapshot(snapshot.snapshot_id)
    return figures


async def _forks(farm: AsyncFarmClient, shape: DesktopShape, snapshot_id: str, app: App) -> dict[str, Any]:
    """Eight copies at once, each on a slot of its own that held another desktop before; several rounds, for their median."""
    leases = [await farm.lease(shape, ttl_s=300.0, wait_s=300.0) for _ in range(FORKS)]
    try:
        taken_s = []
        for _ in range(FORK_ROUNDS):
            began_s = time.perf_counter()
            await asyncio.gather(*(lease.reset(snapshot_id=snapshot_id) for lease in leases))
            taken_s.append(time.perf_counter() - began_s)
            for lease in leases:
                await check_open(lease, app)
        disks_mib = [await written_mib("runc", lease) for lease in leases]
        weights_mib = [pss_mib("runc", lease.desktop_id) for lease in leases]
    finally:
        await asyncio.gather(*(lease.release() for lease in leases))
    print(f"{FORKS} forks: {', '.join(f'{one:.2f}' for one in taken_s)} s", file=sys.stderr)
    return {
        "fork8_calc_s": round(statistics.median(taken_s), 2),
        "fork8_calc_rounds": FORK_ROUNDS,
        "pss_per_desktop_mib": round(statistics.median(weights_mib), 1),
        "disk_per_desktop_mib": round(statistics.median(disks_mib), 2),
    }


async def boots_s(shape: DesktopShape) -> list[float]:
    """Seconds of boots from the image, each until the agent says that the session is ready, by a provider of its own.

    A farm boots an image only once and takes a snapshot with it; so the provider is asked.
    """
    settings = FarmSettings()
    spec = DesktopSpec(shape.image, shape.resolution, shape.font_size)
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as runtime:
        provider = RuncProvider(home=settings.home, runtime_dir=Path(runtime), snapshot_dir=settings.snapshot_dir)
        await provider.start()
        try:
            taken_s = []
            for number in range(BOOTS):
                began_s = time.perf_counter()
                await provider.create(f"boot{number}", spec)
                taken_s.append(time.perf_counter() - began_s)
                await provider.destroy(f"boot{number}")
        finally:
            await provider.aclose()
    return taken_s


async def walk_ms(lease: AsyncLease) -> float:
    """Median milliseconds of an accessibility tree, asked for `WALKS` times; the first, which starts the walker, does not count."""
    taken_ms = []
    for _ in range(WALKS + 1):
        began_s = time.perf_counter()
        await lease.a11y()
        taken_ms.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(taken_ms[1:])


async def changed_sheet_walks(lease: AsyncLease) -> dict[str, Any]:
    """Trees of a sheet in which a cell changes before each; every tree has the change and equals the one that libatspi reads."""
    reference = (Path(__file__).parent / "libatspi_walk.py").read_text(encoding="utf-8")
    taken_ms, elements = [], 0
    for number in range(WALKS):
        entry = str(1000 + number)
        await lease.step(_typed(entry, lease.shape.resolution), SHEET_SETTLE)
        began_s = time.perf_counter()
        tree = [element.model_dump(mode="json") for element in await lease.a11y()]
        taken_ms.append((time.perf_counter() - began_s) * 1000)
        reply = await lease.exec(["python3", "-"], stdin=reference, timeout_s=60.0)
        told = [{key: element[key] for key in A11yElement.model_fields} for element in json.loads(reply.stdout)]
        if told != tree:
            raise AssertionError("The tree of a changed sheet is not the one that libatspi reads.")
        if not any(element["role"] == "table cell" and element["text"] == entry for element in tree):
            raise AssertionError(f"No cell of the tree holds {entry!r}.")
        elements = len(tree)
    return {
        "a11y_calc_changed_p50_ms": round(statistics.median(taken_ms), 1),
        "a11y_calc_changed_walks_equal": WALKS,
        "a11y_calc_elements": elements,
    }


def _typed(text: str, resolution: tuple[int, int]) -> list[InputEvent]:
    """The input events that type a text and end it with Enter."""
    actions = (Action(ActionType.TYPE, text=text), Action(ActionType.KEY, keys=("enter",)))
    return [event for action in actions for event in decode_action(action, resolution).events]


async def open_app(lease: AsyncLease, app: App) -> float:
    """Start the application; seconds until the screen changed for the last time, which then stayed as it was for `STILL_S`.

    An application's window is there, empty, long before it can be used, and programs pause while they load.
    """
    began_s = time.perf_counter()
    if app.argv:
        await lease.exec(list(app.argv), detach=True)
    seen: bytes | None = None
    changed_s = 0.0
    while True:
        pixels = (await lease.step([], frame=FrameSpec(encoding="raw"))).image.tobytes()
        now_s = time.perf_counter() - began_s
        if pixels != seen:
            seen, changed_s = pixels, now_s
        if now_s - changed_s > STILL_S and await is_open(lease, app):
            return changed_s
        if now_s > WINDOW_LIMIT_S:
            raise RuntimeError(f"{app.argv[0]} showed no window with {app.title!r} within {WINDOW_LIMIT_S:.0f} s")
        await asyncio.sleep(LOOK_S)


async def check_open(lease: AsyncLease, app: App) -> None:
    """Raises RuntimeError when the copy does not show the application."""
    if not await is_open(lease, app):
        raise RuntimeError(f"a restored desktop shows no window with {app.title!r}")


async def is_open(lease: AsyncLease, app: App) -> bool:
    """Whether a window with the application's title is there; always, where there is no application."""
    if not app.argv:
        return True
    windows = json.loads((await lease.guest("GET", "/v1/windows")).content)["windows"]
    return any(app.title in window["title"] for window in windows)


def percentile(values: Sequence[float], percent: int) -> float:
    """Linear between the two nearest ranks."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]
