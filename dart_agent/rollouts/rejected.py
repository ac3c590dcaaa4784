"""Trajectories that the data manager refused, kept with their cause.

Role: `RejectedTrajectories` writes one JSON file for each. Rule: nothing reads them but people; the rollout itself is given back and played
again. Non-goals: deciding what is refused (the data manager).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from dart_agent.types import Trajectory
from dart_server.wire import Clock


class RejectedTrajectories:
    """A folder of refused trajectories."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    def keep(self, trajectory: Trajectory, cause: str) -> Path:
        """Write `<rollout id>.json`; a later one of the same rollout replaces it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{trajectory.rollout_id}.json"
        content = {"cause": cause, "at_s": self._clock.time(), "trajectory": dataclasses.asdict(trajectory)}
        path.write_text(json.dumps(content, default=str, indent=1) + "\n", encoding="utf-8")
        return path
