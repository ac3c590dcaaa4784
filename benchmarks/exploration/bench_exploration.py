"""Screens that choosers find with equal numbers of steps, on simulated applications and on live ones.

Role: runs every chooser on the same applications with and without snapshots, and Q-values with 1, 2 and 4 desktops. Rule: the applications
are simulated (`dart_agent.explore.desktops.simulated`) unless `--live` names programs of the desktop image; the model that chooses is
simulated, too. `qicrl_over_random` compares the greatest Q (ties by the seed, no knowledge of the application) with chance,
`qicrl_model_over_random` the model that sees Q: ratios of the mean numbers of screens after all steps, with snapshots. Steps are actions,
those on the way back to a screen included; restoring a snapshot and starting an application again cost none and are counted apart.
Non-goals: the samples.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.exploration.simulated_model import SimulatedModel
from dart_agent.explore.choosers import BreadthFirstChooser, Chooser, GreatestQChooser, RandomChooser
from dart_agent.explore.desktops.base import ExplorableDesktop
from dart_agent.explore.desktops.farm import FarmDesktop
from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.model_chooser import ModelChooser
from dart_agent.explore.page import coverage
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.store import ExploreStore
from dart_agent.explore.values import StepOutcome, ValueSettings
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape

CHOOSERS: dict[str, Callable[[int], Chooser]] = {
    "q_icrl": lambda seed: ModelChooser(SimulatedModel(seed)),
    "model_without_q": lambda seed: ModelChooser(SimulatedModel(seed), use_q=False),
    "greatest_q": lambda _seed: GreatestQChooser(),
    "greatest_q_without_sharing": lambda _seed: GreatestQChooser(),
    "breadth_first": lambda _seed: BreadthFirstChooser(),
    "random": lambda _seed: RandomChooser(),
}
LIVE_CHOOSERS = ("q_icrl", "greatest_q", "breadth_first", "random")
FORKS = (1, 2, 4)
SHAPE = DesktopShape(resolution=(640, 400))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the benchmark.

    Args:
        parser: Its parser.
    """
    parser.add_argument("--steps", type=int, default=200, help="steps of each exploration")
    parser.add_argument("--pages", type=int, default=60, help="screens of a simulated application")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3, 4], help="an application and random numbers for each"
    )
    parser.add_argument(
        "--live", nargs="*", default=[], help="programs of the image `basic` to explore on live desktops, too"
    )
    parser.add_argument("--live-steps", type=int, default=60, help="steps of each live exploration")
    parser.add_argument("--live-seeds", type=int, nargs="+", default=[1, 2, 3])


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Explore with every chooser.

    Args:
        args: Steps, pages, seeds, live programs.

    Returns:
        The ratio, and tables by chooser: means over the seeds, and the values of each.
    """
    return asyncio.run(_measure(args))


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {}
    for table, snapshots in (("with_snapshots", True), ("without_snapshots", False)):
        tables[table] = {}
        for name in CHOOSERS:
            runs = [await _simulated(name, seed, args.steps, args.pages, snapshots=snapshots) for seed in args.seeds]
            tables[table][name] = _means(runs)
    forks = {}
    for desktops in FORKS:
        rounds = args.steps // max(FORKS)
        runs = [
            await _simulated("greatest_q", seed, rounds * desktops, args.pages, desktops=desktops)
            for seed in args.seeds
        ]
        forks[str(desktops)] = {"steps_per_desktop": rounds, **_means(runs)}
    found = {name: table["screens"] for name, table in tables["with_snapshots"].items()}
    figures: dict[str, Any] = {
        "qicrl_over_random": round(found["greatest_q"] / found["random"], 2),
        "qicrl_model_over_random": round(found["q_icrl"] / found["random"], 2),
        "q_icrl_over_model_without_q": round(found["q_icrl"] / found["model_without_q"], 2),
        "applications": "simulated",
        "model": "simulated",
        "steps": args.steps,
        "pages": args.pages,
        **tables,
        "forks": forks,
    }
    for program in args.live:
        figures.setdefault("live", {})[program] = await _live_tables(program, args.live_steps, args.live_seeds)
    return figures


async def _simulated(
    name: str, seed: int, steps: int, pages: int, *, snapshots: bool = True, desktops: int = 1
) -> dict[str, Any]:
    settings = _settings(name, f"simulated/{seed}", seed, steps, snapshots, desktops)
    application = SimulatedApplication(seed, pages)
    return await _explore(name, seed, settings, SimulatedDesktop(application, _other_desktops_act))


async def _other_desktops_act() -> None:
    """An action takes as long on every desktop: the others get their turn."""
    await asyncio.sleep(0)


async def _live_tables(program: str, steps: int, seeds: list[int]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    async with await AsyncFarmClient.connect() as farm:
        for name in LIVE_CHOOSERS:
            runs = []
            for seed in seeds:
                settings = _settings(name, program, seed, steps, True, 1)
                desktop = await FarmDesktop.start(farm, program, SHAPE)
                try:
                    runs.append(await _explore(name, seed, settings, desktop))
                finally:
                    await desktop.discard_root()
                    await desktop.aclose()
            table[name] = _means(runs)
    return table


def _settings(name: str, app: str, seed: int, steps: int, snapshots: bool, desktops: int) -> ExploreSettings:
    values = ValueSettings(sharing=name != "greatest_q_without_sharing")
    return ExploreSettings(app=app, seed=seed, max_steps=steps, snapshots=snapshots, desktops=desktops, values=values)


async def _explore(name: str, seed: int, settings: ExploreSettings, desktop: ExplorableDesktop) -> dict[str, Any]:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dart-explore-") as out, ExploreStore.create(Path(out), settings) as store:
        explorer = Explorer(store, CHOOSERS[name](seed))
        await explorer.run(desktop)
        await explorer.discard_snapshots(desktop)
        steps, points = store.steps(), coverage(store.screens(), store.steps())
    outcomes, kinds = Counter(step.outcome for step in steps), Counter(step.kind for step in steps)
    arrivals = Counter(step.arrived_by for step in steps)
    return {
        "seed": seed,
        "screens": points[-1].screens,
        "screens_at_half": next(point.screens for point in points if point.step >= settings.max_steps // 2),
        "elements": points[-1].elements,
        "no_change_share": round(outcomes[StepOutcome.NO_CHANGE] / len(steps), 3),
        "repeated_share": round(1 - (points[-1].elements + kinds["replay"]) / len(steps), 3),
        "steps_on_the_way_back": kinds["replay"],
        "returns_by_snapshot": arrivals["snapshot"],
        "restarts": arrivals["restart"],
        "seconds": round(time.monotonic() - began_s, 1),
    }


def _means(runs: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in runs[0] if name != "seed"]
    return {name: round(mean(run[name] for run in runs), 3) for name in names} | {"runs": runs}
