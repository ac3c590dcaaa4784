"""Episodes whose desktop is kept while nobody plays on it: still leased, or as a snapshot.

This module parks a desktop and takes it up again, also in another process. A lease that is kept ends its `ttl_s` after the last heartbeat;
a snapshot lives until the farm evicts it. It does not define what an episode is (`dart_envs.envs.core`) and does not keep what was said in
it (`dart_agent`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.settling import RESET_SETTLE
from dart_envs.errors import DartEnvError, FarmError, NotFoundError, SnapshotNotFoundError
from dart_envs.farm.base import FarmLike, LeaseLike
from dart_envs.types import Observation, TaskLike
from dart_server.wire import DesktopShape

RESET_CODE = "conflict"
"""Code of the `FarmError` for a kept lease whose desktop was reset for another episode."""


@dataclass(frozen=True, slots=True)
class ParkedDesktop:
    """Where the desktop of an unfinished episode is, as plain data.

    Attributes:
        steps: Steps that the episode had taken.
        acted: Whether the policy had touched the desktop.
        lease: Reference of the lease that is still held (`AsyncFarmClient.attach`); None where it is a snapshot.
        desktop_id: Id of the desktop that the lease had; another one means that somebody has reset it.
        snapshot_id: Id of the snapshot; None where the lease is held.
    """

    steps: int
    acted: bool
    lease: str | None = None
    desktop_id: str | None = None
    snapshot_id: str | None = None


@runtime_checkable
class SupportsParking(Protocol):
    """What a farm's client needs for parked desktops; `AsyncFarmClient` has it."""

    async def attach(self, reference: str, *, takeover: bool = False) -> LeaseLike:
        """Use a lease of another process of the same key, as `AsyncFarmClient.attach`."""
        ...

    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot."""
        ...


@runtime_checkable
class SupportsDetach(Protocol):
    """A lease that another process can go on with."""

    def reference(self) -> str:
        """Return a text by which another process attaches to it."""
        ...

    async def detach(self) -> None:
        """Leave it to another process."""
        ...


async def park_lease(lease: LeaseLike, *, steps: int, acted: bool, keep_lease: bool) -> ParkedDesktop:
    """Leave a lease to whoever continues the episode.

    Args:
        lease: The lease; it cannot be used any more afterwards.
        steps: Steps that the episode had taken.
        acted: Whether the policy had touched the desktop.
        keep_lease: Keep the desktop leased. Otherwise it becomes a snapshot, and the desktop is given back.

    Returns:
        Where the desktop is.

    Raises:
        FarmError: The farm cannot take snapshots, or has no room for one; the lease is held as before.
    """
    if keep_lease and isinstance(lease, SupportsDetach):
        reference = lease.reference()
        await lease.detach()
        return ParkedDesktop(steps, acted, lease=reference, desktop_id=lease.desktop_id)
    view = await lease.snapshot()
    await lease.release()
    return ParkedDesktop(steps, acted, snapshot_id=view.snapshot_id)


async def resume_lease(
    farm: FarmLike,
    parked: ParkedDesktop,
    shape: DesktopShape,
    *,
    ttl_s: float,
    wait_s: float,
    labels: Mapping[str, str],
) -> LeaseLike:
    """Take a parked desktop up again.

    Args:
        farm: The farm that has it.
        parked: Where the desktop is.
        shape: Its shape.
        ttl_s: As for a new lease.
        wait_s: As for a new lease.
        labels: As for a new lease.

    Returns:
        A lease of exactly this desktop, or of a copy of its snapshot. The snapshot stays, so that the episode can be taken up again should
        this process die before it says where the desktop is now; who keeps the `ParkedDesktop` deletes it.

    Raises:
        FarmError: The lease has ended, the snapshot is gone, or this farm's client cannot take it up.
    """
    if parked.lease is not None:
        if not isinstance(farm, SupportsParking):
            raise FarmError("This farm's client cannot attach to a lease.", code="capability_missing")
        seen = await farm.attach(parked.lease)
        if isinstance(seen, SupportsDetach):
            await seen.detach()
        if seen.desktop_id != parked.desktop_id:
            raise FarmError("The lease has another desktop now: it was reset for another episode.", code=RESET_CODE)
        return await farm.attach(parked.lease, takeover=True)
    if parked.snapshot_id is None:
        raise FarmError("The parked episode names neither a lease nor a snapshot.", code="invalid")
    lease = await farm.lease(shape, ttl_s=ttl_s, wait_s=wait_s, labels=labels)
    try:
        await lease.reset(snapshot_id=parked.snapshot_id)
    except BaseException:  # cancelled, too, no desktop may stay leased; raised again
        await lease.release()
        raise
    return lease


class ResumableDesktopEnv(AsyncDesktopEnv):
    """An `AsyncDesktopEnv` whose running episode can be parked, and continued here or in another process."""

    def held_desktop(self) -> ParkedDesktop | None:
        """Where the running episode's desktop is, should this process die now; None where no other process can take it up."""
        if self._episode_over or not isinstance(self._lease, SupportsDetach):
            return None
        return ParkedDesktop(self._steps, self._acted, lease=self._lease.reference(), desktop_id=self._lease.desktop_id)

    async def park(self, *, keep_lease: bool = False) -> ParkedDesktop:
        """Stop the running episode and keep its desktop for `resume`. Nothing is judged.

        Args:
            keep_lease: Keep the desktop leased for its TTL. Otherwise it becomes a snapshot, and the desktop is free.

        Returns:
            Where the desktop is.

        Raises:
            DartEnvError: If no episode is running, or the farm does not keep the desktop; the episode is over then.
        """
        if self._episode_over or self._lease is None:
            raise DartEnvError("No episode is running; call reset() first.")
        self._episode_over = self._lease_unusable = True
        parked = await park_lease(self._lease, steps=self._steps, acted=self._acted, keep_lease=keep_lease)
        self._lease, self._lease_unusable = None, False
        return parked

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete the snapshot of a parked episode that nobody continues.

        Args:
            snapshot_id: The snapshot; one that is gone already is no error.

        Raises:
            DartEnvError: If the farm does not delete it.
        """
        if not isinstance(self._farm, SupportsParking):
            raise FarmError("This farm's client cannot delete a snapshot.", code="capability_missing")
        with contextlib.suppress(NotFoundError, SnapshotNotFoundError):
            await self._farm.delete_snapshot(snapshot_id)

    async def resume(
        self, task: TaskLike, parked: ParkedDesktop, *, share_setup: bool | None = None, step_limit: int | None = None
    ) -> Observation:
        """Go on with a parked episode; the desktop that is held now is given back.

        Args:
            task: The task of the episode.
            parked: Where its desktop is.
            share_setup: As `reset`.
            step_limit: As `reset`.

        Returns:
            What the desktop shows.

        Raises:
            DartEnvError: If the desktop is gone, or cannot be taken up now. A lease that was kept is still held after a `FarmError`, and
                where this is cancelled, until its TTL has passed.
        """
        await self.release_lease()
        self.timings_s = {}
        config = self.config
        self._task, self._share_setup, self._step_limit, self._end = task, share_setup, step_limit, None
        self._lease = await resume_lease(
            self._farm, parked, self.shape, ttl_s=config.ttl_s, wait_s=config.wait_s, labels=config.labels
        )
        self._lease_unusable = True
        try:
            frame = await self._lease.step([], RESET_SETTLE)
            observation = await self._observe(frame)
        except (FarmError, asyncio.CancelledError):
            if parked.lease is not None and isinstance(self._lease, SupportsDetach):
                lease, self._lease = self._lease, None
                await lease.detach()
            raise
        self._last_observation = observation
        self._lease_unusable = False
        self._steps, self._acted, self._episode_over = parked.steps, parked.acted, False
        self._settled_s = self._clock.monotonic()
        return observation
