"""Time and memory of repeated train steps in a process of their own.

Role: `measure_steps` runs a function once for warm-up and then several times. Rule: memory is what the kernel counts for this process
(peak resident set, reset before the steps) above what it held at rest after the warm-up, freed memory returned first; so weights and
the optimiser's state are not counted, gradients and activations are. Time is wall time and CPU time of the process: on a shared host only
the latter can be compared. Non-goals: memory of GPUs, which torch counts.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path

from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

STATUS = Path("/proc/self/status")


def measure_steps(
    step: Callable[[], object], repeats: int, clock: Clock = SYSTEM_CLOCK
) -> dict[str, list[float] | float]:
    """Measure a function.

    Args:
        step: One train step.
        repeats: How often it is measured.
        clock: Clock of wall times.

    Returns:
        `wall_s` and `cpu_s` of each step, `idle_mib` and `peak_above_idle_mib`.
    """
    step()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    idle_kib = resident_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    wall_s, cpu_s = [], []
    for _ in range(repeats):
        wall, cpu = clock.monotonic(), time.process_time()
        step()
        wall_s.append(round(clock.monotonic() - wall, 3))
        cpu_s.append(round(time.process_time() - cpu, 3))
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "idle_mib": round(idle_kib / 1024, 1),
        "peak_above_idle_mib": round((resident_kib("VmHWM") - idle_kib) / 1024, 1),
    }


def resident_kib(name: str) -> int:
    """Read a field of this process's status.

    Args:
        name: `VmRSS`, what it holds now, or `VmHWM`, the most since the last reset.

    Returns:
        KiB.
    """
    for line in STATUS.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise OSError(f"{STATUS} has no {name}")
