"""Screens and elements that choosers find with equal numbers of steps, on simulated applications and on live ones.

Role: `python -m benchmarks exploration --work FOLDER --json FILE` explores every application with every seed, arm by arm, with and without
snapshots, and with 1, 2 and 4 desktops. Rule: the applications are simulated (`dart_agent.explore.desktops.simulated`) unless `--live`
names programs of a desktop image; the model that chooses is simulated, too. `qicrl_over_random` compares the greatest Q (ties by the seed,
no knowledge of the application) with chance, `qicrl_model_over_random` the model that sees Q: ratios of the mean numbers of screens after
all steps, with snapshots. Steps are actions, those on the way back to a screen included; restoring a snapshot and starting an application
again cost none and are counted apart. Steps per minute are those of live desktops only. With `--work` the same command goes on where it was
stopped. Non-goals: the samples.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.exploration.cells import ARMS, Cell, Cells, explore, settings_of
from benchmarks.exploration.figures import means, ratio
from benchmarks.work_folder import work_folder
from dart_agent.explore.desktops.farm import FarmDesktop
from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape

TABLES = {"with_snapshots": tuple(ARMS), "without_snapshots": ("qicrl", "qicrl_model", "breadth_first")}
"""By table: its arms. Those that stay where an action leads return to no screen, and are explored with snapshots alone."""
LIVE_ARMS = ("qicrl", "qicrl_model", "breadth_first", "random")
DESKTOPS = (1, 2, 4)
RATIOS = {
    "qicrl_over_random": ("qicrl", "random"),
    "qicrl_model_over_random": ("qicrl_model", "random"),
    "qicrl_model_over_model_without_q": ("qicrl_model", "model_without_q"),
    "qicrl_over_breadth_first": ("qicrl", "breadth_first"),
    "qicrl_over_qicrl_without_sharing": ("qicrl", "qicrl_without_sharing"),
}
"""By figure: the two arms that it compares."""
Table = dict[str, dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the benchmark.

    Args:
        parser: Its parser.
    """
    parser.add_argument("--work", type=Path, help="folder of finished explorations; default: none is kept")
    parser.add_argument("--steps", type=int, default=120, help="steps of each exploration")
    parser.add_argument("--pages", type=int, default=60, help="screens of a simulated application")
    parser.add_argument(
        "--applications", type=int, nargs="+", default=[1, 2, 3, 4], help="seeds that make simulated applications"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of choosers, declared beforehand")
    parser.add_argument("--live", nargs="*", default=[], help="programs to explore on live desktops, too")
    parser.add_argument("--live-image", default="desktop", help="desktop image that has them")
    parser.add_argument("--live-steps", type=int, default=60, help="steps of each live exploration")
    parser.add_argument("--live-seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--live-arms", nargs="*", choices=tuple(ARMS), default=LIVE_ARMS)
    parser.add_argument(
        "--live-desktops", type=int, nargs="*", default=[1, 4], help="numbers of desktops whose steps are timed"
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Explore what is not done yet, and gather everything.

    Args:
        args: See `add_arguments`.

    Returns:
        Ratios, and tables by arm: means, and each exploration.
    """
    noted = {"steps": args.steps, "pages": args.pages, "live_steps": args.live_steps, "live_image": args.live_image}
    folder = None if args.work is None else args.work.resolve()
    with nullcontext() if folder is None else work_folder(folder, noted):
        return asyncio.run(_measure(args, Cells(folder)))


async def _measure(args: argparse.Namespace, cells: Cells) -> dict[str, Any]:
    tables = {
        name: {arm: await _arm(args, cells, arm, snapshots=name == "with_snapshots") for arm in arms}
        for name, arms in TABLES.items()
    }
    forks = {str(desktops): await _forks(args, cells, desktops) for desktops in DESKTOPS}
    figures: dict[str, Any] = {
        **ratios(tables["with_snapshots"]),
        "snapshots_over_none": {
            arm: ratio(*(found_by(tables[name][arm], "screens") for name in TABLES))
            for arm in tables["without_snapshots"]
        },
        "applications": "simulated",
        "model": "simulated",
        "steps": args.steps,
        "pages": args.pages,
        **tables,
        "forks": forks,
    }
    if args.live:
        async with await AsyncFarmClient.connect() as farm:
            figures["live"] = {program: await _live(args, cells, farm, program) for program in args.live}
    return figures


def ratios(table: Table) -> dict[str, Any]:
    """Compare the arms of a table.

    Args:
        table: Means and explorations by arm.

    Returns:
        By name of the figure: the ratio of screens; with `_interval` its interval, and with `_elements` the ratio of elements tried.
    """
    figures: dict[str, Any] = {}
    for name, (ours, theirs) in RATIOS.items():
        screens, elements = (
            ratio(found_by(table[ours], what), found_by(table[theirs], what)) for what in ("screens", "elements_tried")
        )
        figures |= {name: screens["ratio"], f"{name}_interval": screens["interval"], f"{name}_elements": elements}
    return figures


def found_by(means_of_arm: Mapping[str, Any], what: str) -> dict[str, list[float]]:
    """What an arm found in each application.

    Args:
        means_of_arm: The arm's row of a table.
        what: Name of the number.

    Returns:
        By application: the number with each seed.
    """
    found: dict[str, list[float]] = {}
    for run in means_of_arm["runs"]:
        found.setdefault(run["application"], []).append(run[what])
    return found


async def _arm(args: argparse.Namespace, cells: Cells, arm: str, *, snapshots: bool) -> dict[str, Any]:
    suffix = "" if snapshots else "-without-snapshots"
    return means(
        [
            await cells.get(
                f"simulated-{application}-{seed}-{arm}{suffix}",
                partial(_simulated, arm, application, seed, args.steps, args.pages, snapshots=snapshots),
            )
            for application in args.applications
            for seed in args.seeds
        ]
    )


async def _forks(args: argparse.Namespace, cells: Cells, desktops: int) -> dict[str, Any]:
    """As many steps of each desktop, however many there are."""
    of_each = args.steps // max(DESKTOPS)
    found = [
        await cells.get(
            f"simulated-{application}-{seed}-desktops-{desktops}",
            partial(_simulated, "qicrl", application, seed, of_each * desktops, args.pages, desktops=desktops),
        )
        for application in args.applications
        for seed in args.seeds
    ]
    return {"steps_per_desktop": of_each, **means(found)}


async def _simulated(
    arm: str, application: int, seed: int, steps: int, pages: int, *, snapshots: bool = True, desktops: int = 1
) -> Cell:
    app = f"simulated/{application}"
    settings = settings_of(arm, app, seed, steps, snapshots=snapshots, desktops=desktops)
    desktop = SimulatedDesktop(SimulatedApplication(application, pages), _other_desktops_act)
    found = await explore(arm, settings, desktop)
    # Simulated desktops answer at once: their steps per minute say nothing.
    return {"application": app, **found, "steps_per_minute": None}


async def _other_desktops_act() -> None:
    """An action takes as long on every desktop: the others get their turn."""
    await asyncio.sleep(0)


async def _live(args: argparse.Namespace, cells: Cells, farm: AsyncFarmClient, program: str) -> dict[str, Any]:
    shape = DesktopShape(image=args.live_image, resolution=(640, 400))

    def run(arm: str, seed: int, desktops: int) -> Callable[[], Awaitable[Cell]]:
        return partial(_live_cell, farm, shape, program, arm, seed, args.live_steps, desktops)

    table = {
        arm: means([await cells.get(f"live-{program}-{seed}-{arm}", run(arm, seed, 1)) for seed in args.live_seeds])
        for arm in args.live_arms
    }
    timed = {
        str(desktops): means(
            [
                await cells.get(f"live-{program}-{seed}-desktops-{desktops}", run("qicrl", seed, desktops))
                for seed in args.live_seeds
            ]
        )
        for desktops in args.live_desktops
    }
    rates = {desktops: found.get("steps_per_minute") for desktops, found in timed.items()}
    one, four = rates.get("1"), rates.get("4")
    return {
        "image": args.live_image,
        **table,
        "steps_per_minute": rates,
        "four_forks_over_one_steps_per_minute": round(four / one, 2) if one and four else None,
        "forks": timed,
    }


async def _live_cell(
    farm: AsyncFarmClient, shape: DesktopShape, program: str, arm: str, seed: int, steps: int, desktops: int
) -> Cell:
    desktop = await FarmDesktop.start(farm, program, shape)
    try:
        settings = settings_of(arm, program, seed, steps, desktops=desktops)
        return {"application": program, **await explore(arm, settings, desktop)}
    finally:
        await desktop.discard_root()
        await desktop.aclose()
