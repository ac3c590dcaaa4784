"""What a rollout worker does beside its episodes: it says that it is alive.

Role: `keep_alive` sends heartbeats, stops the episodes and deletes the snapshots that the replies name. Rule: a heartbeat waits for nothing
but the data manager; what could not be deleted is named again. Non-goals: episodes (`dart_agent.rollouts.worker`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from dart_agent.errors import StoreError
from dart_envs.clock import wait_for
from dart_envs.envs.parking import SupportsParking
from dart_envs.errors import DartEnvError, NotFoundError
from dart_server.wire import Clock

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
