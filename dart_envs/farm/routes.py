"""Routes of a farm beside leases and claims: what it reports, and its administration.

`FarmReader` and `FarmAdmin` are the base classes of `AsyncFarmClient`. They have one method for each route, with typed
answers. A request that means the same when it arrives twice is repeated while the farm is away for a moment; the creation
of a key is not. A key without the scope `admin` gets `ForbiddenError` from the routes of `FarmAdmin`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote

from pydantic import TypeAdapter

from dart_envs.farm.retry import RetryPolicy, call_with_retries
from dart_envs.farm.transport import Transport
from dart_server.wire import (
    ClaimView,
    Clock,
    DesktopView,
    Event,
    FarmView,
    KeyRequest,
    KeyScope,
    KeyView,
    LeaseView,
    NewKey,
    PoolSpec,
    PoolView,
    SetupAbandonRequest,
    SnapshotState,
    SnapshotView,
    WireModel,
)

EVENTS = TypeAdapter(list[Event])
_LEASES = TypeAdapter(list[LeaseView])
_CLAIMS = TypeAdapter(list[ClaimView])
_SNAPSHOTS = TypeAdapter(list[SnapshotView])
_DESKTOPS = TypeAdapter(list[DesktopView])
_KEYS = TypeAdapter(list[KeyView])
_POOLS = TypeAdapter(list[PoolView])


def event_params(**wanted: str | int | None) -> dict[str, str]:
    """Return the query of a page of the event history.

    Args:
        **wanted: Parameters by name; those that are None are left out.

    Returns:
        The parameters as text.
    """
    return {name: str(value) for name, value in wanted.items() if value is not None}


class FarmReader:
    """Reads of one farm.

    Args:
        transport: The connection to the farm.
        clock: The clock that waits and measures.
        retries: When a failed request is repeated.
    """

    def __init__(self, transport: Transport, clock: Clock, retries: RetryPolicy) -> None:
        self._transport = transport
        self._clock = clock
        self._retries = retries

    async def _read(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        return await call_with_retries(
            lambda: self._transport.call("GET", path, params=params), self._retries, self._clock
        )

    async def view(self) -> FarmView:
        """Return the numbers of the farm."""
        return FarmView.model_validate_json(await self._read("/v1/farm"))

    async def leases(self) -> list[LeaseView]:
        """Return the active leases that the caller may see."""
        return _LEASES.validate_json(await self._read("/v1/leases"))

    async def claims(self) -> list[ClaimView]:
        """Return the claim queue in its order, as far as the caller may see it."""
        return _CLAIMS.validate_json(await self._read("/v1/claims"))

    async def desktops(self) -> list[DesktopView]:
        """Return all desktops of the farm."""
        return _DESKTOPS.validate_json(await self._read("/v1/desktops"))

    async def snapshots(self, state: SnapshotState = SnapshotState.READY) -> list[SnapshotView]:
        """Return the stored snapshots that the caller may see: its own, and those of the farm.

        Args:
            state: State of the snapshots.

        Returns:
            The snapshots.
        """
        return _SNAPSHOTS.validate_json(await self._read("/v1/snapshots", {"state": state.value}))

    async def snapshot(self, name: str) -> SnapshotView:
        """Return one snapshot.

        Args:
            name: Its id, or the name that the caller gave it.

        Returns:
            The snapshot.

        Raises:
            NotFoundError: If there is no such snapshot.
        """
        return SnapshotView.model_validate_json(await self._read(f"/v1/snapshots/{quote(name, safe='')}"))

    async def delete_snapshot(self, name: str) -> None:
        """Delete a stored snapshot; desktops made from it go on. Idempotent.

        Args:
            name: Its id or name.
        """
        await self._transport.call("DELETE", f"/v1/snapshots/{quote(name, safe='')}")

    async def events(
        self,
        after: int = 0,
        *,
        before: int | None = None,
        limit: int = 500,
        kind: str | None = None,
        desktop_id: str | None = None,
        lease_id: str | None = None,
    ) -> list[Event]:
        """Return a page of the farm's history, oldest first.

        The next page begins after the `id` of the last event.

        Args:
            after: Id of the event before the page; 0 is the beginning.
            before: Id of the event after the page, for the page that ends there.
            limit: Number of events at most.
            kind: Only events of this kind; None is all.
            desktop_id: Only events of this desktop; None is all.
            lease_id: Only events of this lease; None is all.

        Returns:
            The events.
        """
        params = event_params(
            after=after, before=before, limit=limit, kind=kind, desktop_id=desktop_id, lease_id=lease_id
        )
        return EVENTS.validate_json(await self._read("/v1/events", params))

    async def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        """Give up building a prepared state, so that the next client can try.

        Args:
            key: Key of the state.
            grant: The grant of `acquire_setup`.
            reason: Why the build failed; cut after 500 characters.
        """
        body = SetupAbandonRequest(key=key, grant=grant, reason=reason[:500])
        await self._transport.call("POST", "/v1/setups/abandon", body=body)


class FarmAdmin(FarmReader):
    """Calls that need a key of scope `admin`, except reading pools."""

    async def _change(self, method: str, path: str, body: WireModel | None = None) -> bytes:
        return await call_with_retries(
            lambda: self._transport.call(method, path, body=body), self._retries, self._clock
        )

    # Keys.

    async def keys(self) -> list[KeyView]:
        """Return every key, also revoked ones, without their secrets."""
        return _KEYS.validate_json(await self._read("/v1/keys"))

    async def add_key(
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
        """Create a key.

        Args:
            name: Name of the key.
            scope: What the key may do.
            expires_at: When the key ends, with a time zone; None is never.
            max_leases: Limit of leases at the same time; None is the farm's limit for such keys.
            max_waiting: Limit of waiting claims; None sets no limit.
            weight: Share of the farm's desktops against other keys.
            max_priority: The highest priority that its claims may have.

        Returns:
            The key with its secret, which no later answer holds.

        Raises:
            FarmError: If the farm refuses.
        """
        request = KeyRequest(
            name=name,
            scope=scope,
            expires_at=expires_at,
            max_leases=max_leases,
            max_waiting=max_waiting,
            weight=weight,
            max_priority=max_priority,
        )
        return NewKey.model_validate_json(await self._transport.call("POST", "/v1/keys", body=request))

    async def revoke_key(self, key_id: str) -> None:
        """Refuse a key from now on and end what runs under it. Idempotent.

        Args:
            key_id: Id of the key.
        """
        await self._change("DELETE", f"/v1/keys/{quote(key_id, safe='')}")

    # Pools.

    async def pools(self) -> list[PoolView]:
        """Return every pool as it is now."""
        return _POOLS.validate_json(await self._read("/v1/pools"))

    async def pool(self, name: str) -> PoolView:
        """Return one pool.

        Args:
            name: Name of the pool.

        Returns:
            The pool as it is now.

        Raises:
            NotFoundError: If there is no such pool.
        """
        return PoolView.model_validate_json(await self._read(f"/v1/pools/{quote(name, safe='')}"))

    async def set_pool(self, name: str, spec: PoolSpec) -> PoolView:
        """Create a pool, or give an existing one another specification.

        Args:
            name: Name of the pool.
            spec: What the pool holds.

        Returns:
            The pool as it is now.
        """
        return PoolView.model_validate_json(await self._change("PUT", f"/v1/pools/{quote(name, safe='')}", spec))

    async def delete_pool(self, name: str) -> None:
        """Delete a pool: its ready desktops are removed, leases go on. Idempotent.

        Args:
            name: Name of the pool.
        """
        await self._change("DELETE", f"/v1/pools/{quote(name, safe='')}")

    # Desktops and the farm.

    async def quarantine_desktop(self, desktop_id: str, reason: str | None = None) -> DesktopView:
        """Keep a desktop from use, so that a person can examine it; its lease goes on without it until the next reset.

        Args:
            desktop_id: Id of the desktop.
            reason: Why; None gives no reason.

        Returns:
            The desktop as it is now.
        """
        content = await self._transport.call(
            "POST",
            f"/v1/desktops/{quote(desktop_id, safe='')}/quarantine",
            content=json.dumps({} if reason is None else {"reason": reason}).encode(),
            headers={"Content-Type": "application/json"},
        )
        return DesktopView.model_validate_json(content)

    async def release_desktop(self, desktop_id: str) -> DesktopView:
        """Give a desktop back: a quarantined one is removed and replaced, the lease of a leased one ends.

        Args:
            desktop_id: Id of the desktop.

        Returns:
            The desktop as it is now.
        """
        content = await self._transport.call("POST", f"/v1/desktops/{quote(desktop_id, safe='')}/release")
        return DesktopView.model_validate_json(content)

    async def drain(self) -> FarmView:
        """Grant no more leases, also after a restart of the farm, until `undrain`; leases go on.

        Returns:
            The farm as it is now.
        """
        return FarmView.model_validate_json(await self._change("POST", "/v1/farm/drain"))

    async def undrain(self) -> FarmView:
        """Grant leases again.

        Returns:
            The farm as it is now.
        """
        return FarmView.model_validate_json(await self._change("DELETE", "/v1/farm/drain"))
