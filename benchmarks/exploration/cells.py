"""One exploration of the benchmark: an arm, an application and a seed, and what it found.

Role: `ARMS` says who chooses in each arm, `explore` runs one exploration and counts, `Cells` keeps what is done. Rule: an exploration that
is kept is not run again; all arms have the same number of steps. Non-goals: means and ratios (`benchmarks.exploration.figures`).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.exploration.simulated_model import SimulatedModel
from benchmarks.machine import commit, machine
from benchmarks.work_folder import write_json
from dart_agent.explore.choosers import BreadthFirstChooser, Chooser, GreatestQChooser, RandomChooser
from dart_agent.explore.desktops.base import ExplorableDesktop
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.model_chooser import ModelChooser
from dart_agent.explore.page import coverage
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.storage.records import StoredStep
from dart_agent.explore.store import ExploreStore
from dart_agent.explore.values import StepOutcome, ValueSettings

Cell = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """Who chooses.

    Attributes:
        chooser: Makes the chooser of a seed.
        sharing: Whether similar elements share their novelty.
    """

    chooser: Callable[[int], Chooser]
    sharing: bool = True


ARMS = {
    "qicrl": Arm(lambda _seed: GreatestQChooser()),
    "qicrl_without_sharing": Arm(lambda _seed: GreatestQChooser(), sharing=False),
    "qicrl_model": Arm(lambda seed: ModelChooser(SimulatedModel(seed))),
    "model_without_q": Arm(lambda seed: ModelChooser(SimulatedModel(seed), use_q=False)),
    "breadth_first": Arm(lambda _seed: BreadthFirstChooser()),
    "random": Arm(lambda _seed: RandomChooser()),
}
"""`qicrl`: the greatest Q-value, ties by the seed, without knowledge of the application. `qicrl_model`: a model that sees Q."""


class Cells:
    """Explorations that are done.

    Args:
        folder: Keeps them; None: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    async def get(self, name: str, run: Callable[[], Awaitable[Cell]]) -> Cell:
        """Run an exploration, or take it from the folder.

        Args:
            name: Its name, fit for a file.
            run: Runs it.

        Returns:
            What it found.
        """
        return self._read(name) or self._keep(name, {"commit": commit(), "cpu": machine()["cpu"], **await run()})

    def _read(self, name: str) -> Cell | None:
        file = None if self._folder is None else self._folder / f"{name}.json"
        return None if file is None or not file.is_file() else json.loads(file.read_text(encoding="utf-8"))

    def _keep(self, name: str, cell: Cell) -> Cell:
        if self._folder is not None:
            write_json(self._folder / f"{name}.json", cell)
        return cell


def settings_of(
    arm: str, app: str, seed: int, steps: int, *, snapshots: bool = True, desktops: int = 1
) -> ExploreSettings:
    """How one exploration runs.

    Args:
        arm: Name of the arm.
        app: The application.
        seed: Of its random numbers.
        steps: How many steps it has.
        snapshots: Whether screens are returned to by snapshots.
        desktops: How many desktops explore.

    Returns:
        The settings.
    """
    values = ValueSettings(sharing=ARMS[arm].sharing)
    return ExploreSettings(app=app, seed=seed, max_steps=steps, snapshots=snapshots, desktops=desktops, values=values)


async def explore(arm: str, settings: ExploreSettings, desktop: ExplorableDesktop) -> Cell:
    """Run one exploration.

    Args:
        arm: Name of the arm.
        settings: How it runs.
        desktop: The first desktop.

    Returns:
        What it found, and how.
    """
    with (
        tempfile.TemporaryDirectory(prefix="dart-explore-") as out,
        ExploreStore.create(Path(out), settings) as store,
    ):
        explorer = Explorer(store, ARMS[arm].chooser(settings.seed))
        began_s = time.monotonic()
        await explorer.run(desktop)
        took_s = time.monotonic() - began_s
        await explorer.discard_snapshots(desktop)
        steps, points = store.steps(), coverage(store.screens(), store.steps())
    outcomes, kinds = Counter(step.outcome for step in steps), Counter(step.kind for step in steps)
    arrivals = Counter(step.arrived_by for step in steps)
    return {
        "seed": settings.seed,
        "steps": len(steps),
        "screens": points[-1].screens,
        "screens_at_half": points[len(steps) // 2].screens,
        "elements_tried": points[-1].elements,
        "elements_seen": explorer.graph.count_candidates()[1],
        "no_change_share": round(outcomes[StepOutcome.NO_CHANGE] / len(steps), 3),
        "repeated_share": round(1 - (points[-1].elements + kinds["replay"]) / len(steps), 3),
        "steps_on_the_way_back": kinds["replay"],
        "returns_by_snapshot": arrivals["snapshot"],
        "restarts": arrivals["restart"],
        "faults": kinds["model_fault"] + kinds["desktop_fault"],
        "seconds": round(took_s, 1),
        "steps_per_minute": _steps_per_minute(steps),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _steps_per_minute(steps: list[StoredStep]) -> float | None:
    """From the end of the first step to that of the last, so without the start of the application and forking."""
    took_s = steps[-1].at_s - steps[0].at_s
    return round(60 * (len(steps) - 1) / took_s, 1) if took_s > 0 else None
