"""Bring a leased desktop to a task's prepared state, building the shared snapshot of that state when nobody
has yet.

Role: `SetupPreparer`, used by `core`. Rule: one builder per key, the others wait; a builder that fails says so at
once, so that the next one may try; every episode starts from a restored copy, the builder's own too.
Non-goals: what a setup does (`TaskLike.prepare`).
"""

from __future__ import annotations

import logging

from dart_envs.errors import DartEnvError, DesktopFailedError, FarmError, GuestError, SetupError
from dart_envs.farm.base import FarmLike, LeaseLike
from dart_envs.types import SupportsClock, TaskLike
from dart_server.wire import Clock, DesktopShape, ErrorCode, FaultOwner, SettleSpec

log = logging.getLogger(__name__)

SETUP_SETTLE = SettleSpec(quiet_ms=300, cap_ms=5_000)
SETUP_POLL_S = 30.0
SETUP_BUSY_DELAY_S = 0.1
LOST_SNAPSHOT_CODES = frozenset({ErrorCode.SNAPSHOT_MISSING, ErrorCode.SNAPSHOT_BROKEN})
"""The snapshot was evicted or damaged between the claim and the restore: claim again."""


class SetupPreparer:
    """Prepares desktops of one shape. Remembers the image digest, so that later leases can ask for the right
    copy at once."""

    def __init__(self, farm: FarmLike, shape: DesktopShape, *, clock: Clock, wait_s: float) -> None:
        self._farm = farm
        self._shape = shape
        self._clock = clock
        self._wait_s = wait_s
        self._image_digest: str | None = None
        self._snapshots_supported = True

    def known_setup_key(self, task: TaskLike, share: bool | None = None) -> str | None:
        """The task's setup key, once a lease has told which image the farm has."""
        if self._image_digest is None or not self._should_publish(task, share):
            return None
        return task.setup_key(self._image_digest, self._shape)

    async def prepare(self, lease: LeaseLike, task: TaskLike, *, fresh: bool, share: bool | None = None) -> None:
        """Leave `lease` on an untouched desktop in the task's prepared state. `fresh`: nobody has used this
        desktop yet. `share`: whether the state is worth a snapshot; None: as the task says.

        Raises `SetupError`, `FarmError` and `DesktopError`s, and `TaskError` for a desktop without a program that the task needs.
        """
        self._image_digest = lease.image_digest
        if not self._should_publish(task, share):
            await self._build(lease, task, fresh=fresh)
            return
        key = task.setup_key(lease.image_digest, self._shape)
        if fresh and lease.setup_key == key:
            return
        deadline_s = self._clock.monotonic() + self._wait_s
        while True:
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                raise SetupError(
                    f"The setup of {task.id} was still being built by another client after {self._wait_s:.0f} s."
                )
            grant = await lease.acquire_setup(key, wait_s=min(left_s, SETUP_POLL_S))
            if grant.state == "build" and grant.grant is not None:
                published = await self._build_and_publish(lease, task, key, grant.grant, fresh=fresh)
                if not published:
                    return
            if grant.state == "busy":
                await self._clock.sleep(SETUP_BUSY_DELAY_S)
                continue
            fresh = False
            try:
                if (await lease.reset(key)).setup_key == key:
                    return
            except FarmError as error:
                if error.code not in LOST_SNAPSHOT_CODES:
                    raise
            log.info("The prepared state of %s is gone; claiming it again.", task.id)

    def _should_publish(self, task: TaskLike, share: bool | None) -> bool:
        return self._snapshots_supported and (task.publish_setup if share is None else share)

    async def _build_and_publish(self, lease: LeaseLike, task: TaskLike, key: str, grant: str, *, fresh: bool) -> bool:
        """True when the state is published; False when the farm cannot keep it and this desktop is all there
        is."""
        try:
            await self._build(lease, task, fresh=fresh)
            await lease.step([], SETUP_SETTLE)
            await lease.snapshot(description=f"after the setup of {task.id}"[:500], publish_key=key, grant=grant)
        except BaseException as error:
            await self._abandon(key, grant, error)
            if isinstance(error, FarmError) and error.code == ErrorCode.CAPABILITY_MISSING:
                log.warning("This farm takes no snapshots; every reset runs the setup again.")
                self._snapshots_supported = False
                return False
            if isinstance(error, FarmError) and error.code == ErrorCode.QUOTA:
                log.warning("The farm has no room for the prepared state of %s.", task.id)
                return False
            raise
        return True

    async def _build(self, lease: LeaseLike, task: TaskLike, *, fresh: bool) -> None:
        if not (fresh and lease.setup_key is None):
            await lease.reset(None)
        try:
            if isinstance(task, SupportsClock) and task.starts_at is not None:
                await lease.set_clock(task.starts_at)
            await task.prepare(lease)
        except DesktopFailedError as gone:
            if gone.fault_owner is FaultOwner.POLICY:
                raise SetupError(f"The setup of {task.id} broke its own desktop: {gone.cause}.") from gone
            raise
        except GuestError as error:
            raise SetupError(f"The setup of {task.id} failed: {error}") from error

    async def _abandon(self, key: str, grant: str, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        try:
            await self._farm.abandon_setup(key, grant, reason)
        except DartEnvError as failed:
            log.warning("The grant to build %s could not be given back and ends with its lease: %s", key[:12], failed)
