"""Desktops that are ready before anybody asks: what is kept of what, frozen or running, and resets that move to one.

Rule: what is wanted comes from the named pools, from the default pool (the shape that was asked for last) and from what is asked for again
and again; `pool.plan` says what to do about it, this module does it. Who waits is served first. What fails waits before it is tried again
(`pool.backoff`); claims never do. Non-goals: whose turn it is (`pool.serving`), how one is made (`pool.lifecycle`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dart_server import wire
from dart_server.clock import utc
from dart_server.errors import ApiError
from dart_server.pool.background import Background
from dart_server.pool.backoff import Backoff
from dart_server.pool.demand import Demand
from dart_server.pool.named_pools import NamedPool, NamedPools
from dart_server.pool.plan import Action, Freeze, Make, Phase, ReadyCopy, ReadyTarget, Remove, Thaw, plan, share
from dart_server.pool.slot_lifecycle import SlotLifecycle
from dart_server.pool.slots import Kind, Slots
from dart_server.providers.base import Provider, ProviderError
from dart_server.records import SHARED_OWNER, DesktopTarget, Slot
from dart_server.settings import FarmSettings
from dart_server.wire import DEFAULT_POOL, Clock, DesktopState

log = logging.getLogger(__name__)
FREEZING = "freezing"
"""What the back-off knows a provider by that does not freeze although it says so."""
_OUT = (DesktopState.GONE, DesktopState.QUARANTINED)


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """A target with what it takes to carry it out; `pool` is None for the farm's own."""

    target: ReadyTarget
    want: DesktopTarget
    pool: NamedPool | None = None


