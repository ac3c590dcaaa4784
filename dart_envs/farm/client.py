"""The client of a farm: connect, lease desktops, look at what the farm has.

Role: `AsyncFarm`, the one async core under env, vector env and runner. Rule: whatever was leased through it
is released by `aclose`, and a claim that was cancelled half-way gives its desktop back. Non-goals: retries of
failed desktops (`dart_envs.core`), starting a farm (`embedded`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping
from urllib.parse import quote

from pydantic import TypeAdapter

from dart_envs.clock import SYSTEM_CLOCK, Clock
from dart_envs.errors import FarmError
from dart_envs.farm.embedded import ensure_embedded_farm
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.transport import REPLY_GRACE_S, Transport, find_key, parse_address
from dart_server.wire import (
    DesktopShape,
    DesktopView,
    Event,
    FarmView,
    Lease,
    LeaseRequest,
    LeaseView,
    SetupAbandon,
    SnapshotState,
    SnapshotView,
)

log = logging.getLogger(__name__)

CLAIM_ATTEMPTS = 3
"""A claim whose answer was lost is repeated under the same request id, so it can never give two desktops."""
CLAIM_PAUSE_S = 0.2

_LEASES = TypeAdapter(list[LeaseView])
_SNAPSHOTS = TypeAdapter(list[SnapshotView])
_DESKTOPS = TypeAdapter(list[DesktopView])
_EVENTS = TypeAdapter(list[Event])


class AsyncFarm:
    """A connection to one farm. Make it with `connect`; usable as an async context manager."""

    def __init__(self, transport: Transport, *, clock: Clock = SYSTEM_CLOCK, embedded: bool = False) -> None:
        self._transport = transport
        self._embedded = embedded
        self._clock = clock
        self._leases: set[AsyncLease] = set()
        self._unwanted: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(
        cls, url: str | None = None, api_key: str | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> AsyncFarm:
        """Connect to the farm at `url`, at `DART_FARM_URL`, or to this user's embedded farm, which is started
        on demand.

        `api_key` falls back to `DART_API_KEY`, then to the key file beside a Unix socket. Raises `FarmError`.
        """
        url = url or os.environ.get("DART_FARM_URL")
        embedded = not url
        address = parse_address(url or f"unix://{await ensure_embedded_farm(clock=clock)}")
        farm = cls(Transport(address, find_key(address, api_key)), clock=clock, embedded=embedded)
        try:
            await farm._transport.call("GET", "/healthz", timeout_s=10.0)
        except BaseException:  # cancelled, too, the connection is closed; raised again
            await farm.aclose()
            raise
        return farm

    async def lease(
        self,
        shape: DesktopShape | None = None,
        setup_key: str | None = None,
        ttl_s: float = 60.0,
        wait_s: float = 60.0,
        labels: Mapping[str, str] | None = None,
        snapshot_id: str | None = None,
    ) -> AsyncLease:
        """Claim a desktop, waiting up to `wait_s` for a free one; with `setup_key`, a copy of that prepared
        state where there is one; with `snapshot_id` (id or name), a copy of exactly that snapshot.

        Heartbeats start at once. Raises `FarmError` (`no_capacity`, `image_missing`, …).
        """
        request = LeaseRequest(
            client_request_id=uuid.uuid4().hex,
            shape=shape or DesktopShape(),
            setup_key=setup_key,
            snapshot_id=snapshot_id,
            ttl_s=ttl_s,
            wait_s=wait_s,
            labels=dict(labels or {}),
        )
        claim = asyncio.create_task(self._claim(request), name="dart-claim")
        try:
            lease = await asyncio.shield(claim)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._give_back(claim), name="dart-give-back")
            self._unwanted.add(task)
            task.add_done_callback(self._unwanted.discard)
            raise
        self._leases = {held for held in self._leases if not held.lost} | {lease}
        return lease

    async def _claim(self, request: LeaseRequest) -> AsyncLease:
        attempt = 1
        while True:
            try:
                content = await self._transport.call(
                    "POST", "/v1/leases", body=request, timeout_s=request.wait_s + REPLY_GRACE_S
                )
            except FarmError as error:
                if error.code != "unreachable" or attempt == CLAIM_ATTEMPTS:
                    raise
                attempt += 1
                await self._clock.sleep(CLAIM_PAUSE_S)
                if self._embedded:
                    await self._revive()
            else:
                return AsyncLease(self._transport, Lease.model_validate_json(content), self._clock, self.lease)

    async def _revive(self) -> None:
        """The embedded farm stops when nobody needs it; now somebody does."""
        await ensure_embedded_farm(clock=self._clock)
        self._transport.use_key(find_key(self._transport.address, None))

    async def _give_back(self, claim: asyncio.Task[AsyncLease]) -> None:
        try:
            lease = await claim
        except FarmError as error:
            log.debug("A cancelled claim came to nothing: %s", error)
            return
        await lease.release()

    async def abandon_setup(self, key: str, grant: str, reason: str) -> None:
        """Give up building the prepared state `key`, so that the next one may try."""
        body = SetupAbandon(key=key, grant=grant, reason=reason[:500])
        await self._transport.call("POST", "/v1/setups/abandon", body=body)

    async def view(self) -> FarmView:
        """The farm in numbers."""
        return FarmView.model_validate_json(await self._transport.call("GET", "/v1/farm"))

    async def leases(self) -> list[LeaseView]:
        """All leases that the farm remembers."""
        return _LEASES.validate_json(await self._transport.call("GET", "/v1/leases"))

    async def desktops(self) -> list[DesktopView]:
        """All desktops of the farm."""
        return _DESKTOPS.validate_json(await self._transport.call("GET", "/v1/desktops"))

    async def snapshots(self, state: SnapshotState = SnapshotState.READY) -> list[SnapshotView]:
        """All stored snapshots that the caller may see: its own, and the farm's."""
        content = await self._transport.call("GET", "/v1/snapshots", params={"state": state.value})
        return _SNAPSHOTS.validate_json(content)

    async def snapshot(self, name: str) -> SnapshotView:
        """One snapshot by its id, or by the name that the caller gave it. Raises `FarmError` `not_found`."""
        return SnapshotView.model_validate_json(await self._transport.call("GET", f"/v1/snapshots/{quote(name)}"))

    async def delete_snapshot(self, name: str) -> None:
        """Remove a stored snapshot, by id or name; desktops made from it live on. Idempotent."""
        await self._transport.call("DELETE", f"/v1/snapshots/{quote(name)}")

    async def events(self, after: int = 0) -> list[Event]:
        """The farm's history after event `after`."""
        return _EVENTS.validate_json(await self._transport.call("GET", "/v1/events", params={"after": str(after)}))

    async def aclose(self) -> None:
        """Release every lease that was taken here and close the connections. Idempotent."""
        await asyncio.gather(*self._unwanted, *(lease.release() for lease in self._leases))
        self._leases.clear()
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncFarm:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()
