"""The arms of the ablation: what each changes in the common recipe.

Role: `ARMS`, `arm_overrides`, `sampling_overrides` and `is_of_today`. Rule: pure data, declared before anything runs. `full` has every
part; each `no_...` is `full` without one part; `plain` is GRPO without any. The pair `stale` and `stale_uncorrected` is plain GRPO on a
perturbed engine that gets its weights late, with and without the importance weights. Non-goals: running (`session`), figures (`figures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.ablation.dialogs import TRAINED

Overrides = Mapping[str, Any]
"""Values by `section.key` of the recipe."""

FULL: Overrides = {
    "curation.preset": "adaptive",
    "curation.evidence": "family",
    "curation.high_entropy_token_fraction": 0.5,
    "train.tis_cap": 2.0,
}
PLAIN: Overrides = {"curation.preset": "none", "train.tis_cap": "none"}
PARTS: Mapping[str, Overrides] = {
    "rollout_number": {"curation.dynamic_rollout_number": False},
    "task_sampling": {"curation.task_sampling": "uniform"},
    "length_budget": {"curation.dynamic_trajectory_length": False},
    "experience_pool": {"curation.experience_pool": False},
    "step_selection": {"curation.high_entropy_step_fraction": 1.0},
    "token_selection": {"curation.high_entropy_token_fraction": 1.0},
    "importance_sampling": {"train.tis_cap": "none"},
}
"""What removes each part from `full`."""
STALE: Overrides = {**PLAIN, "curation.max_staleness": 16}
"""The gate is wide open: correcting old tokens is what is measured."""
HARD_FULL: Overrides = {**FULL, "curation.pool_max_age": "none"}
"""Imported successes have version 0: with an age limit they would leave the pool after so many updates, whatever they are worth."""


IMITATED: Overrides = {"train.sft_coefficient": 0.5}
"""The gradient of the imitation term is then about as long as that of the policy loss: 6 and 3 at the first updates, before weights."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm.

    Attributes:
        name: Its name.
        overrides: What it changes in the common recipe.
        perturbed: Whether the engine samples from perturbed, late weights.
        hard: Whether it trains on the hard families, too, and is judged on them.
        imported: Whether its experience pool begins with the successes of another policy on the hard families.
    """

    name: str
    overrides: Overrides = field(default_factory=dict)
    perturbed: bool = False
    hard: bool = False
    imported: bool = False


def _arms() -> dict[str, Arm]:
    found = [Arm("full", FULL), Arm("plain", PLAIN)]
    found += [Arm(f"no_{part}", {**FULL, **removed}) for part, removed in PARTS.items()]
    found += [
        Arm("stale", {**STALE, "train.tis_cap": 2.0}, perturbed=True),
        Arm("stale_uncorrected", STALE, perturbed=True),
    ]
    found += [
        Arm("hard_no_pool", {**HARD_FULL, **PARTS["experience_pool"]}, hard=True),
        Arm("hard_pool", HARD_FULL, hard=True, imported=True),
        Arm("hard_pool_sft", {**HARD_FULL, **IMITATED}, hard=True, imported=True),
    ]
    return {arm.name: arm for arm in found}


ARMS: Mapping[str, Arm] = _arms()
CURATION_ARMS = ("full", "plain", *(f"no_{part}" for part in PARTS))
STALE_ARMS = ("stale", "stale_uncorrected")
HARD_ARMS = ("hard_no_pool", "hard_pool", "hard_pool_sft")


def is_of_today(name: str, record: Mapping[str, Any]) -> bool:
    """Tell whether the record of an arm was measured with what the arm changes today.

    Args:
        name: The arm.
        record: Its record; one that does not say what was changed counts.

    Returns:
        Whether it was.
    """
    return bool(record.get("changes", ARMS[name].overrides) == ARMS[name].overrides)


def arm_overrides(arm: Arm, *, seed: int, minutes: float, model: str, hard_families: tuple[str, ...]) -> dict[str, Any]:
    """Compute what the run of an arm changes in the common recipe.

    Args:
        arm: The arm.
        seed: Seed of the run.
        minutes: Minutes of training.
        model: Folder of the seed's warm start.
        hard_families: Families that were found to be hard.

    Returns:
        Values by `section.key`.
    """
    families = [*TRAINED, *hard_families] if arm.hard else list(TRAINED)
    return {
        "run.name": f"{arm.name.replace('_', '-')}-{seed}",
        "run.seed": seed,
        "model.preset": None,
        "model.path": model,
        "warmup.enabled": False,
        "demos.per_family": 0,
        "warmup.imitated_demos_per_family": 0,
        "tasks.families": families,
        "train.max_minutes": minutes,
        **arm.overrides,
    }


def sampling_overrides(overrides: Overrides, families: Sequence[str]) -> dict[str, Any]:
    """Compute what the recipe of an evaluation on some families changes in that of a run.

    Args:
        overrides: What the run changes.
        families: The families.

    Returns:
        Values by `section.key`. No evaluation during training is asked for: it may need more tasks than these families have.
    """
    return {**overrides, "tasks.families": list(families), "eval.every_minutes": None}
