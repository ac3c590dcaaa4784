"""A long run of many clients on pretended desktops, with faults: clients and the server killed and stopped, the disk full.

Role: the part `soak` of `bench_farm`; the run and its judge are those of `benchmarks.chaos.run`, with a hundred clients and no pauses
worth the name. Rule: a leak is what is left (leases without an end, descriptors, processes, files), an error every other breach.
Non-goals: live desktops (`benchmarks.chaos.run`).
"""

from __future__ import annotations

from typing import Any

from benchmarks.chaos import run as chaos_run
from benchmarks.farm.load import say

LEAKS = ("left over", "never ended", "descriptors", "still has")
PROCESSES, TOGETHER, DESKTOPS = 4, 25, 64


def measure_soak(seconds: float, seed: int) -> dict[str, Any]:
    """`leases`, `leaks`, `errors` of a soak, and what was done to the farm."""
    plan = chaos_run.Plan(
        seconds,
        seed,
        "sim",
        desktops=DESKTOPS,
        clients=PROCESSES,
        together=TOGETHER,
        pause_s=0.2,
        most_steps=4,
        ttl_s=10.0,
    )
    outcome = chaos_run.run(plan)
    leaks = [breach for breach in outcome.breaches if any(mark in breach for mark in LEAKS)]
    for breach in outcome.breaches:
        say(f"breach: {breach}")
    return {
        **outcome.figures,
        "leaks": len(leaks),
        "errors": len(outcome.breaches) - len(leaks),
        "breaches": outcome.breaches[:20],
    }
