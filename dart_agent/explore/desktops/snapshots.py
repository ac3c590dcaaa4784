"""The snapshots of an exploration's screens: taken, bounded, and deleted on the farm before they are forgotten.

Role: `ScreenSnapshots` takes a snapshot of a screen, makes room for it, and deletes those that are of no use. Rule: no more than `limit`
are on the farm at once, however many desktops explore. A desktop reserves a slot before it makes room, so that no two delete the same
snapshot, and all may save at the same time. The store names a snapshot until it is deleted: one that could not be deleted keeps its slot,
is tried again when room is short, and is deleted at the end, or at that of the resumed exploration. Non-goals: when a screen is saved or
returned to (`dart_agent.explore.explorer`).
"""

from __future__ import annotations

from collections.abc import Callable

from dart_agent.explore.desktops.base import DesktopFaultError, ExplorableDesktop
from dart_agent.explore.graph import ExplorationGraph, KnownScreen
from dart_agent.explore.reach import Reach
from dart_agent.explore.store import ExploreStore


class ScreenSnapshots:
    """The snapshots of an exploration that runs.

    Args:
        store: Where they are noted.
        graph: Its screens.
        reach: Tells what is untried on a screen, which a snapshot of it is worth.
        limit: Most snapshots at once.
        report: Takes a line for what fails.
    """

    def __init__(
        self, store: ExploreStore, graph: ExplorationGraph, reach: Reach, limit: int, report: Callable[[str], None]
    ) -> None:
        self._store = store
        self._graph = graph
        self._reach = reach
        self._limit = limit
        self._report = report
        self._reserved = 0
        """Slots of what is being taken, with the room that is being made for it, or being deleted."""
        self._undeleted: dict[int, str] = {}
        """By screen: a snapshot that is of no use and could not be deleted."""

    async def take(self, desktop: ExplorableDesktop, screen: KnownScreen) -> None:
        """Take a snapshot of a screen; where there is no room for it, or the desktop fails, there is none.

        Args:
            desktop: Shows the screen.
            screen: The screen.
        """
        self._reserved += 1
        try:
            if await self._make_room(desktop):
                self._note(screen, await desktop.save())
            else:
                self._report(f"       no snapshot of screen {screen.screen_id}: all {self._limit} are in use")
        except DesktopFaultError as fault:
            self._report(f"       no snapshot of screen {screen.screen_id}: {fault}")
        finally:
            self._reserved -= 1

    async def forget(self, desktop: ExplorableDesktop, screen: KnownScreen, snapshot: str) -> None:
        """Delete a snapshot that failed or shows something else; a fault of that is reported.

        Args:
            desktop: Any desktop of the exploration.
            screen: The screen that the snapshot is noted for.
            snapshot: Its id; nothing is done where another desktop has forgotten it meanwhile.
        """
        if screen.snapshot != snapshot:
            return
        screen.snapshot = None
        self._reserved += 1
        try:
            await self._delete(desktop, screen.screen_id, snapshot)
        finally:
            self._reserved -= 1

    async def discard_all(self, desktop: ExplorableDesktop) -> None:
        """Delete all snapshots.

        Args:
            desktop: Any desktop of the exploration.

        Raises:
            DesktopFaultError: Some could not be deleted; all have been tried.
        """
        for screen in self._kept():
            assert screen.snapshot is not None
            self._undeleted[screen.screen_id], screen.snapshot = screen.snapshot, None
        for screen_id in list(self._undeleted):
            await self._delete(desktop, screen_id, self._undeleted.pop(screen_id))
        if self._undeleted:
            raise DesktopFaultError(
                f"{len(self._undeleted)} snapshots of screens could not be deleted: resume the exploration to delete them"
            )

    async def _make_room(self, desktop: ExplorableDesktop) -> bool:
        """Delete what is of no use, then what is worth least, until the reserved slot is free; False where nothing is left to delete."""
        for screen_id in list(self._undeleted):
            if self._is_full() and screen_id in self._undeleted:
                await self._delete(desktop, screen_id, self._undeleted.pop(screen_id))
        while self._is_full():
            kept = self._kept()
            if not kept:
                return False
            await self._evict(desktop, min(kept, key=lambda one: (self._worth(one), one.screen_id)))
        return True

    def _is_full(self) -> bool:
        """Whether there are more snapshots and reserved slots than there may be."""
        return len(self._kept()) + len(self._undeleted) + self._reserved > self._limit

    def _kept(self) -> list[KnownScreen]:
        return [screen for screen in self._graph.screens.values() if screen.snapshot is not None]

    def _worth(self, screen: KnownScreen) -> float:
        """What a snapshot of a screen is worth: the greatest value of something untried there."""
        best = self._reach.best_untried(screen.screen_id)
        return -float("inf") if best is None else best

    async def _evict(self, desktop: ExplorableDesktop, screen: KnownScreen) -> None:
        """Delete a snapshot that can be used; after a fault it still can."""
        snapshot, screen.snapshot = screen.snapshot, None
        assert snapshot is not None
        try:
            await desktop.discard(snapshot)
        except DesktopFaultError:
            screen.snapshot = snapshot
            raise
        self._note(screen, None)

    async def _delete(self, desktop: ExplorableDesktop, screen_id: int, snapshot: str) -> None:
        """Delete a snapshot that no screen has any more, or keep it for another try."""
        try:
            await desktop.discard(snapshot)
        except DesktopFaultError as fault:
            self._undeleted[screen_id] = snapshot
            self._report(f"       the snapshot of screen {screen_id} is not deleted yet: {fault}")
        else:
            self._store.set_snapshot(screen_id, None)

    def _note(self, screen: KnownScreen, snapshot: str | None) -> None:
        screen.snapshot = snapshot
        self._store.set_snapshot(screen.screen_id, snapshot)
