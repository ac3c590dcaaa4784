"""The pool: desktop slots up to a limit, and the queue of those who wait for one.

Rule: first come, first served; a used desktop is never handed on before it was made a fresh copy. The pool is level-triggered: `dispatch`
looks at what is there and what is wanted, and is called after every change and on every tick; no decision rests on an event's order.
Where the provider restores nothing in place, a reset moves the lease to a warm desktop (the standby) and the used one is removed.
Non-goals: leases (who may use a desktop, and until when), how a desktop is made (`pool.prepare`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, replace

from dart_server import wire
from dart_server.clock import Clock, within
from dart_server.errors import FarmError
from dart_server.ids import new_id
from dart_server.pool.background import Background
from dart_server.pool.prepare import Brought, Preparer
from dart_server.providers import base
from dart_server.records import Slot
from dart_server.repository import EventNote, Repository
from dart_server.settings import FarmSettings
from dart_server.snapshots.service import Living, Snapshots, Want, did_not_restore
from dart_server.wire import DesktopState, ErrorCode

log = logging.getLogger(__name__)
PREPARE_GRACE_S = 20.0
"""A claim waits this much longer than its `wait_s` when its desktop is being made."""
WARM_BACKOFF_S = 30.0
"""After a failed background preparation none is started for this long; claims are still served."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One waiting claim."""

    want: Want
    granted: asyncio.Future[Slot]


