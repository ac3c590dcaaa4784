"""`Lease`: `AsyncLease` for code that is not async.

`Lease` only waits. It has the same names, arguments and errors as `AsyncLease`, which a test checks, and takes over
its docstrings. Use one lease from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from dart_envs.farm.base import GuestResponse
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.loop import EventLoopThread
from dart_envs.farm.transport import Address
from dart_envs.types import Evidence, Frame
from dart_server.wire import (
    A11yElement,
    ClockView,
    DesktopHealthView,
    DesktopShape,
    Event,
    EvidenceQuery,
    ExecReply,
    FrameSpec,
    InputEvent,
    LeaseView,
    LiveViewTicket,
    ResetReply,
    SettleSpec,
    SetupGrant,
    SnapshotView,
)

_T = TypeVar("_T")
_C = TypeVar("_C", bound=type[Any])


def copy_docstrings(source: type[Any]) -> Callable[[_C], _C]:
    """Give the members of a synchronous class the full docstrings of the asynchronous one.

    Args:
        source: The asynchronous class.

    Returns:
        A class decorator. A member that has sections of its own, or no counterpart of the same name, keeps its docstring.
    """

    def decorate(target: _C) -> _C:
        for name, member in vars(target).items():
            counterpart = getattr(source, name, None)
            if name.startswith("_") or counterpart is None or "Args:" in (member.__doc__ or ""):
                continue
            described = member.__func__ if isinstance(member, classmethod) else member
            described.__doc__ = counterpart.__doc__
        return target

    return decorate


async def _enter(context: AbstractAsyncContextManager[_T]) -> _T:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)


class Fork(NamedTuple):
    """Copies of a desktop.

    Attributes:
        snapshot: The snapshot that they were made from; its `pause_ms` is how long the original desktop stood still.
        leases: One lease for each copy.
    """

    snapshot: SnapshotView
    leases: tuple[Lease, ...]


@copy_docstrings(AsyncLease)
class Lease:
    """A leased desktop; the synchronous form of `AsyncLease`.

    As a context manager it releases a lease that was claimed here, and detaches from one that was attached to.

    Args:
        inner: The asynchronous lease.
        loop: The loop that it runs on.

    Attributes:
        inner: The asynchronous lease.
    """

    def __init__(self, inner: AsyncLease, loop: EventLoopThread) -> None:
        self.inner = inner
        self._loop = loop

    # What the lease is.

    @property
    def lease_id(self) -> str:
        """Id of the lease."""
        return self.inner.lease_id

    @property
    def claim_id(self) -> str | None:
        """Id of the claim that the lease was granted to; the leases of one claim share it."""
        return self.inner.claim_id

    @property
    def desktop_id(self) -> str:
        """Id of the leased desktop; another one after a reset."""
        return self.inner.desktop_id

    @property
    def fencing_token(self) -> int:
        """Number that grows with every desktop that this lease gets; the farm refuses calls with an older one."""
        return self.inner.fencing_token

    @property
    def shape(self) -> DesktopShape:
        """Image, resolution and font size of the desktop."""
        return self.inner.shape

    @property
    def setup_key(self) -> str | None:
        """Key of the prepared state that the desktop was restored from; None is the booted base."""
        return self.inner.setup_key

    @property
    def snapshot_id(self) -> str | None:
        """Id of the snapshot that the desktop is a copy of; None where a farm without snapshots booted it."""
        return self.inner.snapshot_id

    @property
    def image_digest(self) -> str:
        """Digest of the desktop image."""
        return self.inner.image_digest

    @property
    def resolution(self) -> tuple[int, int]:
        """(width, height) of the screen in pixels."""
        return self.inner.resolution

    @property
    def ttl_s(self) -> float:
        """Seconds after the last heartbeat until the lease ends."""
        return self.inner.ttl_s

    @property
    def lost(self) -> bool:
        """True once the lease is known to be gone: expired, fenced off or released."""
        return self.inner.lost

    def reference(self) -> str:
        """Return a text by which another process of the same key attaches to this lease (`attach`). It holds no secret."""
        return self.inner.reference()

    def view(self) -> LeaseView:
        """Return the lease as the farm sees it, also after its end."""
        return self._loop.run(self.inner.view())

    @property
    def farm_address(self) -> Address:
        """Where the farm listens."""
        return self.inner.farm_address

    def live_view(self) -> LiveViewTicket:
        """Return a login to the lease's page on the dashboard, for one use (`dart_envs.farm.live` opens it)."""
        return self._loop.run(self.inner.live_view())

    def events(
        self, after: int = 0, *, before: int | None = None, limit: int = 500, kind: str | None = None
    ) -> list[Event]:
        """Return a page of the history of this lease, oldest first."""
        return self._loop.run(self.inner.events(after, before=before, limit=limit, kind=kind))

    def health(self) -> DesktopHealthView:
        """Return whether the desktop is alive, and who owns its fault."""
        return self._loop.run(self.inner.health())

    # Seeing and acting.

    def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        """Perform input events, wait until the screen settled, and return the frame."""
        return self._loop.run(self.inner.step(events, settle, frame=frame))

    def a11y(self) -> list[A11yElement]:
        """Return the showing elements of the accessibility tree."""
        return self._loop.run(self.inner.a11y())

    def terminal(self) -> str:
        """Return the text of the focused terminal window, empty without one."""
        return self._loop.run(self.inner.terminal())

    def exec(
        self,
        argv: list[str],
        *,
        timeout_s: float = 30.0,
        user: str = "user",
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        detach: bool = False,
    ) -> ExecReply:
        """Run a program inside the desktop."""
        work = self.inner.exec(argv, timeout_s=timeout_s, user=user, env=env, stdin=stdin, detach=detach)
        return self._loop.run(work)

    def read_file(self, path: str) -> bytes | None:
        """Read a file inside the desktop."""
        return self._loop.run(self.inner.read_file(path))

    def evidence(self, queries: Sequence[EvidenceQuery]) -> Evidence:
        """Return what the host sees of the desktop at one moment; no program of the desktop takes part in the answer."""
        return self._loop.run(self.inner.evidence(queries))

    def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file inside the desktop as the desktop's user; missing parent directories are created."""
        self._loop.run(self.inner.write_file(path, content, mode=mode))

    def activate_window(self, title: str, *, strict: bool = False) -> bool:
        """Raise and focus the first window with a title."""
        return self._loop.run(self.inner.activate_window(title, strict=strict))

    def guest(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object | None = None,
        content: bytes | None = None,
        timeout_s: float | None = None,
    ) -> GuestResponse:
        """Call one of the guest agent's OSWorld routes."""
        work = self.inner.guest(method, path, params=params, json=json, content=content, timeout_s=timeout_s)
        return self._loop.run(work)

    @contextmanager
    def tunnel(self, port: int) -> Iterator[tuple[str, int]]:
        """Open a local port that leads to a TCP port inside the desktop, for as long as the context is open."""
        context = self.inner.tunnel(port)
        address = self._loop.run(_enter(context))
        try:
            yield address
        finally:
            self._loop.run(_leave(context))

    def clock(self) -> ClockView:
        """Return the time of day in the desktop."""
        return self._loop.run(self.inner.clock())

    def set_clock(self, time: datetime | None) -> ClockView:
        """Set the desktop's time of day; see `ClockRequest`."""
        return self._loop.run(self.inner.set_clock(time))

    # Snapshots and resets.

    def reset(
        self, setup_key: str | None = None, *, snapshot_id: str | None = None, allow_ancestor: bool = False
    ) -> ResetReply:
        """Replace the desktop by a fresh copy: of a prepared state, of a snapshot, or of the booted base."""
        return self._loop.run(self.inner.reset(setup_key, snapshot_id=snapshot_id, allow_ancestor=allow_ancestor))

    def restore(self, snapshot: str | SnapshotView, *, allow_ancestor: bool = False) -> ResetReply:
        """Replace the desktop by a fresh copy of a snapshot."""
        return self._loop.run(self.inner.restore(snapshot, allow_ancestor=allow_ancestor))

    def snapshot(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        publish_key: str | None = None,
        grant: str | None = None,
    ) -> SnapshotView:
        """Take a live snapshot of the desktop, which goes on after `pause_ms`; it belongs to the tenant of this lease."""
        work = self.inner.snapshot(name, description=description, publish_key=publish_key, grant=grant)
        return self._loop.run(work)

    def fork(self, count: int = 1, *, name: str | None = None, wait_s: float = 60.0) -> Fork:
        """Copy the desktop as it is now; the desktop itself goes on after a short pause (`AsyncFork.snapshot.pause_ms`)."""
        fork = self._loop.run(self.inner.fork(count, name=name, wait_s=wait_s))
        return Fork(fork.snapshot, tuple(Lease(lease, self._loop) for lease in fork.leases))

    def acquire_setup(self, key: str, wait_s: float = 120.0) -> SetupGrant:
        """Ask for a prepared state."""
        return self._loop.run(self.inner.acquire_setup(key, wait_s))

    # The end.

    def renew(self, ttl_s: float) -> datetime:
        """Give the lease another TTL from now on; heartbeats go on with it."""
        return self._loop.run(self.inner.renew(ttl_s))

    def detach(self) -> None:
        """Leave the lease to another process: it is not released, but this object keeps it alive no longer. Idempotent."""
        self._loop.run(self.inner.detach())

    def close(self) -> None:
        """Release a lease that was claimed here; detach from one that was attached to."""
        self._loop.run(self.inner.aclose())

    def release(self) -> None:
        """Give the desktop back. Idempotent."""
        self._loop.run(self.inner.release())

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
