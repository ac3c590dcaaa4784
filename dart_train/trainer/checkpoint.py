"""Trainer states on disk, for exact resuming.

Role: save and load everything an update depends on: weights, optimiser, random state, version, the last batch. Rule: written to a temporary
file, synced, renamed; a damaged newest file falls back to the one before it; loading runs no code from the file.
Non-goals: publishing (`weights`).
"""

from __future__ import annotations

import logging
import os
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"update(\d+)\.pt")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What an update depends on.

    version: policy version of `model`. updates: optimiser rounds so far. last_batch: its id, None before the first.
    unused: steps of the last batch that were left out, as (rollout id, step index, reason). trained_s: seconds since training began.
    """

    model: dict[str, Any]
    optimizer: dict[str, Any]
    torch_rng: Any
    version: int
    updates: int
    last_batch: str | None
    unused: list[tuple[str, int, str]]
    metrics: dict[str, float]
    trained_s: float


class CheckpointStore:
    """States below one directory; the `keep` newest stay."""

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self._keep = keep

    def save(self, state: TrainerState) -> Path:
        """Write a state."""
        import torch

        self.root.mkdir(parents=True, exist_ok=True)
        target = self.root / f"update{state.updates:08d}.pt"
        temporary = target.with_suffix(".tmp")
        with temporary.open("wb") as file:
            torch.save({name: getattr(state, name) for name in TrainerState.__slots__}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        for old in self._files()[: -self._keep]:
            old.unlink()
        return target

    def latest(self) -> TrainerState | None:
        """The newest state that can be read, None when there is none."""
        import torch

        for path in reversed(self._files()):
            try:
                return TrainerState(**torch.load(path, map_location="cpu", weights_only=True))
            except (OSError, RuntimeError, EOFError, TypeError, pickle.UnpicklingError) as error:
                log.warning("checkpoint %s cannot be read (%s); trying the one before", path, error)
        return None

    def _files(self) -> list[Path]:
        return sorted(path for path in self.root.glob("update*.pt") if _NAME.fullmatch(path.name))
