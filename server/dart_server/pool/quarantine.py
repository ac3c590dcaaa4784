"""Desktops kept from use so that a person can look at them: those that failed their probes, and those an administrator set aside.

Rule: a bounded number, the latest ones, for a bounded time, frozen where the provider can; each still counts as one of the farm's desktops.
They outlive a restart of the farm. Non-goals: snapshots that do not restore (`snapshots.service` has a quarantine of its own).
"""

from __future__ import annotations

import logging

from dart_server.database.repository import NewEvent, Repository
from dart_server.database.write_queue import WriteReceipt
from dart_server.pool.slot_lifecycle import SlotLifecycle
from dart_server.pool.slots import Slots
from dart_server.providers.base import ProviderError
from dart_server.records import LeaseRecord, Slot
from dart_server.wire import Clock, DesktopState

log = logging.getLogger(__name__)


class Quarantine:
    """The desktops set aside. `capacity`: how many; 0 keeps none. `ttl_s`: how long."""

    def __init__(
        self,
        slots: Slots,
        lifecycle: SlotLifecycle,
        repository: Repository,
        clock: Clock,
        *,
        capacity: int,
        ttl_s: float,
    ) -> None:
        self._slots = slots
        self._lifecycle = lifecycle
        self._repository = repository
        self._clock = clock
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._expires_at_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._expires_at_s)

    async def add(self, slot: Slot, reason: str, *, by_admin: bool = False) -> bool:
        """Keep a slot that nobody holds; `by_admin` for by an administrator, beyond the room too. False when there is no room for any.

        Raises `database_unavailable` for a write that has to wait; the slot is kept all the same.
        """
        if not by_admin and self._capacity == 0:
            return False
        receipt = self._repository.save_desktop(slot, self._mark(slot, reason))
        if not by_admin:
            self._evict_oldest()
        await self._freeze(slot, receipt)
        return True

    async def add_leased(self, slot: Slot, reason: str, lease: LeaseRecord, successor: Slot) -> None:
        """Keep the desktop of a lease, which goes on in its successor. Nothing waits before all of it holds, and it is one write.

        Raises `database_unavailable` as `add` does.
        """
        slot.lease_id = None
        slot.grow_fencing_token()
        lease.slot, lease.desktop_id, lease.fencing_token = successor, successor.desktop_id, successor.fencing_token
        receipt = self._repository.move_lease(lease, successor, slot, self._mark(slot, reason))
        await self._freeze(slot, receipt)

    def _mark(self, slot: Slot, reason: str) -> NewEvent:
        """A slot is kept from use from now on; the event that tells so."""
        slot.busy, slot.unused, slot.state, slot.note = True, False, DesktopState.QUARANTINED, reason
        self._expires_at_s[slot.desktop_id] = self._clock.monotonic() + self._ttl_s
        log.warning("desktop quarantined: %s", reason, extra={"desktop_id": slot.desktop_id})
        return NewEvent("desktop_quarantined", slot.desktop_id, slot.lease_id, slot.fencing_token, {"reason": reason})

    async def _freeze(self, slot: Slot, receipt: WriteReceipt) -> None:
        """Let a quarantined desktop stand still, and wait until its quarantine is written."""
        try:
            await self._lifecycle.freeze_failed(slot)
        except ProviderError as error:
            log.info("a quarantined desktop runs on: %s", error, extra={"desktop_id": slot.desktop_id})
        await self._repository.wait_committed(receipt)

    def _evict_oldest(self) -> None:
        """The oldest go where there are too many."""
        while len(self._expires_at_s) > max(1, self._capacity):
            self._remove(next(iter(self._expires_at_s)), "a later one took its place")

    def adopt(self, slot: Slot, reason: str) -> None:
        """Take over one of an earlier life of this farm; its time begins anew."""
        slot.busy, slot.exists, slot.note = True, True, reason
        self._slots.by_id[slot.desktop_id] = slot
        self._expires_at_s[slot.desktop_id] = self._clock.monotonic() + self._ttl_s

    def release(self, slot: Slot) -> None:
        """Let one go: it is removed, and something fresh takes its place."""
        self._remove(slot.desktop_id, "released")

    def tick(self) -> None:
        """Let those go whose time is up."""
        now_s = self._clock.monotonic()
        for desktop_id in [name for name, until_s in self._expires_at_s.items() if until_s <= now_s]:
            self._remove(desktop_id, "its time was up")

    def _remove(self, desktop_id: str, reason: str) -> None:
        self._expires_at_s.pop(desktop_id, None)
        slot = self._slots.by_id.get(desktop_id)
        if slot is not None and slot.state is DesktopState.QUARANTINED:
            self._repository.add_event(NewEvent("quarantine_ended", desktop_id, data={"reason": reason}))
            self._lifecycle.remove(slot)
