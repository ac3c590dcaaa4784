"""The table of desktop slots: what there is, what is free, and which free one is nearest to what is wanted.

Rule: looks only; a slot's desktop is changed by `pool.making`, its holder by whoever called. Non-goals: turns (`pool.serving`), how many
are kept ready (`pool.standby`).
"""

from __future__ import annotations

from dart_server.clock import Clock
from dart_server.ids import new_id
from dart_server.providers.base import Provider
from dart_server.records import Slot
from dart_server.snapshots.service import Living, Snapshots, Want


class Slots:
    """All slots of one farm, up to `max_desktops`."""

    def __init__(self, provider: Provider, snapshots: Snapshots, max_desktops: int, clock: Clock) -> None:
        self._provider = provider
        self._snapshots = snapshots
        self._clock = clock
        self.max_desktops = max_desktops
        self.by_id: dict[str, Slot] = {}

    def living(self) -> Living:
        """Which desktops exist or are being made."""
        slots = self.by_id.values()
        return Living(
            bases=frozenset((slot.shape, slot.image_digest) for slot in slots),
            snapshot_ids=frozenset(slot.snapshot_id for slot in slots if slot.snapshot_id is not None),
        )

    def idle(self) -> list[Slot]:
        """Those that nobody holds and nobody works on."""
        return [slot for slot in self.by_id.values() if slot.lease_id is None and not slot.busy]

    def pick(self, want: Want) -> Slot | None:
        """The free slot of the wanted shape that is nearest to what is wanted."""
        fitting = [slot for slot in self.idle() if (slot.shape, slot.image_digest) == want.base_of]
        return max(fitting, key=lambda slot: (self.fresh(slot, want), not slot.clean), default=None)

    def serves(self, slot: Slot, want: Want) -> bool:
        """Whether a slot is, untouched, what is wanted."""
        return (slot.shape, slot.image_digest) == want.base_of and self.fresh(slot, want)

    def fresh(self, slot: Slot, want: Want) -> bool:
        """Whether an untouched slot of the wanted shape is what is wanted already; without memory snapshots a booted one is."""
        target = self._snapshots.deepest(want)
        if target is None:
            return slot.clean and not self._provider.capabilities.memory_snapshot
        return slot.clean and slot.snapshot_id == target.snapshot_id

    def new(self, want: Want) -> Slot | None:
        """A slot more, busy and without a desktop; None when there are as many as there may be."""
        if len(self.by_id) >= self.max_desktops:
            return None
        slot = Slot(new_id("desk"), want.shape, want.image_digest, self._provider.name, self._clock.time())
        self.by_id[slot.desktop_id] = slot
        return slot
