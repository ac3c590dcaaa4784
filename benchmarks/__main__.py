"""Command line of the benchmarks.

Role: finds `benchmarks/bench_NAME.py`, runs its `measure(args) -> dict` and writes one JSON record with the date, the machine and the
commit. Rule: figures are printed as measured, keys as the issue that asks for them spells them. Non-goals: no pass or fail.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def names() -> list[str]:
    """Names of all benchmarks."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def machine() -> dict[str, Any]:
    """The machine in the few words that a reader needs to judge a figure."""
    memory_kib = int(Path("/proc/meminfo").read_text(encoding="ascii").split(maxsplit=2)[1])
    models = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit that is measured, marked `+changes` where the tree differs from it."""
    git = ["git", "-C", str(HERE.parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False)
    return (head.stdout.strip() or "unknown") + ("+changes" if changed.stdout.strip() else "")


def main() -> int:
    """Run one benchmark; 2 for a wrong name or wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure what the project quotes.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in names():
        module = importlib.import_module(f"benchmarks.bench_{name}")
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        command.add_argument("--json", type=Path, help="write the record to this file")
        module.add_arguments(command)
        command.set_defaults(measure=module.measure)
    args = parser.parse_args()
    started = dt.datetime.now(dt.UTC)
    figures = args.measure(args)
    record = {
        "benchmark": args.name,
        "date": started.isoformat(timespec="seconds"),
        "seconds": round((dt.datetime.now(dt.UTC) - started).total_seconds(), 1),
        "commit": commit(),
        "machine": machine(),
        "figures": figures,
    }
    text = json.dumps(record, indent=2)
    print(text)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
