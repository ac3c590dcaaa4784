"""Several desktops on one graph: what they stored is read back as it was, whichever ends its step first; and the root that they share."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from dart_agent.errors import AgentError
from dart_agent.explore.choosers import (
    BreadthFirstChooser,
    Choice,
    ChoiceContext,
    Chooser,
    GreatestQChooser,
    RandomChooser,
)
from dart_agent.explore.desktops import farm as farm_desktops
from dart_agent.explore.desktops.base import DesktopFaultError
from dart_agent.explore.desktops.farm import FarmDesktop
from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.graph import START_SCREEN, ExplorationGraph
from dart_agent.explore.page import coverage
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.store import DATABASE_FILE, ExploreStore
from dart_envs.errors import FarmError
from dart_envs.types import Action

SETTINGS = ExploreSettings(app="simulated/1", max_steps=80, desktops=4)


async def turns(count: int) -> None:
    """Let the other desktops go on."""
    for _ in range(count):
        await asyncio.sleep(0)


class SlowRestartDesktop(SimulatedDesktop):
    """Starts the application as slowly as real ones do, and notes what is being done on all of its copies."""

    def __init__(self, application: SimulatedApplication, running: list[Any] | None = None) -> None:
        super().__init__(application)
        self.running: list[Any] = [] if running is None else running
        self.done_twice: list[Any] = []

    async def restart(self) -> None:
        await turns(9)
        await super().restart()

    async def perform(self, actions: Sequence[Action]) -> None:
        doing = (self._state.page, tuple(actions))
        if doing in self.running:
            self.done_twice.append(doing)
        self.running.append(doing)
        await turns(3)
        self.running.remove(doing)
        await super().perform(actions)

    async def fork(self, count: int) -> list[Self]:
        copies = [type(self)(self.application, self.running) for _ in range(count)]
        for copy in copies:
            copy._state, copy.done_twice = self._state, self.done_twice
        return copies


class ThoughtfulChooser(BreadthFirstChooser):
    """Takes its time, as a model does, and chooses from what it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def choose(self, context: ChoiceContext) -> Choice:
        self.asked += 1
        tries = {one.key: context.graph.q.tries(context.screen_id, one.key) for one in context.candidates}
        await turns(2)
        return Choice(min(context.candidates, key=lambda one: tries[one.key]))


async def explore(out: Path, chooser: Chooser, seed: int = 0) -> tuple[ExplorationGraph, SlowRestartDesktop]:
    desktop = SlowRestartDesktop(SimulatedApplication(seed, 40))
    with ExploreStore.create(out, SETTINGS.model_copy(update={"seed": seed})) as store:
        explorer = Explorer(store, chooser)
        await explorer.run(desktop)
    return explorer.graph, desktop


def values(graph: ExplorationGraph) -> dict[tuple[int, str], float]:
    return {
        (screen_id, key): graph.q.value(screen_id, key)
        for screen_id, screen in graph.screens.items()
        for key in screen.candidates
    }


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("chooser", [RandomChooser(), GreatestQChooser()])
async def test_what_forks_stored_is_read_back_as_it_was(tmp_path: Path, chooser: Chooser, seed: int) -> None:
    graph, _ = await explore(tmp_path, chooser, seed)
    with ExploreStore.open(tmp_path) as store:
        again, steps, screens = store.load_graph(), store.steps(), store.screens()
    assert [step.step for step in steps] != sorted(step.step for step in steps), "no desktop overtook another one"
    assert sorted(step.step for step in steps) == list(range(1, SETTINGS.max_steps + 1))
    assert values(again) == values(graph)
    assert {one: again.path(START_SCREEN, one) for one in again.screens} == {
        one: graph.path(START_SCREEN, one) for one in graph.screens
    }
    points = coverage(screens, steps)
    assert (points[0].screens, points[-1].screens) == (1, len(graph.screens))
    assert points[-1].elements == graph.count_candidates()[0]


async def test_two_desktops_never_try_the_same_while_a_chooser_thinks(tmp_path: Path) -> None:
    chooser = ThoughtfulChooser()
    graph, desktop = await explore(tmp_path, chooser)
    assert desktop.done_twice == []
    assert chooser.asked > SETTINGS.max_steps, "no two desktops wanted the same: the test shows nothing"
    with ExploreStore.open(tmp_path) as store:
        explored = [(step.from_screen, step.candidate) for step in store.steps() if step.kind == "explore"]
    untried = sum(len(graph.q.untried(screen_id)) for screen_id in graph.screens)
    assert untried > 0
    assert len({(screen, one.key) for screen, one in explored if one}) == len(explored)


