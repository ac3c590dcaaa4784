"""`Lease`: `AsyncLease` for code that is not async.

Rule: no logic here but waiting; the same names, arguments and errors, kept so by a test. Non-goals: thread safety of one lease
(use one lease from one thread).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from dart_envs.farm.base import GuestResponse
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.loop import EventLoopThread
from dart_envs.farm.transport import Address
from dart_envs.types import Frame
from dart_server.wire import (
    A11yElement,
    ClockView,
    DesktopHealthView,
    DesktopShape,
    Event,
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


async def _enter(context: AbstractAsyncContextManager[_T]) -> _T:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)


class Fork(NamedTuple):
    """Copies of a desktop, and the snapshot they were made from (its `pause_ms` is what the original felt)."""

    snapshot: SnapshotView
    leases: tuple[Lease, ...]


class Lease:
    """`AsyncLease`, synchronously; see there for the meaning of every call."""

    def __init__(self, inner: AsyncLease, loop: EventLoopThread) -> None:
        self.inner = inner
        self._loop = loop

    # What the lease is.

    @property
    def lease_id(self) -> str:
        return self.inner.lease_id

    @property
    def claim_id(self) -> str | None:
        return self.inner.claim_id

    @property
    def desktop_id(self) -> str:
        return self.inner.desktop_id

    @property
    def fencing_token(self) -> int:
        return self.inner.fencing_token

    @property
    def shape(self) -> DesktopShape:
        return self.inner.shape

    @property
    def setup_key(self) -> str | None:
        return self.inner.setup_key

    @property
    def snapshot_id(self) -> str | None:
        return self.inner.snapshot_id

    @property
    def image_digest(self) -> str:
        return self.inner.image_digest

    @property
    def resolution(self) -> tuple[int, int]:
        return self.inner.resolution

    @property
    def ttl_s(self) -> float:
        return self.inner.ttl_s

    @property
    def lost(self) -> bool:
        return self.inner.lost

    def reference(self) -> str:
        return self.inner.reference()

    def view(self) -> LeaseView:
        return self._loop.run(self.inner.view())

    @property
    def farm_address(self) -> Address:
        return self.inner.farm_address

    def live_view(self) -> LiveViewTicket:
        return self._loop.run(self.inner.live_view())

    def events(
        self, after: int = 0, *, before: int | None = None, limit: int = 500, kind: str | None = None
    ) -> list[Event]:
        return self._loop.run(self.inner.events(after, before=before, limit=limit, kind=kind))

    def health(self) -> DesktopHealthView:
        return self._loop.run(self.inner.health())

    # Seeing and acting.

    def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        return self._loop.run(self.inner.step(events, settle, frame=frame))

    def a11y(self) -> list[A11yElement]:
        return self._loop.run(self.inner.a11y())

    def terminal(self) -> str:
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
        work = self.inner.exec(argv, timeout_s=timeout_s, user=user, env=env, stdin=stdin, detach=detach)
        return self._loop.run(work)

    def read_file(self, path: str) -> bytes | None:
        return self._loop.run(self.inner.read_file(path))

    def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        self._loop.run(self.inner.write_file(path, content, mode=mode))

    def activate_window(self, title: str, *, strict: bool = False) -> bool:
        return self._loop.run(self.inner.activate_window(title, strict=strict))

    def guest(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: object | None = None,
        content: bytes | None = None,
        timeout_s: float = 60.0,
    ) -> GuestResponse:
        work = self.inner.guest(method, path, params=params, json=json, content=content, timeout_s=timeout_s)
        return self._loop.run(work)

    @contextmanager
    def tunnel(self, port: int) -> Iterator[tuple[str, int]]:
        context = self.inner.tunnel(port)
        address = self._loop.run(_enter(context))
        try:
            yield address
        finally:
            self._loop.run(_leave(context))

    def clock(self) -> ClockView:
        return self._loop.run(self.inner.clock())

    def set_clock(self, time: datetime | None) -> ClockView:
        return self._loop.run(self.inner.set_clock(time))

    # Snapshots and resets.

    def reset(
        self, setup_key: str | None = None, *, snapshot_id: str | None = None, allow_ancestor: bool = False
    ) -> ResetReply:
        return self._loop.run(self.inner.reset(setup_key, snapshot_id=snapshot_id, allow_ancestor=allow_ancestor))

    def restore(self, snapshot: str | SnapshotView, *, allow_ancestor: bool = False) -> ResetReply:
        return self._loop.run(self.inner.restore(snapshot, allow_ancestor=allow_ancestor))

    def snapshot(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        publish_key: str | None = None,
        grant: str | None = None,
    ) -> SnapshotView:
        work = self.inner.snapshot(name, description=description, publish_key=publish_key, grant=grant)
        return self._loop.run(work)

    def fork(self, count: int = 1, *, name: str | None = None, wait_s: float = 60.0) -> Fork:
        fork = self._loop.run(self.inner.fork(count, name=name, wait_s=wait_s))
        return Fork(fork.snapshot, tuple(Lease(lease, self._loop) for lease in fork.leases))

    def acquire_setup(self, key: str, wait_s: float = 120.0) -> SetupGrant:
        return self._loop.run(self.inner.acquire_setup(key, wait_s))

    # The end.

    def renew(self, ttl_s: float) -> datetime:
        return self._loop.run(self.inner.renew(ttl_s))

    def detach(self) -> None:
        self._loop.run(self.inner.detach())

    def close(self) -> None:
        self._loop.run(self.inner.aclose())

    def release(self) -> None:
        self._loop.run(self.inner.release())

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
