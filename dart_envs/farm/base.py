"""What the rest of the package asks of a farm and of a lease.

Role: the protocols behind which the real client (`client`, `lease`) and the scripted fake (`dart_envs.testing.fake_farm`)
are interchangeable. Rule: no I/O here. Non-goals: the server's routes (`dart_server.wire`).
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
    """Answer of one of the guest agent's own routes, passed through unchanged."""

    status: int
    content: bytes
    content_type: str


class ForkLike(Protocol):
    """Copies of a desktop."""

    @property
    def leases(self) -> Sequence[LeaseLike]:
        """One lease for each copy; the caller releases them."""
        ...


class LeaseLike(Desktop, Protocol):
    """A claim on one live desktop. All methods raise `DesktopError` subclasses or `FarmError`."""

    @property
    def lease_id(self) -> str: ...

    @property
    def desktop_id(self) -> str:
        """The desktop behind the lease; another one after `reset`."""
        ...

    @property
    def fencing_token(self) -> int:
        """Grows with every desktop that this lease gets; calls with an older one are refused."""
        ...

    @property
    def shape(self) -> DesktopShape: ...

    @property
    def image_digest(self) -> str: ...

    @property
    def setup_key(self) -> str | None:
        """The prepared state that the desktop was restored from; None is the booted base."""
        ...

    @property
    def lost(self) -> bool:
        """True once the lease is known to be gone (expired, fenced off or released)."""
        ...

    async def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame: ...

    async def guest(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object | None = None,
        content: bytes | None = None,
        timeout_s: float = 60.0,
    ) -> GuestResponse:
        """One of the guest agent's OSWorld routes."""
        ...

    async def terminal(self) -> str:
        """Text in the focused terminal window, empty when there is none."""
        ...

    async def reset(self, setup_key: str | None = None, *, snapshot_id: str | None = None) -> ResetReply:
        """Replace the desktop by a fresh copy of a prepared state, of a snapshot, or (neither given) of the
        booted base.

        A state that nobody has built gives the booted base, and the reply's `setup_key` says so.
        """
        ...

    async def acquire_setup(self, key: str, wait_s: float = 120.0) -> SetupGrant:
        """Ask for the prepared state: ready, yours to build, or still being built by another after
        `wait_s`."""
        ...

    async def snapshot(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        publish_key: str | None = None,
        grant: str | None = None,
    ) -> SnapshotView:
        """Take a live snapshot; with `publish_key` it becomes the prepared state of that key."""
        ...

    async def fork(self, count: int = 1, *, wait_s: float = 60.0) -> ForkLike:
        """`count` copies of the desktop as it is now; itself it goes on after a short pause. All or none."""
        ...

    async def clock(self) -> ClockView:
        """What time of day it is in the desktop."""
        ...

    async def set_clock(self, time: datetime | None) -> ClockView:
        """Declare the desktop's time of day; snapshots keep it, and their copies go on from there. None: the farm's."""
        ...

    async def health(self) -> DesktopHealthView: ...

    def tunnel(self, port: int) -> AbstractAsyncContextManager[tuple[str, int]]:
        """A local (host, port) that leads to a TCP port inside the desktop, for as long as the context is
        open."""
        ...

    async def release(self) -> None:
        """Give the desktop back. Idempotent; never raises for a farm that is gone."""
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
        """Claim a desktop; waits up to `wait_s` for a free one. Raises `FarmError`."""
        ...

    async def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        """Give up building a prepared state, so that the next one may try."""
        ...

    async def aclose(self) -> None:
        """Release every lease and close the connection. Idempotent."""
        ...