@pytest.mark.parametrize("desktops", [1, 4])
async def test_an_exploration_without_revisions_is_given_them(tmp_path: Path, desktops: int) -> None:
    settings = SETTINGS.model_copy(update={"desktops": desktops, "seed": 1})
    with ExploreStore.create(tmp_path, settings) as store:
        explorer = Explorer(store, RandomChooser())
        await explorer.run(SlowRestartDesktop(SimulatedApplication(1, 40)))
    connection = sqlite3.connect(tmp_path / DATABASE_FILE)
    with connection:
        for table in ("exploration", "screens", "candidates", "steps"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN revision")
        connection.execute("UPDATE exploration SET layout = 1")
    connection.close()
    for _ in range(2):  # the second time there is nothing left to do
        with ExploreStore.open(tmp_path) as store:
            again, screens = store.load_graph(), store.screens()
    assert again.screens.keys() == explorer.graph.screens.keys()
    assert again.count_candidates() == explorer.graph.count_candidates()
    assert [one.revision for one in screens] == sorted(one.revision for one in screens)
    if desktops == 1:
        assert values(again) == values(explorer.graph)
    with ExploreStore.open(tmp_path) as store:
        more = settings.model_copy(update={"max_steps": SETTINGS.max_steps + 20})
        explorer = Explorer(store, RandomChooser(), more)
        await explorer.run(SlowRestartDesktop(SimulatedApplication(1, 40)))
        assert values(store.load_graph()) == values(explorer.graph)


def test_a_screen_that_two_desktops_show_at_once_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, write_bytes = threading.Barrier(2, timeout=10), Path.write_bytes

    def write_at_once(path: Path, content: bytes) -> int:
        written = write_bytes(path, content)
        together.wait()
        return written

    image = np.full((16, 16, 3), 7, np.uint8)
    with ExploreStore.create(tmp_path, SETTINGS) as store, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(Path, "write_bytes", write_at_once)
        first, second = (pool.submit(store.add_image, image) for _ in range(2))
        assert first.result() == second.result()
        assert store.read_image(first.result()).tolist() == image.tolist()
    assert len(list((tmp_path / "images").iterdir())) == 1


class LostDesktop(SlowRestartDesktop):
    """One of several desktops; those with the given numbers lose their leases when they are forked, and all that they are asked fails."""

    lost: frozenset[int] = frozenset()
    number, forked = 0, False

    async def perform(self, actions: Sequence[Action]) -> None:
        self._check()
        await super().perform(actions)

    async def restart(self) -> None:
        self._check()
        await super().restart()

    async def restore(self, snapshot: str) -> None:
        self._check()
        await super().restore(snapshot)

    async def fork(self, count: int) -> list[Self]:
        copies = await super().fork(count)
        for number, copy in enumerate(copies, 1):
            copy.number, copy.lost, copy.forked = number, self.lost, True
        self.forked = True
        return copies

    def _check(self) -> None:
        if self.forked and self.number in self.lost:
            raise DesktopFaultError(f"lease {self.number} is gone")


@pytest.mark.parametrize(
    ("lost", "desktops"), [({1}, 2), ({0}, 2), ({1, 2}, 3), ({0, 1, 2}, 3)], ids=["fork", "first", "forks", "all"]
)
async def test_a_desktop_that_is_gone_is_retired_and_the_others_go_on(
    tmp_path: Path, lost: set[int], desktops: int
) -> None:
    desktop, lines = LostDesktop(SimulatedApplication(1, 40)), list[str]()
    desktop.lost = frozenset(lost)
    settings = SETTINGS.model_copy(update={"desktops": desktops})
    with ExploreStore.create(tmp_path, settings) as store:
        explorer = Explorer(store, GreatestQChooser(), report=lines.append)
        if len(lost) == desktops:
            with pytest.raises(AgentError, match=r"5 faults in a row, the last of them: lease .* is gone.*resume it"):
                await explorer.run(desktop)
        else:
            await explorer.run(desktop)
        steps = store.steps()
    faults = Counter(step.desktop for step in steps if step.kind == "desktop_fault")
    assert faults == dict.fromkeys(lost, settings.max_faults)
    assert sum("is not used any more after 5 faults in a row: lease" in line for line in lines) == min(
        len(lost), desktops - 1
    )
    if len(lost) < desktops:
        assert len(steps) == settings.max_steps


class StubFarm:
    """A farm whose snapshots have ids and nothing else; one that is broken gives no desktop.

    Args:
        refuses: Code of the error that answers a request for a snapshot; None: it is taken.
    """

    def __init__(self, refuses: str | None = None) -> None:
        self.refuses = refuses
        self.leases = self.launches = 0
        self.snapshots: set[str] = set()
        self.broken: set[str] = set()
        self.taken = 0

    async def lease(self, shape: object = None, *, snapshot_id: str | None = None) -> StubLease:
        if snapshot_id is not None and (snapshot_id in self.broken or snapshot_id not in self.snapshots):
            raise FarmError("the snapshot cannot be restored", code="snapshot_failed")
        self.leases += 1
        return StubLease(self)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        self.snapshots.discard(snapshot_id)


class StubLease:
    """A desktop of `StubFarm`."""

    shape, lost = None, None

    def __init__(self, farm: StubFarm) -> None:
        self.farm = farm

    async def restore(self, snapshot_id: str) -> None:
        await self.farm.lease(snapshot_id=snapshot_id)

    async def snapshot(self, description: str) -> SimpleNamespace:
        if self.farm.refuses is not None:
            raise FarmError("this provider takes no live snapshots", code=self.farm.refuses)
        self.farm.taken += 1
        self.farm.snapshots.add(f"snapshot-{self.farm.taken}")
        return SimpleNamespace(snapshot_id=f"snapshot-{self.farm.taken}")

    async def exec(self, argv: list[str], detach: bool) -> SimpleNamespace:
        self.farm.launches += 1
        return SimpleNamespace(returncode=0)

    async def step(self, events: object, settle: object) -> None:
        await turns(1)

    async def fork(self, count: int, wait_s: float) -> SimpleNamespace:
        return SimpleNamespace(leases=[StubLease(self.farm) for _ in range(count)])

    async def aclose(self) -> None:
        await turns(1)


@pytest.fixture
def starting_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_windows(_lease: object) -> set[str]:
        return set()

    async def started(*_: object) -> bool:
        return True

    monkeypatch.setattr(farm_desktops, "window_ids", no_windows)
    monkeypatch.setattr(farm_desktops, "wait_started", started)


@pytest.mark.usefixtures("starting_at_once")
async def test_a_farm_without_snapshots_starts_the_application_anew_each_time() -> None:
    farm: Any = StubFarm("capability_missing")
    noted: list[str | None] = []
    desktop = await FarmDesktop.start(farm, "editor", note_root=noted.append)
    assert (farm.leases, farm.launches) == (1, 1)
    await desktop.restart()
    assert (farm.leases, farm.launches) == (2, 2)
    with pytest.raises(DesktopFaultError, match="no live snapshots"):
        await desktop.save()
    await desktop.discard_root()
    assert noted == []
    for code in ("quota", "unreachable"):
        with pytest.raises(DesktopFaultError):
            await FarmDesktop.start(StubFarm(code), "editor")  # type: ignore[arg-type]


@pytest.mark.usefixtures("starting_at_once")
async def test_a_root_that_a_fork_makes_anew_is_that_of_all_and_is_deleted() -> None:
    farm: Any = StubFarm()
    noted: list[str | None] = []
    first = await FarmDesktop.start(farm, "editor", note_root=noted.append)
    forks = await first.fork(2)
    farm.broken.add("snapshot-1")
    await forks[0].restart()
    assert noted == ["snapshot-1", "snapshot-2"]
    assert farm.snapshots == {"snapshot-2"}
    await forks[1].restart()
    await first.restart()
    assert noted == ["snapshot-1", "snapshot-2"], "the others go back to the new root"
    farm.broken.add("snapshot-2")
    await asyncio.gather(*(one.restart() for one in (first, *forks)))
    assert farm.snapshots == {noted[-1]}
    await first.discard_root()
    assert farm.snapshots == set()
