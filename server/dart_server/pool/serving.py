"""The queue: claims that wait for a desktop, and who gets which.

Rule: first come, first served. A claim that is over before its desktop is ready leaves the queue and gives back what came at the last
moment. Non-goals: what is ready before anybody asks (`pool.standby`), how a slot is made (`pool.making`), leases (`leases.service`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from dart_server.clock import Clock, within
from dart_server.errors import FarmError
from dart_server.pool.background import Background
from dart_server.pool.making import Making
from dart_server.pool.prepare import Preparer
from dart_server.pool.slots import Slots
from dart_server.records import Slot
from dart_server.snapshots.service import Want, did_not_restore
from dart_server.wire import DesktopState, ErrorCode

log = logging.getLogger(__name__)
PREPARE_GRACE_S = 20.0
"""A claim waits this much longer than its `wait_s` when its desktop is being made."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One waiting claim."""

    want: Want
    granted: asyncio.Future[Slot]


class Serving:
    """The waiting claims of one farm."""

    def __init__(self, slots: Slots, making: Making, preparing: Background, preparer: Preparer, clock: Clock) -> None:
        self._slots = slots
        self._making = making
        self._preparing = preparing
        self._preparer = preparer
        self._clock = clock
        self._queue: deque[Ticket] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def wanted(self) -> list[Want]:
        """What those who wait want, in their order."""
        return [ticket.want for ticket in self._queue]

    async def acquire(self, want: Want, wait_s: float) -> Slot:
        """A fresh desktop that is the caller's alone. Raises `FarmError` (`no_capacity` after `wait_s`, `draining`, `host_fault` …)."""
        ticket = Ticket(want, asyncio.get_running_loop().create_future())
        self._queue.append(ticket)
        self._making.changed()
        taken = False
        try:
            slot = await self._granted(ticket, wait_s)
            taken = True
            return slot
        finally:
            if not taken:
                self._withdraw(ticket)

    async def _granted(self, ticket: Ticket, wait_s: float) -> Slot:
        """The ticket's slot. A desktop that is on its way when the time is up is waited for a little longer."""
        try:
            return await within(self._clock, wait_s, asyncio.shield(ticket.granted))
        except TimeoutError:
            if ticket in self._queue:
                in_use = f"{len(self._slots.by_id)} of {self._slots.max_desktops} are in use"
                detail = f"no desktop became free within {wait_s:g} s ({in_use})"
                hint = "Release leases, wait longer, or raise DART_MAX_DESKTOPS."
                raise FarmError(ErrorCode.NO_CAPACITY, detail, hint=hint) from None
        try:
            return await within(self._clock, PREPARE_GRACE_S, asyncio.shield(ticket.granted))
        except TimeoutError:
            detail = f"the desktop was not ready {PREPARE_GRACE_S:g} s after the {wait_s:g} s of waiting"
            if self._preparer.last_failure is not None:
                detail += f"; the last try failed: {self._preparer.last_failure}"
            hint = "It is still being made: claim again, or look at `dart-farm desktops` and the farm's log."
            raise FarmError(ErrorCode.NO_CAPACITY, detail, hint=hint) from None

    def _withdraw(self, ticket: Ticket) -> None:
        """The claim is over without a grant: leave the queue, and give back what came at the last moment."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        if not ticket.granted.done():
            ticket.granted.cancel()
        elif not ticket.granted.cancelled() and ticket.granted.exception() is None:
            ticket.granted.result().busy = False
            self._making.changed()

    def serve(self) -> bool:
        """Give what is free to who waits, in order. True when nobody waits for a slot any more."""
        while self._queue:
            ticket = self._queue[0]
            if ticket.granted.done():
                self._queue.popleft()
                continue
            try:
                slot = self._slots.pick(ticket.want) or self._slots.new(ticket.want)
            except FarmError as error:
                self._queue.popleft()
                ticket.granted.set_exception(error)
                continue
            if slot is None:
                self._evict()
                return False
            self._queue.popleft()
            slot.busy = True
            self._preparing.start(self._serve(ticket, slot))
        return True

    def _evict(self) -> None:
        """Room for another shape: one free desktop goes; its place is taken when it is gone."""
        leaving = any(slot.state is DesktopState.GONE for slot in self._slots.by_id.values())
        victim = next(iter(self._slots.idle()), None)
        if victim is not None and not leaving:
            self._making.remove(victim)

    async def _serve(self, ticket: Ticket, slot: Slot) -> None:
        try:
            await self._making.make(slot, ticket.want)
        except FarmError as error:
            self._refuse(ticket, slot, error)
            return
        except Exception as error:  # a claim is answered whatever broke
            log.error("a desktop could not be prepared", exc_info=error, extra={"desktop_id": slot.desktop_id})
            self._refuse(ticket, slot, FarmError(ErrorCode.HOST_FAULT, f"the desktop could not be prepared: {error}"))
            return
        wanted = ticket.want.snapshot_id
        if ticket.granted.done() or (wanted is not None and slot.snapshot_id != wanted):
            if not ticket.granted.done():
                ticket.granted.set_exception(did_not_restore(wanted, slot.snapshot_id))
            slot.busy = False
            self._making.changed()
        else:
            ticket.granted.set_result(slot)

    def _refuse(self, ticket: Ticket, slot: Slot, error: FarmError) -> None:
        if not ticket.granted.done():
            ticket.granted.set_exception(error)
        self._making.remove(slot)

    def refuse_all(self, why: str) -> None:
        """The farm stops or drains."""
        for ticket in self._queue:
            if not ticket.granted.done():
                ticket.granted.set_exception(FarmError(ErrorCode.DRAINING, why))
        self._queue.clear()