class Pool:
    """All desktops of one farm."""

    def __init__(
        self,
        provider: base.Provider,
        preparer: Preparer,
        snapshots: Snapshots,
        repository: Repository,
        settings: FarmSettings,
        clock: Clock,
    ) -> None:
        self._provider = provider
        self._preparer = preparer
        self._snapshots = snapshots
        self._repository = repository
        self._settings = settings
        self._clock = clock
        self._queue: deque[Ticket] = deque()
        self._preparing = Background()
        self._ending = Background()
        self._warm_want: Want | None = None
        self._warm_after_s = 0.0
        self._draining = False
        self.slots: dict[str, Slot] = {}

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def living(self) -> Living:
        """Which desktops exist or are being made."""
        return Living(
            bases=frozenset((slot.shape, slot.image_digest) for slot in self.slots.values()),
            snapshot_ids=frozenset(slot.snapshot_id for slot in self.slots.values() if slot.snapshot_id is not None),
        )

    async def acquire(self, want: Want, wait_s: float) -> Slot:
        """A fresh desktop that is the caller's alone. Raises `FarmError` (`no_capacity` after `wait_s`, `draining`, `host_fault` …)."""
        want = self.require(want)
        self._warm_want = replace(want, setup_key=None, snapshot_id=None)
        ticket = Ticket(want, asyncio.get_running_loop().create_future())
        self._queue.append(ticket)
        self.dispatch()
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
                detail = f"no desktop became free within {wait_s:g} s ({len(self.slots)} of {self._settings.max_desktops} are in use)"
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
            self.dispatch()

    def require(self, want: Want) -> Want:
        """The same with a snapshot's id for its name, if it can be wanted now. Raises `draining`, `snapshot_missing`, `invalid` …"""
        if self._draining:
            raise FarmError(ErrorCode.DRAINING, "the farm is stopping", hint="Start it again and repeat the request.")
        found = self._snapshots.deepest(want)
        return want if want.snapshot_id is None or found is None else replace(want, snapshot_id=found.snapshot_id)

    async def standby_on_its_way(self, want: Want) -> bool:
        """Wait while none of the standby is ready but one is being made: it is ready before a desktop that is begun now.
        True when there was something to wait for."""
        waited = False
        if self._provider.capabilities.restore_in_place:
            return waited
        while not any(self._serves(slot, want) for slot in self._idle()):
            if not any(
                slot.warming and (slot.shape, slot.image_digest) == want.base_of for slot in self.slots.values()
            ):
                return waited
            waited = True
            await self._preparing.next_done()
        return waited

    def exchange(self, slot: Slot, want: Want) -> Slot:
        """The slot in which a lease goes on at its reset: its own, or an untouched one of the standby where the provider restores nothing
        in place. The old one is removed then, at once refused by its fence, and the standby is filled up again."""
        if self._provider.capabilities.restore_in_place:
            return slot
        standby = next((slot for slot in self._idle() if self._serves(slot, want)), None)
        if standby is None:
            return slot
        standby.lease_id, standby.fence = slot.lease_id, max(slot.fence, standby.fence)
        slot.lease_id = None
        slot.fence += 1
        self._remove(slot)
        self.dispatch()
        return standby

    async def renew(self, slot: Slot, want: Want, *, waited: bool = False) -> Brought:
        """Make a leased desktop a fresh copy of what is wanted; `waited` tells that it was not ready when it was asked for.
        Raises `FarmError`; the slot is broken then, and may be renewed again."""
        async with slot.lock:
            confirm = self._fresh(slot, want)
            slot.state, slot.clean = DesktopState.RESETTING, False
            try:
                if confirm:
                    brought = await self._preparer.confirm(slot, want, waited=waited)
                else:
                    brought = await self._preparer.bring(slot, want)
            except FarmError as error:
                slot.state = DesktopState.BROKEN
                slot.failure = wire.DesktopHealthView(
                    alive=False, cause=error.code.value, fault_owner=wire.FaultOwner.HOST
                )
                self._repository.save_desktop(
                    slot, EventNote("reset_failed", slot.desktop_id, slot.lease_id, slot.fence)
                )
                raise
            slot.state = DesktopState.LEASED
            data = {
                "restored": brought.restored,
                "standby": brought.standby,
                "setup_key": slot.setup_key,
                "snapshot_id": slot.snapshot_id,
                "quarantined": list(brought.quarantined),
                "duration_s": round(brought.duration_s, 4),
            }
            await self._repository.save_desktop(
                slot, EventNote("desktop_reset", slot.desktop_id, slot.lease_id, slot.fence, data)
            )
            return brought

    def release(self, slot: Slot) -> None:
        """Take a desktop back from its lease, at once: its fence grows, so that every later call with the old one is refused."""
        slot.fence += 1
        slot.lease_id = None
        slot.clean, slot.busy = False, True
        slot.state = DesktopState.RESETTING
        self._ending.start(self._recycle(slot))

    async def _recycle(self, slot: Slot) -> None:
        async with slot.lock:
            slot.state = DesktopState.RESETTING
            await self._preparer.hang_up(slot)
            self._repository.save_desktop(slot)
        slot.busy = False
        self.dispatch()

    async def fail(self, slot: Slot, health: wire.DesktopHealthView) -> None:
        """Write down that a desktop died, and remove what is left of it. A leased one stays with its lease until it is renewed."""
        if slot.failure is not None:
            return
        slot.failure = health
        slot.state = DesktopState.BROKEN
        data = {"cause": health.cause, "fault_owner": health.fault_owner.value}
        self._repository.save_desktop(
            slot, EventNote("desktop_failed", slot.desktop_id, slot.lease_id, slot.fence, data)
        )
        log.warning("desktop failed: %s", data, extra={"desktop_id": slot.desktop_id, "lease_id": slot.lease_id})
        self._ending.start(self._clear(slot, health))

    async def _clear(self, slot: Slot, health: wire.DesktopHealthView) -> None:
        async with slot.lock:
            if slot.failure is health:
                await self._preparer.discard(slot)
        self.dispatch()

    def dispatch(self) -> None:
        """Serve who waits, in order; then keep the warm desktops; then let the rest go."""
        if self._draining:
            return
        while self._queue:
            ticket = self._queue[0]
            if ticket.granted.done():
                self._queue.popleft()
                continue
            try:
                slot = self._pick(ticket.want) or self._new_slot(ticket.want)
            except FarmError as error:
                self._queue.popleft()
                ticket.granted.set_exception(error)
                continue
            if slot is None:
                self._evict_for(ticket.want)
                return
            self._queue.popleft()
            slot.busy = True
            self._preparing.start(self._serve(ticket, slot))
        self._keep_warm()

    def _idle(self) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.lease_id is None and not slot.busy]

    def _pick(self, want: Want) -> Slot | None:
        """The free slot of the wanted shape that is nearest to what is wanted."""
        fitting = [slot for slot in self._idle() if (slot.shape, slot.image_digest) == want.base_of]
        return max(fitting, key=lambda slot: (self._fresh(slot, want), not slot.clean), default=None)

    def _serves(self, slot: Slot, want: Want) -> bool:
        return (slot.shape, slot.image_digest) == want.base_of and self._fresh(slot, want)

    def _fresh(self, slot: Slot, want: Want) -> bool:
        """Whether an untouched slot of the wanted shape is what is wanted already; without memory snapshots a booted one is."""
        target = self._snapshots.deepest(want)
        if target is None:
            return slot.clean and not self._provider.capabilities.memory_snapshot
        return slot.clean and slot.snapshot_id == target.snapshot_id

    def _new_slot(self, want: Want) -> Slot | None:
        if len(self.slots) >= self._settings.max_desktops:
            return None
        slot = Slot(new_id("desk"), want.shape, want.image_digest, self._provider.name, self._clock.time())
        self.slots[slot.desktop_id] = slot
        return slot

    def _evict_for(self, want: Want) -> None:
        """Room for another shape: one free desktop goes; its place is taken at the next dispatch."""
        leaving = any(slot.state is DesktopState.GONE for slot in self.slots.values())
        victim = next(iter(self._idle()), None)
        if victim is not None and not leaving:
            self._remove(victim)

    def _keep_warm(self) -> None:
        want = self._warm_want
        wanted = (
            self._settings.warm_desktops if want is not None and self._clock.monotonic() >= self._warm_after_s else 0
        )
        spare = sum(slot.warming for slot in self.slots.values()) - wanted
        for slot in sorted(self._idle(), key=lambda slot: not slot.clean):
            fits = want is not None and (slot.shape, slot.image_digest) == want.base_of
            if not fits or spare >= 0:
                self._remove(slot)
                continue
            spare += 1
            if want is not None and not slot.clean:
                slot.busy = slot.warming = True
                self._preparing.start(self._warm(slot, want))
        while want is not None and spare < 0:
            new = self._new_slot(want)
            if new is None:
                return
            spare += 1
            new.warming = True
            self._preparing.start(self._warm(new, want))

    async def _serve(self, ticket: Ticket, slot: Slot) -> None:
        try:
            await self._make(slot, ticket.want)
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
            self.dispatch()
        else:
            ticket.granted.set_result(slot)

    def _refuse(self, ticket: Ticket, slot: Slot, error: FarmError) -> None:
        if not ticket.granted.done():
            ticket.granted.set_exception(error)
        self._remove(slot)

    async def _warm(self, slot: Slot, want: Want) -> None:
        try:
            await self._make(slot, want)
        except FarmError as error:
            log.warning("no warm desktop: %s", error.detail, extra={"desktop_id": slot.desktop_id})
            self._warm_after_s = self._clock.monotonic() + WARM_BACKOFF_S
            self._remove(slot)
            return
        finally:
            slot.warming = False
        slot.busy = False
        self.dispatch()

    async def _make(self, slot: Slot, want: Want) -> None:
        """Bring a slot that nobody uses to what is wanted, unless it is that already."""
        async with slot.lock:
            if self._fresh(slot, want):
                return
            slot.clean = False
            if not slot.exists:
                slot.state = DesktopState.CREATING
                self._repository.save_desktop(slot, EventNote("desktop_creating", slot.desktop_id))
            await self._preparer.bring(slot, want)
            slot.clean, slot.state = True, DesktopState.READY
            self._repository.save_desktop(slot)

    def _remove(self, slot: Slot) -> None:
        slot.busy, slot.state = True, DesktopState.GONE
        self._ending.start(self._destroy(slot))

    async def _destroy(self, slot: Slot) -> None:
        async with slot.lock:
            try:
                await self._preparer.discard(slot)
            except base.ProviderError as error:
                log.error("a desktop could not be removed: %s", error, extra={"desktop_id": slot.desktop_id})
                self._repository.add_event(EventNote("destroy_failed", slot.desktop_id, data={"reason": str(error)}))
                await self._clock.sleep(self._settings.tick_s)
                slot.state, slot.busy = DesktopState.BROKEN, False
                return
            self._repository.save_desktop(slot, EventNote("desktop_gone", slot.desktop_id))
            self.slots.pop(slot.desktop_id, None)
        self.dispatch()

    async def probe_idle(self) -> None:
        """Look at the free desktops; a dead one is replaced."""
        for slot in self._idle():
            if not slot.clean:
                continue
            health = await self._provider.health(slot.desktop_id)
            if not health.alive and slot.lease_id is None and not slot.busy:
                self._repository.add_event(
                    EventNote("idle_desktop_died", slot.desktop_id, data={"cause": health.cause.value})
                )
                self._remove(slot)

    def adopt(self, slot: Slot) -> None:
        """Take over a slot of an earlier life of this farm."""
        self.slots[slot.desktop_id] = slot

    async def stop(self) -> None:
        """Refuse who waits, end the background work, destroy every desktop."""
        self._draining = True
        for ticket in self._queue:
            if not ticket.granted.done():
                ticket.granted.set_exception(FarmError(ErrorCode.DRAINING, "the farm is stopping"))
        self._queue.clear()
        self._preparing.cancel()
        await self._preparing.ended()
        await self._ending.ended()
        await asyncio.gather(*(self._end(slot) for slot in list(self.slots.values())))

    async def _end(self, slot: Slot) -> None:
        slot.exists, slot.state = True, DesktopState.GONE
        try:
            await self._preparer.discard(slot)
        except base.ProviderError as error:
            log.error("a desktop could not be removed: %s", error, extra={"desktop_id": slot.desktop_id})
            return
        self._repository.save_desktop(slot, EventNote("desktop_gone", slot.desktop_id))
        self.slots.pop(slot.desktop_id, None)
