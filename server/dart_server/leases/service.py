"""Leases: a claim on a ready desktop, with a time to live, heartbeats and a fence.

Rule: expiry is decided here alone, on the injected clock; a desktop's fence grows with every grant, reset and end, and a call that carries
an older one is refused. A repeated claim with the same client request id gives the same lease; ending one twice is no error.
Non-goals: desktops (`pool`), HTTP (`leases.routes`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from dart_server import wire
from dart_server.clock import Clock, utc
from dart_server.errors import FarmError, from_provider
from dart_server.ids import derive_token, hash_secret, new_id, same_secret
from dart_server.keys import Principal
from dart_server.metrics import Metrics
from dart_server.pool.service import Pool
from dart_server.providers.base import Provider, ProviderError
from dart_server.records import LeaseRecord, Slot
from dart_server.repository import Repository
from dart_server.setups.service import Setups
from dart_server.snapshots.service import Want
from dart_server.wire import ErrorCode, LeaseState

log = logging.getLogger(__name__)
REQUESTS_REMEMBERED = 100_000
"""Client request ids kept in memory; the ledger refuses older ones that come again."""


@dataclass(frozen=True, slots=True)
class Access:
    """The right to use a leased desktop, as it was when the call came in."""

    lease: LeaseRecord
    slot: Slot
    fence: int


@dataclass(slots=True, eq=False)
class PendingClaim:
    """A claim that waits, and how many requests wait with it (a client may repeat itself)."""

    task: asyncio.Task[LeaseRecord]
    callers: int = 0


class Leases:
    """All leases of one farm."""

    def __init__(
        self,
        provider: Provider,
        pool: Pool,
        setups: Setups,
        repository: Repository,
        metrics: Metrics,
        clock: Clock,
        token_root: bytes,
    ) -> None:
        self._provider = provider
        self._pool = pool
        self._setups = setups
        self._repository = repository
        self._metrics = metrics
        self._clock = clock
        self._token_root = token_root
        self._active: dict[str, LeaseRecord] = {}
        self._pending: dict[tuple[str, str], PendingClaim] = {}
        self._requests: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.last_use_s = clock.monotonic()

    @property
    def active(self) -> list[LeaseRecord]:
        return list(self._active.values())

    async def claim(self, request: wire.LeaseRequest, owner: str) -> wire.Lease:
        """A ready desktop under a new lease, or the same lease again for a repeated request. Raises `FarmError`."""
        self.last_use_s = self._clock.monotonic()
        identity = (owner, request.client_request_id)
        known = self._known(*identity)
        if known is not None:
            return self._reply(known)
        pending = self._pending.get(identity)
        if pending is None:
            pending = PendingClaim(asyncio.get_running_loop().create_task(self._grant(request, owner)))
            self._pending[identity] = pending
            pending.task.add_done_callback(lambda _: self._pending.pop(identity, None))
        pending.callers += 1
        try:
            return self._reply(await asyncio.shield(pending.task))
        finally:
            pending.callers -= 1
            if pending.callers == 0:
                pending.task.cancel()

    def _known(self, owner: str, client_request_id: str) -> LeaseRecord | None:
        """The active lease of an earlier request with this id. Raises `lease_expired` when that lease has ended."""
        lease_id = self._requests.get((owner, client_request_id))
        if lease_id is None:
            return None
        lease = self._active.get(lease_id)
        if lease is None:
            raise _used_up(client_request_id)
        return lease

    async def _grant(self, request: wire.LeaseRequest, owner: str) -> LeaseRecord:
        try:
            digest = await self._provider.image_digest(request.shape.image)
        except ProviderError as error:
            raise from_provider(error) from error
        want = Want(request.shape, digest, owner, request.setup_key, request.snapshot_id)
        try:
            slot = await self._pool.acquire(want, request.wait_s)
        except FarmError:
            self._metrics.lease("refused")
            raise
        lease_id = new_id("lease")
        now = self._clock.time()
        slot.fence += 1
        slot.lease_id, slot.state = lease_id, wire.DesktopState.LEASED
        slot.clean = slot.busy = False
        lease = LeaseRecord(
            lease_id=lease_id,
            owner=owner,
            client_request_id=request.client_request_id,
            token_sha256=hash_secret(derive_token(self._token_root, lease_id)),
            shape=request.shape,
            image_digest=digest,
            setup_key=slot.setup_key,
            ttl_s=request.ttl_s,
            created_at=now,
            expires_at=now + request.ttl_s,
            deadline_s=self._clock.monotonic() + request.ttl_s,
            labels=request.labels,
            slot=slot,
            desktop_id=slot.desktop_id,
            fence=slot.fence,
        )
        self._active[lease_id] = lease
        try:
            await self._repository.add_lease(lease, slot)
        except BaseException as error:
            self._active.pop(lease_id, None)
            self._pool.release(slot)
            if isinstance(error, IntegrityError):
                raise _used_up(request.client_request_id) from error
            raise
        self._remember(lease)
        self._metrics.lease("granted")
        return lease

    def _remember(self, lease: LeaseRecord) -> None:
        self._requests[(lease.owner, lease.client_request_id)] = lease.lease_id
        while len(self._requests) > REQUESTS_REMEMBERED:
            self._requests.popitem(last=False)

    def _reply(self, lease: LeaseRecord) -> wire.Lease:
        slot = lease.slot
        return wire.Lease(
            lease_id=lease.lease_id,
            token=derive_token(self._token_root, lease.lease_id),
            fence=slot.fence if slot else lease.fence,
            desktop_id=lease.desktop_id or "",
            shape=lease.shape,
            image_digest=lease.image_digest,
            setup_key=slot.setup_key if slot else lease.setup_key,
            ttl_s=lease.ttl_s,
            expires_at=utc(lease.expires_at),
            snapshot_id=slot.snapshot_id if slot else None,
        )

    async def find(self, lease_id: str, principal: Principal) -> LeaseRecord:
        """A lease, ended ones too, that the caller may touch. Raises `not_found`."""
        lease = self._active.get(lease_id) or await self._repository.lease(lease_id)
        if lease is None or not principal.may_touch(lease.owner):
            raise FarmError(ErrorCode.NOT_FOUND, f"there is no lease {lease_id}")
        return lease

    async def require(self, lease_id: str, principal: Principal) -> LeaseRecord:
        """An active lease that the caller may touch. Raises `not_found`, `lease_expired`."""
        lease = await self.find(lease_id, principal)
        await self._expire_if_due(lease)
        if lease.state is not LeaseState.ACTIVE:
            raise _ended(lease)
        return lease

    async def heartbeat(self, lease_id: str, principal: Principal) -> wire.HeartbeatReply:
        """Push the end of a lease to its time to live from now."""
        lease = await self.require(lease_id, principal)
        lease.expires_at = self._clock.time() + lease.ttl_s
        lease.deadline_s = self._clock.monotonic() + lease.ttl_s
        self._repository.extend_lease(lease)
        return wire.HeartbeatReply(expires_at=utc(lease.expires_at))

    async def access(self, lease_id: str, principal: Principal, token: str | None, fence: int | None) -> Access:
        """The right to call into a leased desktop; `fence` None skips that check. Raises `FarmError`."""
        lease = await self.require(lease_id, principal)
        if not token or not same_secret(lease.token_sha256, hash_secret(token)):
            raise FarmError(ErrorCode.FORBIDDEN, f"the lease token is missing or wrong; send {wire.LEASE_TOKEN_HEADER}")
        slot = lease.slot
        if slot is None:
            raise _ended(lease)
        access = Access(lease, slot, slot.fence if fence is None else fence)
        self.check(access)
        return access

    def check(self, access: Access) -> None:
        """Is the right still what it was? Raises `lease_expired`, `fenced`."""
        lease = access.lease
        if lease.state is not LeaseState.ACTIVE or self._clock.monotonic() >= lease.deadline_s:
            raise _ended(lease)
        if access.slot.fence != access.fence:
            detail = f"fence {access.fence} is not the desktop's fence of now"
            raise FarmError(ErrorCode.FENCED, detail, hint=f"GET /v1/leases/{lease.lease_id} tells it.")

    async def reset(self, access: Access, request: wire.ResetRequest) -> wire.ResetReply:
        """A fresh copy of a snapshot, or a fresh desktop, for the lease; the fence grows first, so that late calls are refused."""
        self.check(access)
        lease = access.lease
        want = Want(lease.shape, lease.image_digest, lease.owner, request.setup_key, request.snapshot_id)
        want = self._pool.require(want)
        access.slot.fence += 1
        lease.fence = access.slot.fence
        waited = await self._pool.standby_on_its_way(want)
        self.check(Access(lease, access.slot, lease.fence))
        slot = self._pool.exchange(access.slot, want)
        if slot is not access.slot:
            lease.slot, lease.desktop_id = slot, slot.desktop_id
            slot.fence += 1
            self._repository.move_lease(lease, slot, access.slot)
        fence = lease.fence = slot.fence
        brought = await self._pool.renew(slot, want, waited=waited)
        self.check(Access(lease, slot, fence))
        lease.setup_key = slot.setup_key
        return wire.ResetReply(
            fence=fence,
            desktop_id=slot.desktop_id,
            setup_key=slot.setup_key,
            restored=brought.restored,
            standby=brought.standby,
            duration_s=brought.duration_s,
            snapshot_id=slot.snapshot_id,
            quarantined=list(brought.quarantined),
        )

    async def release(self, lease_id: str, principal: Principal) -> None:
        """End a lease. One that has ended already is left alone."""
        lease = await self.find(lease_id, principal)
        await self._end(lease, LeaseState.RELEASED)

    async def expire_due(self) -> None:
        """End every lease whose time is up."""
        for lease in self.active:
            await self._expire_if_due(lease)

    async def _expire_if_due(self, lease: LeaseRecord) -> None:
        if lease.lease_id in self._active and self._clock.monotonic() >= lease.deadline_s:
            log.info("lease expired", extra={"lease_id": lease.lease_id, "desktop_id": lease.desktop_id})
            await self._end(lease, LeaseState.EXPIRED)

    async def _end(self, lease: LeaseRecord, state: LeaseState) -> None:
        if self._active.pop(lease.lease_id, None) is None:
            return
        self.last_use_s = self._clock.monotonic()
        slot, lease.slot = lease.slot, None
        lease.state = state
        if slot is not None:
            lease.setup_key = slot.setup_key
            self._pool.release(slot)
            lease.fence = slot.fence
        self._repository.end_lease(
            lease
        )  # before anything waits: the desktop's next grant comes after it in the history
        await self._setups.lease_ended(lease.lease_id)
        self._metrics.lease(state.value)

    def adopt(self, lease: LeaseRecord, slot: Slot) -> None:
        """Take over an active lease of an earlier life of this farm; its time left is counted from now."""
        lease.slot = slot
        lease.deadline_s = self._clock.monotonic() + max(0.0, lease.expires_at - self._clock.time())
        self._active[lease.lease_id] = lease
        self._remember(lease)

    async def end_all(self) -> None:
        for lease in self.active:
            await self._end(lease, LeaseState.EXPIRED)


def _ended(lease: LeaseRecord) -> FarmError:
    word = "was released" if lease.state is LeaseState.RELEASED else "expired"
    return FarmError(ErrorCode.LEASE_EXPIRED, f"the lease {lease.lease_id} {word}", hint="Claim a new one.")


def _used_up(client_request_id: str) -> FarmError:
    detail = f"the client request id {client_request_id} was used for a lease that has ended"
    return FarmError(ErrorCode.LEASE_EXPIRED, detail, hint="Claim with a new client request id.")
