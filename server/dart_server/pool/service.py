"""The pool: desktop slots up to a limit, those who wait for one, and those kept ready.

Rule: the pool is level-triggered: `dispatch` looks at what is there and what is wanted, and is called after every change and on every
tick; no decision rests on an event's order. Who waits is served first, what is kept ready comes after.
Non-goals: leases (who may use a desktop, and until when); the parts: `slots` (what there is), `serving` (who gets which), `standby`
(what is ready before anybody asks), `lifecycle` (what happens to one slot), `prepare` (how a desktop comes up).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from dart_server import wire
from dart_server.database.repository import Repository
from dart_server.errors import ApiError
from dart_server.observability.metrics import Metrics
from dart_server.pool.admission import MIB, Admission, HostMonitor, SystemHostMonitor
from dart_server.pool.background import BackgroundTaskSet
from dart_server.pool.claim_queue import ClaimQueue, ClaimTicket
from dart_server.pool.named_pools import NamedPools
from dart_server.pool.prepare import DesktopPreparer
from dart_server.pool.probes import Probes
from dart_server.pool.quarantine import Quarantine
from dart_server.pool.slot_lifecycle import SlotLifecycle
from dart_server.pool.slots import Slots
from dart_server.pool.standby import Standby
from dart_server.providers import base
from dart_server.records import DesktopTarget, LeaseRecord, Slot
from dart_server.settings import FarmSettings
from dart_server.snapshots.service import Snapshots
from dart_server.wire import Clock, ErrorCode


class Pool:
    """All desktops of one farm."""

    def __init__(
        self,
        provider: base.Provider,
        preparer: DesktopPreparer,
        snapshots: Snapshots,
        repository: Repository,
        settings: FarmSettings,
        metrics: Metrics,
        clock: Clock,
        host: HostMonitor | None = None,
    ) -> None:
        self._snapshots = snapshots
        self._draining = self._reconcile_scheduled = False
        self._repository = repository
        self.drained = False
        """No new grants; see `drain`."""
        self._preparing = BackgroundTaskSet()
        self.admission = Admission(
            host or SystemHostMonitor(settings.snapshot_dir),
            clock,
            uses_host=lambda: bool(provider.capabilities.limits),
            measured_memory_bytes=lambda: self.probes.average_memory_bytes,
            reserve_memory_bytes=settings.reserve_memory_mib * MIB,
            reserve_files_bytes=settings.reserve_disk_mib * MIB,
            max_load_per_cpu=settings.max_load_per_cpu,
        )
        self.table = Slots(provider, snapshots, self.admission, settings.max_desktops, clock)
        self.slots = self.table.by_id
        """Every slot by its desktop's id."""
        self.table.pool_limit_reason = lambda target: self.standby.pool_limit_reason(target)
        self.lifecycle = SlotLifecycle(self.table, preparer, repository, clock, settings.tick_interval_s, self.dispatch)
        self.queue = ClaimQueue(self.table, self.lifecycle, self._preparing, preparer, settings, clock)
        self.named = NamedPools(provider, repository, clock)
        self.standby = Standby(
            provider,
            self.table,
            self.lifecycle,
            self._preparing,
            self.named,
            settings,
            clock,
            self.queue.waiting_targets,
        )
        self.quarantine = Quarantine(
            self.table,
            self.lifecycle,
            repository,
            clock,
            capacity=settings.quarantine_desktops,
            ttl_s=settings.quarantine_ttl_s,
        )
        self.probes = Probes(
            provider,
            self.table,
            self.lifecycle,
            self.quarantine,
            repository,
            metrics,
            failure_threshold=settings.probe_failures,
        )

    def enqueue(self, owner: str, target: DesktopTarget, *, units: int = 1, priority: int = 0) -> ClaimTicket:
        """Stand in the queue for desktops; see `ClaimQueue.enqueue`. Raises `ApiError`."""
        if self.drained:
            hint = "Leases go on; claim from another farm, or ask the administrator to undrain this one."
            raise ApiError(ErrorCode.DRAINING, "the farm is draining: it grants no new leases", hint=hint)
        target = self.resolve_target(target)
        self.standby.note_claim(target)
        bounded = any(pool.spec.max is not None for pool in self.named.all())
        lane = (target.base_key, target.setup_key, target.snapshot_id) if bounded else target.base_key
        return self.queue.enqueue(owner, target, lane, units=units, priority=priority)

    def resolve_target(self, target: DesktopTarget) -> DesktopTarget:
        """Return the target with a snapshot's id for its name.

        Raises:
            ApiError: `draining`, `snapshot_missing`, `snapshot_broken`, or `invalid`.
        """
        if self._draining:
            raise ApiError(ErrorCode.DRAINING, "the farm is stopping", hint="Start it again and repeat the request.")
        found = self._snapshots.deepest_snapshot(target)
        return target if target.snapshot_id is None or found is None else replace(target, snapshot_id=found.snapshot_id)

    def release(self, slot: Slot, owner: str) -> None:
        """Take a desktop back from its lease, at once; its owner holds one less."""
        self.lifecycle.release(slot)
        self.queue.fair_queue.release_units(owner)

    def dispatch(self) -> None:
        """Serve who waits, in order; then, once for all that happens in one turn of the event loop, keep what is to be ready.

        Nothing of it while the database is away.
        """
        if self._is_serving() and self.queue.grant_waiting() and not self._reconcile_scheduled:
            self._reconcile_scheduled = True
            asyncio.get_running_loop().call_soon(self._reconcile)

    def _is_serving(self) -> bool:
        return not self._draining and self._repository.unavailable_reason is None

    def _reconcile(self) -> None:
        self._reconcile_scheduled = False
        if self._is_serving() and self.queue.grant_waiting():
            self.standby.reconcile()

    async def tick(self) -> None:
        """What time brings: pools whose image has changed, quarantines that end, tries that may be made again."""
        await self.named.refresh()
        self.quarantine.tick()
        self.dispatch()

    def views(self) -> list[wire.PoolView]:
        """Every pool as it is now, the farm's own first."""
        return [self.standby.default_view(), *(self.standby.view(pool) for pool in self.named.all())]

    def view(self, name: str) -> wire.PoolView:
        """One pool. Raises `not_found`."""
        return self.standby.default_view() if name == wire.DEFAULT_POOL else self.standby.view(self.named.get(name))

    async def put(self, name: str, spec: wire.PoolSpec, owner: str) -> wire.PoolView:
        """Say what is to be ready. Raises `image_missing`, `invalid`."""
        pool = await self.named.put(name, spec, owner)
        self.dispatch()
        return self.standby.view(pool)

    async def delete(self, name: str) -> None:
        """No such pool any more. Raises `not_found`."""
        await self.named.delete(name)
        self.dispatch()

    async def quarantine_slot(self, slot: Slot, reason: str, lease: LeaseRecord | None) -> None:
        """Quarantine a slot; the lease that has it goes on in one without a desktop. Raises `no_capacity`, `database_unavailable`."""
        if lease is None:
            await self.quarantine.add(slot, reason, by_admin=True)
        else:
            await self.quarantine.add_leased(slot, reason, lease, self.table.placeholder_for(slot))
        self.dispatch()

    def drain(self, *, on: bool) -> None:
        """Grant nothing more, while leases go on, or grant again. Raises `draining` in those who wait."""
        self.drained = self.standby.drained = on
        if on:
            self.queue.reject_all("the farm is draining")
        self.dispatch()

    def adopt(self, slot: Slot, owner: str) -> None:
        """Take over a leased slot of an earlier life of this farm."""
        self.slots[slot.desktop_id] = slot
        self.queue.fair_queue.hold_units(owner)

    def stop_serving(self) -> None:
        """Serve nobody any more."""
        self._draining = True
        self.queue.reject_all("the farm is stopping", include_preparing=True)

    async def stop(self) -> None:
        """Refuse who waits, end the background work, destroy every desktop."""
        self.stop_serving()
        await self.probes.stop()
        self._preparing.cancel()
        await self._preparing.wait_all()
        await self.lifecycle.destroy_all()
