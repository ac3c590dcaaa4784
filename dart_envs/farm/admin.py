"""An administrator's work: keys, pools, desktops, draining.

Role: `FarmAdmin`, a part of `AsyncFarmClient`. Rule: one method per route, typed answers; a key that may not do it gets
`ForbiddenError`. What means the same when it comes twice is repeated while the farm is away for a moment; the making of a key is
not. Non-goals: what all keys may do (`views`, `client`).
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
    """What needs a key of scope `admin`; looking at pools does not."""

    async def _change(self, method: str, path: str, body: WireModel | None = None) -> bytes:
        return await call_with_retries(
            lambda: self._transport.call(method, path, body=body), self._retries, self._clock
        )

    # Keys.

    async def keys(self) -> list[KeyView]:
        """Every key, revoked ones too, without their secrets."""
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
        """Make a key; the answer is the only one that has its secret. A quota of None is no quota; `weight` is its share
        against other keys, `max_priority` the highest that its claims may have."""
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
        """Refuse a key from now on; what runs under it ends. Idempotent."""
        await self._change("DELETE", f"/v1/keys/{quote(key_id, safe='')}")

    # Pools.

    async def pools(self) -> list[PoolView]:
        """Every pool as it is now."""
        return _POOLS.validate_json(await self._read("/v1/pools"))

    async def pool(self, name: str) -> PoolView:
        """One pool. Raises `NotFoundError`."""
        return PoolView.model_validate_json(await self._read(f"/v1/pools/{quote(name, safe='')}"))

    async def set_pool(self, name: str, spec: PoolSpec) -> PoolView:
        """Make a pool, or give the one of this name another specification."""
        return PoolView.model_validate_json(await self._change("PUT", f"/v1/pools/{quote(name, safe='')}", spec))

    async def delete_pool(self, name: str) -> None:
        """Forget a pool: what it had ready goes, leases go on. Idempotent."""
        await self._change("DELETE", f"/v1/pools/{quote(name, safe='')}")

    # Desktops and the farm.

    async def quarantine_desktop(self, desktop_id: str, reason: str | None = None) -> DesktopView:
        """Keep a desktop from use, for a person to look at; a lease that has it goes on without it until its next reset."""
        content = await self._transport.call(
            "POST",
            f"/v1/desktops/{quote(desktop_id, safe='')}/quarantine",
            content=json.dumps({} if reason is None else {"reason": reason}).encode(),
            headers={"Content-Type": "application/json"},
        )
        return DesktopView.model_validate_json(content)

    async def release_desktop(self, desktop_id: str) -> DesktopView:
        """Give a desktop back: a quarantined one is removed and something fresh takes its place, the lease of a leased one ends."""
        content = await self._transport.call("POST", f"/v1/desktops/{quote(desktop_id, safe='')}/release")
        return DesktopView.model_validate_json(content)

    async def drain(self) -> FarmView:
        """Grant nothing more; leases go on. It holds, over restarts too, until `undrain`."""
        return FarmView.model_validate_json(await self._change("POST", "/v1/farm/drain"))

    async def undrain(self) -> FarmView:
        """Grant leases again."""
        return FarmView.model_validate_json(await self._change("DELETE", "/v1/farm/drain"))
