"""The farm for code that is not async: the same client, driven by an event loop in a thread of its own.

Role: `FarmClient` and `Claim`. Rule: no logic here but waiting; the same names, arguments and errors as the async types, kept
so by a test. Non-goals: thread safety of one claim or lease (use it from one thread).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from datetime import datetime

from dart_envs.farm.claims import AsyncClaim, ProgressCallback
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.loop import EventLoopThread
from dart_envs.farm.retry import RetryPolicy
from dart_envs.farm.sync_lease import Lease
from dart_server.wire import (
    ClaimState,
    ClaimView,
    DesktopShape,
    DesktopView,
    Event,
    FarmView,
    KeyScope,
    KeyView,
    LeaseView,
    NewKey,
    PoolSpec,
    PoolView,
    SnapshotState,
    SnapshotView,
)


async def _next(views: AsyncGenerator[ClaimView, None]) -> ClaimView | None:
    return await anext(views, None)


class Claim:
    """`AsyncClaim`, synchronously; see there for the meaning of every call."""

    def __init__(self, inner: AsyncClaim, loop: EventLoopThread) -> None:
        self.inner = inner
        self._loop = loop
        self._leases: list[Lease] | None = None

    @property
    def claim_id(self) -> str:
        return self.inner.claim_id

    @property
    def view(self) -> ClaimView:
        return self.inner.view

    @property
    def state(self) -> ClaimState:
        return self.inner.state

    @property
    def position(self) -> int | None:
        return self.inner.position

    @property
    def finished(self) -> bool:
        return self.inner.finished

    def refresh(self) -> ClaimView:
        return self._loop.run(self.inner.refresh())

    def progress(self) -> Generator[ClaimView, None, None]:
        views = self.inner.progress()
        try:
            while (view := self._loop.run(_next(views))) is not None:
                yield view
        finally:
            self._loop.run(views.aclose())

    def wait(self, timeout_s: float | None = None, *, on_progress: ProgressCallback | None = None) -> list[Lease]:
        """`on_progress` is called on the loop's thread: it must not call the farm."""
        leases = self._loop.run(self.inner.wait(timeout_s, on_progress=on_progress))
        if self._leases is None:
            self._leases = [Lease(lease, self._loop) for lease in leases]
        return list(self._leases)

    def cancel(self) -> None:
        self._loop.run(self.inner.cancel())

    def close(self) -> None:
        self._loop.run(self.inner.aclose())

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class FarmClient:
    """`AsyncFarmClient`, synchronously. Connects at once: to `url`, to `DART_FARM_URL`, or to the embedded farm."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, retries: RetryPolicy | None = None
    ) -> None:
        self._loop = EventLoopThread.shared()
        self.inner = self._loop.run(AsyncFarmClient.connect(url, api_key, retries=retries))

    @classmethod
    def connect(
        cls, url: str | None = None, api_key: str | None = None, *, retries: RetryPolicy | None = None
    ) -> FarmClient:
        return cls(url, api_key, retries=retries)

    @property
    def embedded(self) -> bool:
        return self.inner.embedded

    @property
    def url(self) -> str:
        return self.inner.url

    # Claims and leases.

    def lease(
        self,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        ttl_s: float = 60.0,
        wait_s: float = 60.0,
        labels: Mapping[str, str] | None = None,
        snapshot_id: str | None = None,
        *,
        match_labels: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> Lease:
        work = self.inner.lease(
            shape, setup_key, ttl_s, wait_s, labels, snapshot_id, match_labels=match_labels, priority=priority
        )
        return Lease(self._loop.run(work), self._loop)

    def claim(
        self,
        count: int = 1,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        snapshot_id: str | None = None,
        *,
        match_labels: Mapping[str, str] | None = None,
        priority: int = 0,
        ttl_s: float = 60.0,
        deadline_s: float = 600.0,
        labels: Mapping[str, str] | None = None,
        client_request_id: str | None = None,
    ) -> Claim:
        work = self.inner.claim(
            count,
            shape,
            setup_key,
            snapshot_id,
            match_labels=match_labels,
            priority=priority,
            ttl_s=ttl_s,
            deadline_s=deadline_s,
            labels=labels,
            client_request_id=client_request_id,
        )
        return Claim(self._loop.run(work), self._loop)

    def find_claim(self, claim_id: str) -> Claim:
        return Claim(self._loop.run(self.inner.find_claim(claim_id)), self._loop)

    def attach(self, reference: str, *, takeover: bool = False) -> Lease:
        return Lease(self._loop.run(self.inner.attach(reference, takeover=takeover)), self._loop)

    def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        self._loop.run(self.inner.abandon_setup(key, grant, reason))

    # What the farm tells of itself.

    def view(self) -> FarmView:
        return self._loop.run(self.inner.view())

    def leases(self) -> list[LeaseView]:
        return self._loop.run(self.inner.leases())

    def claims(self) -> list[ClaimView]:
        return self._loop.run(self.inner.claims())

    def desktops(self) -> list[DesktopView]:
        return self._loop.run(self.inner.desktops())

    def snapshots(self, state: SnapshotState = SnapshotState.READY) -> list[SnapshotView]:
        return self._loop.run(self.inner.snapshots(state))

    def snapshot(self, name: str) -> SnapshotView:
        return self._loop.run(self.inner.snapshot(name))

    def delete_snapshot(self, name: str) -> None:
        self._loop.run(self.inner.delete_snapshot(name))

    def events(
        self,
        after: int = 0,
        *,
        before: int | None = None,
        limit: int = 500,
        kind: str | None = None,
        desktop_id: str | None = None,
        lease_id: str | None = None,
    ) -> list[Event]:
        work = self.inner.events(after, before=before, limit=limit, kind=kind, desktop_id=desktop_id, lease_id=lease_id)
        return self._loop.run(work)

    # An administrator's work.

    def keys(self) -> list[KeyView]:
        return self._loop.run(self.inner.keys())

    def add_key(
        self,
        name: str,
        scope: KeyScope = KeyScope.LEASE,
        *,
        expires_at: datetime | None = None,
        max_leases: int | None = None,
        max_waiting: int | None = None,
        weight: float = 1.0,
        max_priority: int = 0,
    ) -> NewKey:
        work = self.inner.add_key(
            name,
            scope,
            expires_at=expires_at,
            max_leases=max_leases,
            max_waiting=max_waiting,
            weight=weight,
            max_priority=max_priority,
        )
        return self._loop.run(work)

    def revoke_key(self, key_id: str) -> None:
        self._loop.run(self.inner.revoke_key(key_id))

    def pools(self) -> list[PoolView]:
        return self._loop.run(self.inner.pools())

    def pool(self, name: str) -> PoolView:
        return self._loop.run(self.inner.pool(name))

    def set_pool(self, name: str, spec: PoolSpec) -> PoolView:
        return self._loop.run(self.inner.set_pool(name, spec))

    def delete_pool(self, name: str) -> None:
        self._loop.run(self.inner.delete_pool(name))

    def quarantine_desktop(self, desktop_id: str, reason: str | None = None) -> DesktopView:
        return self._loop.run(self.inner.quarantine_desktop(desktop_id, reason))

    def release_desktop(self, desktop_id: str) -> DesktopView:
        return self._loop.run(self.inner.release_desktop(desktop_id))

    def drain(self) -> FarmView:
        return self._loop.run(self.inner.drain())

    def undrain(self) -> FarmView:
        return self._loop.run(self.inner.undrain())

    # The end.

    def close(self) -> None:
        self._loop.run(self.inner.aclose())

    def __enter__(self) -> FarmClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
