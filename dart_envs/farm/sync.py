"""The farm for code that is not async: the same client, driven by an event loop in a thread of its own.

Role: `LoopThread`, and the thin facades `Farm` and `Lease`. Rule: no logic here but waiting; one loop thread
per process, made on first use and again after a fork. Non-goals: thread safety of one lease (use one lease
from one thread).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from typing import Any, TypeVar

from dart_envs.farm.client import AsyncFarm
from dart_envs.farm.lease import AsyncLease
from dart_envs.types import Frame
from dart_server.wire import (
    A11yElement,
    ClockView,
    DesktopHealthView,
    DesktopShape,
    ExecReply,
    FarmView,
    FrameSpec,
    InputEvent,
    ResetReply,
    SettleSpec,
    SnapshotState,
    SnapshotView,
)

_T = TypeVar("_T")


class LoopThread:
    """An event loop in a daemon thread."""

    _shared: LoopThread | None = None
    _shared_lock = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dart-loop", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> LoopThread:
        """The one of this process."""
        with cls._shared_lock:
            if cls._shared is None or cls._shared.pid != os.getpid():
                cls._shared = cls()
            return cls._shared

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and wait for it; an interrupt while waiting cancels it."""
        if self.is_current():
            work.close()
            raise RuntimeError("The synchronous API cannot be called from its own event loop; use the async one there.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C ends the work on the loop as well; raised again
            future.cancel()
            raise

    def is_current(self) -> bool:
        """True when called from the loop itself."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop)


async def _enter(context: AbstractAsyncContextManager[_T]) -> _T:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)


class Lease:
    """`AsyncLease`, synchronously; see there for the meaning of every call."""

    def __init__(self, inner: AsyncLease, loop: LoopThread) -> None:
        self.inner = inner
        self._loop = loop

    @property
    def lease_id(self) -> str:
        return self.inner.lease_id

    @property
    def snapshot_id(self) -> str | None:
        return self.inner.snapshot_id

    @property
    def image_digest(self) -> str:
        return self.inner.image_digest

    @property
    def resolution(self) -> tuple[int, int]:
        return self.inner.resolution

    def step(
        self, events: list[InputEvent], settle: SettleSpec | None = None, *, frame: FrameSpec | None = None
    ) -> Frame:
        return self._loop.run(self.inner.step(events, settle, frame=frame))

    def exec(self, argv: list[str], **options: Any) -> ExecReply:
        return self._loop.run(self.inner.exec(argv, **options))

    def read_file(self, path: str) -> bytes | None:
        return self._loop.run(self.inner.read_file(path))

    def write_file(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        self._loop.run(self.inner.write_file(path, content, mode=mode))

    def a11y(self) -> list[A11yElement]:
        return self._loop.run(self.inner.a11y())

    def activate_window(self, title: str, *, strict: bool = False) -> bool:
        return self._loop.run(self.inner.activate_window(title, strict=strict))

    def reset(
        self, setup_key: str | None = None, *, snapshot_id: str | None = None, or_ancestor: bool = False
    ) -> ResetReply:
        return self._loop.run(self.inner.reset(setup_key, snapshot_id=snapshot_id, or_ancestor=or_ancestor))

    def snapshot(self, name: str | None = None, *, description: str | None = None) -> SnapshotView:
        return self._loop.run(self.inner.snapshot(name, description=description))

    def restore(self, snapshot: str | SnapshotView, *, or_ancestor: bool = False) -> ResetReply:
        return self._loop.run(self.inner.restore(snapshot, or_ancestor=or_ancestor))

    def fork(
        self, count: int = 1, *, name: str | None = None, wait_s: float = 60.0
    ) -> tuple[SnapshotView, tuple[Lease, ...]]:
        """The snapshot and the copies' leases; see `AsyncLease.fork`."""
        fork = self._loop.run(self.inner.fork(count, name=name, wait_s=wait_s))
        return fork.snapshot, tuple(Lease(lease, self._loop) for lease in fork.leases)

    def clock(self) -> ClockView:
        return self._loop.run(self.inner.clock())

    def set_clock(self, time: datetime | None) -> ClockView:
        return self._loop.run(self.inner.set_clock(time))

    def health(self) -> DesktopHealthView:
        return self._loop.run(self.inner.health())

    @contextmanager
    def tunnel(self, port: int) -> Iterator[tuple[str, int]]:
        """A local (host, port) that leads to TCP `port` inside the desktop."""
        context = self.inner.tunnel(port)
        address = self._loop.run(_enter(context))
        try:
            yield address
        finally:
            self._loop.run(_leave(context))

    def release(self) -> None:
        self._loop.run(self.inner.release())

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


class Farm:
    """`AsyncFarm`, synchronously. Connects at once: to `url`, to `DART_FARM_URL`, or to the embedded farm."""

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        self._loop = LoopThread.shared()
        self.inner = self._loop.run(AsyncFarm.connect(url, api_key))

    def lease(
        self,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        ttl_s: float = 60.0,
        wait_s: float = 60.0,
        labels: Mapping[str, str] | None = None,
        snapshot_id: str | None = None,
    ) -> Lease:
        claim = self.inner.lease(shape, setup_key, ttl_s, wait_s, labels, snapshot_id)
        return Lease(self._loop.run(claim), self._loop)

    def snapshots(self, state: SnapshotState = SnapshotState.READY) -> list[SnapshotView]:
        return self._loop.run(self.inner.snapshots(state))

    def snapshot(self, name: str) -> SnapshotView:
        return self._loop.run(self.inner.snapshot(name))

    def delete_snapshot(self, name: str) -> None:
        self._loop.run(self.inner.delete_snapshot(name))

    def view(self) -> FarmView:
        return self._loop.run(self.inner.view())

    def close(self) -> None:
        self._loop.run(self.inner.aclose())

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
