"""Live desktops of one provider: how fast they come back, fork, step and show, and what each weighs.

Role: starts a farm of its own in a fresh runtime directory, runs the parts that suit the provider, stops the farm. Rule: only the public
client is used, so the figures are what a user gets; the container engine or libvirtd must run already (`server/deploy`). Non-goals:
fidelity of resets (`bench_fidelity`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.desktops import standby
from benchmarks.desktops.frames import measure_frames, measure_throughput
from benchmarks.desktops.libvirt import measure_libvirt
from benchmarks.desktops.restore import APPS, FORKS, measure_restores
from benchmarks.desktops.standby import measure_standby
from benchmarks.desktops.toggle import measure_toggles
from benchmarks.desktops.weight import measure_weight
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape

PARTS = {
    "runc": ("restores", "frames", "toggles", "throughput"),
    "docker": ("standby", "weight", "frames", "toggles", "throughput"),
    "libvirt": ("libvirt", "weight", "frames", "toggles", "throughput"),
}
"""By provider: what can be measured there."""
SETTINGS = {"runc": {"DART_MAX_DESKTOPS": str(FORKS + 2)}, "docker": standby.SETTINGS, "libvirt": {}}
TOGGLES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--provider", choices=tuple(PARTS), default="runc")
    parser.add_argument("--image", default=None, help="an installed image; default: desktop for runc, else basic")
    parser.add_argument("--parts", default=None, help="what is measured, separated by commas; default: all that suits")
    parser.add_argument("--apps", default=",".join(APPS), help="which applications are open on restored desktops")
    parser.add_argument("--resets", type=int, default=40, help="restores per application")
    parser.add_argument("--toggles", type=int, default=TOGGLES, help="clicks on check boxes")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the standby pool is drawn from")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run on a farm that is started for this and stopped at the end."""
    apps = chosen(args.apps, "--apps", tuple(APPS))
    parts = chosen(args.parts, "--parts", PARTS[args.provider])
    image = args.image or ("desktop" if args.provider == "runc" else "basic")
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as runtime:
        os.environ.update(SETTINGS[args.provider], DART_RUNTIME_DIR=runtime, DART_PROVIDER=args.provider)
        os.environ.pop("DART_FARM_URL", None)
        try:
            figures = asyncio.run(_measure(args, DesktopShape(image=image), parts, apps))
        except BaseException:  # Ctrl-C, too, leaves a log worth reading; raised again
            log = Path(runtime) / "farm.log"
            sys.stderr.write(log.read_text(encoding="utf-8")[-4000:] if log.exists() else "")
            raise
        finally:
            subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], check=True, stdout=sys.stderr)
    return {"provider": args.provider, "image": image} | figures


def chosen(asked: str | None, option: str, known: tuple[str, ...]) -> list[str]:
    """The names in `asked`, all known ones for None. Ends with a sentence at a name that is not known."""
    names = list(known) if asked is None else asked.split(",")
    if unknown := [name for name in names if name not in known]:
        sys.stderr.write(f"{option}: unknown {', '.join(unknown)}; there is {', '.join(known)}\n")
        raise SystemExit(2)
    return names


async def _measure(args: argparse.Namespace, shape: DesktopShape, parts: list[str], apps: list[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    async with await AsyncFarmClient.connect() as farm:
        if "restores" in parts:
            figures |= await measure_restores(farm, shape, apps, args.resets)
        if "standby" in parts:
            figures |= await measure_standby(farm, shape, args.seconds)
        if "libvirt" in parts:
            figures |= await measure_libvirt(farm, shape=shape)
        if "weight" in parts:
            figures |= await measure_weight(farm, shape, args.provider)
        if "frames" in parts:
            async with await farm.lease(shape, ttl_s=300.0, wait_s=400.0) as lease:
                figures |= await measure_frames(lease)
        if "toggles" in parts:
            async with await farm.lease(shape, ttl_s=300.0, wait_s=400.0) as lease:
                figures |= await measure_toggles(lease, tries=args.toggles)
        if "throughput" in parts:
            async with AsyncExitStack() as held:
                leases = [
                    await held.enter_async_context(await farm.lease(shape, ttl_s=300.0, wait_s=400.0))
                    for _ in range(2 * (os.cpu_count() or 1))
                ]
                figures |= await measure_throughput(leases)
    return figures
