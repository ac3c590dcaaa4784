"""The farm's service: leases under load, held leases, fairness, resets from standbys, overhead of a step, a long soak with faults.

Role: runs the parts and names the figures as the issue that asks for them does. `leases_per_s` is of clients that claim and release as
fast as they can; `claim_warm_*` are of leases that are held for a second, when a claim waits for the farm's work and not for two hundred
others that were sent in the same moment (those are in `load`). Rule: every part starts a farm of its own in a process of its own and ends
it. Non-goals: how the parts measure (`farm_load`, `farm_steps`, `farm_standby`, `farm_soak`).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.farm.load import measure_fair, measure_load
from benchmarks.farm.soak import measure_soak
from benchmarks.farm.standby import measure_standby
from benchmarks.farm.steps import measure_steps

PARTS = ("load", "held", "fair", "step", "standby", "soak")
HELD_S = 1.0
SECONDS = {"load": 600.0, "held": 600.0, "fair": 60.0, "standby": 300.0, "soak": 600.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--only", choices=PARTS, default=None, help="one part; default: all of them")
    parser.add_argument("--seconds", type=float, default=None, help="end each part after this long")
    parser.add_argument("--leases", type=int, default=20_000, help="leases of `load` and of `held`")
    parser.add_argument("--steps", type=int, default=5_000, help="steps of `step`; a tenth of them with a raw frame")
    parser.add_argument("--image", default="desktop", help="image of `standby`")
    parser.add_argument("--app", default="calc", help="what is open on the desktops of `standby`; `idle` for nothing")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two resets of `standby`")
    parser.add_argument("--seed", type=int, default=None, help="of the faults of `soak`")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Figures of all parts, or of one."""
    parts = PARTS if args.only is None else (args.only,)
    lasts = {part: args.seconds or seconds for part, seconds in SECONDS.items()}
    figures: dict[str, Any] = {}
    if "load" in parts:
        load = measure_load(args.leases, hold_s=0.0, seconds=lasts["load"])
        figures |= {"leases_per_s": load["leases_per_s"], "load": load}
    if "held" in parts:
        held = measure_load(args.leases, hold_s=HELD_S, seconds=lasts["held"])
        figures |= {"claim_warm_p50_ms": held["claim"]["p50_ms"], "claim_warm_p99_ms": held["claim"]["p99_ms"]}
        figures |= {"held_leases_per_s": held["leases_per_s"], "held": held}
    if "fair" in parts:
        figures |= {"fair": measure_fair(lasts["fair"])}
    if "step" in parts:
        steps = measure_steps(args.steps, max(10, args.steps // 10))
        figures |= {f"step_overhead_{rank}": steps["bare"][rank] for rank in ("p50_ms", "p99_ms")}
        figures |= {f"step_raw_1080p_{rank}": steps["raw_1080p"][rank] for rank in ("p50_ms", "p99_ms")}
        figures |= {"step": steps}
    if "standby" in parts:
        standby = measure_standby(lasts["standby"], image=args.image, every_s=args.every, app=args.app)
        figures |= {
            "reset_standby_p50_ms": standby["p50_ms"],
            "standby_hit_rate": standby["hit_rate"],
            "standby": standby,
        }
    if "soak" in parts:
        soak = measure_soak(lasts["soak"], int(time.time()) if args.seed is None else args.seed)
        figures |= {f"soak_{name}": soak[name] for name in ("leases", "leaks", "errors")} | {"soak": soak}
    return figures
