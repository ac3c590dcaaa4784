"""The loop of an exploration on simulated applications: what is stored, resumed after SIGKILL, bounded, and what faults cost."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from dart_agent.chat_api.endpoint_policy import EndpointPolicy, EndpointSettings
from dart_agent.errors import AgentError, ConfigError, PolicyUnavailableError
from dart_agent.explore.choosers import BreadthFirstChooser, Chooser, GreatestQChooser, RandomChooser
from dart_agent.explore.desktops.base import DesktopFaultError
from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.model_chooser import ModelChooser
from dart_agent.explore.screens import appeared_names
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.store import DATABASE_FILE, ExploreStore
from dart_agent.explore.values import StepOutcome
from dart_agent.types import Completion, FinishReason, PolicyRequest

PAGES = 10
SETTINGS = ExploreSettings(app="simulated/3", max_steps=40)


async def explore(
    out: Path,
    settings: ExploreSettings = SETTINGS,
    chooser: Chooser | None = None,
    desktop: SimulatedDesktop | None = None,
) -> Explorer:
    opened = ExploreStore.open(out) if (out / DATABASE_FILE).exists() else ExploreStore.create(out, settings)
    with opened as store:
        explorer = Explorer(store, chooser or GreatestQChooser(), settings)
        await explorer.run(desktop or SimulatedDesktop(SimulatedApplication(3, PAGES)))
    return explorer


async def test_what_was_found_is_stored_with_its_screens_before_and_after(tmp_path: Path) -> None:
    explorer = await explore(tmp_path)
    with ExploreStore.open(tmp_path) as store:
        steps, screens = store.steps(), store.screens()
        assert [step.step for step in steps] == list(range(1, 41))
        assert len(screens) == len(explorer.graph.screens) > 3
        found = [step for step in steps if step.outcome is StepOutcome.NEW_SCREEN]
        assert [step.to_screen for step in found] == list(range(2, len(screens) + 1))
        for step in found:
            assert step.before_sha256
            assert step.after_sha256 == screens[(step.to_screen or 0) - 1].image_sha256
            assert store.read_image(step.before_sha256).shape == (400, 640, 3)
            before, after = screens[(step.from_screen or 0) - 1], screens[(step.to_screen or 0) - 1]
            assert (step.before_window, step.after_window) == (before.window, after.window)
            assert step.appeared == appeared_names(before.elements, after.elements)
        again = store.load_graph()
    for screen_id, screen in explorer.graph.screens.items():
        for key in screen.candidates:
            assert again.q.value(screen_id, key) == pytest.approx(explorer.graph.q.value(screen_id, key), abs=1e-6)


async def test_an_exploration_of_an_earlier_layout_is_given_what_its_screens_tell_of_its_steps(tmp_path: Path) -> None:
    await explore(tmp_path)
    with ExploreStore.open(tmp_path) as store:
        steps, screens = store.steps(), {one.known.screen_id: one.image_sha256 for one in store.screens()}
    connection = sqlite3.connect(tmp_path / DATABASE_FILE)
    with connection:
        for column in ("before_window", "after_window", "appeared"):
            connection.execute(f"ALTER TABLE steps DROP COLUMN {column}")
        connection.execute("UPDATE exploration SET layout = 3")
    connection.close()
    with ExploreStore.open(tmp_path) as store:
        upgraded = store.steps()
    known = [
        (step.before_sha256, step.after_sha256)
        == (screens.get(step.from_screen or 0), screens.get(step.to_screen or 0))
        for step in steps
    ]
    assert {True, False} == set(known), "the test shows nothing"
    assert upgraded == [
        step if is_known else replace(step, before_window=None, after_window=None, appeared=None)
        for step, is_known in zip(steps, known, strict=True)
    ]


@pytest.mark.parametrize("snapshots", [True, False])
@pytest.mark.parametrize("chooser", [GreatestQChooser(), BreadthFirstChooser()])
async def test_everything_within_reach_is_found_with_and_without_snapshots(
    tmp_path: Path, chooser: Chooser, snapshots: bool
) -> None:
    application = SimulatedApplication(3, PAGES)
    desktop = SimulatedDesktop(application)
    settings = SETTINGS.model_copy(update={"max_steps": 400, "snapshots": snapshots})
    explorer = await explore(tmp_path, settings, chooser, desktop)
    tried, everything = explorer.graph.count_candidates()
    assert tried == everything
    assert len(application.visited) == len(explorer.graph.screens) >= PAGES - 2
    assert (desktop.restores > 0) == snapshots


async def test_bounds_end_the_exploration_and_raised_ones_continue_it(tmp_path: Path) -> None:
    explorer = await explore(tmp_path, SETTINGS.model_copy(update={"max_screens": 4, "max_snapshots": 2}))
    assert len(explorer.graph.screens) == 4
    assert sum(screen.snapshot is not None for screen in explorer.graph.screens.values()) == 2
    explorer = await explore(tmp_path, SETTINGS)
    assert len(explorer.graph.screens) > 4
    with ExploreStore.open(tmp_path) as store:
        assert store.last_step() == 40
        assert len({screen.known.identity for screen in store.screens()}) == len(explorer.graph.screens)


async def test_forks_share_the_graph_and_never_try_the_same_at_once(tmp_path: Path) -> None:
    running: Counter[str] = Counter()

    async def slowly() -> None:
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        for _ in range(3):
            await asyncio.sleep(0)
        running["now"] -= 1

    desktop = SimulatedDesktop(SimulatedApplication(3, PAGES), slowly)
    settings = SETTINGS.model_copy(update={"desktops": 3, "max_steps": 90})
    explorer = await explore(tmp_path, settings, BreadthFirstChooser(), desktop)
    with ExploreStore.open(tmp_path) as store:
        steps = store.steps()
    assert sorted(step.step for step in steps) == list(range(1, 91))
    assert {step.desktop for step in steps} == {0, 1, 2}
    assert running["most"] == 3
    tries = Counter(
        (step.from_screen, step.candidate.key) for step in steps if step.candidate and step.kind == "explore"
    )
    assert sum(count - 1 for count in tries.values()) <= 2
    assert explorer.graph.count_candidates()[0] == len(tries)


class FaultyModel:
    """Fails, stalls and answers nonsense in turn, and then names the first candidate."""

    def __init__(self, faults: int) -> None:
        self.asked = 0
        self.faults = faults

    async def complete(self, request: PolicyRequest) -> Completion:
        self.asked += 1
        if self.asked > self.faults:
            return Completion('{"choice": 1}', (), (), (), (), FinishReason.STOP)
        if self.asked % 3 == 0:
            raise PolicyUnavailableError("status 500")
        if self.asked % 3 == 1:
            await asyncio.Event().wait()
        return Completion("as an assistant I would rather not", (), (), (), (), FinishReason.STOP)


async def test_a_model_that_fails_stalls_or_babbles_costs_a_step_each_and_never_the_graph(tmp_path: Path) -> None:
    model = FaultyModel(3)
    settings = SETTINGS.model_copy(update={"max_steps": 12})
    explorer = await explore(tmp_path, settings, ModelChooser(model, timeout_s=0.05))
    with ExploreStore.open(tmp_path) as store:
        steps = store.steps()
    assert [step.kind for step in steps][:4] == ["model_fault"] * 3 + ["explore"]
    causes = [step.cause or "" for step in steps[:3]]
    assert "within 0.05 s" in causes[0]
    assert "names none of the numbers" in causes[1]
    assert "status 500" in causes[2]
    assert model.asked == 12
    assert len(explorer.graph.screens) >= 1


async def test_nonsense_of_an_endpoint_costs_one_step(tmp_path: Path) -> None:
    replies = ["[" * 100_000, "<html>"]

    def answer(_request: httpx.Request) -> httpx.Response:
        choice = {"choices": [{"message": {"content": '{"choice": 1}'}, "finish_reason": "stop"}]}
        return httpx.Response(200, text=replies.pop(0)) if replies else httpx.Response(200, json=choice)

    endpoint = EndpointSettings(base_url="http://127.0.0.1:9/v1", model="m", api_key_variable=None, max_attempts=1)
    async with EndpointPolicy(endpoint, transport=httpx.MockTransport(answer)) as model:
        await explore(tmp_path, SETTINGS.model_copy(update={"max_steps": 4}), ModelChooser(model))
    with ExploreStore.open(tmp_path) as store:
        assert [step.kind for step in store.steps()] == ["model_fault", "model_fault", "explore", "explore"]


async def test_a_dead_endpoint_ends_in_an_error_and_the_exploration_goes_on_later(tmp_path: Path) -> None:
    await explore(tmp_path, SETTINGS.model_copy(update={"max_steps": 10}))
    with pytest.raises(AgentError, match=r"5 faults in a row.*resume it"):
        await explore(tmp_path, SETTINGS, ModelChooser(FaultyModel(99), timeout_s=0.01))
    explorer = await explore(tmp_path)
    with ExploreStore.open(tmp_path) as store:
        kinds = [step.kind for step in store.steps()]
    assert kinds.count("model_fault") == 5
    assert len(kinds) == 40
    assert len(explorer.graph.screens) > 1


async def test_an_action_that_breaks_the_desktop_is_worth_less_than_nothing(tmp_path: Path) -> None:
    calls = 0

    async def break_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise DesktopFaultError("the desktop died")

    desktop = SimulatedDesktop(SimulatedApplication(3, PAGES), break_once)
    explorer = await explore(tmp_path, chooser=RandomChooser(), desktop=desktop)
    with ExploreStore.open(tmp_path) as store:
        broken = store.steps()[1]
    assert (broken.kind, broken.outcome, broken.cause) == ("desktop_fault", StepOutcome.ERROR, "the desktop died")
    assert broken.from_screen is not None
    assert broken.candidate is not None
    assert explorer.graph.q.destinations(broken.from_screen, broken.candidate.key)[None] == 1


KILLED = """
import asyncio, sys
from pathlib import Path
from dart_agent.explore.choosers import GreatestQChooser
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop
from dart_agent.explore.store import ExploreStore
settings = ExploreSettings(app="simulated/3", max_steps=100000)
with ExploreStore.create(Path(sys.argv[1]), settings) as store:
    asyncio.run(Explorer(store, GreatestQChooser()).run(SimulatedDesktop(SimulatedApplication(3, 200))))
