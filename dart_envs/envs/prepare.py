"""Bring a leased desktop to the prepared state of a task, and build that state's shared snapshot once.

`SetupPreparer` is used by `core`. There is one builder for each key, and the others wait. A builder that fails reports
it at once, so that the next one can try. Every episode starts from a restored copy, also the builder's own. This
module does not know what a setup does (`TaskLike.prepare`).
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
    """Prepares desktops of one shape.

    It remembers the image digest, so that later leases can ask for a copy of the prepared state at once.

    Args:
        farm: Where an abandoned build is reported.
        shape: The shape of the desktops.
        clock: The clock that waits and measures.
        wait_s: Seconds to wait for a prepared state that another client is building.
    """

    def __init__(self, farm: FarmLike, shape: DesktopShape, *, clock: Clock, wait_s: float) -> None:
        self._farm = farm
        self._shape = shape
        self._clock = clock
        self._wait_s = wait_s
        self._image_digest: str | None = None
        self._snapshots_supported = True

    def known_setup_key(self, task: TaskLike, share: bool | None = None) -> str | None:
        """Return the task's setup key, once a lease has shown which image the farm has.

        Args:
            task: The task to prepare.
            share: Whether the prepared state is stored as a snapshot; None lets the task decide.

        Returns:
            The key, or None while the image is unknown or where the state is not shared.
        """
        if self._image_digest is None or not self._should_publish(task, share):
            return None
        return task.setup_key(self._image_digest, self._shape)

    async def prepare(self, lease: LeaseLike, task: TaskLike, *, fresh: bool, share: bool | None = None) -> None:
        """Bring a lease to an untouched desktop in the prepared state of the task.

        Args:
            lease: The desktop.
            task: The task to prepare.
            fresh: Whether nothing has used this desktop yet.
            share: Whether the prepared state is stored as a snapshot; None lets the task decide.

        Raises:
            SetupError: If the setup failed, or another client did not finish it in time.
            TaskError: If the desktop has no program that the task needs.
            FarmError: If the farm failed.
            DesktopError: If the desktop failed.
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
        """Return True when the state is published, False when the farm cannot store it and only this desktop has it."""
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
