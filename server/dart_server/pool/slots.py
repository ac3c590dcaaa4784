"""The table of desktop slots: what there is, what is free, and which free one is nearest to what is wanted.

Rule: looks only; a slot's desktop is changed by `pool.making`, its holder by whoever called. Non-goals: turns (`pool.serving`), how many
are kept ready (`pool.standby`).
"""

from __future__ import annotations

from dart_server.clock import Clock
from dart_server.ids import new_id
from dart_server.providers.base import Provider
from dart_server.records import Slot
from dart_server.snapshots.service import BaseOf, Living, Snapshots, Want

Kind = tuple[BaseOf, str | None]
"""What a desktop is a copy of: a shape of an image, and the snapshot, None for one that is booted."""


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
        """The free slot of the wanted shape that is nearest to what is wanted; while there is room for another one, no copy of something
        else that was frozen ahead of need."""
        fitting = [slot for slot in self.idle() if (slot.shape, slot.image_digest) == want.base_of]
        if len(self.by_id) < self.max_desktops:
            fitting = [slot for slot in fitting if not slot.frozen or self.fresh(slot, want)]
        return max(fitting, key=lambda slot: (self.fresh(slot, want), not slot.clean), default=None)

    def kind(self, want: Want) -> Kind:
        """What a copy of this would be now. Raises `FarmError` when there is no such snapshot."""
        found = self._snapshots.deepest(want) if self._provider.capabilities.memory_snapshot else None
        return (want.base_of, found.snapshot_id if found else None)

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
