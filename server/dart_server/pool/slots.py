"""The table of desktop slots: what there is, what is free, and which free one is nearest to what is wanted.

Rule: looks only; a slot's desktop is changed by `pool.slot_lifecycle`, its holder by whoever called. Non-goals: turns (`pool.claim_queue`),
how many are kept ready (`pool.standby`).
"""

from __future__ import annotations

from collections.abc import Callable

from dart_server.errors import ApiError
from dart_server.ids import new_id
from dart_server.pool.admission import Admission
from dart_server.providers.base import Provider
from dart_server.records import BaseKey, DesktopTarget, LiveDesktops, Slot
from dart_server.snapshots.service import Snapshots
from dart_server.wire import Clock, DesktopHealthView, DesktopState, ErrorCode, FaultOwner

CopyKind = tuple[BaseKey, str | None]
"""What a desktop is a copy of: a shape of an image, and the snapshot, None for one that is booted."""


class Slots:
    """All slots of one farm, up to `max_desktops` and to what the host bears."""

    def __init__(
        self, provider: Provider, snapshots: Snapshots, admission: Admission, max_desktops: int, clock: Clock
    ) -> None:
        self._admission = admission
        self._provider = provider
        self._snapshots = snapshots
        self._clock = clock
        self.max_desktops = max_desktops
        self.by_id: dict[str, Slot] = {}
        self._being_replaced: dict[str, Slot] = {}
        """Those on their way out whose place another slot has already."""
        self.pool_limit_reason: Callable[[DesktopTarget], str | None] = lambda target: None
        """Says why a pool allows no more desktops of what is wanted; None while it does."""

    def live_desktops(self) -> LiveDesktops:
        """Which desktops exist or are being made."""
        slots = self.by_id.values()
        return LiveDesktops(
            bases=frozenset((slot.shape, slot.image_digest) for slot in slots),
            snapshot_ids=frozenset(slot.snapshot_id for slot in slots if slot.snapshot_id is not None),
        )

    def idle(self) -> list[Slot]:
        """Those that nobody holds and nobody works on."""
        return [slot for slot in self.by_id.values() if slot.lease_id is None and not slot.busy]

    def pick(self, target: DesktopTarget) -> Slot | None:
        """The free slot of the wanted shape that is nearest to what is wanted.

        While there is room for another one, no copy of something else that was frozen ahead of need.
        """
        is_wanted, base, room = self._matcher(target), target.base_key, self.free_slots() > 0
        best, used = None, None
        for slot in self.by_id.values():
            if slot.busy or slot.lease_id is not None or (slot.shape, slot.image_digest) != base:
                continue
            if is_wanted(slot):
                return slot
            if not slot.unused:
                used = used or slot
            elif best is None and not (room and slot.frozen):
                best = slot
        return used or best

    def _matcher(self, target: DesktopTarget) -> Callable[[Slot], bool]:
        """Says of slots of the wanted shape whether they are, untouched, what is wanted; without memory snapshots every booted one is."""
        snapshot = self._snapshots.deepest_snapshot(target)
        if snapshot is None:
            booted = not self._provider.capabilities.memory_snapshot
            return lambda slot: slot.unused and booted
        return lambda slot: slot.unused and slot.snapshot_id == snapshot.snapshot_id

    def kind(self, target: DesktopTarget) -> CopyKind:
        """What a copy of this would be now. Raises `ApiError` when there is no such snapshot."""
        found = self._snapshots.deepest_snapshot(target) if self._provider.capabilities.memory_snapshot else None
        return (target.base_key, found.snapshot_id if found else None)

    def first_match(self, target: DesktopTarget) -> Slot | None:
        """A free slot that is, untouched, what is wanted."""
        is_wanted, base = self._matcher(target), target.base_key
        return next((slot for slot in self.idle() if (slot.shape, slot.image_digest) == base and is_wanted(slot)), None)

    def is_fresh_copy(self, slot: Slot, target: DesktopTarget) -> bool:
        """Whether an untouched slot of the wanted shape is what is wanted already; without memory snapshots a booted one is."""
        return self._matcher(target)(slot)

    def is_ready(self, slot: Slot, target: DesktopTarget) -> bool:
        """Whether a slot can be used as it is, at once."""
        return not slot.frozen and not slot.lock.locked() and self.is_fresh_copy(slot, target)

    def free_slots(self) -> int:
        """How many slots more there may be."""
        for desktop_id, slot in list(self._being_replaced.items()):
            if desktop_id not in self.by_id or slot.state is not DesktopState.GONE:
                del self._being_replaced[desktop_id]
        return self.max_desktops - len(self.by_id) + len(self._being_replaced)

    def available(self) -> int:
        """How many desktops could be given to claims now."""
        return len(self.idle()) + max(0, self.free_slots())

    def max_available(self) -> int:
        """How many desktops claims can have at most, once nobody holds one."""
        aside = sum(slot.state is DesktopState.QUARANTINED for slot in self.by_id.values())
        return self.max_desktops - aside

    def create(self, target: DesktopTarget, *, prewarm: bool = False) -> Slot | None:
        """A slot more, busy and without a desktop; None when there are as many as there may be, or the host bears no more.

        `prewarm`: nobody waits for it.
        """
        if self.free_slots() <= 0 or (not prewarm and self.pool_limit_reason(target) is not None):
            return None
        pending = sum(slot.busy and slot.state is DesktopState.CREATING for slot in self.by_id.values())
        return self._add(target) if self._admission.admits(pending, prewarm=prewarm) else None

    def eviction_candidates(self, number: int) -> list[Slot] | None:
        """The free slots that go when others need their places, used ones first; None when there are not so many."""
        idle = self.idle()
        return sorted(idle, key=lambda slot: slot.unused)[:number] if len(idle) >= number else None

    def allocate(self, target: DesktopTarget, units: int) -> tuple[list[Slot], list[Slot]] | None:
        """Slots for a claim, busy from now on, nearest to what is wanted first.

        And those that must be gone before the last ones can be made. None, and nothing has changed, when there are not so many. Raises
        `ApiError` when what is wanted is gone.
        """
        taken: list[Slot] = []
        while len(taken) < units and (slot := self.pick(target)) is not None:
            slot.busy = True
            taken.append(slot)
        added: list[Slot] = []
        while len(taken) + len(added) < units and (slot := self.create(target)) is not None:
            added.append(slot)
        missing = units - len(taken) - len(added)
        evicted = (
            None if missing > 0 and self.pool_limit_reason(target) is not None else self.eviction_candidates(missing)
        )
        if evicted is None:
            for slot in taken:
                slot.busy = False
            for slot in added:
                del self.by_id[slot.desktop_id]
            return None
        return taken + added + [self.replacement_for(evicted_slot, target) for evicted_slot in evicted], evicted

    def replacement_for(self, evicted_slot: Slot, target: DesktopTarget) -> Slot:
        """A slot in the place of one that is being removed; its desktop may be made when that one's is gone."""
        self._being_replaced[evicted_slot.desktop_id] = evicted_slot
        return self._add(target)

    def _add(self, target: DesktopTarget) -> Slot:
        slot = Slot(new_id("desk"), target.shape, target.image_digest, self._provider.name, self._clock.time())
        self.by_id[slot.desktop_id] = slot
        return slot

    def shortage_reason(self, target: DesktopTarget) -> str:
        """Why there is no desktop more for this, in words."""
        reason = self.pool_limit_reason(target) or self._admission.refusal
        in_use = f"{len(self.by_id)} of {self.max_desktops} are in use"
        return f"{in_use}; {reason}" if reason and self.free_slots() > 0 else in_use

    def placeholder_for(self, slot: Slot) -> Slot:
        """A slot without a desktop, for the lease of one whose desktop is taken from it. Raises `no_capacity`."""
        if self.free_slots() <= 0:
            hint = "Release a lease, or this desktop's, first."
            raise ApiError(
                ErrorCode.NO_CAPACITY, f"there is no room beside it: {len(self.by_id)} are in use", hint=hint
            )
        found = Slot(new_id("desk"), slot.shape, slot.image_digest, slot.provider, self._clock.time())
        found.lease_id, found.fencing_token, found.busy, found.state = (
            slot.lease_id,
            slot.fencing_token + 1,
            False,
            DesktopState.BROKEN,
        )
        found.failure = DesktopHealthView(alive=False, cause="quarantined", fault_owner=FaultOwner.HOST)
        self.by_id[found.desktop_id] = found
        return found