"""


def _kill_after(out: Path, steps: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], env={**os.environ})
    try:
        limit_s = time.monotonic() + 60
        while _stored_steps(out) < steps and time.monotonic() < limit_s:
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


async def test_an_exploration_goes_on_after_sigkill(tmp_path: Path) -> None:
    await asyncio.to_thread(_kill_after, tmp_path, 15)
    with ExploreStore.open(tmp_path) as store:
        before, screens = store.steps(), store.screens()
    assert len(before) >= 15
    assert {step.step for step in before} == set(range(1, len(before) + 1))
    settings = ExploreSettings(app="simulated/3", max_steps=len(before) + 30)
    explorer = await explore(tmp_path, settings, desktop=SimulatedDesktop(SimulatedApplication(3, 200)))
    with ExploreStore.open(tmp_path) as store:
        after = store.steps()
        assert after[: len(before)] == before
        assert store.screens()[0].known.identity == screens[0].known.identity
        assert len(after) == len(before) + 30
        assert len({one.known.identity for one in store.screens()}) == len(store.screens())
    repeated = Counter(
        (step.from_screen, step.candidate.key) for step in after if step.candidate and step.kind == "explore"
    )
    assert sum(count - 1 for count in repeated.values()) <= 5
    assert len(explorer.graph.screens) > len(screens)


def _stored_steps(out: Path) -> int:
    try:
        with sqlite3.connect(f"file:{out / DATABASE_FILE}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM steps").fetchone()[0])
    except sqlite3.Error:
        return 0


async def test_a_folder_holds_one_exploration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no exploration"):
        ExploreStore.open(tmp_path)
    await explore(tmp_path, SETTINGS.model_copy(update={"max_steps": 1}))
    with pytest.raises(ConfigError, match="holds an exploration already"):
        ExploreStore.create(tmp_path, SETTINGS)
    with ExploreStore.open(tmp_path) as store:
        assert (store.settings.max_steps, store.last_step()) == (1, 1)


def test_an_exploration_that_found_nothing_gives_way_but_not_to_another_application_than_that_of_its_root(
    tmp_path: Path,
) -> None:
    other = SETTINGS.model_copy(update={"app": "simulated/4"})
    ExploreStore.create(tmp_path, SETTINGS).close()
    with ExploreStore.create(tmp_path, other) as store:
        assert (store.settings, store.root_snapshot) == (other, None)
        store.set_root_snapshot("root-1")
    with pytest.raises(ConfigError, match="holds an exploration already"):
        ExploreStore.create(tmp_path, SETTINGS)
    with ExploreStore.create(tmp_path, other.model_copy(update={"max_steps": 7})) as store:
        assert (store.settings.max_steps, store.root_snapshot) == (7, "root-1")


def test_an_exploration_that_was_stopped_while_its_tables_were_made_gives_way(tmp_path: Path) -> None:
    ExploreStore.create(tmp_path, SETTINGS).close()
    with sqlite3.connect(tmp_path / DATABASE_FILE) as connection:
        connection.execute("DROP TABLE steps")
        connection.execute("DELETE FROM exploration")
    connection.close()
    with ExploreStore.create(tmp_path, SETTINGS) as store:
        assert store.last_step() == 0
