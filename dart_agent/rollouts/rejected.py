"""Trajectories that the data manager refused, kept with their cause.

Role: `RejectedTrajectories` writes one JSON file for each, and ends a worker of which everything is refused. Rule: nothing reads the files
but people; the rollout itself is given back and played again. Non-goals: deciding what is refused (the data manager).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from pathlib import Path

from dart_agent.errors import StoreError, StoreRefusedError
from dart_agent.types import Trajectory
from dart_server.wire import Clock

logger = logging.getLogger(__name__)

MAX_REJECTED_IN_A_ROW = 5
"""So many refused rollouts in a row are no accident of one trajectory: the worker ends with the last cause."""


class RejectedTrajectories:
    """What was refused of one worker.

    Args:
        directory: Folder that gets a file for each refused trajectory; None: nothing is kept.
        clock: The clock.
    """

    def __init__(self, directory: Path | None, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._in_a_row = 0

    async def keep(self, trajectory: Trajectory, cause: str) -> None:
        """Write `<rollout id>.json`; a later one of the same rollout replaces it."""
        if self._directory is not None:
            await asyncio.to_thread(self._write, self._directory, trajectory, cause)

    def count(self, error: StoreRefusedError) -> None:
        """Count one refused trajectory, which is lost. Raises StoreError when everything is refused: nothing is played on for nothing."""
        self._in_a_row += 1
        logger.error("%s", error)
        if self._in_a_row >= MAX_REJECTED_IN_A_ROW:
            raise StoreError(f"{self._in_a_row} rollouts in a row were refused; the last one: {error}") from error

    def accepted(self) -> None:
        """One was stored."""
        self._in_a_row = 0

    def _write(self, directory: Path, trajectory: Trajectory, cause: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        content = {"cause": cause, "at_s": self._clock.time(), "trajectory": dataclasses.asdict(trajectory)}
        path = directory / f"{trajectory.rollout_id}.json"
        path.write_text(json.dumps(content, default=str, indent=1) + "\n", encoding="utf-8")
