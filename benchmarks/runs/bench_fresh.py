"""`make demo` as a newcomer types it: a fresh clone, no `.venv`, no image, one command.

Role: clones this repository's HEAD into an empty directory, points the home and the runtime directory beside it, runs `make demo` and
tells how long setup and run took, what memory they took, and what is left in the runtime directory. Rule: only what pip and apt
have cached is there before. Non-goals: the gains (`bench_demo`).
With `--mode wheel`: what a newcomer without a checkout does until the first observation (`fresh_wheel`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.memory import MemoryPeak
from benchmarks.runs.fresh_wheel import measure_wheel

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"\[setup\] ready after (\d+) s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument(
        "--dir", type=Path, default=None, help="empty directory with 8 GiB of room; default: a temporary one"
    )
    parser.add_argument(
        "--mode",
        choices=("clone", "wheel"),
        default="clone",
        help="`make demo` in a clone, or the built wheel without one",
    )
    parser.add_argument("--args", default="", help="passed on as `make demo ARGS=...`")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Setup and run, once."""
    if args.mode == "wheel":
        return measure_wheel(args.dir)
    place = args.dir or Path(tempfile.mkdtemp(prefix="dart-fresh-"))
    place.mkdir(parents=True, exist_ok=True)
    clone, runtime = place / "dart", place / "runtime"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "DART_HOME": str(place / "home"), "DART_RUNTIME_DIR": str(runtime)}
    setup_s, began_s = None, time.monotonic()
    command = ["make", "demo", f"ARGS={args.args}"]
    with (
        MemoryPeak() as memory,
        subprocess.Popen(command, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            sys.stderr.write(line)
            found = READY.search(line)
            setup_s = int(found[1]) if found else setup_s
    page = clone / "runs" / "demo" / "report" / "result.json"
    result = json.loads(page.read_text(encoding="utf-8")) if page.exists() else {}
    return {
        "exit_code": process.returncode,
        "setup_minutes": None if setup_s is None else round(setup_s / 60, 1),
        "total_minutes": round((time.monotonic() - began_s) / 60, 1),
        "memory_peak_gib": round(memory.peak_gib, 2),
        "verdict": result.get("verdict"),
        "stages_s": result.get("stages_s"),
        "counts": result.get("counts"),
        "left_in_runtime_dir": sorted(path.name for path in runtime.iterdir()),
    }
