"""A drawn application that can be explored: pages of symbols, each a button that opens a page, or does nothing.

Role: `DrawnApplication` is made from a seed; `DrawnDesktop` shows it to the explorer (`dart_agent.explore`); `explore_application` writes
the samples of an exploration, `write_pages` those of all pages. Rule: symbols and layouts are those of `drawn_screens`, so that the tiny
model can see them; the accessibility tree names the symbols. Non-goals: dialogs, wizards, traps (`dart_agent.explore.desktops.simulated`).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from benchmarks.grounding.drawn_screens import (
    COLOURS,
    LAYOUTS,
    ROLE,
    PixelBox,
    ScreenSet,
    Symbol,
    Theme,
    draw,
    symbol_samples,
)
from dart_agent.explore.choosers import GreatestQChooser
from dart_agent.explore.explorer import Explorer
from dart_agent.explore.queries.rules import rule_queries, to_samples, write_queries
from dart_agent.explore.queries.transitions import element_transitions
from dart_agent.explore.screens import ScreenView
from dart_agent.explore.settings import ExploreSettings
from dart_agent.explore.store import ExploreStore
from dart_agent.grounding.samples import GroundingSample, write_samples
from dart_envs.types import Action, ActionType
from dart_server.wire import A11yElement

DEAD_SHARE = 0.25
"""Share of the symbols that do nothing."""
_STATES = ["enabled", "sensitive", "showing", "visible"]


@dataclass(frozen=True, slots=True)
class _Page:
    placed: tuple[tuple[Symbol, PixelBox], ...]
    leads: tuple[int | None, ...]
    wh: tuple[int, int]


class DrawnApplication:
    """Pages of symbols.

    Args:
        seed: Of everything in it.
        which: Layouts, sizes of windows, sides and shapes of symbols; the application has one size of window.
        pages: How many pages.
        symbols: Smallest and greatest number of symbols of a page.
        reachable: The first so many pages lead to each other and nowhere else, so that no exploration sees the others; None: all.

    Attributes:
        pages: The pages.
        views: What each page shows.
    """

    def __init__(
        self, seed: str, which: ScreenSet, pages: int, symbols: tuple[int, int], reachable: int | None = None
    ) -> None:
        inside = pages if reachable is None else reachable
        rng = random.Random(f"drawn application {seed}")
        theme, wh = Theme.draw(rng), rng.choice(which.sizes_wh)
        names = [Symbol(colour, shape) for colour in COLOURS for shape in which.shapes]
        self.pages = []
        for number in range(pages):
            side = rng.randint(*which.sides_px)
            boxes = LAYOUTS[rng.choice(which.layouts)](rng, wh, rng.randint(*symbols), side)
            placed = tuple(zip(rng.sample(names, len(boxes)), boxes, strict=True))
            others = [page for page in range(inside) if page != number]
            leads = [None if rng.random() < DEAD_SHARE else rng.choice(others) for _ in placed]
            leads[0] = (number + 1) % inside  # the pages inside can all be reached
            self.pages.append(_Page(placed, tuple(leads), wh))
        self.views = [_view(page, number, theme) for number, page in enumerate(self.pages)]


class DrawnDesktop:
    """A desktop with a drawn application (`ExplorableDesktop`).

    Args:
        application: The application.
    """

    def __init__(self, application: DrawnApplication) -> None:
        self._application = application
        self._page = 0

    async def observe(self) -> ScreenView:
        """As `ExplorableDesktop`."""
        return self._application.views[self._page]

    async def perform(self, actions: Sequence[Action]) -> None:
        """As `ExplorableDesktop`."""
        for action in actions:
            if action.type is not ActionType.CLICK or action.x is None or action.y is None:
                continue
            page = self._application.pages[self._page]
            for (_, (left, top, right, bottom)), leads in zip(page.placed, page.leads, strict=True):
                if left <= action.x < right and top <= action.y < bottom:
                    self._page = self._page if leads is None else leads

    async def restart(self) -> None:
        """As `ExplorableDesktop`."""
        self._page = 0

    async def save(self) -> str:
        """As `ExplorableDesktop`."""
        return str(self._page)

    async def restore(self, snapshot: str) -> None:
        """As `ExplorableDesktop`."""
        self._page = int(snapshot)

    async def discard(self, snapshot: str) -> None:
        """As `ExplorableDesktop`."""

    async def fork(self, count: int) -> list[DrawnDesktop]:
        """As `ExplorableDesktop`."""
        copies = [DrawnDesktop(self._application) for _ in range(count)]
        for copy in copies:
            copy._page = self._page
        return copies

    async def aclose(self) -> None:
        """As `ExplorableDesktop`."""


async def explore_application(
    application: DrawnApplication, out: Path, steps: int, seed: int
) -> tuple[dict[str, int], set[str]]:
    """Explore, and write the samples of all screens that were seen; what an interrupted exploration left is explored again.

    Args:
        application: The application.
        out: Folder of the exploration; the samples are in `samples` in it.
        steps: Most steps of the exploration.
        seed: Of the chooser's ties.

    Returns:
        How many steps, screens and samples there were; the windows that were seen.
    """
    settings = ExploreSettings(app="drawn", seed=seed, max_steps=steps, resolution=application.pages[0].wh)
    shutil.rmtree(out, ignore_errors=True)
    with ExploreStore.create(out / "store", settings) as store:
        await Explorer(store, GreatestQChooser()).run(DrawnDesktop(application))
        queries = rule_queries(element_transitions(store.screens(), store.steps()))
        named = [query for query in queries if query.kind == "name"]
        samples: list[GroundingSample] = [
            sample for found in to_samples(named, "explored").values() for sample in found
        ]
        write_queries(store, out / "samples", named)  # the images
        write_samples(out / "samples" / "all.jsonl", samples)
        seen = store.screens()
        counts = {"steps": store.last_step(), "screens": len(seen), "samples": len(samples)}
        return counts, {screen.window for screen in seen}


def write_pages(application: DrawnApplication, out: Path, name: str, without: Collection[str] = ()) -> Path:
    """Write a question about every symbol of every page.

    Args:
        application: The application.
        out: Folder; images go to a folder of its own in it.
        name: Name of the set.
        without: Windows of pages that are left out.

    Returns:
        The file of samples.
    """
    (out / name).mkdir(parents=True, exist_ok=True)
    samples: list[GroundingSample] = []
    for number, (page, view) in enumerate(zip(application.pages, application.views, strict=True)):
        if view.window in without:
            continue
        image = f"{name}/{number}.png"
        Image.fromarray(view.image).save(out / image, compress_level=1)
        samples += symbol_samples(page.placed, page.wh, image, f"{name}/{number}", group=name)
    path = out / f"{name}.jsonl"
    write_samples(path, samples)
    return path


def _view(page: _Page, number: int, theme: Theme) -> ScreenView:
    elements = [
        A11yElement(
            role=ROLE, name=symbol.name, states=_STATES, x=box[0], y=box[1], w=box[2] - box[0], h=box[3] - box[1]
        )
        for symbol, box in page.placed
    ]
    frame = A11yElement(role="frame", name=f"Page {number}", states=_STATES, x=0, y=0, w=page.wh[0], h=page.wh[1])
    return ScreenView(draw(page.wh, theme, page.placed), (frame, *elements), "drawn", f"Page {number}")
