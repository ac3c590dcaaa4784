"""What a farm reports: its numbers, leases, desktops, snapshots and history.

`FarmReader` is the reading base class of `AsyncFarmClient`. It has one method for each route, with typed answers.
Reads are repeated while the farm is away for a moment. Claims are in `client`, administration is in `admin`.
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
