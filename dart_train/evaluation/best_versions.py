"""The weights of the best evaluated versions stay while training goes on, so that validation can choose one of them.

Role: `BestVersions` holds versions against the trainer, which keeps the newest ones only. Rule: a version is held from the beginning of its
evaluation; after each evaluation the best ones stay held, by the lower end of the interval, as in the choice of a checkpoint
(`selection`). Evaluations of an earlier process count, too. Nothing prunes after the end of training. Non-goals: the choice itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dart_agent.data_client.wire import VersionRecord
from dart_agent.errors import WeightUpdateError
from dart_agent.inference.weights.leases import WeightLease, hold
from dart_train.model.weights import PolicyVersionStore

log = logging.getLogger(__name__)


class BestVersions:
    """Leases of the versions that are evaluated and of the best that were; a context manager that releases all of them.

    Args:
        weights: Directory of published versions, as the trainer names them.
        keep: How many of the evaluated versions stay.
        evaluated: Lines of metrics of earlier evaluations (`during_training.METRICS_KIND`).
    """

    def __init__(self, weights: Path, keep: int, evaluated: Iterable[Mapping[str, Any]] = ()) -> None:
        self._keep = keep
        self._rank: dict[int, tuple[float, int]] = {}
        self._leases: dict[int, WeightLease] = {}
        for line in evaluated:
            self._rank[line["version"]] = _rank(line)
        published = PolicyVersionStore(weights, keep)
        for version in self._best():
            if (directory := published.path(version)).is_dir():
                self._hold(version, directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lease in self._leases.values():
            lease.release()
        self._leases.clear()

    def begin(self, record: VersionRecord) -> None:
        """Hold a version whose evaluation begins.

        Args:
            record: The version.
        """
        self._hold(record.version, Path(record.path))

    def rank(self, line: Mapping[str, Any]) -> None:
        """Rank a version among those that were evaluated.

        Args:
            line: The metrics of the evaluation.
        """
        self._rank[line["version"]] = _rank(line)

    def end(self) -> None:
        """Release what is not among the best, once an evaluation has ended; also that of one for which no episode counts."""
        best = self._best()
        for version in [version for version in self._leases if version not in best]:
            self._leases.pop(version).release()

    def _best(self) -> list[int]:
        return sorted(self._rank, key=lambda version: self._rank[version], reverse=True)[: self._keep]

    def _hold(self, version: int, directory: Path) -> None:
        if version in self._leases:
            return
        try:
            self._leases[version] = hold(directory)
        except (
            WeightUpdateError
        ) as error:  # the evaluation counts all the same, and validation cannot choose this version
            log.warning("version %d is evaluated and not kept: %s", version, error)


def _rank(line: Mapping[str, Any]) -> tuple[float, int]:
    """Greater is better; of equal ones the earlier version."""
    return (line["lower"] or 0.0, -line["version"])
