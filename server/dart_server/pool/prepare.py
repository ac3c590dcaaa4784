"""Bringing one desktop to a wanted state: restore the deepest snapshot that exists, or boot it, then probe it.

Rule: a desktop is ready only after the restore *and* a probe of its agent. The booted base of a shape is made once, whoever needs it first;
the others wait for it and restore it. A snapshot that fails twice is left out and its deepest ancestor that restores is taken, at last the
image; once that has come up, so that the host is not to blame, the ones left out are quarantined.
Every call into a desktop that is prepared has one deadline for all of its answer. Whatever else a copy's agent makes go wrong counts
against its snapshot like a refusal, so that no answer keeps a slot or a permit.
Where the provider has no memory snapshots every desktop is booted. One of the standby is only woken and probed.
Non-goals: which claim is served (`pool.claim_queue`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from dart_server import wire
from dart_server.database.repository import NewEvent, Repository
from dart_server.errors import ApiError, from_provider_error
from dart_server.guest import answers, limits
from dart_server.guest.client import GuestClient, GuestReply, GuestUnreachable
from dart_server.observability.metrics import Metrics
from dart_server.providers import base
from dart_server.records import SHARED_OWNER, BaseKey, DesktopTarget, Slot, SnapshotRecord
from dart_server.settings import FarmSettings
from dart_server.snapshots.service import Snapshots
from dart_server.wire import Clock
from dart_server.wire.guest_answers import MalformedAnswer

PROBE_TIMEOUT_S = 5.0
"""Of one call into a desktop, with all of its answer."""
CLOSE_TIMEOUT_S = 5.0
MAX_HOST_FAILURES = 3
"""Tries per desktop before the host is blamed."""
MAX_RESTORE_FAILURES = 2
"""Tries per snapshot before it is suspected."""
log = logging.getLogger(__name__)


class DesktopNotReady(Exception):
    """The desktop came up but its agent is not well."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """How a desktop came to its state; `restored` is False when it was booted, `standby` True when it was ready before it was asked for.

    `quarantined`: ids of snapshots that did not restore on the way.
    """

    restored: bool
    duration_s: float
    standby: bool = False
    quarantined: tuple[str, ...] = ()


@dataclass(slots=True)
class PrepareAttempts:
    """What was tried for one desktop: failures by snapshot, other failures, and the suspected snapshots with their reasons."""

    snapshot_failures: Counter[str] = field(default_factory=Counter)
    host_failures: int = 0
    suspect_snapshots: dict[str, tuple[SnapshotRecord, str]] = field(default_factory=dict)


class DesktopPreparer:
    """Restores and boots, a bounded number at a time."""

    def __init__(
        self,
        provider: base.Provider,
        snapshots: Snapshots,
        repository: Repository,
        settings: FarmSettings,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._provider = provider
        self._snapshots = snapshots
        self._repository = repository
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._parallel = asyncio.Semaphore(settings.parallel_provider_calls)
        self.last_failure: str | None = None
        """Why the latest try did not give a desktop; None after one that did."""
        self._base_locks: dict[BaseKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def prepare(self, slot: Slot, target: DesktopTarget, *, prewarm: bool = False) -> RestoreResult:
        """Make the slot's desktop a fresh copy of what is wanted; `prewarm`, so that it may wait.

        On `ApiError` nothing lives under the slot's id.
        """
        started = self._clock.monotonic()
        attempts = PrepareAttempts()
        async with self._parallel:
            wants_clock = prewarm and (target.setup_key is not None or target.snapshot_id is not None)
            restored = await self._prepare_until_ready(slot, target, attempts, wants_clock=wants_clock)
            self.last_failure = None
            for snapshot, reason in attempts.suspect_snapshots.values():
                await self._snapshots.quarantine(snapshot, reason)
        duration_s = self._clock.monotonic() - started
        self._metrics.prepared(
            "restore" if restored else "boot", slot.setup_key is not None, duration_s, on_demand=not prewarm
        )
        return RestoreResult(restored, duration_s, quarantined=tuple(attempts.suspect_snapshots))

    async def activate_standby(self, slot: Slot, target: DesktopTarget, *, waited: bool) -> RestoreResult:
        """Wake an untouched desktop that is what is wanted; one that does not answer is made anew. Errors as of `prepare`."""
        started = self._clock.monotonic()
        try:
            await self.wake(slot)
        except DesktopNotReady as error:
            self.last_failure = str(error)
            return await self.prepare(slot, target)
        duration_s = self._clock.monotonic() - started
        self._metrics.prepared("awaited" if waited else "standby", slot.setup_key is not None, duration_s)
        return RestoreResult(slot.snapshot_id is not None, duration_s, standby=not waited)

    async def freeze(self, slot: Slot) -> None:
        """Let an untouched desktop stand still until `wake`. Raises `ProviderError`."""
        if not isinstance(self._provider, base.SupportsFreeze):
            raise base.CapabilityMissing(f"the provider {self._provider.name} freezes nothing")
        if slot.guest is not None:
            await slot.guest.close_connections()
        slot.frozen = True
        await self._provider.freeze(slot.desktop_id)

    async def wake(self, slot: Slot) -> None:
        """Let an untouched desktop go on and ask it whether it is well.

        A time of day that its task declared is what it was at the copy's beginning, however long it has waited. Raises `DesktopNotReady`.
        """
        if slot.frozen and isinstance(self._provider, base.SupportsFreeze):
            try:
                await self._provider.thaw(slot.desktop_id)
            except base.ProviderError as error:
                raise DesktopNotReady(str(error)) from error
            slot.frozen = False
        await self._probe(slot)
        if slot.declared_clock_s is not None:
            await self._guest_request(slot, "POST", "/v1/clock", json.dumps({"time_s": slot.declared_clock_s}).encode())

    async def _read_declared_clock(self, slot: Slot) -> float | None:
        """The time of day that the desktop's task has declared; None when there is none, or its agent knows no clock.

        Raises `DesktopNotReady` for an answer that is neither.
        """
        reply = await self._guest_request(slot, "GET", "/v1/clock")
        if reply.status != 200:
            return None
        try:
            return answers.declared_clock_s(reply.content)
        except MalformedAnswer as error:
            raise DesktopNotReady(str(error)) from error

    async def discard(self, slot: Slot) -> None:
        """Remove the slot's desktop, if there is one."""
        await self.close_connections(slot)
        if slot.exists:
            await self._provider.destroy(slot.desktop_id)
            slot.exists = False
        slot.snapshot_id = slot.setup_key = slot.declared_clock_s = None
        slot.frozen = False

    async def close_connections(self, slot: Slot) -> None:
        """Close every connection into the slot's desktop; one that does not close is left to the end of the desktop."""
        guest, slot.guest = slot.guest, None
        if guest is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await guest.close_connections()
        except Exception as error:  # noqa: BLE001 - the desktop goes, whatever its connections do
            log.warning("connections did not close: %r", error, extra={"desktop_id": slot.desktop_id})

    async def _prepare_until_ready(
        self, slot: Slot, target: DesktopTarget, attempts: PrepareAttempts, *, wants_clock: bool
    ) -> bool:
        """True when the desktop was restored, False when it was booted."""
        while True:
            snapshot = None
            if self._provider.capabilities.memory_snapshot:
                snapshot = self._snapshots.deepest_snapshot(target, attempts.suspect_snapshots)
            try:
                if snapshot is not None:
                    await self._restore(slot, snapshot)
                    if wants_clock:
                        slot.declared_clock_s = await self._read_declared_clock(slot)
                    return True
                if await self._boot(slot, target, attempts):
                    return False
            except (DesktopNotReady, base.SnapshotBroken, base.DesktopGone, base.HostFault) as error:
                await self._record_failure(slot, snapshot, error, attempts)
                if snapshot is not None and snapshot.snapshot_id in attempts.suspect_snapshots:
                    target = self._snapshots.fallback_target(snapshot, target, attempts.suspect_snapshots)
            except base.ProviderError as error:
                await self.discard(slot)
                raise from_provider_error(error) from error
            except ApiError:
                raise
            except Exception as error:
                log.exception("preparing a desktop failed inside", extra={"desktop_id": slot.desktop_id})
                unexpected = DesktopNotReady(f"the desktop could not be prepared ({type(error).__name__})")
                await self._record_failure(slot, snapshot, unexpected, attempts)
                if snapshot is not None and snapshot.snapshot_id in attempts.suspect_snapshots:
                    target = self._snapshots.fallback_target(snapshot, target, attempts.suspect_snapshots)

    async def _record_failure(
        self, slot: Slot, snapshot: SnapshotRecord | None, error: Exception, attempts: PrepareAttempts
    ) -> None:
        """Write a failure down and remove what is left of the try. Raises `ApiError` when the host must be to blame."""
        self._repository.add_event(
            NewEvent(
                "prepare_failed",
                slot.desktop_id,
                data={"reason": str(error), "snapshot_id": snapshot and snapshot.snapshot_id},
            )
        )
        self.last_failure = str(error)
        await self.discard(slot)
        if snapshot is not None and isinstance(error, DesktopNotReady | base.SnapshotBroken):
            attempts.snapshot_failures[snapshot.snapshot_id] += 1
            if attempts.snapshot_failures[snapshot.snapshot_id] == MAX_RESTORE_FAILURES:
                attempts.suspect_snapshots[snapshot.snapshot_id] = (snapshot, str(error))
            return
        attempts.host_failures += 1
        if attempts.host_failures == MAX_HOST_FAILURES:
            hint = getattr(error, "hint", "") or "See the farm's log and `dart-farm doctor`."
            raise ApiError(wire.ErrorCode.HOST_FAULT, f"the desktop did not come up: {error}", hint=hint) from error

    async def _restore(self, slot: Slot, snapshot: SnapshotRecord) -> None:
        await self.close_connections(slot)
        slot.exists = True
        async with self._snapshots.pinned(snapshot):
            await self._provider.restore(slot.desktop_id, snapshot.snapshot_id)
        slot.frozen, slot.declared_clock_s = False, None
        await self._connect_and_probe(slot, snapshot)
        self._repository.touch_snapshot(snapshot)

    async def _boot(self, slot: Slot, target: DesktopTarget, attempts: PrepareAttempts) -> bool:
        """True when the desktop was booted; False when somebody else has made the base meanwhile, so that it can be restored."""
        if not self._provider.capabilities.memory_snapshot:
            await self._create(slot, target)
            await self._connect_and_probe(slot, None)
            return True
        async with self._base_locks[target.base_key]:
            if self._snapshots.deepest_snapshot(target, attempts.suspect_snapshots) is not None:
                return False
            await self._create(slot, target)
            await self._connect_and_probe(slot, None)
            booted = await self._snapshots.take(slot, "booted", SHARED_OWNER)
            slot.snapshot_id = booted.snapshot_id
            await self._probe(slot)
            return True

    async def _create(self, slot: Slot, target: DesktopTarget) -> None:
        await self.discard(slot)
        slot.exists = True
        settings = self._settings
        await self._provider.create(
            slot.desktop_id,
            base.DesktopSpec(
                image=target.shape.image,
                resolution=target.shape.resolution,
                font_size=target.shape.font_size,
                memory_mib=settings.desktop_memory_mib,
                pids=settings.desktop_pids,
                cpus=settings.desktop_cpus,
                disk_mib=settings.desktop_disk_mib,
            ),
        )

    async def _connect_and_probe(self, slot: Slot, snapshot: SnapshotRecord | None) -> None:
        slot.snapshot_id = snapshot.snapshot_id if snapshot else None
        slot.setup_key = snapshot.setup_key if snapshot else None
        slot.guest = GuestClient(lambda port: self._provider.dial(slot.desktop_id, port), screen=slot.shape.resolution)
        slot.failure = None
        await self._probe(slot)

    async def _probe(self, slot: Slot) -> None:
        if slot.guest is None:
            raise DesktopNotReady("the desktop has no connection")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                health = await slot.guest.health(PROBE_TIMEOUT_S)
        except (GuestUnreachable, TimeoutError) as error:
            raise DesktopNotReady(str(error) or f"no answer within {PROBE_TIMEOUT_S:g} s") from error
        except (RecursionError, ValueError) as error:
            raise DesktopNotReady("the guest agent's health is not what the protocol says") from error
        if "ready" not in health:
            raise DesktopNotReady("the guest agent's health is not what the protocol says")
        if not health["ready"]:
            raise DesktopNotReady("the guest agent says that its session is not ready")

    async def _guest_request(self, slot: Slot, method: str, path: str, body: bytes | None = None) -> GuestReply:
        """The agent's answer. Raises `DesktopNotReady`."""
        if slot.guest is None:
            raise DesktopNotReady("the desktop has no connection")
        try:
            return await slot.guest.request(method, path, limits.CLOCK, timeout_s=PROBE_TIMEOUT_S, content=body)
        except GuestUnreachable as error:
            raise DesktopNotReady(str(error)) from error
