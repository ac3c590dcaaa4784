"""Simulated applications: window graphs in memory with pictures and accessibility trees, for tests, benchmarks and a first try.

Role: `SimulatedApplication` is made from a seed; `SimulatedDesktop` shows it (`ExplorableDesktop`). Rule: it is a simulation and says so;
the same seed gives the same application. What makes exploring hard is in it: a header on every page whose buttons do nothing or lead
back, dead buttons with names that occur everywhere, dialogs that hide the header, wizards whose pages all have a button Next, pages
behind a check box, and a button that closes the application. Non-goals: real applications (`dart_agent.explore.desktops.farm`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from PIL import Image, ImageDraw

from dart_agent.explore.desktops.base import DesktopFaultError
from dart_agent.explore.screens import ScreenView
from dart_envs.types import Action, ActionType, RgbImage
from dart_server.wire import A11yElement

RESOLUTION = (640, 400)
NAME, ELSEWHERE = "simulated", "simulated-desktop"
_STATES = ["enabled", "sensitive", "showing", "visible"]
_TOOLS = ("Cut", "Copy", "Paste", "Bold", "Italic", "Zoom in")
_DEAD = ("Refresh", "Apply", "Details", "More", "Select all", "Sort", "Filter")
_COLUMNS, _ROW_PX, _TOP_PX = 5, 34, 84


@dataclass(frozen=True, slots=True)
class _Control:
    """An element of a page. goes_to: page that a click leads to; -1 leaves the application; None does nothing."""

    role: str
    name: str
    goes_to: int | None = None
    needs_agreement: bool = False


@dataclass
class _Page:
    title: str
    dialog: bool
    parent: int
    controls: list[_Control] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _State:
    """Everything that a snapshot of the simulation keeps. page -1: the application was left."""

    page: int = 0
    agreed: frozenset[int] = frozenset()
    typed: tuple[tuple[int, str, str], ...] = ()
    focus: str = ""


class SimulatedApplication:
    """A window graph.

    Args:
        seed: Of everything in it.
        pages: Number of pages, each of them a screen.

    Attributes:
        pages: Number of pages.
        visited: Pages that any desktop has shown by an action.
        snapshots: Saved states by id, which all desktops share.
        saved: How many snapshots were ever taken.
    """

    def __init__(self, seed: int, pages: int = 60) -> None:
        self._rng = random.Random(f"simulated application {seed}")
        self._pages: list[_Page] = [_Page("Start", dialog=False, parent=0)]
        self.pages = pages
        self.visited: set[int] = {0}
        self.snapshots: dict[str, _State] = {}
        self.saved = 0
        self._views: dict[_State, ScreenView] = {}
        border = [0]
        while len(self._pages) < pages:
            parent = border.pop(0) if self._rng.random() < 0.5 else border.pop(self._rng.randrange(len(border)))
            border += self._grow(parent, pages)
            if not border:
                border = [index for index, page in enumerate(self._pages) if not page.dialog]
        for page in self._pages:
            self._furnish(page)

    def _grow(self, parent: int, limit: int) -> list[int]:
        """Give a page links to new pages: plain ones, dialogs, and the beginnings of wizards."""
        grown = []
        for _ in range(self._rng.randint(2, 5)):
            if len(self._pages) >= limit:
                break
            kind = self._rng.choices(("page", "dialog", "wizard"), (5, 3, 1))[0]
            length = self._rng.randint(3, 6) if kind == "wizard" else 1
            before, control = parent, f"Open {self._word()}"
            for at in range(min(length, limit - len(self._pages))):
                gated = kind == "wizard" and at > 0 and self._rng.random() < 0.3
                if gated:
                    self._pages[before].controls.append(_Control("check box", "I agree"))
                self._pages[before].controls.append(_Control("push button", control, len(self._pages), gated))
                grown.append(len(self._pages))
                self._pages.append(_Page(self._word(), dialog=kind != "page", parent=before))
                before, control = len(self._pages) - 1, "Next"
        return [index for index in grown if not self._pages[index].dialog]

    def _furnish(self, page: _Page) -> None:
        """Add what leads nowhere new, and mix it with the rest."""
        rng = self._rng
        page.controls += [_Control("push button", name) for name in rng.sample(_DEAD, rng.randint(1, 4))]
        page.controls += [_Control("entry", f"{self._word()}") for _ in range(rng.randint(0, 2))]
        rng.shuffle(page.controls)
        if page.dialog:
            page.controls += [_Control("push button", name, page.parent) for name in ("Cancel", "OK")]
            return
        header = [_Control("push button", name) for name in _TOOLS]
        header += [_Control("push button", "Home", 0), _Control("push button", "Back", page.parent)]
        page.controls = [*header, _Control("push button", "Close", -1), *page.controls]

    def _word(self) -> str:
        return "".join(self._rng.choice("bdfgklmnprstvz") + self._rng.choice("aeiou") for _ in range(3))

    def view(self, state: _State) -> ScreenView:
        """What a desktop in this state shows."""
        if state not in self._views:
            self._views[state] = self._draw(state)
        return self._views[state]

    def act(self, state: _State, action: Action) -> _State:
        """The state after an action."""
        if state.page < 0:
            return state
        page = self._pages[state.page]
        if action.type is ActionType.KEY and action.keys == ("esc",):
            return self._go(state, page.parent) if page.dialog else state
        if action.type is ActionType.TYPE and state.focus:
            return replace(state, typed=(*state.typed, (state.page, state.focus, action.text))[-4:])
        if action.type is not ActionType.CLICK or action.x is None or action.y is None:
            return state
        for control, (left, top, right, bottom) in self._boxes(page):
            if left <= action.x < right and top <= action.y < bottom:
                return self._press(state, control)
        return state

    def _press(self, state: _State, control: _Control) -> _State:
        if control.role == "check box":
            return replace(state, agreed=state.agreed ^ {state.page})
        if control.role == "entry":
            return replace(state, focus=control.name)
        if control.goes_to is None or (control.needs_agreement and state.page not in state.agreed):
            return state
        return self._go(state, control.goes_to)

    def _go(self, state: _State, page: int) -> _State:
        if page >= 0:
            self.visited.add(page)
        return replace(state, page=page, focus="")

    def _boxes(self, page: _Page) -> list[tuple[_Control, tuple[int, int, int, int]]]:
        width = RESOLUTION[0] // _COLUMNS
        placed = []
        for index, control in enumerate(page.controls):
            row, column = divmod(index, _COLUMNS)
            left, top = column * width + 6, _TOP_PX + row * _ROW_PX
            placed.append((control, (left, top, left + width - 12, top + _ROW_PX - 8)))
        return placed

    def _draw(self, state: _State) -> ScreenView:
        if state.page < 0:
            return ScreenView(np.full((RESOLUTION[1], RESOLUTION[0], 3), 60, np.uint8), (), ELSEWHERE, "Desktop")
        page = self._pages[state.page]
        picture = Image.new("RGB", RESOLUTION, (235, 235, 230))
        draw = ImageDraw.Draw(picture)
        pattern = hashlib.sha256(page.title.encode()).digest()
        for index, shade in enumerate(pattern[:16]):  # what a page looks like beside its controls
            draw.rectangle((index * 40, 30, index * 40 + 39, 74), fill=(shade, shade, 200))
        draw.text((8, 8), page.title, fill=(0, 0, 0))
        role = "dialog" if page.dialog else "frame"
        elements = [A11yElement(role=role, name=page.title, states=_STATES, x=0, y=0, w=RESOLUTION[0], h=RESOLUTION[1])]
        typed = {name: text for at, name, text in state.typed if at == state.page}
        for control, (left, top, right, bottom) in self._boxes(page):
            checked = control.role == "check box" and state.page in state.agreed
            fill = (250, 250, 250) if control.role == "entry" else (200, 205, 215)
            draw.rectangle((left, top, right - 1, bottom - 1), fill=fill, outline=(90, 90, 90))
            draw.text(
                (left + 5, top + 6), f"{'x ' if checked else ''}{typed.get(control.name, control.name)}", fill=(0, 0, 0)
            )
            elements.append(
                A11yElement(
                    role=control.role,
                    name=control.name,
                    text=typed.get(control.name, ""),
                    states=[*_STATES, *(["checked"] if checked else [])],
                    x=left,
                    y=top,
                    w=right - left,
                    h=bottom - top,
                )
            )
        image: RgbImage = np.array(picture, dtype=np.uint8)
        return ScreenView(image, tuple(elements), NAME, page.title)


class SimulatedDesktop:
    """A desktop with a simulated application (`ExplorableDesktop`).

    Args:
        application: The application.
        on_perform: Awaited before each action, to play faults and latency; None: nothing.

    Attributes:
        restores: How often a snapshot was restored, on all desktops of this one.
        restarts: How often the application was started again, on all desktops of this one.
    """

    def __init__(
        self, application: SimulatedApplication, on_perform: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.application = application
        self._on_perform = on_perform
        self._state = _State()
        self.restores = 0
        self.restarts = 0

    async def observe(self) -> ScreenView:
        """As `ExplorableDesktop`."""
        return self.application.view(self._state)

    async def perform(self, actions: Sequence[Action]) -> None:
        """As `ExplorableDesktop`."""
        if self._on_perform is not None:
            await self._on_perform()
        for action in actions:
            self._state = self.application.act(self._state, action)

    async def restart(self) -> None:
        """As `ExplorableDesktop`."""
        self.restarts += 1
        self._state = _State()

    async def save(self) -> str:
        """As `ExplorableDesktop`."""
        self.application.saved += 1
        name = f"simulated-{self.application.saved}"
        self.application.snapshots[name] = self._state
        return name

    async def restore(self, snapshot: str) -> None:
        """As `ExplorableDesktop`."""
        if snapshot not in self.application.snapshots:
            raise DesktopFaultError(f"there is no snapshot {snapshot}")
        self.restores += 1
        self._state = self.application.snapshots[snapshot]

    async def discard(self, snapshot: str) -> None:
        """As `ExplorableDesktop`."""
        self.application.snapshots.pop(snapshot, None)

    async def fork(self, count: int) -> list[SimulatedDesktop]:
        """As `ExplorableDesktop`."""
        copies = [SimulatedDesktop(self.application, self._on_perform) for _ in range(count)]
        for copy in copies:
            copy._state = self._state
        return copies

    async def aclose(self) -> None:
        """As `ExplorableDesktop`."""
