"""Steps per second on live desktops: one in lock-step, vectors, stragglers, against Gymnasium's AsyncVectorEnv, trajectories.

Role: a farm of its own, then `vector_rates` and oracle episodes on it. Rule: ratios are taken within one run, the kinds one after the
other, repeated, medians told. Non-goals: policies.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.environments import vector_rates
from dart_envs import tasks
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import DartEnvError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.success import is_success
from dart_server.wire import DesktopShape

PARTS = ("lockstep", "steps", "straggler", "gym", "trajectories")
SIZES = (1, 4, 8)
SLOWER = 20
SIGMA = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="parts to measure")
    parser.add_argument("--envs", type=int, default=8, help="desktops of the straggler and gym parts")
    parser.add_argument("--window-s", type=float, default=20.0, help="wall time of one measurement")
    parser.add_argument(
        "--step-s", type=float, default=0.1, help="time of an ordinary step of the straggler and gym parts"
    )
    parser.add_argument("--repeats", type=int, default=3, help="measurements of which the median is told")
    parser.add_argument("--desktops", type=int, default=4, help="desktops of the trajectories part")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run on a farm that is started for this and stopped at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="dart-bench-") as runtime,
        tempfile.TemporaryDirectory(prefix="dart-bench-", dir="/dev/shm") as store,
    ):
        os.environ.update({"DART_RUNTIME_DIR": runtime, "DART_SNAPSHOT_DIR": store, "DART_FARM_URL": ""})
        os.environ.update({"DART_PROVIDER": "runc", "DART_MAX_DESKTOPS": str(max(args.envs, *SIZES) + 1)})
        try:
            return _measure(args)
        finally:
            subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], check=True, stdout=sys.stderr)


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if "lockstep" in args.only:
        rates = [vector_rates.grid_rate(args.window_s, seed) for seed in range(args.repeats)]
        figures["lockstep_discrete_grid_84x84_steps_per_s"] = _told("one desktop in lock-step", rates)
    if "steps" in args.only:
        for size in SIZES:
            rates = [vector_rates.agent_rate(size, args.window_s) for _ in range(args.repeats)]
            figures[f"agent_steps_per_s_{size}"] = _told(f"{size} desktops", rates)
    if "straggler" in args.only:
        figures |= _straggler(args)
    if "gym" in args.only:
        figures |= _against_gymnasium(args)
    if "trajectories" in args.only:
        figures |= asyncio.run(_trajectories(args))
    return figures


def _told(what: str, values: list[float]) -> float:
    """The median, with all values on standard error."""
    print(f"{what}: {', '.join(f'{value:.3f}' for value in values)}", file=sys.stderr)
    return round(statistics.median(values), 3)


def _straggler(args: argparse.Namespace) -> dict[str, Any]:
    ordinary_s = float(args.step_s)

    def one_slower(index: int) -> float:
        return ordinary_s * (SLOWER if index == 0 else 1)

    shares = []
    for _ in range(args.repeats):
        without = vector_rates.ours(args.envs, vector_rates.equal(args.step_s), args.window_s)
        shares.append(vector_rates.ours(args.envs, one_slower, args.window_s) / without)
    best = (args.envs - 1) / args.envs
    penalty = _told("with a straggler over without", shares)
    return {
        "straggler_penalty": penalty,
        "straggler_best_possible": round(best, 3),
        "straggler_share_of_best": round(penalty / best, 3),
    }


def _against_gymnasium(args: argparse.Namespace) -> dict[str, Any]:
    ratios: dict[str, list[float]] = {"uniform": [], "lognormal": []}
    rates: dict[str, list[float]] = {}
    for repeat in range(args.repeats):
        for kind, found in ratios.items():
            pair = []
            for name, run in (("ours", vector_rates.ours), ("gym", vector_rates.gymnasiums)):
                seconds = (
                    vector_rates.equal(args.step_s)
                    if kind == "uniform"
                    else vector_rates.lognormal(args.step_s, SIGMA, repeat)
                )
                pair.append(run(args.envs, seconds, args.window_s))
                rates.setdefault(f"{name}_{kind}_steps_per_s", []).append(pair[-1])
            found.append(pair[0] / pair[1])
    figures: dict[str, Any] = {
        f"vs_gym_async_{kind}": _told(f"ours over Gymnasium's, {kind}", found) for kind, found in ratios.items()
    }
    return figures | {name: round(statistics.median(values), 2) for name, values in rates.items()}


async def _trajectories(args: argparse.Namespace) -> dict[str, Any]:
    """Episodes of the bundled suite's training tasks played by their oracle, each desktop on its own clock."""
    names = tasks.load_suite("basics").tasks(split="train")
    step = max(1, len(names) // 997)
    window_s = args.window_s * args.repeats
    done = solved = faults = steps = 0
    async with await AsyncFarmClient.connect() as farm:
        started_s = time.perf_counter()

        async def play(number: int) -> None:
            nonlocal done, solved, faults, steps
            async with AsyncDesktopEnv(farm, shape=DesktopShape(resolution=(1280, 800))) as env:
                at = number
                while time.perf_counter() - started_s < window_s:
                    task = tasks.load(names[at * step % len(names)])
                    at += args.desktops
                    try:
                        await env.reset(task)
                        result, taken = None, 0
                        while result is None or result.end is None:
                            assert env.lease is not None
                            actions = await task.oracle(env.lease, step=taken)
                            result = await env.step(actions[0])
                            taken += 1
                    except DartEnvError as error:
                        faults += 1
                        print(f"{task.id}: {error}", file=sys.stderr)
                        continue
                    done, steps, solved = done + 1, steps + taken, solved + is_success(result.reward)

        await asyncio.gather(*(play(number) for number in range(args.desktops)))
        minutes = (time.perf_counter() - started_s) / 60
    return {
        "trajectories_per_min_per_desktop": round(done / minutes / args.desktops, 2),
        "trajectories": done,
        "trajectories_solved": solved,
        "trajectories_faults": faults,
        "trajectory_steps_mean": round(steps / max(1, done), 2),
        "trajectory_desktops": args.desktops,
    }
