"""What a farm tells of itself: numbers, leases, desktops, snapshots, history.

Role: `FarmReader`, the reading half of `AsyncFarmClient`. Rule: one method per route, typed answers; reads are repeated while
the farm is away for a moment. Non-goals: claims (`client`), an administrator's work (`admin`).
"""

from __future__ import annotations

from collections.abc import Mapping
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
    LeaseView,
    SetupAbandonRequest,
    SnapshotState,
    SnapshotView,
)

EVENTS = TypeAdapter(list[Event])
_LEASES = TypeAdapter(list[LeaseView])
_CLAIMS = TypeAdapter(list[ClaimView])
_SNAPSHOTS = TypeAdapter(list[SnapshotView])
_DESKTOPS = TypeAdapter(list[DesktopView])


def event_params(**wanted: str | int | None) -> dict[str, str]:
    """Return the query of a page of the event history: only the parameters that were given."""
    return {name: str(value) for name, value in wanted.items() if value is not None}


class FarmReader:
    """Reads of one farm."""

    def __init__(self, transport: Transport, clock: Clock, retries: RetryPolicy) -> None:
        self._transport = transport
        self._clock = clock
        self._retries = retries

    async def _read(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        return await call_with_retries(
            lambda: self._transport.call("GET", path, params=params), self._retries, self._clock
        )

    async def view(self) -> FarmView:
        """The farm in numbers."""
        return FarmView.model_validate_json(await self._read("/v1/farm"))

    async def leases(self) -> list[LeaseView]:
        """The active leases that the caller may see."""
        return _LEASES.validate_json(await self._read("/v1/leases"))

    async def claims(self) -> list[ClaimView]:
        """The queue, in its order, as far as the caller may see it."""
        return _CLAIMS.validate_json(await self._read("/v1/claims"))

    async def desktops(self) -> list[DesktopView]:
        """All desktops of the farm."""
        return _DESKTOPS.validate_json(await self._read("/v1/desktops"))

    async def snapshots(self, state: SnapshotState = SnapshotState.READY) -> list[SnapshotView]:
        """All stored snapshots that the caller may see: its own, and the farm's."""
        return _SNAPSHOTS.validate_json(await self._read("/v1/snapshots", {"state": state.value}))

    async def snapshot(self, name: str) -> SnapshotView:
        """One snapshot by its id, or by the name that the caller gave it. Raises `NotFoundError`."""
        return SnapshotView.model_validate_json(await self._read(f"/v1/snapshots/{quote(name, safe='')}"))

    async def delete_snapshot(self, name: str) -> None:
        """Remove a stored snapshot, by id or name; desktops made from it live on. Idempotent."""
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
        """A page of the farm's history after event `after`, oldest first; with `before`, the page that ends below that event instead.

        A page has at most `limit` events; the next one begins after its last one's `id`.
        """
        params = event_params(
            after=after, before=before, limit=limit, kind=kind, desktop_id=desktop_id, lease_id=lease_id
        )
        return EVENTS.validate_json(await self._read("/v1/events", params))

    async def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        """Give up building the prepared state `key`, so that the next one may try."""
        body = SetupAbandonRequest(key=key, grant=grant, reason=reason[:500])
        await self._transport.call("POST", "/v1/setups/abandon", body=body)
