"""Looks at every desktop now and then: waiting, frozen and leased ones.

Rule: a round never waits for one that hangs longer than its limit, and never ends because of one. What is certainly dead goes at once; one
that only does not answer has to fail several rounds in a row, and is then quarantined or replaced. A leased one that died is written down
as a call into it would have done. Non-goals: limits that a leased desktop hit while it goes on (asked before a reward counts).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from dart_server import wire
from dart_server.database.repository import NewEvent, Repository
from dart_server.observability.metrics import Metrics
from dart_server.pool.background import BackgroundTaskSet
from dart_server.pool.quarantine import Quarantine
from dart_server.pool.slot_lifecycle import SlotLifecycle
from dart_server.pool.slots import Slots
from dart_server.providers.base import SELF_INFLICTED, DesktopHealth, HealthCause, Provider
from dart_server.records import Slot
from dart_server.wire import DesktopState, FaultOwner

log = logging.getLogger(__name__)
HEALTH_CHECK_TIMEOUT_S = 15.0
MAX_CONCURRENT_PROBES = 8
UNRESPONSIVE_CAUSES = frozenset({HealthCause.AGENT_DEAD, HealthCause.SESSION_DEAD, HealthCause.UNKNOWN})
"""What may be a slow answer, and leaves something to look at."""
USABLE_CAUSES = frozenset({HealthCause.OOM, HealthCause.PIDS, HealthCause.DISK_FULL})


def health_view(health: DesktopHealth, *, called: bool) -> wire.DesktopHealthView:
    """The wire's view of a provider's look, with the owner of a failure.

    Args:
        health: What the provider saw.
        called: Whether somebody called into the desktop since its reset; without that no failure is the policy's.
    """
    by_policy = called and health.cause in SELF_INFLICTED
    owner = FaultOwner.NONE if health.alive else FaultOwner.POLICY if by_policy else FaultOwner.HOST
    return wire.DesktopHealthView(
        alive=health.alive, cause=health.cause.value, fault_owner=owner, memory_bytes=health.memory_bytes or None
    )


class Probes:
    """Rounds of looks. `failure_threshold`: how many silent ones in a row are too many."""

    def __init__(
        self,
        provider: Provider,
        slots: Slots,
        lifecycle: SlotLifecycle,
        quarantine: Quarantine,
        repository: Repository,
        metrics: Metrics,
        *,
        failure_threshold: int,
    ) -> None:
        self._provider = provider
        self._slots = slots
        self._lifecycle = lifecycle
        self._quarantine = quarantine
        self._repository = repository
        self._metrics = metrics
        self.timeout_s = HEALTH_CHECK_TIMEOUT_S
        """Of one look, in real time, as of every call into a desktop."""
        self._failure_threshold = failure_threshold
        self._failures: Counter[tuple[str, int]] = Counter()
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_PROBES)
        self._rounds = BackgroundTaskSet()
        self._running = False
        self._memory_bytes: list[int] = []
        self.average_memory_bytes = 0
        """What a desktop used, on average, in the last round; 0 before there was one."""

    def start_round(self) -> None:
        """Start a round, unless the last one is still under way."""
        if not self._running:
            self._running = True
            self._rounds.start(self.run_round())

    async def run_round(self) -> None:
        """Look at every desktop that should be well."""
        try:
            slots = [slot for slot in self._slots.by_id.values() if _should_probe(slot)]
            known = {(slot.desktop_id, slot.fencing_token) for slot in slots}
            self._memory_bytes = []
            self._failures = Counter({life: count for life, count in self._failures.items() if life in known})
            results = await asyncio.gather(*(self._probe_slot(slot) for slot in slots), return_exceptions=True)
            if self._memory_bytes:
                self.average_memory_bytes = sum(self._memory_bytes) // len(self._memory_bytes)
            for slot, result in zip(slots, results, strict=True):
                if isinstance(result, Exception):
                    log.error("a probe failed", exc_info=result, extra={"desktop_id": slot.desktop_id})
        finally:
            self._running = False

    async def _probe_slot(self, slot: Slot) -> None:
        async with self._semaphore:
            before = (slot.lease_id, slot.fencing_token, slot.snapshot_id)
            try:
                async with asyncio.timeout(self.timeout_s):
                    health = await self._provider.health(slot.desktop_id)
            except TimeoutError:
                health = DesktopHealth(False, HealthCause.UNKNOWN, f"no look at it ended within {self.timeout_s:g} s")
        if (slot.lease_id, slot.fencing_token, slot.snapshot_id) != before or not _should_probe(slot):
            return
        life = (slot.desktop_id, slot.fencing_token)
        if health.memory_bytes:
            self._memory_bytes.append(health.memory_bytes)
        if health.alive or (slot.lease_id is not None and health.cause in USABLE_CAUSES):
            del self._failures[life]
            return
        self._failures[life] += 1
        if health.cause in UNRESPONSIVE_CAUSES and self._failures[life] < self._failure_threshold:
            return
        del self._failures[life]
        if slot.lease_id is not None:
            view = health_view(health, called=slot.called)
            self._metrics.failure(view.cause, view.fault_owner.value)
            await self._lifecycle.mark_failed(slot, view)
        else:
            await self._replace(slot, health)

    async def _replace(self, slot: Slot, health: DesktopHealth) -> None:
        """A desktop that waited for somebody is no good: keep it for a person to look at, or remove it; another one is made."""
        note = NewEvent("idle_desktop_died", slot.desktop_id, data={"cause": health.cause.value})
        self._repository.add_event(note)
        reason = f"{health.cause.value}: {health.detail}" if health.detail else health.cause.value
        if health.cause not in UNRESPONSIVE_CAUSES or not await self._quarantine.add(slot, reason):
            self._lifecycle.remove(slot)
        self._lifecycle.on_change()

    async def stop(self) -> None:
        """The farm stops: no round goes on."""
        self._rounds.cancel()
        await self._rounds.wait_all()


def _should_probe(slot: Slot) -> bool:
    """Whether a desktop should answer now: it waits, untouched, or it is leased and nothing is being done to it."""
    if slot.lock.locked() or slot.failure is not None or slot.state in (DesktopState.GONE, DesktopState.QUARANTINED):
        return False
    return slot.state is DesktopState.LEASED if slot.lease_id is not None else slot.unused and not slot.busy
