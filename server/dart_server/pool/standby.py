"""Desktops that are ready before anybody asks: how many are kept, what they are copies of, and resets that move to one.

Rule: the wanted number of the shape asked for last is kept ready, the rest of the free ones goes; after a failure nothing is begun for a
while, claims are still served. Non-goals: whose turn it is (`pool.serving`), how one is made (`pool.making`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

from dart_server.clock import Clock
from dart_server.errors import FarmError
from dart_server.pool.background import Background
from dart_server.pool.making import Making
from dart_server.pool.slots import Slots
from dart_server.providers.base import Provider
from dart_server.records import Slot
from dart_server.repository import EventNote, Repository
from dart_server.settings import FarmSettings
from dart_server.snapshots.service import Want

log = logging.getLogger(__name__)
WARM_BACKOFF_S = 30.0
"""After a failed background preparation none is started for this long; claims are still served."""


class Standby:
    """The free desktops of one farm."""

    def __init__(
        self,
        provider: Provider,
        slots: Slots,
        making: Making,
        preparing: Background,
        repository: Repository,
        settings: FarmSettings,
        clock: Clock,
    ) -> None:
        self._provider = provider
        self._slots = slots
        self._making = making
        self._preparing = preparing
        self._repository = repository
        self._settings = settings
        self._clock = clock
        self._want: Want | None = None
        self._not_before_s = 0.0

    def asked_for(self, want: Want) -> None:
        """A claim came: copies of its base are kept from now on."""
        self._want = replace(want, setup_key=None, snapshot_id=None)

    def keep(self) -> None:
        """Begin what is lacking and let go what is too much."""
        want = self._want
        wanted = (
            self._settings.warm_desktops if want is not None and self._clock.monotonic() >= self._not_before_s else 0
        )
        spare = sum(slot.warming for slot in self._slots.by_id.values()) - wanted
        for slot in sorted(self._slots.idle(), key=lambda slot: not slot.clean):
            fits = want is not None and (slot.shape, slot.image_digest) == want.base_of
            if not fits or spare >= 0:
                self._making.remove(slot)
                continue
            spare += 1
            if want is not None and not slot.clean:
                slot.busy = slot.warming = True
                self._preparing.start(self._warm(slot, want))
        while want is not None and spare < 0:
            new = self._slots.new(want)
            if new is None:
                return
            spare += 1
            new.warming = True
            self._preparing.start(self._warm(new, want))

    async def _warm(self, slot: Slot, want: Want) -> None:
        try:
            await self._making.make(slot, want)
        except FarmError as error:
            log.warning("no warm desktop: %s", error.detail, extra={"desktop_id": slot.desktop_id})
            self._not_before_s = self._clock.monotonic() + WARM_BACKOFF_S
            self._making.remove(slot)
            return
        finally:
            slot.warming = False
        slot.busy = False
        self._making.changed()

    async def on_its_way(self, want: Want) -> bool:
        """Wait while none of the standby is ready but one is being made: it is ready before a desktop that is begun now.
        True when there was something to wait for."""
        waited = False
        if self._provider.capabilities.restore_in_place:
            return waited
        while not any(self._slots.serves(slot, want) for slot in self._slots.idle()):
            slots = self._slots.by_id.values()
            if not any(slot.warming and (slot.shape, slot.image_digest) == want.base_of for slot in slots):
                return waited
            waited = True
            await self._preparing.next_done()
        return waited

    def exchange(self, slot: Slot, want: Want) -> Slot:
        """The slot in which a lease goes on at its reset: its own, or an untouched one of the standby where the provider restores nothing
        in place. The old one is removed then, at once refused by its fence, and the standby is filled up again."""
        if self._provider.capabilities.restore_in_place:
            return slot
        standby = next((slot for slot in self._slots.idle() if self._slots.serves(slot, want)), None)
        if standby is None:
            return slot
        standby.lease_id, standby.fence = slot.lease_id, max(slot.fence, standby.fence)
        slot.lease_id = None
        slot.fence += 1
        self._making.remove(slot)
        self._making.changed()
        return standby

    async def probe(self) -> None:
        """Look at the free desktops; a dead one is replaced."""
        for slot in self._slots.idle():
            if not slot.clean:
                continue
            health = await self._provider.health(slot.desktop_id)
            if not health.alive and slot.lease_id is None and not slot.busy:
                self._repository.add_event(
                    EventNote("idle_desktop_died", slot.desktop_id, data={"cause": health.cause.value})
                )
                self._making.remove(slot)
