"""Means and ratios of explorations.

Role: `means` of the explorations of an arm, `ratio` of two arms with its interval. Rule: the two arms explored the same applications with
the same seeds; the interval is that of a bootstrap that draws applications, and then seeds of each drawn application, with both arms kept
together. Non-goals: tests of significance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np

DRAWS = 4000
NOTES = ("seed", "application", "commit", "cpu")
"""What of an exploration is no figure."""
Found = Mapping[str, Sequence[float]]
"""By application: what was found with each seed."""


def means(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of an arm.

    Args:
        cells: Its explorations.

    Returns:
        Means of all numbers, screens and elements per step, and the explorations themselves.
    """
    names = [name for name, value in cells[0].items() if name not in NOTES]
    found = {name: [cell[name] for cell in cells if cell[name] is not None] for name in names}
    rates = {
        f"{name}_per_step": round(sum(found[name]) / sum(found["steps"]), 4)
        for name in ("screens", "elements_tried", "elements_seen")
    }
    return {name: round(mean(values), 3) for name, values in found.items() if values} | rates | {"runs": list(cells)}


def ratio(ours: Found, theirs: Found) -> dict[str, Any]:
    """Compare two arms.

    Args:
        ours: What the first arm found.
        theirs: What the second one found, for the same applications and as many seeds.

    Returns:
        `ratio` of the means, and its 95 % `interval`.

    Raises:
        ValueError: The arms explored different applications, or had different numbers of seeds.
    """
    if {name: len(found) for name, found in ours.items()} != {name: len(found) for name, found in theirs.items()}:
        raise ValueError("the two arms did not explore the same")
    pairs = [np.array([ours[name], theirs[name]], float) for name in ours]
    rng = np.random.default_rng(0)
    applications = rng.integers(len(pairs), size=(DRAWS, len(pairs)))
    drawn = np.zeros((2, DRAWS))
    for at, pair in enumerate(pairs):
        seeds = rng.integers(pair.shape[1], size=(DRAWS, len(pairs), pair.shape[1]))
        drawn += (pair[:, seeds].sum(axis=3) * (applications == at)).sum(axis=2)
    total = np.sum([pair.sum(axis=1) for pair in pairs], axis=0)
    low, high = np.quantile(drawn[0] / drawn[1], (0.025, 0.975))
    return {"ratio": round(float(total[0] / total[1]), 2), "interval": [round(float(low), 2), round(float(high), 2)]}
