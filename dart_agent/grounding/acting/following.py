"""The newest version of a policy that plans and points, loaded in this process.

Role: `FollowingPolicy` answers with the version that it has, and loads what is published while it acts. Rule: an answer and its points are
those of one version: what has begun with old weights ends with them. A version is held while it is read
(`dart_agent.inference.weights.leases`); one that was removed before is passed over, because a newer one is there. Non-goals: publishing,
vLLM workers (`dart_agent.inference.weight_updater`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from dart_agent.data_client.wire import VersionRecord
from dart_agent.errors import StoreError, WeightUpdateError
from dart_agent.inference.weights.leases import hold
from dart_agent.types import Completion, Policy, PolicyRequest, PolicyVersion
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock

POLL_S = 0.5
LoadPolicy = Callable[[str, PolicyVersion], Policy]
"""Loads a model directory as a policy that names this version."""
LatestVersion = Callable[[], Awaitable[VersionRecord | None]]
logger = logging.getLogger(__name__)


class FollowingPolicy:
    """Acts with one version after the other.

    Args:
        load: Loads a version; called in a thread.
        model: Directory or name of the first one.
        version: Its number.
        served: File that says which version acts, for whoever waits for it; None: there is none.
        clock: Clock of the waits.
    """

    def __init__(
        self,
        load: LoadPolicy,
        model: str,
        version: PolicyVersion = 0,
        served: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.version = version
        self._load = load
        self._policy = load(model, version)
        self._served = served
        self._told: PolicyVersion | None = None
        self._clock = clock

    async def complete(self, request: PolicyRequest) -> Completion:
        """The answer of the version that acts now. Raises what it raises."""
        return await self._policy.complete(request)

    async def catch_up(self, latest: LatestVersion) -> None:
        """Load the newest version unless it acts already, and write which one acts.

        Args:
            latest: Tells the newest version.

        Raises:
            StoreError: The data manager does not answer.
            ConfigError: The version cannot be loaded.
        """
        newest = await latest()
        if newest is not None and newest.version != self.version:
            try:
                with hold(Path(newest.path)):
                    self._policy = await asyncio.to_thread(self._load, newest.path, newest.version)
            except WeightUpdateError as error:
                logger.warning("version %d is passed over: %s", newest.version, error)
                return
            self.version = newest.version
            logger.info("version %d acts", newest.version)
        if self._served is not None and self._told != self.version:
            write_served_version(self._served, self.version)
            self._told = self.version

    async def follow(self, latest: LatestVersion) -> None:
        """Catch up again and again, until cancelled.

        Args:
            latest: Tells the newest version.

        Raises:
            ConfigError: A version cannot be loaded.
        """
        while True:
            await self._clock.sleep(POLL_S)
            try:
                await self.catch_up(latest)
            except StoreError as error:
                logger.warning("the newest version is not known: %s", error)


def write_served_version(file: Path, version: PolicyVersion) -> None:
    """Say which version acts.

    Args:
        file: The file; its folder exists.
        version: The version.
    """
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(json.dumps({"version": version}) + "\n", encoding="utf-8")
    partial.rename(file)


def read_served_versions(folder: Path) -> list[PolicyVersion]:
    """Read which versions the rollout workers of a folder act with.

    Args:
        folder: Folder of their files.

    Returns:
        A version per file.

    Raises:
        FileNotFoundError: No worker has written one yet.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"no rollout worker has loaded its policy yet: {folder} is empty")
    return [int(json.loads(file.read_text(encoding="utf-8"))["version"]) for file in files]
