"""Administration of a farm: keys, pools, desktops, draining.

`FarmAdmin` is a base class of `AsyncFarmClient`. It has one method for each route, with typed answers. A key without
the scope `admin` gets `ForbiddenError`. A request that means the same when it arrives twice is repeated while the farm
is away for a moment; the creation of a key is not. Calls that every key may make are in `views` and `client`.
"""

from __future__ import annotations

import json
from datetime import datetime
from urllib.parse import quote

from pydantic import TypeAdapter

from dart_envs.farm.retry import call_with_retries
from dart_envs.farm.views import FarmReader
from dart_server.wire import (
    DesktopView,
    FarmView,
    KeyRequest,
    KeyScope,
    KeyView,
    NewKey,
    PoolSpec,
    PoolView,
    WireModel,
)

_KEYS = TypeAdapter(list[KeyView])
_POOLS = TypeAdapter(list[PoolView])


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
            max_leases: Limit of leases at the same time; None sets no limit.
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
