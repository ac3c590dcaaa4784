"""What earlier records of the ablation hold, so that days and hosts add up.

Role: `read_earlier`. Rule: a group of arms is taken over for a seed only in whole, because its arms are compared with each other and begin
with one warm start, on one host and in equal time. It is not taken over where an arm or the hard families were others. Non-goals: figures
(`figures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ablation.arms import ARMS, is_of_today
from benchmarks.ablation.dialogs import HARD
from benchmarks.earlier_records import read_records
from dart_envs.errors import UnsupportedCapabilityError

BySeed = dict[int, dict[str, Any]]
WARM_START = "warm_start"
"""Key of the warm start in the record of an arm: arms of other groups of the same seed may have begun with another one."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is not run again.

    Attributes:
        arms: Records of arms by name and seed, each with the warm start that it began with.
        hard_families: Records of the probes by seed.
    """

    arms: dict[str, BySeed] = field(default_factory=dict)
    hard_families: BySeed = field(default_factory=dict)

    def holds(self, name: str, seed: int) -> bool:
        """Tell whether an arm is done.

        Args:
            name: The arm.
            seed: The seed.

        Returns:
            Whether a record has it.
        """
        return seed in self.arms.get(name, {})


def read_earlier(paths: Sequence[Path], noted: Mapping[str, Any], groups: Mapping[str, Sequence[str]]) -> Earlier:
    """Read records of earlier calls.

    Args:
        paths: Files that `--json` wrote.
        noted: Settings of this call.
        groups: Names of the arms by group.

    Returns:
        What they hold in whole; of two records that hold the same, the later named one counts.

    Raises:
        UnsupportedCapabilityError: One cannot be read, or was measured with other settings.
    """
    found = Earlier()
    for path, figures in read_records(paths, "ablation"):
        arms = {name: _by_seed(arm["seeds"]) for name, arm in figures["arms"].items()}
        if figures["settings"] != dict(noted):
            raise UnsupportedCapabilityError(
                f"--records {path} was measured with other settings, {figures['settings']}: give the same, or leave it out"
            )
        probes, warm_starts = _by_seed(figures.get("hard_families", {})), _by_seed(figures.get("warm_starts", {}))
        for names in groups.values():
            whole = set.intersection(*(_of_today(name, arms.get(name, {}), probes) for name in names))
            for name in names:
                taken = {seed: with_warm_start(arms[name][seed], warm_starts.get(seed)) for seed in whole}
                found.arms.setdefault(name, {}).update(taken)
            if any(ARMS[name].hard for name in names):
                found.hard_families.update({seed: row for seed, row in probes.items() if seed in whole})
    return found


def with_warm_start(record: dict[str, Any], warm_start: dict[str, Any] | None) -> dict[str, Any]:
    """Put the warm start of an arm into its record, unless it is there.

    Args:
        record: Record of the arm.
        warm_start: Record of the warm start; None: it is not known.

    Returns:
        The record with `warm_start`.
    """
    return record if warm_start is None else {WARM_START: warm_start, **record}


def _of_today(name: str, records: BySeed, probes: BySeed) -> set[int]:
    """The seeds of an arm whose records count."""

    def counts(seed: int) -> bool:
        return not ARMS[name].hard or set(probes.get(seed, {}).get("samples", ())) == set(HARD)

    return {seed for seed, record in records.items() if is_of_today(name, record) and counts(seed)}


def _by_seed(rows: Mapping[str, dict[str, Any]]) -> BySeed:
    return {int(seed): row for seed, row in rows.items()}
