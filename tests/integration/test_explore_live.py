"""Exploring a real application on live desktops: screens are found, saved, returned to by snapshots, and shared by a fork."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served_farm import served_farm

from dart_agent.explore.choosers import BreadthFirstChooser
from dart_agent.explore.desktops.farm import FarmDesktop
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.store import ExploreStore
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]
SHAPE = DesktopShape(resolution=(640, 400))
SETTINGS = ExploreSettings(app="mousepad", max_steps=16, desktops=2, max_snapshots=6)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("farm"), max_desktops=3) as url:
        yield url


async def test_an_editor_is_explored_on_a_desktop_and_its_fork(url: str, tmp_path: Path) -> None:
    lines: list[str] = []
    async with await AsyncFarmClient.connect(url) as farm:
        with ExploreStore.create(tmp_path / "mousepad", SETTINGS) as store:
            desktop = await FarmDesktop.start(farm, SETTINGS.app, SHAPE, note_root=store.set_root_snapshot)
            explorer = Explorer(store, BreadthFirstChooser(), report=lines.append)
            await explorer.run(desktop)
            steps, screens = store.steps(), store.screens()
            assert sum(step.kind == "explore" for step in steps) >= 14, "\n".join(lines)
            assert {step.desktop for step in steps} == {0, 1}
            assert len(screens) >= 4
            assert screens[0].known.identity.application.lower().startswith("mousepad")
            assert any(step.arrived_by == "snapshot" for step in steps)
            saved = {view.snapshot_id for view in await farm.snapshots() if view.kind == "user"}
            noted = {one.known.snapshot for one in screens if one.known.snapshot is not None}
            assert noted | {store.root_snapshot} == saved
            await explorer.discard_snapshots(desktop)
            await desktop.discard_root()
        assert not [view for view in await farm.snapshots() if view.kind == "user"]
