"""Live desktops of one provider: how fast they come back, fork, step and show, and what each weighs.

Role: starts a farm of its own in a fresh runtime directory, runs the parts that suit the provider, stops the farm. Rule: only the public
client is used, so the figures are what a user gets. Non-goals: fidelity of resets (`bench_fidelity`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.desktops_restore import APPS, FORKS, measure_restores
from dart_envs.farm.client import AsyncFarm
from dart_server.wire import DesktopShape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--provider", choices=("runc",), default="runc")
    parser.add_argument(
        "--image", default="desktop", help="an installed image with the applications that are asked for"
    )
    parser.add_argument("--apps", default=",".join(APPS), help="which applications are open on restored desktops")
    parser.add_argument("--resets", type=int, default=40, help="restores per application")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run on a farm that is started for this and stopped at the end."""
    apps = args.apps.split(",")
    if unknown := [name for name in apps if name not in APPS]:
        raise SystemExit(f"--apps: unknown {', '.join(unknown)}; there is {', '.join(APPS)}")
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as runtime:
        os.environ.update(
            DART_RUNTIME_DIR=runtime, DART_PROVIDER=args.provider, DART_MAX_DESKTOPS=str(FORKS + 2), DART_FARM_URL=""
        )
        try:
            return {"provider": args.provider, "image": args.image} | asyncio.run(_measure(args, apps))
        finally:
            subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], check=True, stdout=sys.stderr)
            log = Path(runtime) / "farm.log"
            if log.exists() and sys.exc_info()[0] is not None:
                sys.stderr.write(log.read_text(encoding="utf-8")[-4000:])


async def _measure(args: argparse.Namespace, apps: list[str]) -> dict[str, Any]:
    async with await AsyncFarm.connect() as farm:
        return await measure_restores(farm, DesktopShape(image=args.image), apps, args.resets)
