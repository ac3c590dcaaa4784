"""What earlier records of the ablation hold, so that days and hosts add up.

Role: `read_earlier`. Rule: a group of arms is taken over for a seed only in whole, because its arms are compared with each other and begin
with one warm start, on one host and in equal time. Non-goals: figures (`figures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.earlier_records import read_records
from dart_envs.errors import UnsupportedCapabilityError

BySeed = dict[int, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is not run again.

    Attributes:
        arms: Records of arms by name and seed.
        warm_starts: Records of the warm starts by seed.
        hard_families: Records of the probes by seed.
    """

    arms: dict[str, BySeed] = field(default_factory=dict)
    warm_starts: BySeed = field(default_factory=dict)
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
        for names in groups.values():
            whole = set.intersection(*(set(arms.get(name, {})) for name in names))
            for name in names:
                found.arms.setdefault(name, {}).update({seed: arms[name][seed] for seed in whole})
            for key, into in (("warm_starts", found.warm_starts), ("hard_families", found.hard_families)):
                into.update({seed: row for seed, row in _by_seed(figures.get(key, {})).items() if seed in whole})
    return found


def _by_seed(rows: Mapping[str, dict[str, Any]]) -> BySeed:
    return {int(seed): row for seed, row in rows.items()}