class Standby:
    """The free desktops of one farm."""

    def __init__(
        self,
        provider: Provider,
        slots: Slots,
        lifecycle: SlotLifecycle,
        preparing: Background,
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
        self._want: DesktopTarget | None = None
        self.drained = False
        self._hits = self._misses = 0
        self._began_at = clock.time()

    def asked_for(self, want: DesktopTarget) -> None:
        """A claim came: copies of its base are kept from now on."""
        self._want = replace(want, setup_key=None, snapshot_id=None)
        self._asked(want)

    def _asked(self, want: DesktopTarget) -> None:
        self._demand.asked(want)
        hit = self._slots.first_that_serves(want) is not None
        self._hits += hit
        self._misses += not hit
        pools = self._pools.all()
        kind = self._kind(want) if pools else None
        for pool in pools:
            if pool.want is not None and self._kind(pool.want) == kind:
                pool.hits += hit
                pool.misses += not hit

    def _kind(self, want: DesktopTarget) -> Kind | None:
        """What a copy would be now; None when there is no such snapshot."""
        try:
            return self._slots.kind(want)
        except ApiError:
            return None

    def _coming(self, slot: Slot) -> Kind | None:
        """What a slot on its way will be a copy of; one that is being frozen or thawed is that already."""
        return (
            self._kind(slot.target) if slot.target is not None else ((slot.shape, slot.image_digest), slot.snapshot_id)
        )

    def keep(self) -> None:
        """Begin what is lacking, freeze and thaw, and let go what nobody wants."""
        aims = self._aims()
        if not aims and not self._slots.idle():
            return
        copies = self._copies(held=any(aim.target.at_least or aim.target.at_most is not None for aim in aims))
        lifecycle = sum(copy.phase is Phase.MAKING for copy in copies)
        actions = plan(
            [aim.target for aim in aims],
            copies,
            room=max(0, self._slots.room()),
            may_make=self._settings.refills_at_once - lifecycle,
            can_freeze=self._provider.capabilities.freeze and not self.backoff.held(FREEZING),
        )
        by_name = {aim.target.name: aim for aim in aims}
        for action in actions:
            self._do(action, by_name)

    def _do(self, action: Action, aims: dict[str, PoolTarget]) -> None:
        slots = self._slots.by_id
        match action:
            case Make(name, desktop_id):
                aim = aims[name]
                slot = self._slots.new(aim.want, ahead=True) if desktop_id is None else slots[desktop_id]
                if slot is None:
                    return
                slot.busy = slot.warming = True
                slot.target = aim.want
                if aim.pool is not None:
                    self._pools.begun(aim.pool)
                self._preparing.start(self._warm(slot, aim.want, aim.target.kind))
            case Freeze(desktop_id):
                slots[desktop_id].busy = slots[desktop_id].warming = True
                self._preparing.start(self._freeze(slots[desktop_id]))
            case Thaw(desktop_id):
                slots[desktop_id].busy = slots[desktop_id].warming = True
                self._preparing.start(self._thaw(slots[desktop_id]))
            case Remove(desktop_id):
                self._lifecycle.remove(slots[desktop_id])

    def _aims(self) -> list[PoolTarget]:
        """What is wanted, the most important first: named pools, what is asked for again and again, the default pool."""
        aims: list[PoolTarget] = []
        for pool in self._pools.all():
            if pool.want is not None and (kind := self._kind(pool.want)) is not None:
                spec = pool.spec
                target = ReadyTarget(
                    f"pool:{pool.record.name}",
                    pool.want.base_key,
                    kind,
                    warm=0 if self.drained else spec.warm,
                    standby=spec.standby,
                    at_least=0 if self.drained else spec.min,
                    at_most=spec.max,
                    may_begin=self._may_begin(kind, self._pools.allowance(pool)),
                    in_backoff=self.backoff.held(kind),
                )
                aims.append(PoolTarget(target, pool.want, pool))
        aims += self._predicted({aim.target.kind for aim in aims if aim.target.standby})
        if self._want is not None and not self.drained and (kind := self._kind(self._want)) is not None:
            target = ReadyTarget(
                DEFAULT_POOL,
                self._want.base_key,
                kind,
                warm=self._settings.warm_desktops,
                may_begin=self._may_begin(kind, None),
                in_backoff=self.backoff.held(kind),
            )
            aims.append(PoolTarget(target, self._want))
        return aims

    def _predicted(self, covered: set[object]) -> list[PoolTarget]:
        """The standbys of what is asked for again and again, beside what a pool has standbys of."""
        if not self._settings.standby_desktops:
            return []
        scores: dict[Kind, float] = {}
        wants: dict[Kind, DesktopTarget] = {}
        for want, score in self._demand.expected(self._waiting()).items():
            kind = self._kind(want)
            if kind is not None and kind not in covered:
                scores[kind] = scores.get(kind, 0.0) + score
                wants[kind] = want
        have: dict[Kind, int] = {}
        for slot in self._slots.idle():
            if slot.unused:
                kind = ((slot.shape, slot.image_digest), slot.snapshot_id)
                have[kind] = have.get(kind, 0) + 1
        given = share(scores, self._settings.standby_desktops, have)
        return [
            PoolTarget(
                ReadyTarget(
                    f"again:{number}",
                    kind[0],
                    kind,
                    standby=given[kind],
                    may_begin=self._may_begin(kind, None),
                    in_backoff=self.backoff.held(kind),
                ),
                wants[kind],
            )
            for number, kind in enumerate(kind for kind in scores if kind in given)
        ]

    def _may_begin(self, kind: Kind, allowed: int | None) -> int | None:
        """One at a time of what failed lately."""
        if not self.backoff.troubled(kind):
            return allowed
        lifecycle = any(slot.warming and self._coming(slot) == kind for slot in self._slots.by_id.values())
        return 0 if lifecycle else 1 if allowed is None else min(1, allowed)

    def _copies(self, *, held: bool = True) -> list[ReadyCopy]:
        """The slots as the plan sees them, those that somebody has only where `held`; what is on its way out is none of its business."""
        found: list[ReadyCopy] = []
        for slot in self._slots.by_id.values():
            if slot.state in _OUT:
                continue
            base = (slot.shape, slot.image_digest)
            if slot.warming:
                found.append(ReadyCopy(slot.desktop_id, base, self._coming(slot), Phase.MAKING))
                continue
            if slot.lease_id is not None or slot.busy:
                if not held:
                    continue
                phase = Phase.HELD
            elif not slot.unused:
                phase = Phase.USED
            else:
                phase = Phase.FROZEN if slot.frozen else Phase.READY
            found.append(ReadyCopy(slot.desktop_id, base, (base, slot.snapshot_id), phase))
        return found

    async def _warm(self, slot: Slot, want: DesktopTarget, kind: object) -> None:
        try:
            await self._lifecycle.make(slot, want, ahead=True)
        except ApiError as error:
            log.warning("no warm desktop: %s", error.detail, extra={"desktop_id": slot.desktop_id})
            self.backoff.failed(kind, error.detail)
            self._lifecycle.remove(slot)
            return
        finally:
            slot.warming, slot.target = False, None
        self.backoff.worked(kind)
        slot.busy = False
        self._lifecycle.changed()

    async def _freeze(self, slot: Slot) -> None:
        try:
            await self._lifecycle.freeze(slot)
        except ProviderError as error:
            log.warning("a standby could not be frozen: %s", error, extra={"desktop_id": slot.desktop_id})
            self.backoff.failed(FREEZING, str(error))
            self._lifecycle.remove(slot)
            return
        finally:
            slot.warming = False
        self.backoff.worked(FREEZING)
        slot.busy = False
        self._lifecycle.changed()

    async def _thaw(self, slot: Slot) -> None:
        try:
            runs = await self._lifecycle.thaw(slot)
        finally:
            slot.warming = False
        if not runs:
            self._lifecycle.remove(slot)
            return
        slot.busy = False
        self._lifecycle.changed()

    async def on_its_way(self, want: DesktopTarget) -> bool:
        """Wait while none of the standby is ready but one is being made: it is ready before a desktop that is begun now.
        True when there was something to wait for."""
        waited = False
        while self._slots.first_that_serves(want) is None:
            if not any(self._comes(slot, want) for slot in self._slots.by_id.values()):
                return waited
            waited = True
            await self._preparing.next_done()
        return waited

    def _comes(self, slot: Slot, want: DesktopTarget) -> bool:
        """Whether a slot is on its way to be what is wanted, and earlier than the leased one could be: one that boots is not, where the
        leased one is only restored."""
        if not slot.warming or (slot.shape, slot.image_digest) != want.base_key:
            return False
        if not self._provider.capabilities.restore_in_place:
            return True
        kind = self._slots.kind(want)
        return kind[1] is not None and self._coming(slot) == kind

    def exchange(self, slot: Slot, want: DesktopTarget) -> Slot:
        """The slot in which a lease goes on at its reset: an untouched one that is what is wanted already, else its own. The old one is
        removed, at once refused by its fencing token, and the standby is filled up again."""
        self._asked(want)
        standby = self._slots.first_that_serves(want)
        if standby is None:
            self._lifecycle.changed()
            return slot
        standby.lease_id, standby.fencing_token = slot.lease_id, max(slot.fencing_token, standby.fencing_token)
        slot.lease_id = None
        slot.fencing_token += 1
        self._lifecycle.remove(slot)
        self._lifecycle.changed()
        return standby

    def capped(self, want: DesktopTarget) -> str | None:
        """Why a pool of what is wanted allows no more desktops; None while all do."""
        pools = [pool for pool in self._pools.all() if pool.spec.max is not None and pool.want is not None]
        if not pools:
            return None
        kind = self._kind(want)
        for pool in pools:
            if pool.want is not None and pool.spec.max is not None and self._kind(pool.want) == kind:
                there = sum(copy.kind == kind for copy in self._copies())
                if there >= pool.spec.max:
                    return f"the pool {pool.record.name} has its {pool.spec.max} desktops"
        return None

    def view(self, pool: NamedPool) -> wire.PoolView:
        """A named pool as it is now."""
        kind = self._kind(pool.want) if pool.want is not None else None
        missing = pool.reason if pool.want is None else None if kind else "its snapshot is not there"
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
        kind = self._kind(self._want) if self._want is not None else None
        shape = self._want.shape if self._want is not None else wire.DesktopShape()
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

    def _counts(self, kind: Kind | None) -> dict[str, int]:
        """How many copies of a kind are in which phase."""
        phases = Counter(copy.phase for copy in self._copies() if copy.kind == kind)
        leased = sum(
            slot.lease_id is not None and ((slot.shape, slot.image_digest), slot.snapshot_id) == kind
            for slot in self._slots.by_id.values()
        )
        return {
            "ready": phases[Phase.READY],
            "standby": phases[Phase.FROZEN],
            "creating": phases[Phase.MAKING],
            "leased": leased,
        }
