"""Desktops that are ready before anybody asks: what is kept of what, frozen or running, and resets that move to one.

Rule: what is wanted comes from the named pools, from the default pool (the shape that was asked for last) and from what is asked for again
and again; `pool.plan` says what to do about it, this module does it. Who waits is served first. What fails waits before it is tried again
(`pool.backoff`); claims never do. Non-goals: whose turn it is (`pool.claim_queue`), how one is made (`pool.slot_lifecycle`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dart_server import wire
from dart_server.clock import utc
from dart_server.errors import ApiError
from dart_server.pool.background import BackgroundTaskSet
from dart_server.pool.backoff import Backoff
from dart_server.pool.demand import Demand
from dart_server.pool.named_pools import NamedPool, NamedPools
from dart_server.pool.plan import (
    Action,
    FreezeAction,
    PrepareAction,
    ReadyCopy,
    ReadyTarget,
    RemoveAction,
    SlotPhase,
    ThawAction,
    distribute,
    plan,
)
from dart_server.pool.slot_lifecycle import SlotLifecycle
from dart_server.pool.slots import CopyKind, Slots
from dart_server.providers.base import Provider
from dart_server.records import SHARED_OWNER, DesktopTarget, Slot
from dart_server.settings import FarmSettings
from dart_server.wire import DEFAULT_POOL, Clock, DesktopState

log = logging.getLogger(__name__)
FREEZE_BACKOFF_KEY = "freezing"
"""What the back-off knows a provider by that does not freeze although it says so."""
_EXCLUDED_STATES = (DesktopState.GONE, DesktopState.QUARANTINED)


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """A target with what it takes to carry it out; `pool` is None for the farm's own."""

    replicas: ReadyTarget
    target: DesktopTarget
    pool: NamedPool | None = None


