"""Leases: the right to a ready desktop, with a time to live, heartbeats and a fencing token.

Rule: expiry is decided here alone, on the injected clock; a desktop's fencing_token grows with every grant, reset, takeover and end, and
a call that carries an older one is refused. Ending one twice is no error.
Non-goals: who gets one (`leases.claims`), desktops (`pool`), HTTP (`leases.routes`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from dart_server import wire
from dart_server.clock import utc
from dart_server.database.repository import NewEvent, Repository
from dart_server.errors import ApiError
from dart_server.ids import derive_token, hash_secret, new_id, secrets_equal
from dart_server.keys import Principal
from dart_server.observability.metrics import Metrics
from dart_server.pool.service import Pool
from dart_server.records import DesktopTarget, LeaseRecord, Slot
from dart_server.setups.service import Setups
from dart_server.wire import Clock, ErrorCode, LeaseState

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseAccess:
    """The right to use a leased desktop, as it was when the call came in."""

    lease: LeaseRecord
    slot: Slot
    fencing_token: int


class Leases:
    """All leases of one farm."""

    def __init__(
        self,
        pool: Pool,
        setups: Setups,
        repository: Repository,
        metrics: Metrics,
        clock: Clock,
        token_root: bytes,
    ) -> None:
        self._pool = pool
        self._setups = setups
        self._repository = repository
        self._metrics = metrics
        self._clock = clock
        self._token_root = token_root
        self._active: dict[str, LeaseRecord] = {}
        self.last_use_s = clock.monotonic()

    @property
    def active(self) -> list[LeaseRecord]:
        return list(self._active.values())

    def touch(self) -> None:
        """The farm is in use."""
        self.last_use_s = self._clock.monotonic()

    async def grant(
        self, claim_id: str, owner: str, request: wire.ClaimRequest, image_digest: str, slots: list[Slot]
    ) -> list[LeaseRecord]:
        """Leases on the slots that a claim was given, all or none, counted from now.

        Raises `lease_expired` when the client request id was used before.
        """
        grants = [
            (self._begin(claim_id, owner, request, image_digest, slot, number), slot)
            for number, slot in enumerate(slots)
        ]
        try:
            await self._repository.add_leases(grants)
        except BaseException as error:
            for lease, _ in grants:
                self._withdraw(lease)
            if isinstance(error, IntegrityError):
                raise request_id_reused_error(request.client_request_id) from error
            raise
        for _ in grants:
            self._metrics.lease("granted")
        return [lease for lease, _ in grants]

    def _withdraw(self, lease: LeaseRecord) -> None:
        """Take back a grant that was not written, unless the lease has ended meanwhile: its slot may belong to another one by then."""
        if self._active.pop(lease.lease_id, None) is None:
            return
        slot, lease.slot = lease.slot, None
        lease.state = LeaseState.RELEASED
        if slot is not None:
            self._pool.release(slot, lease.owner)

    def _begin(
        self, claim_id: str, owner: str, request: wire.ClaimRequest, image_digest: str, slot: Slot, number: int
    ) -> LeaseRecord:
        lease_id = new_id("lease")
        now = self._clock.time()
        slot.grow_fencing_token()
        slot.lease_id, slot.state = lease_id, wire.DesktopState.LEASED
        slot.unused = slot.busy = False
        lease = LeaseRecord(
            lease_id=lease_id,
            owner=owner,
            client_request_id=f"{claim_id}/{number}" if number else request.client_request_id,
            token_sha256=hash_secret(derive_token(self._token_root, lease_id)),
            shape=slot.shape,
            image_digest=image_digest,
            setup_key=slot.setup_key,
            ttl_s=request.ttl_s,
            created_at=now,
            expires_at=now + request.ttl_s,
            deadline_s=self._clock.monotonic() + request.ttl_s,
            labels=request.labels,
            slot=slot,
            desktop_id=slot.desktop_id,
            fencing_token=slot.fencing_token,
            claim_id=claim_id,
            priority=request.priority,
            gang_size=request.count,
        )
        self._active[lease_id] = lease
        return lease

    def reply(self, lease: LeaseRecord) -> wire.LeaseGrant:
        """A lease as its holder gets it, with its token."""
        slot = lease.slot
        return wire.LeaseGrant(
            lease_id=lease.lease_id,
            token=derive_token(self._token_root, lease.lease_id),
            fencing_token=slot.fencing_token if slot else lease.fencing_token,
            desktop_id=lease.desktop_id or "",
            shape=lease.shape,
            image_digest=lease.image_digest,
            setup_key=slot.setup_key if slot else lease.setup_key,
            ttl_s=lease.ttl_s,
            expires_at=utc(lease.expires_at),
            snapshot_id=slot.snapshot_id if slot else None,
            claim_id=lease.claim_id,
        )

    async def find(self, lease_id: str, principal: Principal) -> LeaseRecord:
        """A lease, ended ones too, that the caller may touch. Raises `not_found`."""
        lease = self._active.get(lease_id) or await self._repository.lease(lease_id)
        if lease is None or not principal.may_access(lease.owner):
            raise ApiError(ErrorCode.NOT_FOUND, f"there is no lease {lease_id}")
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
        self._extend(lease)
        return wire.HeartbeatReply(expires_at=utc(lease.expires_at))

    async def renew(self, lease_id: str, principal: Principal, ttl_s: float) -> wire.RenewReply:
        """Give a lease another time to live, from now on."""
        lease = await self.require(lease_id, principal)
        lease.ttl_s = ttl_s
        self._extend(lease)
        return wire.RenewReply(ttl_s=ttl_s, expires_at=utc(lease.expires_at))

    def _extend(self, lease: LeaseRecord) -> None:
        lease.expires_at = self._clock.time() + lease.ttl_s
        lease.deadline_s = self._clock.monotonic() + lease.ttl_s
        self._repository.extend_lease(lease)

    async def attach(self, lease_id: str, principal: Principal, *, takeover: bool) -> wire.LeaseGrant:
        """A lease by reference, for another process of its owner.

        With `takeover` the fencing token grows: the former user's calls are refused, also one of another takeover that is still being
        written. Raises `database_unavailable` before anything has changed.
        """
        await self._repository.wait_available()
        lease = await self.require(lease_id, principal)
        slot = lease.slot
        if slot is None:
            raise _ended(lease)
        if takeover:
            slot.grow_fencing_token()
            lease.fencing_token = slot.fencing_token
        access = LeaseAccess(lease, slot, slot.fencing_token)
        note = NewEvent("lease_attached", slot.desktop_id, lease_id, slot.fencing_token, {"takeover": takeover})
        await self._repository.wait_committed(self._repository.save_desktop(slot, note))
        await self.require(lease_id, principal)
        if takeover:
            self.check(access)
        return self.reply(lease)

    async def access(
        self, lease_id: str, principal: Principal, token: str | None, fencing_token: int | None
    ) -> LeaseAccess:
        """The right to call into a leased desktop; `fencing_token` None skips that check. Raises `ApiError`."""
        lease = await self.require(lease_id, principal)
        if not token or not secrets_equal(lease.token_sha256, hash_secret(token)):
            raise ApiError(ErrorCode.FORBIDDEN, f"the lease token is missing or wrong; send {wire.LEASE_TOKEN_HEADER}")
        slot = lease.slot
        if slot is None:
            raise _ended(lease)
        access = LeaseAccess(lease, slot, slot.fencing_token if fencing_token is None else fencing_token)
        self.check(access)
        return access

    def check(self, access: LeaseAccess) -> None:
        """Is the right still what it was? Raises `lease_expired`, `fenced`."""
        lease = access.lease
        if lease.state is not LeaseState.ACTIVE or self._clock.monotonic() >= lease.deadline_s:
            raise _ended(lease)
        if lease.slot is not access.slot or access.slot.fencing_token != access.fencing_token:
            detail = f"fencing_token {access.fencing_token} is not the desktop's fencing_token of now"
            raise ApiError(ErrorCode.FENCED, detail, hint=f"GET /v1/leases/{lease.lease_id} tells it.")

    async def reset(self, access: LeaseAccess, request: wire.ResetRequest) -> wire.ResetReply:
        """A fresh copy of a snapshot, or a fresh desktop, for the lease; the fencing token grows first, so that late calls are refused.

        A takeover or another reset that comes while this one waits for a standby fences it off: `fenced`, and it changes nothing more.
        Raises `database_unavailable` before anything has changed.
        """
        await self._repository.wait_available()
        self.check(access)
        lease = access.lease
        target = DesktopTarget(lease.shape, lease.image_digest, lease.owner, request.setup_key, request.snapshot_id)
        target = self._pool.resolve_target(target)
        access.slot.grow_fencing_token(request.reset_id)
        began = LeaseAccess(lease, access.slot, access.slot.fencing_token)
        lease.fencing_token = began.fencing_token
        waited = await self._pool.standby.wait_for_pending(target)
        self.check(began)
        slot = self._pool.standby.swap_in_standby(access.slot, target)
        if slot is not access.slot:
            lease.slot, lease.desktop_id = slot, slot.desktop_id
            slot.grow_fencing_token(request.reset_id)
            self._repository.move_lease(lease, slot, access.slot)
        fencing_token = lease.fencing_token = slot.fencing_token
        result = await self._pool.lifecycle.reset_desktop(slot, target, waited=waited)
        self.check(LeaseAccess(lease, slot, fencing_token))
        lease.setup_key = slot.setup_key
        return wire.ResetReply(
            fencing_token=fencing_token,
            desktop_id=slot.desktop_id,
            setup_key=slot.setup_key,
            restored=result.restored,
            standby=result.standby,
            duration_s=result.duration_s,
            snapshot_id=slot.snapshot_id,
            quarantined=list(result.quarantined),
        )

    async def release(self, lease_id: str, principal: Principal) -> None:
        """End a lease. One that has ended already is left alone."""
        lease = await self.find(lease_id, principal)
        await self.end(lease, LeaseState.RELEASED)
        await self._repository.flush_if_available()

    async def expire_due(self) -> None:
        """End every lease whose time is up."""
        for lease in self.active:
            await self._expire_if_due(lease)

    async def _expire_if_due(self, lease: LeaseRecord) -> None:
        if lease.lease_id in self._active and self._clock.monotonic() >= lease.deadline_s:
            log.info("lease expired", extra={"lease_id": lease.lease_id, "desktop_id": lease.desktop_id})
            await self.end(lease, LeaseState.EXPIRED)

    async def end_all_of_owner(self, owner: str, reason: str) -> None:
        """End every lease of a key, whose event tells the reason."""
        for lease in self.active:
            if lease.owner == owner:
                log.info("lease ended: %s", reason, extra={"lease_id": lease.lease_id, "desktop_id": lease.desktop_id})
                await self.end(lease, LeaseState.EXPIRED, reason)

    async def end(self, lease: LeaseRecord, state: LeaseState, reason: str | None = None) -> None:
        """End a lease, unless it has ended."""
        if self._active.pop(lease.lease_id, None) is None:
            return
        self.last_use_s = self._clock.monotonic()
        slot, lease.slot = lease.slot, None
        lease.state = state
        if slot is not None:
            lease.setup_key = slot.setup_key
            self._pool.release(slot, lease.owner)
            lease.fencing_token = slot.fencing_token
        self._repository.end_lease(
            lease, reason
        )  # before anything waits: the desktop's next grant comes after it in the history
        await self._setups.lease_ended(lease.lease_id)
        self._metrics.lease(state.value)

    def adopt(self, lease: LeaseRecord, slot: Slot) -> None:
        """Take over an active lease of an earlier life of this farm; its time left is counted from now."""
        lease.slot = slot
        lease.deadline_s = self._clock.monotonic() + max(0.0, lease.expires_at - self._clock.time())
        self._active[lease.lease_id] = lease

    async def end_all(self) -> None:
        for lease in self.active:
            await self.end(lease, LeaseState.EXPIRED)


def _ended(lease: LeaseRecord) -> ApiError:
    word = "was released" if lease.state is LeaseState.RELEASED else "expired"
    return ApiError(ErrorCode.LEASE_EXPIRED, f"the lease {lease.lease_id} {word}", hint="Claim a new one.")


def request_id_reused_error(client_request_id: str) -> ApiError:
    """The request came again after its lease had ended."""
    detail = f"the client request id {client_request_id} was used for a lease that has ended"
    return ApiError(ErrorCode.LEASE_EXPIRED, detail, hint="Claim with a new client request id.")
