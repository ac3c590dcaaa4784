"""Snapshots of screens: their bound with several desktops, and that none is left on the farm that nobody can use."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from dart_agent.explore.choosers import BreadthFirstChooser
from dart_agent.explore.desktops.base import DesktopFaultError
from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop, _State
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.screens import ScreenView
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.store import ExploreStore
from dart_agent.explore.values import StepOutcome
from dart_envs.types import Action
from dart_server.wire import A11yElement

SETTINGS = ExploreSettings(app="simulated/1", max_steps=60, max_snapshots=8)


async def turns(count: int) -> None:
    """Let the other desktops go on."""
    for _ in range(count):
        await asyncio.sleep(0)


class SlowFarmDesktop(SimulatedDesktop):
    """Saves, restores and deletes as slowly as a farm does, and fails as the set `broken` says: restore, elsewhere or discard.

    counts: what all copies have done, and the most that there ever was of it.
    """

    def __init__(self, application: SimulatedApplication, broken: set[str], counts: Counter[str] | None = None) -> None:
        super().__init__(application)
        self.broken = broken
        self.counts: Counter[str] = Counter() if counts is None else counts

    async def perform(self, actions: Sequence[Action]) -> None:
        await turns(1)
        await super().perform(actions)

    async def save(self) -> str:
        self.counts["saving"] += 1
        self._note("most saving", self.counts["saving"])
        await turns(6)
        self.counts["saving"] -= 1
        saved = await super().save()
        self._note("most kept", len(self.application.snapshots))
        return saved

    async def restore(self, snapshot: str) -> None:
        await turns(1)
        if "restore" in self.broken:
            self.counts["failed restores"] += 1
            raise DesktopFaultError("the farm is busy")
        await super().restore(snapshot)
        if "elsewhere" in self.broken and self._state.page != 0:
            self.counts["elsewhere"] += 1
            self._state = _State()

    async def discard(self, snapshot: str) -> None:
        await turns(2)
        if "discard" in self.broken:
            self.counts["failed discards"] += 1
            raise DesktopFaultError("the farm is not reached")
        self.counts["discards"] += 1
        await super().discard(snapshot)

    async def fork(self, count: int) -> list[Self]:
        copies = [type(self)(self.application, self.broken, self.counts) for _ in range(count)]
        for copy in copies:
            copy._state = self._state
        return copies

    def _note(self, name: str, value: int) -> None:
        self.counts[name] = max(self.counts[name], value)


def desktop_with(*broken: str) -> SlowFarmDesktop:
    return SlowFarmDesktop(SimulatedApplication(1, 60), set(broken))


def noted(explorer: Explorer) -> set[str]:
    return {screen.snapshot for screen in explorer.graph.screens.values() if screen.snapshot is not None}


def stored(store: ExploreStore) -> set[str]:
    return {screen.known.snapshot for screen in store.screens() if screen.known.snapshot is not None}


async def explore(store: ExploreStore, desktop: SlowFarmDesktop, lines: list[str] | None = None) -> Explorer:
    explorer = Explorer(store, BreadthFirstChooser(), report=None if lines is None else lines.append)
    await explorer.run(desktop)
    return explorer


@pytest.mark.parametrize(("desktops", "limit"), [(1, 8), (4, 8), (4, 1)])
async def test_there_are_never_more_snapshots_than_the_bound(tmp_path: Path, desktops: int, limit: int) -> None:
    desktop = desktop_with()
    settings = SETTINGS.model_copy(update={"desktops": desktops, "max_snapshots": limit, "max_steps": 150})
    with ExploreStore.create(tmp_path, settings) as store:
        explorer = await explore(store, desktop)
        assert noted(explorer) == stored(store) == set(desktop.application.snapshots)
    assert desktop.counts["discards"] > 0, "nothing had to make room: the test shows nothing"
    assert desktop.counts["most kept"] == len(noted(explorer)) == limit
    assert (desktop.counts["most saving"] > 1) == (desktops > 1 and limit > 1), "desktops save at the same time"


@pytest.mark.parametrize("fault", ["restore", "elsewhere"])
async def test_a_snapshot_that_is_forgotten_is_deleted(tmp_path: Path, fault: str) -> None:
    desktop = desktop_with(fault)
    with ExploreStore.create(tmp_path, SETTINGS) as store:
        explorer = await explore(store, desktop)
        assert desktop.counts["failed restores"] + desktop.counts["elsewhere"] > 0
        assert noted(explorer) == stored(store) == set(desktop.application.snapshots)
        assert all(step.kind != "desktop_fault" for step in store.steps())


async def test_a_snapshot_that_cannot_be_deleted_costs_no_step_and_is_deleted_at_the_end(tmp_path: Path) -> None:
    desktop, lines = desktop_with("restore", "discard"), list[str]()
    with ExploreStore.create(tmp_path, SETTINGS) as store:
        explorer = await explore(store, desktop, lines)
        assert desktop.counts["failed discards"] > 0
        assert any("is not deleted yet: the farm is not reached" in line for line in lines)
        assert all(step.kind != "desktop_fault" for step in store.steps())
        assert desktop.counts["most kept"] <= SETTINGS.max_snapshots
        assert noted(explorer) < stored(store) == set(desktop.application.snapshots), "a resumed exploration knows them"
        with pytest.raises(DesktopFaultError, match="could not be deleted: resume the exploration to delete them"):
            await explorer.discard_snapshots(desktop)
        desktop.broken.clear()
        await explorer.discard_snapshots(desktop)
        assert stored(store) == set(desktop.application.snapshots) == set()


class ChangingDesktop(SimulatedDesktop):
    """Shows another button at each look, as an application does whose screen changes by itself; every look is a new screen."""

    looks = 0

    async def observe(self) -> ScreenView:
        self.looks += 1
        view, name = await super().observe(), "".join(chr(ord("a") + int(digit)) for digit in str(self.looks))
        button = A11yElement(role="push button", name=name, states=["sensitive"], x=600, y=360, w=30, h=20)
        return replace(view, elements=(*view.elements, button))


@pytest.mark.parametrize("snapshots", [True, False])
@pytest.mark.parametrize(("max_steps", "max_screens"), [(12, 1000), (100, 9)])
async def test_a_screen_that_changes_by_itself_keeps_to_the_bounds(
    tmp_path: Path, max_steps: int, max_screens: int, snapshots: bool
) -> None:
    bounds = {"max_steps": max_steps, "max_screens": max_screens, "snapshots": snapshots}
    desktop = ChangingDesktop(SimulatedApplication(1, 60))
    with ExploreStore.create(tmp_path, SETTINGS.model_copy(update=bounds)) as store:
        explorer = Explorer(store, BreadthFirstChooser())
        async with asyncio.timeout(60):
            await explorer.run(desktop)
        steps, screens = store.steps(), store.screens()
        assert noted(explorer) == stored(store) == set(desktop.application.snapshots)
    assert len(screens) == max_screens if max_screens < 1000 else len(steps) == max_steps
    assert len(screens) <= 1 + 2 * len(steps) + 1
    by_actions = [step for step in steps if step.outcome is StepOutcome.NEW_SCREEN]
    assert desktop.application.saved <= len(by_actions) + 1 + desktop.restarts
    assert (desktop.restores > 0) == snapshots, "the test shows nothing"