class Standby:
    """The free desktops of one farm."""

    def __init__(
        self,
        provider: Provider,
        slots: Slots,
        lifecycle: SlotLifecycle,
        preparing: BackgroundTaskSet,
        pools: NamedPools,
        settings: FarmSettings,
        clock: Clock,
        waiting: Callable[[], Iterable[DesktopTarget]],
    ) -> None:
        self._provider = provider
        self._slots = slots
        self._lifecycle = lifecycle
        self._preparing = preparing
        self._pools = pools
        self._settings = settings
        self._waiting = waiting
        self._demand = Demand(clock)
        self.backoff = Backoff(clock)
        self._last_target: DesktopTarget | None = None
        self.drained = False
        self._hits = self._misses = 0
        self._began_at = clock.time()

    def note_claim(self, target: DesktopTarget) -> None:
        """A claim came: copies of its base are kept from now on."""
        self._last_target = replace(target, setup_key=None, snapshot_id=None)
        self._record_demand(target)

    def _record_demand(self, target: DesktopTarget) -> None:
        self._demand.record(target)
        hit = self._slots.first_match(target) is not None
        self._hits += hit
        self._misses += not hit
        pools = self._pools.all()
        kind = self._kind(target) if pools else None
        for pool in pools:
            if pool.target is not None and self._kind(pool.target) == kind:
                pool.hits += hit
                pool.misses += not hit

    def _kind(self, target: DesktopTarget) -> CopyKind | None:
        """What a copy would be now; None when there is no such snapshot."""
        try:
            return self._slots.kind(target)
        except ApiError:
            return None

    def _future_kind(self, slot: Slot) -> CopyKind | None:
        """What a slot on its way will be a copy of; one that is being frozen or thawed is that already."""
        return (
            self._kind(slot.target) if slot.target is not None else ((slot.shape, slot.image_digest), slot.snapshot_id)
        )

    def reconcile(self) -> None:
        """Begin what is lacking, freeze and thaw, and let go what nobody wants."""
        resolved_targets = self._resolve_targets()
        if not resolved_targets and not self._slots.idle():
            return
        copies = self._slot_infos(
            held=any(
                resolved.replicas.min_copies or resolved.replicas.max_copies is not None
                for resolved in resolved_targets
            )
        )
        preparing = sum(copy.phase is SlotPhase.PREPARING for copy in copies)
        actions = plan(
            [resolved.replicas for resolved in resolved_targets],
            copies,
            free_slots=max(0, self._slots.free_slots()),
            max_starts=self._settings.refills_at_once - preparing,
            can_freeze=self._provider.capabilities.freeze and not self.backoff.is_waiting(FREEZE_BACKOFF_KEY),
        )
        by_name = {resolved.replicas.name: resolved for resolved in resolved_targets}
        for action in actions:
            self._execute(action, by_name)

    def _execute(self, action: Action, resolved_targets: dict[str, PoolTarget]) -> None:
        slots = self._slots.by_id
        match action:
            case PrepareAction(name, desktop_id):
                resolved = resolved_targets[name]
                slot = self._slots.create(resolved.target, prewarm=True) if desktop_id is None else slots[desktop_id]
                if slot is None:
                    return
                slot.busy = slot.warming = True
                slot.target = resolved.target
                if resolved.pool is not None:
                    self._pools.consume_token(resolved.pool)
                self._preparing.start(self._prewarm(slot, resolved.target, resolved.replicas.kind))
            case FreezeAction(desktop_id):
                slots[desktop_id].busy = slots[desktop_id].warming = True
                self._preparing.start(self._freeze(slots[desktop_id]))
            case ThawAction(desktop_id):
                slots[desktop_id].busy = slots[desktop_id].warming = True
                self._preparing.start(self._thaw(slots[desktop_id]))
            case RemoveAction(desktop_id):
                self._lifecycle.remove(slots[desktop_id])

    def _resolve_targets(self) -> list[PoolTarget]:
        """What is wanted, the most important first: named pools, what is asked for again and again, the default pool."""
        resolved_targets: list[PoolTarget] = []
        for pool in self._pools.all():
            if pool.target is not None and (kind := self._kind(pool.target)) is not None:
                spec = pool.spec
                replica_target = ReadyTarget(
                    f"pool:{pool.record.name}",
                    pool.target.base_key,
                    kind,
                    warm=0 if self.drained else spec.warm,
                    standby=spec.standby,
                    min_copies=0 if self.drained else spec.min,
                    max_copies=spec.max,
                    max_new=self._max_new(kind, self._pools.available_tokens(pool)),
                    in_backoff=self.backoff.is_waiting(kind),
                )
                resolved_targets.append(PoolTarget(replica_target, pool.target, pool))
        resolved_targets += self._predicted_targets(
            {resolved.replicas.kind for resolved in resolved_targets if resolved.replicas.standby}
        )
        if self._last_target is not None and not self.drained and (kind := self._kind(self._last_target)) is not None:
            replica_target = ReadyTarget(
                DEFAULT_POOL,
                self._last_target.base_key,
                kind,
                warm=self._settings.warm_desktops,
                max_new=self._max_new(kind, None),
                in_backoff=self.backoff.is_waiting(kind),
            )
            resolved_targets.append(PoolTarget(replica_target, self._last_target))
        return resolved_targets

    def _predicted_targets(self, covered: set[object]) -> list[PoolTarget]:
        """The standbys of what is asked for again and again, beside what a pool has standbys of."""
        if not self._settings.standby_desktops:
            return []
        scores: dict[CopyKind, float] = {}
        targets: dict[CopyKind, DesktopTarget] = {}
        for target, score in self._demand.expected(self._waiting()).items():
            kind = self._kind(target)
            if kind is not None and kind not in covered:
                scores[kind] = scores.get(kind, 0.0) + score
                targets[kind] = target
        have: dict[CopyKind, int] = {}
        for slot in self._slots.idle():
            if slot.unused:
                kind = ((slot.shape, slot.image_digest), slot.snapshot_id)
                have[kind] = have.get(kind, 0) + 1
        given = distribute(scores, self._settings.standby_desktops, have)
        return [
            PoolTarget(
                ReadyTarget(
                    f"again:{number}",
                    kind[0],
                    kind,
                    standby=given[kind],
                    max_new=self._max_new(kind, None),
                    in_backoff=self.backoff.is_waiting(kind),
                ),
                targets[kind],
            )
            for number, kind in enumerate(kind for kind in scores if kind in given)
        ]

    def _max_new(self, kind: CopyKind, allowed: int | None) -> int | None:
        """One at a time of what failed lately."""
        if not self.backoff.has_failed(kind):
            return allowed
        preparing = any(slot.warming and self._future_kind(slot) == kind for slot in self._slots.by_id.values())
        return 0 if preparing else 1 if allowed is None else min(1, allowed)

    def _slot_infos(self, *, held: bool = True) -> list[ReadyCopy]:
        """The slots as the plan sees them, those that somebody has only where `held`; what is on its way out is none of its business."""
        found: list[ReadyCopy] = []
        for slot in self._slots.by_id.values():
            if slot.state in _EXCLUDED_STATES:
                continue
            base = (slot.shape, slot.image_digest)
            if slot.warming:
                found.append(ReadyCopy(slot.desktop_id, base, self._future_kind(slot), SlotPhase.PREPARING))
                continue
            if slot.lease_id is not None or slot.busy:
                if not held:
                    continue
                phase = SlotPhase.HELD
            elif not slot.unused:
                phase = SlotPhase.USED
            else:
                phase = SlotPhase.FROZEN if slot.frozen else SlotPhase.READY
            found.append(ReadyCopy(slot.desktop_id, base, (base, slot.snapshot_id), phase))
        return found

    async def _prewarm(self, slot: Slot, target: DesktopTarget, kind: object) -> None:
        try:
            await self._lifecycle.prepare(slot, target, prewarm=True)
        except ApiError as error:
            log.warning("no warm desktop: %s", error.detail, extra={"desktop_id": slot.desktop_id})
            self.backoff.failed(kind, error.detail)
            self._lifecycle.remove(slot)
            return
        except Exception as error:
            log.exception("a warm desktop could not be made", extra={"desktop_id": slot.desktop_id})
            self.backoff.failed(kind, f"it failed inside the farm ({type(error).__name__})")
            self._lifecycle.remove(slot)
            return
        finally:
            slot.warming, slot.target = False, None
        self.backoff.succeeded(kind)
        slot.busy = False
        self._lifecycle.on_change()

    async def _freeze(self, slot: Slot) -> None:
        try:
            await self._lifecycle.freeze(slot)
        except Exception as error:  # noqa: BLE001 - whatever stops it, the slot must be free again
            log.warning("a standby could not be frozen: %r", error, extra={"desktop_id": slot.desktop_id})
            self.backoff.failed(FREEZE_BACKOFF_KEY, str(error) or type(error).__name__)
            self._lifecycle.remove(slot)
            return
        finally:
            slot.warming = False
        self.backoff.succeeded(FREEZE_BACKOFF_KEY)
        slot.busy = False
        self._lifecycle.on_change()

    async def _thaw(self, slot: Slot) -> None:
        runs = False
        try:
            runs = await self._lifecycle.thaw(slot)
        except Exception:  # logged: the slot has to be removed and free its place, whatever the provider raised
            log.exception("a standby did not wake", extra={"desktop_id": slot.desktop_id})
        finally:
            slot.warming = False
        if not runs:
            self._lifecycle.remove(slot)
            return
        slot.busy = False
        self._lifecycle.on_change()

    async def wait_for_pending(self, target: DesktopTarget) -> bool:
        """Wait while none of the standby is ready but one is being made: it is ready before a desktop that is begun now.

        True when there was something to wait for.
        """
        waited = False
        while self._slots.first_match(target) is None:
            if not any(self._will_match(slot, target) for slot in self._slots.by_id.values()):
                return waited
            waited = True
            await self._preparing.wait_any()
        return waited

    def _will_match(self, slot: Slot, target: DesktopTarget) -> bool:
        """Whether a slot is on its way to be what is wanted, and earlier than the leased one could be: one that boots is not, where the
        leased one is only restored."""
        if not slot.warming or (slot.shape, slot.image_digest) != target.base_key:
            return False
        if not self._provider.capabilities.restore_in_place:
            return True
        kind = self._slots.kind(target)
        return kind[1] is not None and self._future_kind(slot) == kind

    def swap_in_standby(self, slot: Slot, target: DesktopTarget) -> Slot:
        """The slot in which a lease goes on at its reset: an untouched one that is what is wanted already, else its own.

        The old one is removed, at once refused by its fencing token, and the standby is filled up again.
        """
        self._record_demand(target)
        standby = self._slots.first_match(target)
        if standby is None:
            self._lifecycle.on_change()
            return slot
        standby.lease_id, standby.fencing_token = slot.lease_id, max(slot.fencing_token, standby.fencing_token)
        slot.lease_id = None
        slot.grow_fencing_token()
        self._lifecycle.remove(slot)
        self._lifecycle.on_change()
        return standby

    def pool_limit_reason(self, target: DesktopTarget) -> str | None:
        """Why a pool of what is wanted allows no more desktops; None while all do."""
        pools = [pool for pool in self._pools.all() if pool.spec.max is not None and pool.target is not None]
        if not pools:
            return None
        kind = self._kind(target)
        for pool in pools:
            if pool.target is not None and pool.spec.max is not None and self._kind(pool.target) == kind:
                there = sum(copy.kind == kind for copy in self._slot_infos())
                if there >= pool.spec.max:
                    return f"the pool {pool.record.name} has its {pool.spec.max} desktops"
        return None

    def view(self, pool: NamedPool) -> wire.PoolView:
        """A named pool as it is now."""
        kind = self._kind(pool.target) if pool.target is not None else None
        missing = pool.reason if pool.target is None else None if kind else "its snapshot is not there"
        return wire.PoolView(
            name=pool.record.name,
            spec=pool.spec,
            owner=pool.owner,
            hits=pool.hits,
            misses=pool.misses,
            in_backoff=missing or self.backoff.reason(kind),
            created_at=utc(pool.record.created_at),
            updated_at=utc(pool.record.updated_at),
            **self._counts(kind),
        )

    def default_view(self) -> wire.PoolView:
        """The farm's own pool: what was asked for last, and what is asked for again and again."""
        kind = self._kind(self._last_target) if self._last_target is not None else None
        shape = self._last_target.shape if self._last_target is not None else wire.DesktopShape()
        counts = self._counts(kind)
        counts["standby"] = sum(slot.frozen for slot in self._slots.idle())
        return wire.PoolView(
            name=DEFAULT_POOL,
            spec=wire.PoolSpec(shape=shape, warm=self._settings.warm_desktops, standby=self._settings.standby_desktops),
            owner=SHARED_OWNER,
            hits=self._hits,
            misses=self._misses,
            in_backoff=self.backoff.reason(kind),
            created_at=utc(self._began_at),
            updated_at=utc(self._began_at),
            **counts,
        )

    def _counts(self, kind: CopyKind | None) -> dict[str, int]:
        """How many copies of a kind are in which phase."""
        phases = Counter(copy.phase for copy in self._slot_infos() if copy.kind == kind)
        leased = sum(
            slot.lease_id is not None and ((slot.shape, slot.image_digest), slot.snapshot_id) == kind
            for slot in self._slots.by_id.values()
        )
        return {
            "ready": phases[SlotPhase.READY],
            "standby": phases[SlotPhase.FROZEN],
            "creating": phases[SlotPhase.PREPARING],
            "leased": leased,
        }
