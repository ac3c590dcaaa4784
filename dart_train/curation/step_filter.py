"""Step filter: train on the steps at which the policy was undecided (DART's high-entropy steps).

Role: of the steps of one group, keep the given fraction with the highest mean token entropy. Rule: a step is kept when its entropy is at
least the (1 - fraction) quantile of its group. Source: DART (arXiv 2509.23866), top 80 % of the group's steps; its released code does not
contain the rule. Entropies are those of the trainer's policy before the update. Non-goals: selecting single tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def select_high_entropy(entropies: Sequence[float], fraction: float) -> list[bool]:
    """Select the steps of one group with the highest entropy.

    Args:
        entropies: Mean token entropy per step, in nats.
        fraction: Fraction to keep, in (0, 1]; 1 keeps all.

    Returns:
        Whether each step is kept.

    Raises:
        ValueError: The fraction is out of range.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"the kept fraction of steps is in (0, 1], not {fraction}")
    if fraction == 1 or not entropies:
        return [True] * len(entropies)
    threshold = float(np.quantile(np.asarray(entropies, dtype=np.float64), 1 - fraction))
    return [entropy >= threshold for entropy in entropies]
