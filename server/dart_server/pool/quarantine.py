"""Desktops kept from use so that a person can look at them: those that failed their probes, and those an administrator set aside.

Rule: a bounded number, the latest ones, for a bounded time, frozen where the provider can; each still counts as one of the farm's desktops.
They outlive a restart of the farm. Non-goals: snapshots that do not restore (`snapshots.service` has a quarantine of its own).
"""

from __future__ import annotations

import logging

from dart_server.database.repository import NewEvent, Repository
from dart_server.pool.slot_lifecycle import SlotLifecycle
from dart_server.pool.slots import Slots
from dart_server.providers.base import ProviderError
from dart_server.records import Slot
from dart_server.wire import Clock, DesktopState

log = logging.getLogger(__name__)


class Quarantine:
    """The desktops set aside. `room`: how many; 0 keeps none. `keep_s`: how long."""

    def __init__(
        self, slots: Slots, lifecycle: SlotLifecycle, repository: Repository, clock: Clock, *, room: int, keep_s: float
    ) -> None:
        self._slots = slots
        self._lifecycle = lifecycle
        self._repository = repository
        self._clock = clock
        self._room = room
        self._keep_s = keep_s
        self._until_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until_s)

    async def set_aside(self, slot: Slot, reason: str, *, asked: bool = False) -> bool:
        """Keep a slot that nobody holds; `asked` for by an administrator, beyond the room too. False when there is no room for any."""
        if not asked and self._room == 0:
            return False
        slot.busy, slot.unused, slot.state, slot.note = True, False, DesktopState.QUARANTINED, reason
        self._until_s[slot.desktop_id] = self._clock.monotonic() + self._keep_s
        note = NewEvent("desktop_quarantined", slot.desktop_id, slot.lease_id, slot.fencing_token, {"reason": reason})
        await self._repository.wait_committed(self._repository.save_desktop(slot, note))
        log.warning("desktop quarantined: %s", reason, extra={"desktop_id": slot.desktop_id})
        try:
            await self._lifecycle.stop(slot)
        except ProviderError as error:
            log.info("a quarantined desktop runs on: %s", error, extra={"desktop_id": slot.desktop_id})
        if not asked:
            self._make_way()
        return True

    def _make_way(self) -> None:
        """The oldest go where there are too many."""
        while len(self._until_s) > max(1, self._room):
            self._let_go(next(iter(self._until_s)), "a later one took its place")

    def adopt(self, slot: Slot, reason: str) -> None:
        """Take over one of an earlier life of this farm; its time begins anew."""
        slot.busy, slot.exists, slot.note = True, True, reason
        self._slots.by_id[slot.desktop_id] = slot
        self._until_s[slot.desktop_id] = self._clock.monotonic() + self._keep_s

    def release(self, slot: Slot) -> None:
        """Let one go: it is removed, and something fresh takes its place."""
        self._let_go(slot.desktop_id, "released")

    def tick(self) -> None:
        """Let those go whose time is up."""
        now_s = self._clock.monotonic()
        for desktop_id in [name for name, until_s in self._until_s.items() if until_s <= now_s]:
            self._let_go(desktop_id, "its time was up")

    def _let_go(self, desktop_id: str, reason: str) -> None:
        self._until_s.pop(desktop_id, None)
        slot = self._slots.by_id.get(desktop_id)
        if slot is not None:
            self._repository.add_event(NewEvent("quarantine_ended", desktop_id, data={"reason": reason}))
            self._lifecycle.remove(slot)
