"""What a rollout worker does beside its episodes: it gives back what an earlier process of its name held, and says that it is alive.

Role: `lease_labels` marks what a worker leases, `release_former_leases` finds it again; `keep_alive` sends heartbeats, stops the episodes
and deletes the snapshots that the replies name. Rule: a desktop that an unfinished rollout is continued on stays as it is, whoever
continues it; without this, the farm would keep the others until their leases expire, and the new process would wait that long for
desktops. A heartbeat waits for nothing but the data manager; what could not be deleted is named again. Non-goals: episodes
(`dart_agent.rollouts.worker`).
"""

from __future__ import annotations

import contextlib
import logging
import platform
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from dart_agent.errors import StoreError
from dart_envs.clock import wait_for
from dart_envs.envs.parking import SupportsParking
from dart_envs.errors import DartEnvError, NotFoundError
from dart_envs.farm.base import LeaseLike
from dart_server.wire import Clock, LeaseView

if TYPE_CHECKING:
    from dart_agent.data_client.client import DataManagerClient

logger = logging.getLogger(__name__)


class StoppableWorker(Protocol):
    """What is needed of a rollout worker: `dart_agent.rollouts.worker.RolloutWorker`."""

    name: str

    def stop(self, assignments: Iterable[str]) -> None:
        """Let these stop at their next turn."""
        ...


async def keep_alive(
    data: DataManagerClient, farm: object, worker: StoppableWorker, interval_s: float, clock: Clock
) -> None:
    """Send heartbeats until cancelled.

    Args:
        data: The data manager.
        farm: The farm; snapshots are deleted where its client can do that.
        worker: The worker.
        interval_s: Seconds between two.
        clock: The clock.
    """
    deleted: list[str] = []
    while True:
        await clock.sleep(interval_s)
        try:
            reply = await data.heartbeat(worker.name, deleted)
        except StoreError as error:
            logger.warning("no heartbeat: %s", error)
            continue
        worker.stop(reply.stopping)
        deleted = []
        if reply.obsolete_snapshots and isinstance(farm, SupportsParking):
            with contextlib.suppress(TimeoutError):
                await wait_for(clock, interval_s, _delete(farm, reply.obsolete_snapshots, deleted))


async def _delete(farm: SupportsParking, snapshot_ids: Sequence[str], deleted: list[str]) -> None:
    """Delete snapshots one by one; `deleted` gets those that are gone."""
    for snapshot_id in snapshot_ids:
        try:
            await farm.delete_snapshot(snapshot_id)
        except NotFoundError:
            logger.debug("snapshot %s is gone already", snapshot_id)
        except DartEnvError as error:
            logger.info("snapshot %s stays for now: %s", snapshot_id, error)
            continue
        deleted.append(snapshot_id)


class LeaseRegister(Protocol):
    """What is needed of a farm's client: `AsyncFarmClient` has it."""

    async def leases(self) -> list[LeaseView]:
        """The active leases that the caller may see."""
        ...

    async def attach(self, reference: str, *, takeover: bool = False) -> LeaseLike:
        """Use a lease of another process of the same key."""
        ...


def lease_labels(worker: str, address: Path | str) -> dict[str, str]:
    """Label the leases of a worker, so that only its own next process knows them again.

    Args:
        worker: Its name, unique in the run.
        address: The data manager's: its socket or its URL, each unique to the run on this host.

    Returns:
        The labels.
    """
    if isinstance(address, Path):
        run = address.stem
    else:
        url = urlsplit(address)
        run = url.netloc + url.path.rstrip("/")
    return {"worker": worker, "run": f"{platform.node()}/{run}"}


async def release_former_leases(farm: LeaseRegister, labels: Mapping[str, str], kept: Collection[str]) -> int:
    """Give back the desktops of an earlier process; called before anything is leased.

    Args:
        farm: The farm.
        labels: Those of the worker (`lease_labels`).
        kept: References of leases that unfinished rollouts are continued on.

    Returns:
        How many were given back.

    Raises:
        DartEnvError: The farm does not answer.
    """
    spared = {reference.rpartition("#")[2] for reference in kept}
    released = 0
    for view in await farm.leases():
        if view.lease_id in spared or not labels.items() <= view.labels.items():
            continue
        try:
            lease = await farm.attach(view.lease_id, takeover=True)
        except DartEnvError as error:
            logger.info("lease %s has ended by itself: %s", view.lease_id, error)
            continue
        await lease.release()
        released += 1
    if released:
        logger.info("%d desktops of an earlier process of this worker were given back", released)
    return released
