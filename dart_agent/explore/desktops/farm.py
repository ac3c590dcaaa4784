"""A leased desktop that is explored: its windows, tree and screenshots, with the farm's live snapshots and forks.

Role: `FarmDesktop` is an `ExplorableDesktop` on a lease. Rule: the application is started once; that state is the root snapshot, to which
`restart` goes back. A lease that is lost, or whose desktop died, is replaced by a copy of the root; where that is gone, too, or the farm
takes no live snapshots, the application is started anew on another desktop. A desktop and its forks have one root: a new one takes the
place of the old one, which is deleted, for all of them. Errors of the farm and of the desktop are `DesktopFaultError`. The application in
front is the class of the active window. A screen is seen when tree and active window are the same before and after its picture; one that
changes at each of `LOOKS` looks, as that of a player does, is taken as the last look found it. Non-goals: which desktops a farm has.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dart_agent.explore.desktops.base import DesktopFaultError
from dart_agent.explore.screens import ScreenView
from dart_envs.actions import to_input_events
from dart_envs.errors import DartEnvError, FarmError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.setup.windows import wait_started, window_ids
from dart_envs.types import Action
from dart_server.wire import A11yElement, DesktopShape, ErrorCode, SettleSpec
from dart_server.wire.guest_answers import JsonLimit, MalformedAnswer, parse_object

log = logging.getLogger(__name__)

SETTLE = SettleSpec(quiet_ms=200, cap_ms=3_000)
START_SETTLE = SettleSpec(quiet_ms=1_000, cap_ms=15_000)
START_TIMEOUT_S = 60.0
LOOKS = 3
"""Looks at a screen that changes; each waits until the pixels are quiet."""
FORK_WAIT_S = 120.0
WINDOWS_LIMIT = JsonLimit(1024**2, depth=6, values=50_000)
_WINDOWS = TypeAdapter(list[dict[str, Any]])
NoteRoot = Callable[[str | None], None]


@dataclass
class RootSnapshot:
    """The snapshot of the started application, which a desktop shares with its forks.

    Attributes:
        snapshot: Its id; None: not taken yet, or the farm takes no snapshots.
        note: Takes the id of a new one; None: it is gone and there is no new one.
    """

    snapshot: str | None = None
    note: NoteRoot | None = None


class FarmDesktop:
    """A desktop of a farm. Make the first one with `start`.

    Args:
        farm: The farm.
        lease: The desktop.
        app: The command that starts the application.
        root: The snapshot of the started application.
    """

    def __init__(self, farm: AsyncFarmClient, lease: AsyncLease, app: str, root: RootSnapshot) -> None:
        self._farm = farm
        self._lease = lease
        self._app = app
        self._root = root

    @classmethod
    async def start(
        cls,
        farm: AsyncFarmClient,
        app: str,
        shape: DesktopShape | None = None,
        *,
        root: str | None = None,
        note_root: NoteRoot | None = None,
    ) -> FarmDesktop:
        """Lease a desktop with the application started.

        Args:
            farm: The farm.
            app: The command that starts the application.
            shape: Image, resolution and font size; None is the default shape.
            root: Root snapshot of an earlier exploration; where it is gone, the application is started.
            note_root: Takes the id of a new root; None where the old one is gone and the farm takes no snapshots.

        Returns:
            The desktop.

        Raises:
            DesktopFaultError: There is no desktop, or the application shows no window.
        """
        lease = None
        if root is not None:
            with contextlib.suppress(DartEnvError):
                lease = await farm.lease(shape, snapshot_id=root)
        if lease is not None:
            return cls(farm, lease, app, RootSnapshot(root, note_root))
        async with _faults():
            lease = await farm.lease(shape)
        desktop = cls(farm, lease, app, RootSnapshot(root, note_root))
        await desktop._launch()
        return desktop

    async def observe(self) -> ScreenView:
        """As `ExplorableDesktop`."""
        async with _faults():
            await self._lease.step([], SETTLE)  # what an action has begun is over, or takes longer
            before = await self._describe()
            for _ in range(LOOKS):
                frame = await self._lease.step([], SETTLE)
                after = await self._describe()
                if after == before:
                    break
                before = after
            else:
                log.info("The screen changed during each of %d looks at it: the last one is used.", LOOKS)
        elements, application, window = after
        return ScreenView(frame.image, elements, application, window)

    async def perform(self, actions: Sequence[Action]) -> None:
        """As `ExplorableDesktop`."""
        async with _faults():
            for action in actions:
                await self._lease.step(to_input_events(action, self._lease.resolution), SETTLE)

    async def restart(self) -> None:
        """As `ExplorableDesktop`."""
        if self._root.snapshot is not None and not self._lease.lost:
            try:
                await self._lease.restore(self._root.snapshot)
                return
            except DartEnvError as error:
                log.warning("The desktop is replaced, because its root did not restore: %s", error)
        shape, lost = self._lease.shape, self._lease
        async with _faults():
            await lost.aclose()
            if self._root.snapshot is not None:
                try:
                    self._lease = await self._farm.lease(shape, snapshot_id=self._root.snapshot)
                    return
                except DartEnvError as error:
                    log.warning("The application is started anew, because there is no copy of its root: %s", error)
            self._lease = await self._farm.lease(shape)
        await self._launch()

    async def save(self) -> str:
        """As `ExplorableDesktop`."""
        async with _faults():
            return await self._snapshot()

    async def restore(self, snapshot: str) -> None:
        """As `ExplorableDesktop`."""
        async with _faults():
            await self._lease.restore(snapshot)

    async def discard(self, snapshot: str) -> None:
        """As `ExplorableDesktop`."""
        async with _faults():
            await self._farm.delete_snapshot(snapshot)

    async def discard_root(self) -> None:
        """Delete the root snapshot; a later exploration starts the application anew."""
        root, self._root.snapshot = self._root.snapshot, None
        if root is not None:
            await self.discard(root)

    async def fork(self, count: int) -> list[FarmDesktop]:
        """As `ExplorableDesktop`."""
        async with _faults():
            fork = await self._lease.fork(count, wait_s=FORK_WAIT_S)
        return [FarmDesktop(self._farm, lease, self._app, self._root) for lease in fork.leases]

    async def aclose(self) -> None:
        """As `ExplorableDesktop`."""
        await self._lease.aclose()

    async def _launch(self) -> None:
        """Start the application, wait until its window has been painted, and make that the root where the farm takes snapshots."""
        async with _faults():
            before = await window_ids(self._lease)
            reply = await self._lease.exec(shlex.split(self._app), detach=True)
            if reply.returncode not in (None, 0):
                raise DesktopFaultError(f"{self._app!r} could not be started: {reply.stderr.strip()[:200]}")
            if not await wait_started(self._lease, before, 1, START_TIMEOUT_S):
                raise DesktopFaultError(f"{self._app!r} showed no window within {START_TIMEOUT_S:g} s")
            await self._lease.step([], START_SETTLE)
            made = await self._take_root()
        old, self._root.snapshot = self._root.snapshot, made
        if self._root.note is not None and made != old:
            self._root.note(made)
        if old is not None:
            with contextlib.suppress(DesktopFaultError):  # it is gone already where it did not restore
                await self.discard(old)

    async def _snapshot(self) -> str:
        return (await self._lease.snapshot(description=f"explored: {self._app}"[:200])).snapshot_id

    async def _take_root(self) -> str | None:
        """A snapshot of the started application; None where the farm takes none."""
        try:
            return await self._snapshot()
        except FarmError as error:
            if error.code != ErrorCode.CAPABILITY_MISSING:
                raise
            log.info("The application is started anew for each way from the start: %s", error)
            return None

    async def _describe(self) -> tuple[tuple[A11yElement, ...], str, str]:
        """The tree, and class and title of the active window."""
        return (tuple(await self._lease.a11y()), *await self._active_window())

    async def _active_window(self) -> tuple[str, str]:
        """Class and title of the active window; "" for both without one."""
        reply = await self._lease.guest("GET", "/v1/windows")
        try:
            windows = _WINDOWS.validate_python(parse_object(reply.content, WINDOWS_LIMIT).get("windows"))
        except (MalformedAnswer, ValidationError) as error:
            raise DesktopFaultError(f"the list of windows cannot be read: {error}") from error
        for window in windows:
            if window.get("active"):
                return str(window.get("class") or ""), str(window.get("title") or "")
        return "", ""


@contextlib.asynccontextmanager
async def _faults() -> AsyncIterator[None]:
    """Errors of farm and desktop as the explorer's own."""
    try:
        yield
    except DartEnvError as error:
        raise DesktopFaultError(str(error)) from error
