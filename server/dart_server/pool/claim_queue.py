"""The queue: claims that wait for desktops, and who gets which.

Rule: whose turn it is says `pool.fair_queue`; a claim is given all its desktops at once or none, and one that fails gives all back. A
claim that is over before its desktops are ready leaves the queue, and what comes later is free again. Non-goals: what is ready before
anybody asks (`pool.standby`), how a slot is made (`pool.slot_lifecycle`), claims as clients know them and leases (`leases`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from dart_server.clock import wait_for
from dart_server.errors import ApiError
from dart_server.observability import tracing
from dart_server.pool.background import BackgroundTaskSet
from dart_server.pool.fair_queue import FairQueue, QueueEntry
from dart_server.pool.prepare import DesktopPreparer
from dart_server.pool.slot_lifecycle import SlotLifecycle
from dart_server.pool.slots import Slots
from dart_server.records import DesktopTarget, Slot
from dart_server.settings import FarmSettings
from dart_server.snapshots.service import restore_failed_error
from dart_server.wire import Clock, ErrorCode

if TYPE_CHECKING:
    from opentelemetry.context import Context

log = logging.getLogger(__name__)
PREPARE_GRACE_S = 20.0
"""A claim waits this much longer than its time when its desktops are being made."""
MAX_SAMPLED_CLAIMS = 256
"""Waiting claims that `waiting_targets` tells of, at most."""
POSITION_AGE_PER_CLAIM_S = 0.001
"""For every waiting claim positions may be this much older, so that telling them stays cheap."""


@dataclass(slots=True, eq=False, kw_only=True)
class ClaimTicket(QueueEntry):
    """One claim's place in the queue. `evicted_by_slot` has the desktops that must be gone before a slot of its place can be made."""

    target: DesktopTarget
    granted: asyncio.Future[list[Slot]]
    slots: list[Slot] = field(default_factory=list)
    evicted_by_slot: dict[str, Slot] = field(default_factory=dict)
    delivered: bool = False
    trace_context: Context | None = field(default_factory=tracing.current_context)
    """Where in a trace its claim is."""


