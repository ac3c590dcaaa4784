"""The queue: claims that wait for desktops, and who gets which.

Rule: whose turn it is says `pool.turns`; a claim is given all its desktops at once or none, and one that fails gives all back. A claim that
is over before its desktops are ready leaves the queue, and what comes later is free again. Non-goals: what is ready before anybody asks
(`pool.standby`), how a slot is made (`pool.lifecycle`), claims as clients know them and leases (`leases`).
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
from dart_server.pool.background import Background
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
LOOKED_AT = 256
"""Waiting claims that `wanted` tells of, at most."""
POSITIONS_AGE_S = 0.001
"""For every waiting claim positions may be this much older, so that telling them stays cheap."""


@dataclass(slots=True, eq=False, kw_only=True)
class ClaimTicket(QueueEntry):
    """One claim's place in the queue. `waits_for` has the desktops that must be gone before a slot of its place can be made."""

    want: DesktopTarget
    granted: asyncio.Future[list[Slot]]
    slots: list[Slot] = field(default_factory=list)
    waits_for: dict[str, Slot] = field(default_factory=dict)
    taken: bool = False
    place: Context | None = field(default_factory=tracing.current_context)
    """Where in a trace its claim is."""


class ClaimQueue:
    """The waiting claims of one farm."""

    def __init__(
        self,
        slots: Slots,
        lifecycle: SlotLifecycle,
        preparing: Background,
        preparer: DesktopPreparer,
        settings: FarmSettings,
        clock: Clock,
    ) -> None:
        self._slots = slots
        self._lifecycle = lifecycle
        self._preparing = preparing
        self._preparer = preparer
        self._clock = clock
        self.turns = FairQueue(clock.monotonic, settings.priority_ageing_s, settings.gang_hold_s)
        self._underway: set[ClaimTicket] = set()
        """Their slots are being made."""
        self._positions: dict[QueueEntry, int] = {}
        self._positions_of = (-1, 0.0)

    @property
    def waiting(self) -> int:
        """Claims in the queue; those whose desktops are being made have left it."""
        return len(self.turns)

    def wanted(self) -> Iterator[DesktopTarget]:
        """What waiting claims want, of some of them when there are many."""
        return (turn.want for turn in islice(self.turns, LOOKED_AT) if isinstance(turn, ClaimTicket))

    def enter(
        self, owner: str, want: DesktopTarget, lane: Hashable, *, units: int = 1, priority: int = 0
    ) -> ClaimTicket:
        """Stand in the queue; the ticket may be served already. Claims of one `lane` wait together when there is room for none of them.
        Raises `ApiError` when that can never be, or the key may not wait."""
        self._possible(owner, units)
        granted = asyncio.get_running_loop().create_future()
        ticket = ClaimTicket(owner, lane, units, priority, want=want, granted=granted)
        self.turns.add(ticket)
        self._lifecycle.changed()
        most = self.turns.share(owner).max_waiting
        if most is not None and self.turns.waiting(owner) > most and self.turns.drop(ticket):
            granted.cancel()
            detail = f"this key has {most} claims in the queue, as many as it may"
            raise ApiError(ErrorCode.QUOTA_EXCEEDED, detail, hint="Wait until one is granted, or cancel one.")
        return ticket

    def _possible(self, owner: str, units: int) -> None:
        most = self.turns.share(owner).max_leases
        if most is not None and units > most:
            detail = f"{units} desktops are more than the {most} that this key may hold"
            raise ApiError(ErrorCode.QUOTA_EXCEEDED, detail, hint="Claim fewer, or ask for a larger quota.")
        usable = self._slots.usable()
        if units > usable:
            detail = f"{units} desktops at once can never be had: this farm has {usable} that can be used"
            hint = "Claim fewer, raise DART_MAX_DESKTOPS, or release desktops from quarantine."
            raise ApiError(ErrorCode.NO_CAPACITY, detail, hint=hint)

    async def granted(self, ticket: ClaimTicket, wait_s: float) -> list[Slot]:
        """The ticket's slots, the caller's alone from now on. Those on their way when the time is up are waited for a little longer.
        However else this ends, the ticket is over. Raises `ApiError`: `no_capacity`, `quota_exceeded`, `draining`, `host_fault` …"""
        try:
            slots = await self._in_time(ticket, wait_s)
            ticket.taken = True
            return slots
        finally:
            if not ticket.taken:
                self.leave(ticket)

    async def _in_time(self, ticket: ClaimTicket, wait_s: float) -> list[Slot]:
        if ticket.granted.done():
            return ticket.granted.result()
        try:
            return await wait_for(self._clock, wait_s, asyncio.shield(ticket.granted))
        except TimeoutError:
            if not ticket.slots:
                raise self._too_late(ticket, wait_s) from None
        try:
            return await wait_for(self._clock, PREPARE_GRACE_S, asyncio.shield(ticket.granted))
        except TimeoutError:
            detail = f"the desktop was not ready {PREPARE_GRACE_S:g} s after the {wait_s:g} s of waiting"
            if self._preparer.last_failure is not None:
                detail += f"; the last try failed: {self._preparer.last_failure}"
            hint = "It is still being made: claim again, or look at `dart-farm desktops` and the farm's log."
            raise ApiError(ErrorCode.NO_CAPACITY, detail, hint=hint) from None

    def _too_late(self, ticket: ClaimTicket, wait_s: float) -> ApiError:
        if self.turns.held_up(ticket):
            most, held = self.turns.share(ticket.owner).max_leases, self.turns.held(ticket.owner)
            detail = f"this key still holds {held} of the {most} desktops that it may, after {wait_s:g} s of waiting"
            return ApiError(ErrorCode.QUOTA_EXCEEDED, detail, hint="Release leases, or ask for a larger quota.")
        what = "no desktop" if ticket.units == 1 else f"not enough desktops for a gang of {ticket.units}"
        detail = f"{what} became free within {wait_s:g} s ({self._slots.shortage(ticket.want)})"
        return ApiError(ErrorCode.NO_CAPACITY, detail, hint="Release leases, wait longer, or raise DART_MAX_DESKTOPS.")

    def leave(self, ticket: ClaimTicket) -> None:
        """The claim is over without having taken its slots: it leaves the queue, and gives back what has come."""
        self.turns.drop(ticket)
        if not ticket.granted.done():
            ticket.granted.cancel()
        elif not ticket.taken and not ticket.granted.cancelled() and ticket.granted.exception() is None:
            self._free(ticket, ticket.slots)
        self._lifecycle.changed()

    def serve(self) -> bool:
        """Give what is free to who waits, in their order. True when nobody waits for a desktop any more."""
        full: dict[Hashable, int] = {}
        while len(self.turns):
            turn = self.turns.next(self._slots.free(), full)
            if not isinstance(turn, ClaimTicket):
                return self.turns.first() is None
            try:
                if not self._give(turn) and not self._others_pass(turn, full):
                    return False
            except ApiError as error:
                self.turns.drop(turn)
                turn.granted.set_exception(error)
        return True

    def _others_pass(self, turn: ClaimTicket, full: dict[Hashable, int]) -> bool:
        """The host, or a pool, allows no more of what this one wants: whether others are served before it now. What becomes free is kept
        for a gang in turns, as where there are too few desktops: of all where the host is short, of its own base where its pool is full."""
        if turn.units == 1:
            full[turn.base] = 1
            return True
        kept, pool_is_full = self.turns.keeps_for(turn), self._slots.cap(turn.want) is not None
        full[turn.base] = 1 if kept else turn.units
        return pool_is_full or not kept

    def _give(self, ticket: ClaimTicket) -> bool:
        """Give a ticket its slots, all at once; False when the host or a pool allows no more of what it wants. Raises `ApiError` when
        that is gone."""
        found = self._slots.take(ticket.want, ticket.units)
        if found is None:
            return False
        self.turns.grant(ticket)
        ticket.slots, victims = found
        places = ticket.slots[len(ticket.slots) - len(victims) :]
        ticket.waits_for = {slot.desktop_id: victim for slot, victim in zip(places, victims, strict=True)}
        for victim in victims:
            self._lifecycle.remove(victim)
        if all(self._slots.ready(slot, ticket.want) for slot in ticket.slots):
            self._hand_over(ticket)
        else:
            self._underway.add(ticket)
            self._preparing.start(self._make(ticket))
        return True

    async def _make(self, ticket: ClaimTicket) -> None:
        """Bring all slots of a ticket to what it wants; when one fails, the others are free again."""
        works = (self._make_traced(ticket, slot) for slot in ticket.slots)
        try:
            ends = await asyncio.gather(*works, return_exceptions=True)
        finally:
            self._underway.discard(ticket)
        failed = [(slot, end) for slot, end in zip(ticket.slots, ends, strict=True) if end is not None]
        if not failed:
            self._hand_over(ticket)
            return
        if not ticket.granted.done():
            ticket.granted.set_exception(_told(*failed[0]))
        for slot, _ in failed:
            self._lifecycle.remove(slot)
        lost = {slot.desktop_id for slot, _ in failed}
        self._free(ticket, [slot for slot in ticket.slots if slot.desktop_id not in lost])
        self._lifecycle.changed()

    async def _make_traced(self, ticket: ClaimTicket, slot: Slot) -> None:
        with tracing.attached_context(ticket.place), tracing.span("prepare", desktop_id=slot.desktop_id):
            await self._make_one(ticket, slot)

    async def _make_one(self, ticket: ClaimTicket, slot: Slot) -> None:
        victim = ticket.waits_for.get(slot.desktop_id)
        if victim is not None:
            async with victim.lock:
                if victim.desktop_id in self._slots.by_id:
                    raise ApiError(ErrorCode.HOST_FAULT, "the desktop that was to make room could not be removed")
        await self._lifecycle.make(slot, ticket.want)

    def _hand_over(self, ticket: ClaimTicket) -> None:
        wanted = ticket.want.snapshot_id
        other = next((slot for slot in ticket.slots if wanted is not None and slot.snapshot_id != wanted), None)
        if other is not None and not ticket.granted.done():
            ticket.granted.set_exception(restore_failed_error(wanted, other.snapshot_id))
        if ticket.granted.done():
            self._free(ticket, ticket.slots)
            self._lifecycle.changed()
        else:
            ticket.granted.set_result(ticket.slots)

    def _free(self, ticket: ClaimTicket, slots: list[Slot]) -> None:
        """The slots are anybody's again, and the key holds nothing for the ticket any more."""
        ticket.taken = True
        self.turns.give_back(ticket.owner, ticket.units)
        for slot in slots:
            slot.busy = False

    def position(self, ticket: ClaimTicket) -> int | None:
        """How many claims come before this one; None when it does not wait. A little old when very many wait."""
        now_s, waiting = self._clock.monotonic(), len(self.turns)
        version, at_s = self._positions_of
        if version != self.turns.version and (
            waiting <= LOOKED_AT or now_s - at_s >= waiting * POSITIONS_AGE_S or ticket not in self._positions
        ):
            self._positions = {turn: number for number, turn in enumerate(self.turns.order())}
            self._positions_of = (self.turns.version, now_s)
        return self._positions.get(ticket)

    def refuse_all(self, why: str, *, underway: bool = False) -> None:
        """The farm stops or drains: nobody in the queue is served any more, nor those whose desktops are on their way if `underway`."""
        refused = [turn for turn in self.turns if isinstance(turn, ClaimTicket)]
        for turn in refused:
            self.turns.drop(turn)
        for ticket in [*refused, *(self._underway if underway else ())]:
            if not ticket.granted.done():
                ticket.granted.set_exception(ApiError(ErrorCode.DRAINING, why))


def _told(slot: Slot, error: BaseException) -> ApiError:
    """What a claim hears of a slot that could not be made."""
    if isinstance(error, ApiError):
        return error
    log.error("a desktop could not be prepared", exc_info=error, extra={"desktop_id": slot.desktop_id})
    return ApiError(ErrorCode.HOST_FAULT, f"the desktop could not be prepared: {error}")
