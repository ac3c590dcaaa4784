"""The farm: what it is made of, how it starts, ticks and stops.

    provider ── makes and copies desktops
    snapshots   under a byte quota          setups   one builder per key
    pool        slots and the queue         claims   who waits for slots, and how that ended
                                            leases   who may use a slot, until when
    guests      calls into desktops         keys     who may call
    repository  the database                  dashboard  the page for people

Rule: this module wires and drives; parts do not know it. Start takes over what an earlier life of the same farm left (its leases go on),
and reaps the rest; stop leaves nothing on the host. Non-goals: HTTP (`app`), processes and signals (`daemon`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from dart_server import wire
from dart_server.clock import SystemClock
from dart_server.dashboard.service import Dashboard
from dart_server.database.repository import NewEvent, Repository
from dart_server.database.retention import Retention
from dart_server.database.write_queue import Database
from dart_server.errors import ApiError, DatabaseUnavailableError, from_provider_error
from dart_server.guest.access import GuestAccess
from dart_server.guest.client import GuestClient
from dart_server.http.ingress.hosts import HostPolicy
from dart_server.http.ingress.limits import PeerLimiter, RequestLimiter
from dart_server.keys import KeyStore, Principal, Scope, read_or_create_secret
from dart_server.leases.claims import Claims
from dart_server.leases.service import LeaseAccess, Leases
from dart_server.observability.metrics import Gauges, Metrics
from dart_server.pool.admission import HostMonitor
from dart_server.pool.prepare import DesktopPreparer
from dart_server.pool.service import Pool
from dart_server.providers.base import Inventory, Provider, ProviderError, SupportsFreeze
from dart_server.records import LeaseRecord, LiveDesktops, Slot, SnapshotRecord
from dart_server.settings import FarmSettings
from dart_server.setups.service import Setups, build_ended_error
from dart_server.snapshots.service import Snapshots
from dart_server.wire import Clock, DesktopState, ErrorCode, FaultOwner
from dart_server.wire.extras import package_version

log = logging.getLogger(__name__)
MAX_EVENT_ID = 2**62
"""Above the number of every event."""


class Farm:
    """One farm process. `start` once, `stop` once."""

    def __init__(
        self, settings: FarmSettings, provider: Provider, clock: Clock | None = None, host: HostMonitor | None = None
    ) -> None:
        clock = clock or SystemClock()
        self.settings = settings
        self.provider = provider
        self.clock = clock
        self.metrics = Metrics(version=package_version(), provider=provider.name)
        self.database = Database(settings.database_url, clock, exclusive=True)
        self.repository = Repository(self.database, clock)
        self.hosts = HostPolicy(
            (settings.host, *settings.allowed_hosts), settings.cors_origins, tls=settings.tls_cert is not None
        )
        self.peers = PeerLimiter(clock, requests_per_s=settings.requests_per_s_without_key)
        self.limits = RequestLimiter(
            clock,
            requests_per_key=settings.max_requests_per_key,
            websockets_per_key=settings.max_websockets_per_key,
            streams=settings.max_websockets,
            requests_per_s=settings.requests_per_s_per_key,
            nbytes_per_key=settings.max_file_bytes_in_flight_per_key,
            nbytes=settings.max_file_bytes_in_flight,
        )
        self.keys = KeyStore(self.repository, clock, self._key_ended)
        self.snapshots = Snapshots(
            provider,
            self.repository,
            clock,
            quota_bytes=settings.snapshot_quota_bytes,
            quarantine_bytes=settings.quarantine_bytes,
            live_desktops=self._live_desktops,
        )
        self.setups = Setups(self.snapshots, self.repository, clock)
        self.preparer = DesktopPreparer(provider, self.snapshots, self.repository, settings, self.metrics, clock)
        self.pool = Pool(provider, self.preparer, self.snapshots, self.repository, settings, self.metrics, clock, host)
        token_root = read_or_create_secret(settings.secret_path, "root").encode()
        self.leases = Leases(self.pool, self.setups, self.repository, self.metrics, clock, token_root)
        self.claims = Claims(provider, self.pool, self.leases, self.repository, self.metrics, settings, clock)
        self.dashboard = Dashboard(
            settings, self.keys, self.pool, self.leases, self.repository, self.metrics.recent, clock
        )
        self.guests = GuestAccess(provider, self.pool, self.leases, self.metrics, self.dashboard.replay)
        self.retention = Retention(
            self.repository, self.database, clock, days=settings.history_days, events=settings.history_events
        )
        self.ready = False
        self._ticker: asyncio.Task[None] | None = None

    async def _key_ended(self, key_id: str) -> None:
        """A key was revoked or has expired: everything that stands on it ends."""
        self.limits.cancel_key(key_id)
        self.claims.cancel_key(key_id)
        self.dashboard.sessions.cancel_key(key_id)
        await self.leases.end_all_of_owner(key_id, "its key was revoked or has expired")

    def _live_desktops(self) -> LiveDesktops:
        return self.pool.table.live_desktops()

    async def start(self) -> None:
        """Migrate, start the provider, take over what was left, begin to tick. Raises `ProviderError`, `FarmConfigError`."""
        await self.database.start()
        self.database.on_recovered = self._on_database_recovered
        await self.keys.add("admin", Scope.ADMIN, read_or_create_secret(self.settings.key_path, "dart"))
        await self.provider.start()
        await self._recover()
        await self.pool.named.load()
        self.pool.drain(on=await self._was_drained())
        self.repository.add_event(NewEvent("farm_started", data={"provider": self.provider.name}))
        self._ticker = asyncio.get_running_loop().create_task(self._tick_forever())
        await self.dashboard.start()
        self.ready = True

    def _on_database_recovered(self, outage_timeout_s: float, dropped_events: int) -> None:
        data = {"outage_timeout_s": round(outage_timeout_s, 3), "events_dropped": dropped_events}
        self.repository.add_event(NewEvent("database_recovered", data=data))

    async def _recover(self) -> None:
        inventory = await self.provider.inventory()
        self.repository.discard_unfinished_snapshots()
        self.repository.abandon_all_setups("the farm was started again")
        records = await self.repository.stored_snapshots()
        kept = [record for record in records if record.snapshot_id in inventory.snapshots]
        for record in records:
            if record not in kept:
                self.repository.end_snapshot(record.snapshot_id, "deleted", "not there after a restart")
        slots = {slot.desktop_id: slot for slot in await self.repository.existing_desktops()}
        await self.snapshots.adopt(kept, {slot.snapshot_id for slot in slots.values() if slot.snapshot_id is not None})
        now = self.clock.time()
        # While no farm ran nobody could renew: what was valid when the last one wrote for the last time has its whole time again.
        valid_at = min(now, self.database.last_write_at or now)
        for lease in await self.repository.active_leases():
            slot = slots.get(lease.desktop_id or "")
            if slot is not None and slot.lease_id == lease.lease_id and lease.expires_at > valid_at:
                slots.pop(slot.desktop_id)
                lease.expires_at = max(lease.expires_at, now + lease.ttl_s)
                self.repository.extend_lease(lease)
                self._adopt(lease, slot, inventory, runs=await self._runs(slot, inventory))
            else:
                lease.state = wire.LeaseState.EXPIRED
                if slot is not None and slot.lease_id == lease.lease_id:
                    lease.fencing_token = slot.fencing_token
                self.repository.end_lease(lease)
        for slot in slots.values():
            if slot.state is DesktopState.QUARANTINED and slot.desktop_id in inventory.desktops:
                history = await self.repository.events(0, 1, desktop_id=slot.desktop_id, kind="desktop_quarantined")
                self.pool.quarantine.adopt(slot, str(history[0].data["reason"]) if history else "")
                continue
            slot.state, slot.lease_id = DesktopState.GONE, None
            self.repository.save_desktop(slot)
        removed = await self.provider.reap({*self.pool.slots, *(record.snapshot_id for record in kept)})
        if removed:
            log.warning("removed what an earlier farm left: %s", ", ".join(removed))

    async def _runs(self, slot: Slot, inventory: Inventory) -> bool:
        """Whether a leased desktop of an earlier life is there; one that the lease had moved to may still have been frozen."""
        if slot.desktop_id not in inventory.desktops:
            return False
        if self.provider.capabilities.freeze and isinstance(self.provider, SupportsFreeze):
            try:
                await self.provider.thaw(slot.desktop_id)
            except ProviderError as error:
                log.warning("a leased desktop did not go on: %s", error, extra={"desktop_id": slot.desktop_id})
                return False
        return True

    def _adopt(self, lease: LeaseRecord, slot: Slot, inventory: Inventory, *, runs: bool) -> None:
        """A lease goes on with its desktop; one whose reset was under way, or that does not run, is to be reset first."""
        cause = "interrupted" if slot.state is DesktopState.RESETTING else None if runs else "killed_from_outside"
        slot.busy, slot.exists = False, slot.desktop_id in inventory.desktops
        slot.state = DesktopState.LEASED if cause is None else DesktopState.BROKEN
        if cause is None:
            slot.guest = GuestClient(
                lambda port: self.provider.dial(slot.desktop_id, port), screen=slot.shape.resolution
            )
        else:
            slot.failure = wire.DesktopHealthView(alive=False, cause=cause, fault_owner=FaultOwner.HOST)
        self.pool.adopt(slot, lease.owner)
        self.leases.adopt(lease, slot)
        self.claims.adopt(lease)

    async def _tick_forever(self) -> None:
        next_probe_s = self.clock.monotonic() + self.settings.probe_interval_s
        while True:
            await self.clock.sleep(self.settings.tick_interval_s)
            try:
                self.guests.step_counter.write(self.repository)
                await self.leases.expire_due()
                await self.pool.tick()
                if self.database.unavailable_reason is None:
                    await self.keys.refresh({lease.owner for lease in self.leases.active})
                if self.clock.monotonic() >= next_probe_s:
                    next_probe_s = self.clock.monotonic() + self.settings.probe_interval_s
                    self.pool.probes.start_round()
                await self.retention.tick()
            except DatabaseUnavailableError as away:  # the database tells of its outage once, and of its end
                log.debug("a tick ended early: %s", away)
            except Exception:  # the ticker must outlive one bad tick; the next one looks again
                log.exception("a tick failed")

    async def take_snapshot(self, access: LeaseAccess, request: wire.SnapshotRequest) -> SnapshotRecord:
        """A live snapshot of a leased desktop, published when a key is given. Raises `ApiError`."""
        if not self.provider.capabilities.memory_snapshot:
            hint = "Use a provider with memory snapshots (`dart-farm doctor` tells what this host lacks)."
            raise ApiError(ErrorCode.CAPABILITY_MISSING, "this provider takes no live snapshots", hint=hint)
        key = request.publish_key
        lease, slot = access.lease, access.slot
        if key is None:
            async with slot.lock:
                self.guests.client(access)
                return await self.snapshots.take(
                    slot, "user", lease.owner, name=request.name, description=request.description
                )
        done = self.setups.published(lease, request.grant)
        if done is not None:
            return done
        build = self.setups.require(lease, key, request.grant)
        async with slot.lock:
            done = self.setups.published(lease, request.grant)  # by the same request, which held the lock until now
            if done is not None:
                return done
            self.guests.client(access)
            if build.ended.is_set():
                raise build_ended_error()
            record = await self.snapshots.take(
                slot, "setup", lease.owner, setup_key=key, name=request.name, description=request.description
            )
            if not build.ended.is_set():
                await self.setups.publish(build, record)
                return record
        await self.snapshots.delete(record)
        raise build_ended_error()

    def not_ready_reasons(self) -> list[str]:
        """Why claims are not served now, in words; empty while they are."""
        reasons = [] if self.ready else ["the farm is starting or stopping"]
        if self.database.unavailable_reason is not None:
            reasons.append(f"the database is away ({self.database.unavailable_reason})")
        if self.pool.drained:
            reasons.append("the farm is draining")
        return reasons

    def drain(self, *, on: bool) -> None:
        """Grant nothing more, while leases go on, or grant again; it holds over restarts."""
        self.repository.add_event(NewEvent("farm_drained" if on else "farm_undrained"))
        self.pool.drain(on=on)

    async def _was_drained(self) -> bool:
        """Whether an earlier life of this farm was draining when it ended."""
        latest = [
            await self.repository.events(0, 1, before=MAX_EVENT_ID, kind=kind)
            for kind in ("farm_drained", "farm_undrained")
        ]
        drained, undrained = (found[0].id if found else 0 for found in latest)
        return drained > undrained

    async def quarantine(self, desktop_id: str, reason: str) -> wire.DesktopView:
        """Keep a desktop from use.

        Raises `not_found`, `no_capacity`, `invalid`; `database_unavailable` before anything has changed, or when the database went away
        while it was written: repeated, the request tells that the desktop is quarantined.
        """
        await self.repository.wait_available()
        slot = self._slot(desktop_id)
        if slot.state is DesktopState.QUARANTINED:
            return slot.view()
        if slot.busy or slot.lock.locked():
            hint = "Try again when that is done."
            raise ApiError(ErrorCode.INVALID, f"{desktop_id} is being made, reset or removed", status=409, hint=hint)
        lease = next((lease for lease in self.leases.active if lease.slot is slot), None)
        await self.pool.quarantine_slot(slot, reason, lease)
        return slot.view()

    async def release(self, desktop_id: str, principal: Principal) -> wire.DesktopView:
        """Give a desktop back, from its quarantine or its lease. Raises `not_found`."""
        slot = self._slot(desktop_id)
        if slot.state is DesktopState.QUARANTINED:
            self.pool.quarantine.release(slot)
        elif slot.lease_id is not None:
            await self.leases.release(slot.lease_id, principal)
        return slot.view()

    def _slot(self, desktop_id: str) -> Slot:
        slot = self.pool.slots.get(desktop_id)
        if slot is None or slot.state is DesktopState.GONE:
            raise ApiError(ErrorCode.NOT_FOUND, f"there is no desktop {desktop_id}")
        return slot

    def gauges(self) -> Gauges:
        """What metrics tell of this moment."""
        copies: Counter[str] = Counter()
        for pool in self.pool.views():
            copies.update(warm_desired=pool.spec.warm, standby_desired=pool.spec.standby, ready=pool.ready)
            copies.update(standby=pool.standby, creating=pool.creating, leased=pool.leased)
        return Gauges(
            desktops=Counter(slot.state.value for slot in self.pool.slots.values()),
            waiting=self.pool.queue.waiting,
            leases=len(self.leases.active),
            snapshots=len(self.snapshots),
            snapshot_bytes=self.snapshots.used_bytes,
            ready=not self.not_ready_reasons(),
            pool_copies=copies,
        )

    def view(self) -> wire.FarmView:
        """The farm in numbers."""
        capabilities = self.provider.capabilities
        return wire.FarmView(
            version=package_version(),
            provider=self.provider.name,
            capabilities={
                "memory_snapshot": capabilities.memory_snapshot,
                "fork": capabilities.fork,
                "restore_in_place": capabilities.restore_in_place,
                "tunnel": capabilities.tunnel,
                "freeze": capabilities.freeze,
                "evidence_from_host": capabilities.evidence == "host",
                **{f"limit_{name}": True for name in sorted(capabilities.limits)},
            },
            max_desktops=self.settings.max_desktops,
            desktops=dict(Counter(slot.state.value for slot in self.pool.slots.values())),
            leases_active=len(self.leases.active),
            snapshots=len(self.snapshots),
            snapshot_bytes=self.snapshots.used_bytes,
            snapshot_quota_bytes=self.settings.snapshot_quota_bytes,
            quarantined_bytes=self.snapshots.quarantined_bytes,
            draining=self.pool.drained,
            capacity_limit_reason=self.pool.admission.refusal,
            in_backoff=self.pool.standby.backoff.reasons(),
            host=self._host_view(),
        )

    def _host_view(self) -> wire.HostView | None:
        now = self.pool.admission.readings()
        if now is None:
            return None
        return wire.HostView(
            memory_available_bytes=now.memory_available_bytes,
            memory_total_bytes=now.memory_total_bytes,
            disk_free_bytes=now.disk_free_bytes,
            files_on_tmpfs=now.files_on_tmpfs,
            load=now.load,
            processors=now.processors,
            cpu_pressure=now.pressure,
        )

    async def wait_until_idle(self, idle_s: float) -> None:
        """Returns when there was no lease and no waiting claim for `idle_s`."""
        while True:
            quiet_s = self.clock.monotonic() - self.leases.last_use_s
            if not self.leases.active and not self.pool.queue.waiting and quiet_s >= idle_s:
                return
            await self.clock.sleep(self.settings.tick_interval_s)

    async def stop(self) -> None:
        """End every lease, destroy every desktop and snapshot, let go of the provider."""
        self.ready = False
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait({self._ticker})
        await self.dashboard.stop()
        self.pool.stop_serving()
        await self.claims.stop()
        self.guests.step_counter.write(self.repository)
        await self.leases.end_all()
        await self.pool.stop()
        try:
            await self.snapshots.delete_all()
        except ApiError as error:
            log.error("snapshots could not be removed: %s", error.detail)
        self.repository.add_event(NewEvent("farm_stopped"))
        try:
            await self.provider.reap(set())
            await self.provider.aclose()
        except ProviderError as error:
            log.error("the provider did not close: %s", from_provider_error(error).detail)
        await self.database.aclose()
