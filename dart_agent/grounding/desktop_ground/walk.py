"""The states of an application, one after the other.

Role: `walk_application`. Rule: each start of an application is a snapshot, and each further state is one or two clicks after a fresh copy
of it, so that no state depends on another one, and nothing that a state breaks lasts. Menus and tabs are opened, then menu items that open
a dialog (their names end with dots), but none that ends the program or prints. Non-goals: questions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from dart_agent.errors import AgentError
from dart_agent.grounding.desktop_ground.applications import FILES, GroundApplication
from dart_agent.grounding.desktop_ground.capture import SETTLE, LiveState, ScreenUnstable, capture, click, read_tree
from dart_agent.grounding.desktop_ground.screen import CapturedScreen, ScreenElement, center
from dart_agent.grounding.desktop_ground.visibility import MENUS, Visibility, visibilities
from dart_agent.grounding.desktop_ground.wording import shown_name
from dart_envs.errors import DartEnvError, GuestError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.setup.windows import wait_started, window_ids
from dart_server.wire import SnapshotView

log = logging.getLogger(__name__)

START_LIMIT_S = 120.0
TELL_ATTEMPTS = 30
"""Looks at the accessibility tree for a new application, each at least the quiet time of `capture.SETTLE` after the one before."""
DOTS = ("…", "...")
NEVER = ("quit", "exit", "close", "print", "delete", "remove", "log out", "shut down", "restart", "send")
"""Words in names of items that are not chosen."""
MENUS_OF_DIALOGS = 4
"""Most menus whose items open dialogs."""


class ApplicationMissing(AgentError):
    """An application did not open a window."""


@dataclass(frozen=True, slots=True)
class Opener:
    """What to click to get to another state.

    Attributes:
        label: Name of the state that it leads to.
        point: Where to click, in pixels.
        leads_to_menu: Whether a menu opens.
    """

    label: str
    point: tuple[float, float]
    leads_to_menu: bool


def find_openers(screen: CapturedScreen) -> list[Opener]:
    """Find what opens menus and other pages.

    Args:
        screen: The screen.

    Returns:
        Menus of menu bars and tabs that are not in front, in the order of the tree.
    """
    found = []
    for element in _clickable(screen):
        parent = screen.elements[element.parent]
        if element.role in ("menu", "menu-item") and parent.role == "menu-bar":
            found.append(Opener(f"menu {shown_name(element)}", center(_box(element)), leads_to_menu=True))
        elif element.role == "page-tab" and "selected" not in element.states:
            found.append(Opener(f"tab {shown_name(element)}", center(_box(element)), leads_to_menu=False))
    return found


def find_dialog_items(screen: CapturedScreen) -> list[Opener]:
    """Find the items of open menus that open a dialog.

    Args:
        screen: A screen with an open menu.

    Returns:
        The items, in the order of the tree.
    """
    return [
        Opener(f"dialog {shown_name(element)}", center(_box(element)), leads_to_menu=False)
        for element in _clickable(screen)
        if element.role == "menu-item"
        and screen.elements[element.parent].role in MENUS
        and element.name.endswith(DOTS)
        and not any(word in element.name.casefold() for word in NEVER)
    ]


def _clickable(screen: CapturedScreen) -> list[ScreenElement]:
    return [
        element
        for element, state in zip(screen.elements, visibilities(screen), strict=True)
        if state is Visibility.WHOLE
        and element.application in screen.own
        and "sensitive" in element.states
        and shown_name(element)
    ]


def _box(element: ScreenElement) -> tuple[float, float, float, float]:
    if element.box is None:
        raise ValueError(f"the element {element.name} has no place")
    return element.box


@asynccontextmanager
async def snapshot_of(farm: AsyncFarmClient, lease: AsyncLease) -> AsyncIterator[SnapshotView]:
    """A snapshot of a desktop as it is now, for as long as the context lasts; one that cannot be deleted is left to the farm.

    Args:
        farm: The farm.
        lease: The desktop.

    Yields:
        The snapshot.
    """
    taken = await lease.snapshot()
    try:
        yield taken
    finally:
        try:
            await farm.delete_snapshot(taken.snapshot_id)
        except DartEnvError as error:
            log.warning("The snapshot %s is not deleted: %s", taken.snapshot_id, error)


async def walk_application(
    farm: AsyncFarmClient, lease: AsyncLease, base: SnapshotView, application: GroundApplication, states: int, seed: int
) -> list[CapturedScreen]:
    """Walk the states of an application.

    Args:
        farm: The farm.
        lease: A desktop.
        base: The desktop before anything was opened.
        application: The application.
        states: Most states, over all of its starts.
        seed: Chooses among what can be opened.

    Returns:
        The screens, each start before what was opened from it.

    Raises:
        ApplicationMissing: None of its starts opened a window.
        DartEnvError: The farm or the desktop failed; another desktop is needed.
    """
    screens: list[CapturedScreen] = []
    starts = list(application.starts.items())
    for number, (start, argv) in enumerate(starts):
        left = -(-(states - len(screens)) // (len(starts) - number))
        if left < 1:
            continue
        await lease.restore(base)
        try:
            first = await _open(lease, application.name, start, argv)
            async with snapshot_of(farm, lease) as opened:
                random = Random(f"{seed}:{application.name}:{start}")
                screens += await _explore(lease, opened, first, left, random)
        except (ApplicationMissing, ScreenUnstable, GuestError) as error:
            log.warning("%s %s is left out: %s", application.name, start, error)
    if not screens:
        raise ApplicationMissing(f"{application.name} opened no window that can be read: is it in the image?")
    return screens


def applications_shown(elements: Sequence[ScreenElement]) -> frozenset[str]:
    """Name the applications that have a place on the screen; one that waits in the background has none.

    Args:
        elements: The accessibility tree.

    Returns:
        Their names.
    """
    return frozenset(element.application for element in elements if element.box is not None)


async def _wait_told(lease: AsyncLease, program: str, known: frozenset[str]) -> None:
    """Wait until an application that was not known has a place on the screen: its window may be there earlier.

    Raises:
        ApplicationMissing: There is none after `TELL_ATTEMPTS` looks.
    """
    for _ in range(TELL_ATTEMPTS):
        with contextlib.suppress(ScreenUnstable):  # a tree that cannot be read is one look that showed nothing
            if applications_shown(await read_tree(lease)) - known:
                return
        await lease.step([], SETTLE)
    raise ApplicationMissing(f"{program} tells nothing in the accessibility tree")


async def _open(lease: AsyncLease, name: str, start: str, argv: Sequence[str]) -> CapturedScreen:
    for path, content in FILES.items():
        await lease.write_file(path, content.encode())
    known = applications_shown(await read_tree(lease))
    before = await window_ids(lease)
    width, height = lease.resolution
    await click(lease, (width - 1, height // 2))
    await lease.exec(list(argv), detach=True)
    if not await wait_started(lease, before, 1, START_LIMIT_S):
        raise ApplicationMissing(f"{argv[0]} opened no window within {START_LIMIT_S:.0f} s")
    await _wait_told(lease, argv[0], known)
    state = await capture(lease)
    own = applications_shown(state.elements) - known
    if not own:
        raise ApplicationMissing(f"{argv[0]} closed its window")
    return _screen(name, start, state, own)


def _screen(name: str, label: str, state: LiveState, own: frozenset[str]) -> CapturedScreen:
    return CapturedScreen(name, label, state.pixels, state.elements, state.windows, own)


async def _explore(
    lease: AsyncLease, opened: SnapshotView, first: CapturedScreen, most: int, random: Random
) -> list[CapturedScreen]:
    """The start, then what one click opens, then dialogs behind menus: half of the states are kept for those."""
    screens = [first]
    openers = find_openers(first)
    random.shuffle(openers)
    menus: list[tuple[Opener, CapturedScreen]] = []
    for opener in openers[: max(1, (most - 1) // 2) if most > 1 else 0]:
        screen = await _reach(lease, opened, first, [opener], screens)
        if screen is not None:
            screens.append(screen)
            if opener.leads_to_menu:
                menus.append((opener, screen))
    dialogs = [(menu, item) for menu, screen in menus[:MENUS_OF_DIALOGS] for item in find_dialog_items(screen)]
    random.shuffle(dialogs)
    waiting = [[menu, item] for menu, item in dialogs] + [[opener] for opener in openers[max(1, (most - 1) // 2) :]]
    for path in waiting:
        if len(screens) >= most:
            break
        screen = await _reach(lease, opened, first, path, screens)
        if screen is not None:
            screens.append(screen)
    return screens


async def _reach(
    lease: AsyncLease, opened: SnapshotView, first: CapturedScreen, path: Sequence[Opener], known: list[CapturedScreen]
) -> CapturedScreen | None:
    """The screen behind some clicks; None where it is none, or one that is known."""
    label = f"{first.state}, {path[-1].label}"
    if any(screen.state == label for screen in known):
        return None
    await lease.restore(opened)
    try:
        for opener in path:
            await click(lease, opener.point)
        state = await capture(lease)
    except (ScreenUnstable, GuestError) as error:
        log.warning("%s %s is left out: %s", first.application, label, error)
        return None
    if any(screen.elements == state.elements for screen in known):
        return None
    return _screen(first.application, label, state, first.own)
