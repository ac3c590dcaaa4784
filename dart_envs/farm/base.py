"""Protocols of a farm and of a lease, as the rest of the package uses them.

The real client (`client`, `lease`) and the scripted fake (`dart_envs.testing.fake_farm`) are interchangeable behind
them. This module does no I/O. It does not describe the server's routes (`dart_server.wire`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dart_envs.types import Desktop, Frame
from dart_server.wire import (
    ClockView,
    DesktopHealthView,
    DesktopShape,
    FrameSpec,
    InputEvent,
    ResetReply,
    SettleSpec,
    SetupGrant,
    SnapshotView,
)


@dataclass(frozen=True, slots=True)
class GuestResponse:
    """Answer of one of the guest agent's own routes, unchanged.

    Attributes:
        status: HTTP status.
        content: Body of the answer.
        content_type: Media type of the body; empty where there is none.
        from_guest: Whether the farm says that the desktop wrote it, also where it looks like an error of the farm.
    """

    status: int
    content: bytes
    content_type: str
    from_guest: bool = False


class ForkLike(Protocol):
    """Copies of a desktop."""

    @property
    def leases(self) -> Sequence[LeaseLike]:
        """One lease for each copy; the caller releases them."""
        ...


class LeaseLike(Desktop, Protocol):
    """A lease of one live desktop.

    All methods raise subclasses of `DesktopError`, or `FarmError`.
    """

    @property
    def lease_id(self) -> str:
        """Id of the lease."""
        ...

    @property
    def desktop_id(self) -> str:
        """Id of the leased desktop; another one after `reset`."""
        ...

    @property
    def fencing_token(self) -> int:
        """Number that grows with every desktop that this lease gets; the farm refuses calls with an older one."""
        ...

    @property
    def shape(self) -> DesktopShape:
        """Image, resolution and font size of the desktop."""
        ...

    @property
    def image_digest(self) -> str:
        """Digest of the desktop image."""
        ...

    @property
    def setup_key(self) -> str | None:
        """Key of the prepared state that the desktop was restored from; None is the booted base."""
        ...

    @property
    def lost(self) -> bool:
        """True once the lease is known to be gone: expired, fenced off or released."""
        ...

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        """Perform input events, wait until the screen settled, and return the frame.

        Args:
            events: What to perform, in order.
            settle: How long the screen must be quiet before the frame is taken; None takes it at once.
            frame: How the frame is encoded, and whether the cursor is drawn; None is raw RGB without the cursor.

        Returns:
            The screenshot with its header.
        """
        ...

    async def guest(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object | None = None,
        content: bytes | None = None,
        timeout_s: float | None = None,
    ) -> GuestResponse:
        """Call one of the guest agent's OSWorld routes.

        Args:
            method: HTTP method.
            path: Path of the route, below the guest agent.
            params: Query parameters.
            json: Body as JSON.
            content: Body as bytes.
            timeout_s: Seconds to wait for the answer; None waits until the farm gives it up.

        Returns:
            The answer, whatever its status.
        """
        ...

    async def terminal(self) -> str:
        """Return the text of the focused terminal window, empty without one."""
        ...

    async def reset(self, setup_key: str | None = None, *, snapshot_id: str | None = None) -> ResetReply:
        """Replace the desktop by a fresh copy: of a prepared state, of a snapshot, or of the booted base.

        Args:
            setup_key: Key of a prepared state. If it was never built, the booted base is used and the reply's
                `setup_key` says so.
            snapshot_id: Id or name of a snapshot.

        Returns:
            The new desktop.
        """
        ...

    async def acquire_setup(self, key: str, wait_s: float = 120.0) -> SetupGrant:
        """Ask for a prepared state.

        Args:
            key: Key of the state.
            wait_s: Seconds to wait while another client builds it.

        Returns:
            The state of the snapshot: ready, yours to build (with a grant), or still busy.
        """
        ...

    async def snapshot(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        publish_key: str | None = None,
        grant: str | None = None,
    ) -> SnapshotView:
        """Take a live snapshot.

        Args:
            name: Name of the snapshot; None gives it none.
            description: Text for people.
            publish_key: Key of the prepared state that the snapshot becomes; None publishes nothing.
            grant: The grant of `acquire_setup` for that key.

        Returns:
            The snapshot.
        """
        ...

    async def fork(self, count: int = 1, *, wait_s: float = 60.0) -> ForkLike:
        """Copy the desktop as it is now, all copies or none; the desktop itself goes on after a short pause.

        Args:
            count: Number of copies.
            wait_s: Seconds to wait for free desktops.

        Returns:
            The leases of the copies.
        """
        ...

    async def clock(self) -> ClockView:
        """Return the time of day in the desktop."""
        ...

    async def set_clock(self, time: datetime | None) -> ClockView:
        """Set the desktop's time of day; snapshots keep it, and their copies go on from it.

        Args:
            time: The time, with a time zone; None is the farm's time.

        Returns:
            The clock after the change.
        """
        ...

    async def health(self) -> DesktopHealthView:
        """Return whether the desktop is alive, and who owns its fault."""
        ...

    def tunnel(self, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """Open a local port that leads to a TCP port inside the desktop, for as long as the context is open.

        Args:
            port: The port inside the desktop.

        Returns:
            A context whose value is the local (host, port).
        """
        ...

    async def release(self) -> None:
        """Give the desktop back. Idempotent; does not raise when the farm is gone."""
        ...


class FarmLike(Protocol):
    """Where desktops come from."""

    async def lease(
        self,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        ttl_s: float = 60.0,
        wait_s: float = 60.0,
        labels: Mapping[str, str] | None = None,
    ) -> LeaseLike:
        """Lease a desktop, waiting for a free one.

        Args:
            shape: Image, resolution and font size; None is the default shape.
            setup_key: Key of the prepared state to prefer.
            ttl_s: Seconds after the last heartbeat until the lease ends.
            wait_s: Seconds to wait for a free desktop.
            labels: Labels of the lease.

        Returns:
            The lease.

        Raises:
            FarmError: If the farm grants no desktop.
        """
        ...

    async def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        """Give up building a prepared state, so that the next client can try.

        Args:
            key: Key of the state.
            grant: The grant of `acquire_setup`.
            reason: Why the build failed.
        """
        ...

    async def aclose(self) -> None:
        """Release every lease and close the connection. Idempotent."""
        ...
