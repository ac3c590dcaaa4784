"""Candidates that were seen and are no longer shown: nothing is repeated for them, and what brings them back is done again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from dart_agent.explore.candidates import CandidateAction
from dart_agent.explore.choosers import BreadthFirstChooser, Chooser, GreatestQChooser, RandomChooser
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.graph import START_SCREEN, ExplorationGraph, KnownScreen
from dart_agent.explore.model_chooser import ModelChooser
from dart_agent.explore.reach import Reach, WayBack
from dart_agent.explore.screens import ScreenIdentity, ScreenView
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.storage.records import StoredStep
from dart_agent.explore.store import DATABASE_FILE, ExploreStore
from dart_agent.explore.values import StepOutcome
from dart_agent.types import Completion, FinishReason, PolicyRequest
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement

WH = (320, 200)
ROW_PX = 20
SETTINGS = ExploreSettings(app="list of files", max_steps=300)
BUTTONS = {"list": ("Reload", "Sort", "Details", "About"), "about": ("Back", "Licence"), "licence": ("Back", "Accept")}


@dataclass(frozen=True)
class Shown:
    """State of the application. left: names of the rows of the list; accepted: the licence opens nothing any more."""

    page: str = "list"
    left: tuple[str, ...] = ()
    accepted: bool = False


class ListDesktop:
    """A list whose rows appear after Reload, and of which each vanishes when it is used (`ExplorableDesktop`).

    Rows have no part in the screen's identity but that there are any, and one of them stays, so that the list is one screen. The licence is
    shown until it is accepted: then the button that led there has no effect until the application is started again.

    Args:
        rows: Names of the rows after Reload.
        at_start: Whether they are shown at the start, too.
        limits: By button: how often it has an effect, on all copies together; others always have one.
    """

    def __init__(self, rows: Sequence[str], *, at_start: bool = False, limits: Mapping[str, int] | None = None) -> None:
        self.rows, self.limits = tuple(rows), dict(limits or {})
        self.start = Shown(left=self.rows if at_start else ())
        self.state = self.start
        self.saved: list[Shown] = []
        self.used: list[tuple[str, str]] = []

    def elements(self) -> list[A11yElement]:
        page = [("push button", name) for name in BUTTONS[self.state.page]]
        rows = [("list item", name) for name in ("total", *self.state.left)] if self.state.page == "list" else []
        return [
            A11yElement(role=role, name=name, states=["sensitive"], x=10, y=10 + at * ROW_PX, w=100, h=ROW_PX - 4)
            for at, (role, name) in enumerate([*page, *rows])
        ]

    async def observe(self) -> ScreenView:
        shades = {"list": 250, "about": 120, "licence": 60}
        image = np.full((WH[1], WH[0], 3), shades[self.state.page], np.uint8)
        return ScreenView(image, tuple(self.elements()), "files", self.state.page)

    async def perform(self, actions: Sequence[Action]) -> None:
        (action,) = actions
        await asyncio.sleep(0)
        if action.type is ActionType.KEY:
            return
        (hit,) = [one for one in self.elements() if one.y <= (action.y or 0) < one.y + one.h]
        if hit.role == "list item" and hit.name in self.state.left:
            self.used.append((action.type.value, hit.name))
            self.state = replace(self.state, left=tuple(name for name in self.state.left if name != hit.name))
        elif self.limits.get(hit.name) == 0:
            return
        elif hit.name == "Reload":
            self.state = replace(self.state, left=self.rows)
        elif hit.name == "About":
            self.state = replace(self.state, page="about")
        elif hit.name == "Licence" and not self.state.accepted:
            self.state = replace(self.state, page="licence")
        elif hit.name == "Accept":
            self.state = replace(self.state, page="list", accepted=True)
        elif hit.name == "Back":
            self.state = replace(self.state, page="list")
        if hit.name in self.limits:
            self.limits[hit.name] -= 1

    async def restart(self) -> None:
        self.state = self.start

    async def save(self) -> str:
        self.saved.append(self.state)
        return str(len(self.saved) - 1)

    async def restore(self, snapshot: str) -> None:
        self.state = self.saved[int(snapshot)]

    async def discard(self, snapshot: str) -> None:
        pass

    async def fork(self, count: int) -> Sequence[ListDesktop]:
        return [copy(self) for _ in range(count)]

    async def aclose(self) -> None:
        pass


class FirstOfAll:
    """A model that names the first candidate."""

    async def complete(self, request: PolicyRequest) -> Completion:
        return Completion('{"choice": 1}', (), (), (), (), FinishReason.STOP)


async def explore(out: Path, desktop: ListDesktop, chooser: Chooser, settings: ExploreSettings) -> list[StoredStep]:
    """The steps, and that the graph is left as it is stored."""
    opened = ExploreStore.open(out) if (out / DATABASE_FILE).exists() else ExploreStore.create(out, settings)
    with opened as store:
        explorer = Explorer(store, chooser, settings)
        await explorer.run(desktop)
        again = store.load_graph()
        assert again.count_candidates() == explorer.graph.count_candidates()
        assert again.first_shown == explorer.graph.first_shown
        return store.steps()


def untried(out: Path) -> list[tuple[int, str]]:
    with ExploreStore.open(out) as store:
        graph = store.load_graph()
    return [(screen_id, key) for screen_id in graph.screens for key in graph.q.untried(screen_id)]


@pytest.mark.parametrize("snapshots", [True, False])
@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize(
    "chooser",
    [GreatestQChooser(), BreadthFirstChooser(), ModelChooser(FirstOfAll())],
    ids=["greatest-q", "breadth-first", "model"],
)
async def test_rows_that_vanish_are_all_tried_and_the_exploration_ends(
    tmp_path: Path, chooser: Chooser, at_start: bool, snapshots: bool
) -> None:
    desktop = ListDesktop(["one", "two", "three"], at_start=at_start)
    steps = await explore(tmp_path, desktop, chooser, SETTINGS.model_copy(update={"snapshots": snapshots}))
    assert untried(tmp_path) == []
    assert sorted(desktop.used) == sorted((kind, row) for kind in ("click", "double_click") for row in desktop.rows)
    assert len(steps) < 60


@pytest.mark.parametrize("snapshots", [True, False])
async def test_chance_tries_them_too_and_ends(tmp_path: Path, snapshots: bool) -> None:
    desktop = ListDesktop(["one", "two"])
    settings = SETTINGS.model_copy(update={"snapshots": snapshots, "max_steps": 1000})
    steps = await explore(tmp_path, desktop, RandomChooser(), settings)
    assert untried(tmp_path) == []
    assert len(steps) < 1000


@pytest.mark.parametrize("snapshots", [True, False])
async def test_several_desktops_try_them_all_and_end(tmp_path: Path, snapshots: bool) -> None:
    settings = SETTINGS.model_copy(update={"snapshots": snapshots, "desktops": 3})
    steps = await explore(tmp_path, ListDesktop(["one", "two", "three"]), GreatestQChooser(), settings)
    assert {step.desktop for step in steps} == {0, 1, 2}
    assert untried(tmp_path) == []
    assert len(steps) < 100


@pytest.mark.parametrize("snapshots", [True, False])
@pytest.mark.parametrize("chooser", [GreatestQChooser(), BreadthFirstChooser(), RandomChooser()])
async def test_what_nothing_brings_back_stays_untried_and_the_exploration_ends(
    tmp_path: Path, chooser: Chooser, snapshots: bool
) -> None:
    desktop = ListDesktop(["one", "two", "three"], limits={"Reload": 1})
    settings = SETTINGS.model_copy(update={"snapshots": snapshots})
    steps = await explore(tmp_path, desktop, chooser, settings)
    left = untried(tmp_path)
    assert all("|list item|" in key for _, key in left)
    assert left or snapshots, "a snapshot of another screen may still have the rows"
    assert len(steps) < (SETTINGS.max_steps if isinstance(chooser, RandomChooser) else 60)
    resumed = await explore(tmp_path, desktop, chooser, settings.model_copy(update={"max_steps": 600}))
    assert len(resumed) < len(steps) + 40
    assert untried(tmp_path) == left


async def test_a_screen_that_no_way_leads_to_any_more_is_given_up(tmp_path: Path) -> None:
    desktop = ListDesktop([], limits={"Licence": 1})
    settings = SETTINGS.model_copy(update={"snapshots": False})
    steps = await explore(tmp_path, desktop, BreadthFirstChooser(), settings)
    left = untried(tmp_path)
    assert left
    assert {screen_id for screen_id, _ in left} == {3}
    assert len(steps) < 40


def graph_of(*keys: str) -> ExplorationGraph:
    graph = ExplorationGraph()
    actions = {key: CandidateAction(key, key, "click", (Action(ActionType.CLICK, x=1, y=1),), "tree") for key in keys}
    graph.add_screen(KnownScreen(START_SCREEN, ScreenIdentity("app", "shape", 0), 0, actions))
    return graph


def test_what_is_absent_is_worth_nothing_and_scarce_when_it_is_shown_again() -> None:
    graph = graph_of("stays", "goes")
    reach = Reach(graph)
    assert not reach.stop(1, {"stays"})
    assert reach.absent == {(1, "goes")}
    graph.record(1, "stays", StepOutcome.NO_CHANGE, 1)
    assert reach.best_untried(1) is None
    assert reach.is_scarce(1, {"stays", "goes"})
    assert reach.stop(1, {"stays", "goes"})
    assert reach.absent == frozenset()
    assert reach.best_untried(1) == graph.q.best_untried(1) is not None


def test_a_screen_is_out_of_reach_until_a_desktop_stops_there() -> None:
    reach = Reach(graph_of("a"))
    reach.miss(1)
    assert reach.was_missed(1)
    assert reach.costs(1, snapshots=True) == {1: 0}
    reach.miss(1)
    assert reach.costs(1, snapshots=True) == {}
    assert reach.is_scarce(1, {"a"})
    assert reach.stop(1, {"a"})
    assert not reach.was_missed(1)


def test_a_way_back_is_taken_again_only_after_it_has_shown_something() -> None:
    graph = graph_of("a", "b", "c")
    graph.note_first_shown(1, ["b"], (1, "a"))
    graph.note_first_shown(1, ["c"], (2, "elsewhere"))
    graph.screens[1].snapshot = "saved"
    reach = Reach(graph)
    reach.stop(1, {"a"})
    taken = [reach.take_way_back({1: 0}, snapshots=True) for _ in range(3)]
    assert taken == [WayBack(1, snapshot=True), WayBack(1, action=(1, "a")), None]
    reach.give_back(WayBack(1, action=(1, "a")))
    assert reach.take_way_back({1: 0}, snapshots=True) == WayBack(1, action=(1, "a"))
    assert reach.take_way_back({1: 0, 2: 1}, snapshots=True) == WayBack(1, action=(2, "elsewhere"))