class ClaimQueue:
    """The waiting claims of one farm."""

    def __init__(
        self,
        slots: Slots,
        lifecycle: SlotLifecycle,
        preparing: BackgroundTaskSet,
        preparer: DesktopPreparer,
        settings: FarmSettings,
        clock: Clock,
    ) -> None:
        self._slots = slots
        self._lifecycle = lifecycle
        self._preparing = preparing
        self._preparer = preparer
        self._clock = clock
        self.fair_queue = FairQueue(clock.monotonic, settings.priority_ageing_s, settings.gang_hold_s)
        self._preparing_entries: set[ClaimTicket] = set()
        """Their slots are being made."""
        self._positions: dict[QueueEntry, int] = {}
        self._positions_of = (-1, 0.0)

    @property
    def waiting(self) -> int:
        """Claims in the queue; those whose desktops are being made have left it."""
        return len(self.fair_queue)

    def waiting_targets(self) -> Iterator[DesktopTarget]:
        """What waiting claims want, of some of them when there are many."""
        return (entry.target for entry in islice(self.fair_queue, MAX_SAMPLED_CLAIMS) if isinstance(entry, ClaimTicket))

    def enqueue(
        self, owner: str, target: DesktopTarget, lane: Hashable, *, units: int = 1, priority: int = 0
    ) -> ClaimTicket:
        """Stand in the queue; the ticket may be served already.

        Claims of one `lane` wait together when there is room for none of them. Raises `ApiError` when that can never be, or the key may
        not wait.
        """
        self._check_satisfiable(owner, units)
        granted = asyncio.get_running_loop().create_future()
        ticket = ClaimTicket(owner, lane, units, priority, target=target, granted=granted)
        self.fair_queue.add(ticket)
        self._lifecycle.on_change()
        limit = self.fair_queue.quota(owner).max_waiting
        if limit is not None and self.fair_queue.waiting(owner) > limit and self.fair_queue.remove(ticket):
            granted.cancel()
            detail = f"this key has {limit} claims in the queue, as many as it may"
            raise ApiError(ErrorCode.QUOTA_EXCEEDED, detail, hint="Wait until one is granted, or cancel one.")
        return ticket

    def _check_satisfiable(self, owner: str, units: int) -> None:
        limit = self.fair_queue.quota(owner).max_leases
        if limit is not None and units > limit:
            detail = f"{units} desktops are more than the {limit} that this key may hold"
            raise ApiError(ErrorCode.QUOTA_EXCEEDED, detail, hint="Claim fewer, or ask for a larger quota.")
        usable = self._slots.max_available()
        if units > usable:
            detail = f"{units} desktops at once can never be had: this farm has {usable} that can be used"
            hint = "Claim fewer, raise DART_MAX_DESKTOPS, or release desktops from quarantine."
            raise ApiError(ErrorCode.NO_CAPACITY, detail, hint=hint)

    async def wait_granted(self, ticket: ClaimTicket, wait_s: float) -> list[Slot]:
        """The ticket's slots, the caller's alone from now on.

        Those on their way when the time is up are waited for a little longer. However else this ends, the ticket is over. Raises
        `ApiError`: `no_capacity`, `quota_exceeded`, `draining`, `host_fault` …
        """
        try:
            slots = await self._wait_granted(ticket, wait_s)
            ticket.delivered = True
            return slots
        finally:
            if not ticket.delivered:
                self.withdraw(ticket)

    async def _wait_granted(self, ticket: ClaimTicket, wait_s: float) -> list[Slot]:
        if ticket.granted.done():
            return ticket.granted.result()
        try:
            return await wait_for(self._clock, wait_s, asyncio.shield(ticket.granted))
        except TimeoutError:
            if not ticket.slots:
                raise self._timeout_error(ticket, wait_s) from None
        try:
            return await wait_for(self._clock, PREPARE_GRACE_S, asyncio.shield(ticket.granted))
        except TimeoutError:
            detail = f"the desktop was not ready {PREPARE_GRACE_S:g} s after the {wait_s:g} s of waiting"
            if self._preparer.last_failure is not None:
                detail += f"; the last try failed: {self._preparer.last_failure}"
            hint = "It is still being made: claim again, or look at `dart-farm desktops` and the farm's log."
            raise ApiError(ErrorCode.NO_CAPACITY, detail, hint=hint) from None

    def _timeout_error(self, ticket: ClaimTicket, wait_s: float) -> ApiError:
        if self.fair_queue.blocked_by_quota(ticket):
            limit, held = self.fair_queue.quota(ticket.owner).max_leases, self.fair_queue.held(ticket.owner)
            detail = f"this key still holds {held} of the {limit} desktops that it may, after {wait_s:g} s of waiting"
            hint = (
                f"Use at most {limit} at a time (`dart-envs eval --desktops {limit}`), release leases, or ask for a larger "
                "quota."
            )
            return ApiError(ErrorCode.QUOTA_EXCEEDED, detail, hint=hint)
        what = "no desktop" if ticket.units == 1 else f"not enough desktops for a gang of {ticket.units}"
        detail = f"{what} became free within {wait_s:g} s ({self._slots.shortage_reason(ticket.target)})"
        return ApiError(ErrorCode.NO_CAPACITY, detail, hint="Release leases, wait longer, or raise DART_MAX_DESKTOPS.")

    def withdraw(self, ticket: ClaimTicket) -> None:
        """The claim is over without having taken its slots: it leaves the queue, and gives back what has come."""
        self.fair_queue.remove(ticket)
        if not ticket.granted.done():
            ticket.granted.cancel()
        elif not ticket.delivered and not ticket.granted.cancelled() and ticket.granted.exception() is None:
            self._return_slots(ticket, ticket.slots)
        self._lifecycle.on_change()

    def grant_waiting(self) -> bool:
        """Give what is free to who waits, in their order. True when nobody waits for a desktop any more."""
        full: dict[Hashable, int] = {}
        while len(self.fair_queue):
            entry = self.fair_queue.next(self._slots.available(), full)
            if not isinstance(entry, ClaimTicket):
                return self.fair_queue.first() is None
            try:
                if not self._grant(entry) and not self._may_skip(entry, full):
                    return False
            except ApiError as error:
                self.fair_queue.remove(entry)
                entry.granted.set_exception(error)
        return True

    def _may_skip(self, entry: ClaimTicket, full: dict[Hashable, int]) -> bool:
        """The host, or a pool, allows no more of what this one wants: whether others are served before it now.

        What becomes free is kept for a gang in turns, as where there are too few desktops: of all where the host is short, of its own
        base where its pool is full.
        """
        if entry.units == 1:
            full[entry.base] = 1
            return True
        kept, pool_is_full = (
            self.fair_queue.reserves_for(entry),
            self._slots.pool_limit_reason(entry.target) is not None,
        )
        full[entry.base] = 1 if kept else entry.units
        return pool_is_full or not kept

    def _grant(self, ticket: ClaimTicket) -> bool:
        """Give a ticket its slots, all at once; False when the host or a pool allows no more of what it wants.

        Raises `ApiError` when that is gone.
        """
        found = self._slots.allocate(ticket.target, ticket.units)
        if found is None:
            return False
        self.fair_queue.grant(ticket)
        ticket.slots, evicted = found
        places = ticket.slots[len(ticket.slots) - len(evicted) :]
        ticket.evicted_by_slot = {
            slot.desktop_id: evicted_slot for slot, evicted_slot in zip(places, evicted, strict=True)
        }
        for evicted_slot in evicted:
            self._lifecycle.remove(evicted_slot)
        if all(self._slots.is_ready(slot, ticket.target) for slot in ticket.slots):
            self._deliver(ticket)
        else:
            self._preparing_entries.add(ticket)
            self._preparing.start(self._prepare(ticket))
        return True

    async def _prepare(self, ticket: ClaimTicket) -> None:
        """Bring all slots of a ticket to what it wants; when one fails, the others are free again."""
        works = (self._prepare_traced(ticket, slot) for slot in ticket.slots)
        try:
            ends = await asyncio.gather(*works, return_exceptions=True)
        finally:
            self._preparing_entries.discard(ticket)
        failed = [(slot, end) for slot, end in zip(ticket.slots, ends, strict=True) if end is not None]
        if not failed:
            self._deliver(ticket)
            return
        if not ticket.granted.done():
            ticket.granted.set_exception(_claim_error(*failed[0]))
        for slot, _ in failed:
            self._lifecycle.remove(slot)
        lost = {slot.desktop_id for slot, _ in failed}
        self._return_slots(ticket, [slot for slot in ticket.slots if slot.desktop_id not in lost])
        self._lifecycle.on_change()

    async def _prepare_traced(self, ticket: ClaimTicket, slot: Slot) -> None:
        with tracing.attached_context(ticket.trace_context), tracing.span("prepare", desktop_id=slot.desktop_id):
            await self._prepare_slot(ticket, slot)

    async def _prepare_slot(self, ticket: ClaimTicket, slot: Slot) -> None:
        evicted_slot = ticket.evicted_by_slot.get(slot.desktop_id)
        if evicted_slot is not None:
            async with evicted_slot.lock:
                if evicted_slot.desktop_id in self._slots.by_id:
                    raise ApiError(ErrorCode.HOST_FAULT, "the desktop that was to make room could not be removed")
        await self._lifecycle.prepare(slot, ticket.target)

    def _deliver(self, ticket: ClaimTicket) -> None:
        wanted = ticket.target.snapshot_id
        other = next((slot for slot in ticket.slots if wanted is not None and slot.snapshot_id != wanted), None)
        if other is not None and not ticket.granted.done():
            ticket.granted.set_exception(restore_failed_error(wanted, other.snapshot_id))
        if ticket.granted.done():
            self._return_slots(ticket, ticket.slots)
            self._lifecycle.on_change()
        else:
            ticket.granted.set_result(ticket.slots)

    def _return_slots(self, ticket: ClaimTicket, slots: list[Slot]) -> None:
        """The slots are anybody's again, and the key holds nothing for the ticket any more."""
        ticket.delivered = True
        self.fair_queue.release_units(ticket.owner, ticket.units)
        for slot in slots:
            slot.busy = False

    def position(self, ticket: ClaimTicket) -> int | None:
        """How many claims come before this one; None when it does not wait. A little old when very many wait."""
        now_s, waiting = self._clock.monotonic(), len(self.fair_queue)
        version, at_s = self._positions_of
        if version != self.fair_queue.version and (
            waiting <= MAX_SAMPLED_CLAIMS
            or now_s - at_s >= waiting * POSITION_AGE_PER_CLAIM_S
            or ticket not in self._positions
        ):
            self._positions = {entry: number for number, entry in enumerate(self.fair_queue.order())}
            self._positions_of = (self.fair_queue.version, now_s)
        return self._positions.get(ticket)

    def reject_all(self, why: str, *, include_preparing: bool = False) -> None:
        """The farm stops or drains: nobody in the queue is served any more, nor those whose desktops are on their way if
        `include_preparing`."""
        refused = [entry for entry in self.fair_queue if isinstance(entry, ClaimTicket)]
        for entry in refused:
            self.fair_queue.remove(entry)
        for ticket in [*refused, *(self._preparing_entries if include_preparing else ())]:
            if not ticket.granted.done():
                ticket.granted.set_exception(ApiError(ErrorCode.DRAINING, why))


def _claim_error(slot: Slot, error: BaseException) -> ApiError:
    """What a claim hears of a slot that could not be made."""
    if isinstance(error, ApiError):
        return error
    log.error("a desktop could not be prepared", exc_info=error, extra={"desktop_id": slot.desktop_id})
    return ApiError(ErrorCode.HOST_FAULT, f"the desktop could not be prepared: {error}")
