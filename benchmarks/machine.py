"""What a record says about where it was measured: the machine and the commit. Rule: asks, changes nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


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
