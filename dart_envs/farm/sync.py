"""The farm for code that is not async: the asynchronous client on an event loop in its own thread.

`FarmClient` and `Claim` only wait. They have the same names, arguments and errors as the asynchronous classes, which a
test checks, and take over their docstrings. One claim or lease is for one thread only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from datetime import datetime

from dart_envs.farm.claims import AsyncClaim, ProgressCallback
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.loop import EventLoopThread
from dart_envs.farm.retry import RetryPolicy
from dart_envs.farm.sync_lease import Lease, copy_docstrings
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


@copy_docstrings(AsyncClaim)
class Claim:
    """A queued request for desktops; the synchronous form of `AsyncClaim`.

    As a context manager, a claim that was made here is cancelled at the end, and its desktops are given back.

    Args:
        inner: The asynchronous claim.
        loop: The loop that it runs on.

    Attributes:
        inner: The asynchronous claim.
    """

    def __init__(self, inner: AsyncClaim, loop: EventLoopThread) -> None:
        self.inner = inner
        self._loop = loop
        self._leases: list[Lease] | None = None

    @property
    def claim_id(self) -> str:
        """Id of the claim."""
        return self.inner.claim_id

    @property
    def view(self) -> ClaimView:
        """The claim as the farm reported it last."""
        return self.inner.view

    @property
    def state(self) -> ClaimState:
        """State of the claim as the farm reported it last."""
        return self.inner.state

    @property
    def position(self) -> int | None:
        """Number of claims before this one; 0 is next; None once it does not wait any more."""
        return self.inner.position

    @property
    def finished(self) -> bool:
        """True when nothing is left to give back: the claim ended without desktops, or they were taken over as leases."""
        return self.inner.finished

    def refresh(self) -> ClaimView:
        """Read the claim as it is now."""
        return self._loop.run(self.inner.refresh())

    def progress(self) -> Generator[ClaimView, None, None]:
        """Follow the claim: as it is now, then at each change of its position or state, and its end last."""
        views = self.inner.progress()
        try:
            while (view := self._loop.run(_next(views))) is not None:
                yield view
        finally:
            self._loop.run(views.aclose())

    def wait(self, timeout_s: float | None = None, *, on_progress: ProgressCallback | None = None) -> list[Lease]:
        """Wait until the desktops are granted; the heartbeats of the leases start at once.

        Args:
            timeout_s: Seconds to wait; None waits until the claim's own deadline.
            on_progress: Called with the claim at each change, on the loop's thread: it must not call the farm.

        Returns:
            One lease for each desktop.

        Raises:
            NoCapacityError: If the claim's deadline passed.
            ClaimCancelledError: If the claim was cancelled.
            FarmTimeoutError: After `timeout_s` seconds. The claim goes on waiting, and `wait` may be called again.
            FarmError: If the farm refused the claim; the class follows the refusal's code.
        """
        leases = self._loop.run(self.inner.wait(timeout_s, on_progress=on_progress))
        if self._leases is None:
            self._leases = [Lease(lease, self._loop) for lease in leases]
        return list(self._leases)

    def cancel(self) -> None:
        """Leave the queue and give granted desktops back. Idempotent."""
        self._loop.run(self.inner.cancel())

    def close(self) -> None:
        """Cancel a claim that was made here, and leave one that was only found to its owner."""
        self._loop.run(self.inner.aclose())

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


@copy_docstrings(AsyncFarmClient)
class FarmClient:
    """A connection to one farm; the synchronous form of `AsyncFarmClient`. It connects at once.

    Args:
        url: Address of the farm; None takes `DART_FARM_URL`, and without that the embedded farm of this user, which is
            started on demand.
        api_key: The key; None takes `DART_API_KEY`, and without that the key file beside a Unix socket.
        retries: When a failed request is repeated; None is the default policy.

    Attributes:
        inner: The asynchronous client.

    Raises:
        FarmError: If the farm cannot be reached or the embedded farm does not start.
    """

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, retries: RetryPolicy | None = None
    ) -> None:
        self._loop = EventLoopThread.shared()
        self.inner = self._loop.run(AsyncFarmClient.connect(url, api_key, retries=retries))

    @classmethod
    def connect(
        cls, url: str | None = None, api_key: str | None = None, *, retries: RetryPolicy | None = None
    ) -> FarmClient:
        """Connect to a farm.

        Args:
            url: As the class.
            api_key: As the class.
            retries: As the class.

        Returns:
            The client.

        Raises:
            FarmError: If the farm cannot be reached or the embedded farm does not start.
        """
        return cls(url, api_key, retries=retries)

    @property
    def embedded(self) -> bool:
        """Whether this is the farm of this user on this host, started on demand."""
        return self.inner.embedded

    @property
    def url(self) -> str:
        """Address of the farm, as `connect` takes it."""
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
        """Lease a desktop, waiting for a free one; its heartbeats start at once."""
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
        """Queue a claim for desktops, all or none, and do not wait for it: `AsyncClaim.wait` does."""
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
        """Return a claim of another process of the same key, to read it, wait for it or cancel it."""
        return Claim(self._loop.run(self.inner.find_claim(claim_id)), self._loop)

    def attach(self, reference: str, *, takeover: bool = False) -> Lease:
        """Use a lease of another process of the same key."""
        return Lease(self._loop.run(self.inner.attach(reference, takeover=takeover)), self._loop)

    def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        """Give up building a prepared state, so that the next client can try."""
        self._loop.run(self.inner.abandon_setup(key, grant, reason))

    # What the farm reports.

    def view(self) -> FarmView:
        """Return the numbers of the farm."""
        return self._loop.run(self.inner.view())

    def leases(self) -> list[LeaseView]:
        """Return the active leases that the caller may see."""
        return self._loop.run(self.inner.leases())

    def claims(self) -> list[ClaimView]:
        """Return the claim queue in its order, as far as the caller may see it."""
        return self._loop.run(self.inner.claims())

    def desktops(self) -> list[DesktopView]:
        """Return all desktops of the farm."""
        return self._loop.run(self.inner.desktops())

    def snapshots(self, state: SnapshotState = SnapshotState.READY) -> list[SnapshotView]:
        """Return the stored snapshots that the caller may see: its own, and those of the farm."""
        return self._loop.run(self.inner.snapshots(state))

    def snapshot(self, name: str) -> SnapshotView:
        """Return one snapshot."""
        return self._loop.run(self.inner.snapshot(name))

    def delete_snapshot(self, name: str) -> None:
        """Delete a stored snapshot; desktops made from it go on. Idempotent."""
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
        """Return a page of the farm's history, oldest first."""
        work = self.inner.events(after, before=before, limit=limit, kind=kind, desktop_id=desktop_id, lease_id=lease_id)
        return self._loop.run(work)

    # Administration.

    def keys(self) -> list[KeyView]:
        """Return every key, also revoked ones, without their secrets."""
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
        """Create a key."""
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
        """Refuse a key from now on and end what runs under it. Idempotent."""
        self._loop.run(self.inner.revoke_key(key_id))

    def pools(self) -> list[PoolView]:
        """Return every pool as it is now."""
        return self._loop.run(self.inner.pools())

    def pool(self, name: str) -> PoolView:
        """Return one pool."""
        return self._loop.run(self.inner.pool(name))

    def set_pool(self, name: str, spec: PoolSpec) -> PoolView:
        """Create a pool, or give an existing one another specification."""
        return self._loop.run(self.inner.set_pool(name, spec))

    def delete_pool(self, name: str) -> None:
        """Delete a pool: its ready desktops are removed, leases go on. Idempotent."""
        self._loop.run(self.inner.delete_pool(name))

    def quarantine_desktop(self, desktop_id: str, reason: str | None = None) -> DesktopView:
        """Keep a desktop from use, so that a person can examine it; its lease goes on without it until the next reset."""
        return self._loop.run(self.inner.quarantine_desktop(desktop_id, reason))

    def release_desktop(self, desktop_id: str) -> DesktopView:
        """Give a desktop back: a quarantined one is removed and replaced, the lease of a leased one ends."""
        return self._loop.run(self.inner.release_desktop(desktop_id))

    def drain(self) -> FarmView:
        """Grant no more leases, also after a restart of the farm, until `undrain`; leases go on."""
        return self._loop.run(self.inner.drain())

    def undrain(self) -> FarmView:
        """Grant leases again."""
        return self._loop.run(self.inner.undrain())

    # The end.

    def close(self) -> None:
        """Give back what was claimed here, detach from other leases, and close the connections. Idempotent."""
        self._loop.run(self.inner.aclose())

    def __enter__(self) -> FarmClient:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
