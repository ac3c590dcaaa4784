"""The page of an exploration in a real browser: it opens from a file, loads nothing, and leads from the graph to the screens."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from browser_page import BrowserPage, PageFarm

from dart_agent.explore.choosers import BreadthFirstChooser
from dart_agent.explore.desktops.simulated import SimulatedApplication, SimulatedDesktop
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.page import to_html
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.store import ExploreStore

pytestmark = pytest.mark.browser
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
PICTURES = "return [...document.images].map((one) => one.complete && one.naturalWidth > 0)"
LOADED = (
    "return performance.getEntriesByType('resource').map((one) => one.name).filter((name) => !name.startsWith('data:'))"
)
LINE_HEIGHTS = "return [...document.querySelectorAll('polyline')].map((one) => one.getBoundingClientRect().height)"
NODES_IN_SIGHT = """
const graph = document.querySelector('svg.graph').getBoundingClientRect();
return [...document.querySelectorAll('svg.graph circle')].map((one) => one.getBoundingClientRect())
  .filter((one) => one.left >= graph.left && one.right <= graph.right && one.top >= graph.top && one.bottom <= graph.bottom).length;
"""
TARGET = "const one = document.querySelector('.screen:target'); return one && [one.id, one.getBoundingClientRect().top, innerHeight]"
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


def explored(out: Path) -> tuple[str, int, int]:
    """The page of a short exploration with forks, its screens and its steps."""
    settings = ExploreSettings(app="simulated/3", max_steps=60, desktops=2)
    with ExploreStore.create(out, settings) as store:
        asyncio.run(Explorer(store, BreadthFirstChooser()).run(SimulatedDesktop(SimulatedApplication(3, 30))))
        return to_html(store), len(store.screens()), len(store.steps())


def test_the_page_of_an_exploration(open_page: Callable[[PageFarm], BrowserPage], tmp_path: Path) -> None:
    html, screens, steps = explored(tmp_path / "explored")
    file = tmp_path / "explore.html"
    file.write_text(html, encoding="utf-8")
    with subprocess.Popen(["true"]) as no_farm:
        page = open_page(PageFarm(file.as_uri(), "", no_farm))
    page.driver.get(file.as_uri())
    page.shows("Exploration of simulated/3")
    page.shows(f"{steps} steps")
    assert len(page.all(".screen")) == screens > 5
    pictures = page.driver.execute_script(PICTURES)
    assert pictures == [True] * screens
    assert page.driver.execute_script(LOADED) == []
    assert min(page.driver.execute_script(LINE_HEIGHTS)) > 20, "the coverage grows"
    assert page.driver.execute_script(NODES_IN_SIGHT) == screens
    page.picture("exploration-page")

    page.one(f'svg.graph a[href="#screen-{screens}"]').click()
    name, top, height = page.wait(lambda: page.driver.execute_script(TARGET), "the screen of the node is marked")
    assert name == f"screen-{screens}"
    assert 0 <= top < height, "it is in sight"
    page.picture("exploration-page-screen")

    light = page.driver.execute_script(BACKGROUND)
    page.dark()
    assert page.driver.execute_script(BACKGROUND) != light
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    wide = page.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "the page does not fit a telephone's width"
    page.picture("exploration-page-narrow-dark")
