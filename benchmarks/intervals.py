"""Paired intervals of two methods that answered the same questions.

Role: `paired` gives the ratio and the difference of two hit rates with 95 % intervals. Rule: a bootstrap that draws seeds, and then screens
of each drawn seed, with both methods' answers to a screen kept together; questions of one screen are not independent. Where screens are not
independent either, as those of an application, the id of a sample begins with what is. With three seeds the
interval is as wide as three seeds allow. Non-goals: tests of significance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

DRAWS = 4000
Hits = Mapping[str, bool]
"""By sample: whether the answer is right. Up to its last slash, a sample's id is that of what is drawn, its screen or application."""


def hit_rate(hits_S: Sequence[Hits]) -> float:
    """Mean over all samples of all seeds.

    Args:
        hits_S: Answers by seed.

    Returns:
        The rate.
    """
    every = [hit for hits in hits_S for hit in hits.values()]
    return float(np.mean(every))


def paired(ours_S: Sequence[Hits], theirs_S: Sequence[Hits], *, shared: bool = False) -> dict[str, Any]:
    """Compare two methods.

    Args:
        ours_S: Answers of one method by seed.
        theirs_S: Answers of the other one to the same samples.
        shared: Whether all seeds answered about the same screens, which are drawn once for all of them then. Screens of different seeds are
            drawn apart otherwise.

    Returns:
        Both rates, `ratio` and `difference` of the first to the second, and their intervals; a ratio to 0 is None.

    Raises:
        ValueError: The methods answered different samples, or seeds that share their screens did.
    """
    screens_S = []
    for ours, theirs in zip(ours_S, theirs_S, strict=True):
        if ours.keys() != theirs.keys():
            raise ValueError("the two methods answered different samples")
        by_screen: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for name in ours:
            counts = by_screen[name.rpartition("/")[0]]
            counts[0] += ours[name]
            counts[1] += theirs[name]
            counts[2] += 1
        screens_S.append(np.array([by_screen[name] for name in sorted(by_screen)], float))
    rng = np.random.default_rng(0)
    sums = np.zeros((DRAWS, 3))
    if shared and any(ours.keys() != ours_S[0].keys() for ours in ours_S):
        raise ValueError("the seeds share their screens, and answered different samples")
    for draw in range(DRAWS):
        common = rng.integers(len(screens_S[0]), size=len(screens_S[0])) if shared else None
        for seed in rng.integers(len(screens_S), size=len(screens_S)):
            screens = screens_S[seed]
            drawn = rng.integers(len(screens), size=len(screens)) if common is None else common
            sums[draw] += screens[drawn].sum(axis=0)
    total = np.sum([screens.sum(axis=0) for screens in screens_S], axis=0)
    some = sums[:, 1] > 0
    ratios, differences = sums[some, 0] / sums[some, 1], (sums[:, 0] - sums[:, 1]) / sums[:, 2]
    return {
        "ours": round(total[0] / total[2], 4),
        "theirs": round(total[1] / total[2], 4),
        "ratio": round(total[0] / total[1], 3) if total[1] else None,
        "ratio_interval": _interval(ratios) if some.all() else None,
        "difference": round((total[0] - total[1]) / total[2], 4),
        "difference_interval": _interval(differences),
        "samples": int(total[2]),
    }


def _interval(values: np.ndarray) -> list[float]:
    return [round(float(end), 4) for end in np.quantile(values, (0.025, 0.975))]
