"""The farm's service: leases under load, held leases, fairness, resets from standbys, overhead of a step, a long soak with faults.

Role: runs the parts and names the figures as the issue that asks for them does. Rule: every part starts a farm of its own in a process of
its own and ends it. Non-goals: how the parts measure (`farm_load`, `farm_steps`, `farm_standby`, `farm_soak`).
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.farm_load import measure_fair, measure_load

PARTS = ("load", "held", "fair")
HELD_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--only", choices=PARTS, default=None, help="one part; default: all of them")
    parser.add_argument("--leases", type=int, default=20_000, help="leases of `load` and of `held`")
    parser.add_argument("--seconds", type=float, default=None, help="end each part after this long")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Figures of all parts, or of one."""
    parts = PARTS if args.only is None else (args.only,)
    figures: dict[str, Any] = {}
    if "load" in parts:
        load = measure_load(args.leases, hold_s=0.0, seconds=args.seconds or 600.0)
        figures |= {"load": load}
    if "held" in parts:
        held = measure_load(args.leases, hold_s=HELD_S, seconds=args.seconds or 600.0)
        figures |= {"held": held}
    if "fair" in parts:
        figures |= {"fair": measure_fair(args.seconds or 60.0)}
    return figures
