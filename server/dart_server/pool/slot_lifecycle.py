"""What happens to one slot: made ready, renewed under its lease, taken back, failed, removed.

Rule: a used desktop is never handed on before it was made a fresh copy; one thing at a time happens to a slot (its lock). Whoever serves
and keeps warm is told of every change through `on_change`. Non-goals: how a desktop comes up (`pool.prepare`), who gets it
(`pool.claim_queue`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dart_server import wire
from dart_server.database.repository import NewEvent, Repository
from dart_server.errors import ApiError
from dart_server.pool.background import BackgroundTaskSet
from dart_server.pool.prepare import DesktopNotReady, DesktopPreparer, RestoreResult
from dart_server.pool.slots import Slots
from dart_server.providers import base
from dart_server.records import DesktopTarget, Slot
from dart_server.wire import Clock, DesktopState

log = logging.getLogger(__name__)


class SlotLifecycle:
    """Changes slots of one farm. `retry_s`: a removal that failed may be tried again after this long."""

    def __init__(
        self,
        slots: Slots,
        preparer: DesktopPreparer,
        repository: Repository,
        clock: Clock,
        retry_s: float,
        on_change: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._preparer = preparer
        self._repository = repository
        self._clock = clock
        self._retry_s = retry_s
        self.on_change = on_change
        self._background = BackgroundTaskSet()

    async def prepare(self, slot: Slot, target: DesktopTarget, *, prewarm: bool = False) -> None:
        """Bring a slot that nobody uses to what is wanted, unless it is that already; `prewarm`. Raises `ApiError`."""
        async with slot.lock:
            if self._slots.is_fresh_copy(slot, target) and await self._ensure_running(slot):
                return
            slot.unused = False
            if not slot.exists:
                slot.state = DesktopState.CREATING
                self._repository.save_desktop(slot, NewEvent("desktop_creating", slot.desktop_id))
            await self._preparer.prepare(slot, target, prewarm=prewarm)
            slot.unused, slot.called, slot.state = True, False, DesktopState.READY
            self._repository.save_desktop(slot)

    async def _ensure_running(self, slot: Slot) -> bool:
        """Whether an untouched desktop runs; a frozen one is thawed and asked."""
        if not slot.frozen:
            return True
        try:
            await self._preparer.wake(slot)
        except DesktopNotReady as error:
            log.warning("a standby did not wake: %s", error, extra={"desktop_id": slot.desktop_id})
            return False
        slot.state = DesktopState.READY
        return True

    async def freeze(self, slot: Slot) -> None:
        """Let an untouched slot stand still. Raises `ProviderError`."""
        async with slot.lock:
            await self._preparer.freeze(slot)
            slot.state = DesktopState.STANDBY
            self._repository.save_desktop(slot)

    async def freeze_failed(self, slot: Slot) -> None:
        """Let whatever is left of a desktop stand still. Raises `ProviderError` where that is not possible."""
        async with slot.lock:
            await self._preparer.freeze(slot)

    async def thaw(self, slot: Slot) -> bool:
        """Let it run again; False when it does not."""
        async with slot.lock:
            return await self._ensure_running(slot)

    async def reset_desktop(self, slot: Slot, target: DesktopTarget, *, waited: bool = False) -> RestoreResult:
        """Make a leased desktop a fresh copy of what is wanted; `waited` tells that it was not ready when it was asked for.

        Its fencing_token, and that this has begun, are written before it is touched: a farm that is killed meanwhile comes back to a
        desktop that no earlier fencing_token opens. Raises `ApiError`; the slot is broken then, and may be renewed again.
        """
        async with slot.lock:
            is_fresh = self._slots.is_fresh_copy(slot, target)
            slot.state, slot.unused = DesktopState.RESETTING, False
            try:
                await self._repository.wait_committed(self._repository.save_desktop(slot))
                if is_fresh:
                    result = await self._preparer.activate_standby(slot, target, waited=waited)
                else:
                    result = await self._preparer.prepare(slot, target)
            except BaseException as error:  # cancelled, too, it is not left half made; raised again
                cause = error.code.value if isinstance(error, ApiError) else "interrupted"
                slot.state = DesktopState.BROKEN
                slot.failure = wire.DesktopHealthView(alive=False, cause=cause, fault_owner=wire.FaultOwner.HOST)
                self._repository.save_desktop(
                    slot, NewEvent("reset_failed", slot.desktop_id, slot.lease_id, slot.fencing_token)
                )
                raise
            slot.state, slot.called = DesktopState.LEASED, False
            data = {
                "restored": result.restored,
                "standby": result.standby,
                "setup_key": slot.setup_key,
                "snapshot_id": slot.snapshot_id,
                "quarantined": list(result.quarantined),
                "duration_s": round(result.duration_s, 4),
            }
            note = NewEvent("desktop_reset", slot.desktop_id, slot.lease_id, slot.fencing_token, data)
            await self._repository.wait_committed(self._repository.save_desktop(slot, note))
            return result

    def release(self, slot: Slot) -> None:
        """Take a desktop back from its lease, at once: its fencing token grows, so that every later call with the old one is refused."""
        slot.grow_fencing_token()
        slot.lease_id = None
        slot.unused, slot.busy = False, True
        slot.state = DesktopState.RESETTING
        self._background.start(self._recycle(slot))

    async def _recycle(self, slot: Slot) -> None:
        async with slot.lock:
            slot.state = DesktopState.RESETTING
            await self._preparer.close_connections(slot)
            self._repository.save_desktop(slot)
        slot.busy = False
        self.on_change()

    async def mark_failed(self, slot: Slot, health: wire.DesktopHealthView) -> None:
        """Write down that a desktop died, and remove what is left of it. A leased one stays with its lease until it is renewed."""
        if slot.failure is not None:
            return
        slot.failure = health
        slot.state = DesktopState.BROKEN
        data = {"cause": health.cause, "fault_owner": health.fault_owner.value}
        self._repository.save_desktop(
            slot, NewEvent("desktop_failed", slot.desktop_id, slot.lease_id, slot.fencing_token, data)
        )
        log.warning("desktop failed: %s", data, extra={"desktop_id": slot.desktop_id, "lease_id": slot.lease_id})
        self._background.start(self._discard_failed(slot, health))

    async def _discard_failed(self, slot: Slot, health: wire.DesktopHealthView) -> None:
        async with slot.lock:
            if slot.failure is health:
                try:
                    await self._preparer.discard(slot)
                except base.ProviderError as error:
                    log.error("a failed desktop was not removed: %s", error, extra={"desktop_id": slot.desktop_id})
        self.on_change()

    def remove(self, slot: Slot) -> None:
        """Let a slot go, at once for those who look; its desktop is destroyed meanwhile."""
        slot.busy, slot.state = True, DesktopState.GONE
        self._background.start(self._destroy(slot))

    async def _destroy(self, slot: Slot) -> None:
        async with slot.lock:
            slot.state = DesktopState.GONE  # a reset that held the lock until now has given it a state of its own
            try:
                await self._preparer.discard(slot)
            except Exception as error:  # noqa: BLE001 - whatever stops it, the slot must be seen again
                log.error("a desktop could not be removed: %r", error, extra={"desktop_id": slot.desktop_id})
                self._repository.add_event(NewEvent("destroy_failed", slot.desktop_id, data={"reason": str(error)}))
                await self._clock.sleep(self._retry_s)
                slot.state, slot.busy = DesktopState.BROKEN, False
                return
            self._record_removed(slot)
        self.on_change()

    def _record_removed(self, slot: Slot) -> None:
        self._repository.save_desktop(slot, NewEvent("desktop_gone", slot.desktop_id))
        self._slots.by_id.pop(slot.desktop_id, None)

    async def destroy_all(self) -> None:
        """Wait for what is under way, then destroy every desktop."""
        await self._background.wait_all()
        await asyncio.gather(*(self._destroy_at_stop(slot) for slot in list(self._slots.by_id.values())))

    async def _destroy_at_stop(self, slot: Slot) -> None:
        slot.exists, slot.state = True, DesktopState.GONE
        try:
            await self._preparer.discard(slot)
        except base.ProviderError as error:
            log.error("a desktop could not be removed: %s", error, extra={"desktop_id": slot.desktop_id})
            return
        self._record_removed(slot)
