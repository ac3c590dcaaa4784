"""From attention over visual tokens to candidate points.

Role: `find_regions` joins attended cells to regions and orders them; `verifier_pool` makes the longer list that a verifier chooses from.
Rule (GUI-Actor's code): cells above a share of the greatest attention, 4-connected, a region's point is the attention-weighted mean of its
cells' points. A region is scored by the mean of its attention as published, by its sum or by its maximum. Equal scores keep the order of
their first cells, row by row. Non-goals: where the attention comes from (`dart_agent.grounding.grounder`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dart_agent.grounding.labels import Floats, PatchGrid
from dart_agent.grounding.scoring import Point

RegionScore = Literal["mean", "sum", "max"]
REGION_THRESHOLD = 0.3
"""Cells above this share of the greatest attention belong to a region."""
POOL_THRESHOLD = 0.2
POOL_CELLS = 20
"""The verifier's pool: cells above `POOL_THRESHOLD` of the greatest attention, at most so many."""


_SCORES: Mapping[RegionScore, Callable[[Floats], float]] = {
    "mean": lambda weights: float(weights.mean()),
    "sum": lambda weights: float(weights.sum()),
    "max": lambda weights: float(weights.max()),
}


@dataclass(frozen=True, slots=True)
class Region:
    """Attended cells that touch.

    Attributes:
        cells: Indices of the cells, the first by rows first.
        score: What regions are ordered by.
        point: (x, y) in pixels of the image.
    """

    cells: tuple[int, ...]
    score: float
    point: Point


def find_regions(
    attention_M: ArrayLike,
    grid: PatchGrid,
    *,
    score: RegionScore = "mean",
    threshold: float = REGION_THRESHOLD,
    points_M2: Floats | None = None,
) -> list[Region]:
    """Find the regions of an attention map, the best first.

    Args:
        attention_M: Attention over the visual tokens.
        grid: Their grid.
        score: How a region is scored.
        threshold: Share of the greatest attention above which a cell counts.
        points_M2: Where in each cell the target lies, in pixels of the image; None: in its middle.

    Returns:
        At least one region.
    """
    attention = np.asarray(attention_M, np.float64)
    kept = np.flatnonzero(attention > threshold * attention.max())
    return _ordered_regions(attention, grid, kept.tolist(), score, points_M2)


def verifier_pool(
    attention_M: ArrayLike, grid: PatchGrid, *, score: RegionScore = "mean", points_M2: Floats | None = None
) -> list[Point]:
    """The points that a verifier chooses from, in the order in which it looks at them.

    Args:
        attention_M: Attention over the visual tokens.
        grid: Their grid.
        score: How a region is scored.
        points_M2: As in `find_regions`.

    Returns:
        Points of the regions by score, then of the single cells by attention; the same point once.
    """
    attention = np.asarray(attention_M, np.float64)
    by_attention = np.argsort(-attention, kind="stable")
    kept = [int(cell) for cell in by_attention if attention[cell] > POOL_THRESHOLD * attention.max()][:POOL_CELLS]
    regions = _ordered_regions(attention, grid, sorted(kept), score, points_M2)
    points = [region.point for region in regions] + [_cell_point(grid, cell, points_M2) for cell in kept]
    return list(dict.fromkeys(points))


def _ordered_regions(
    attention: Floats, grid: PatchGrid, kept: Sequence[int], score: RegionScore, points_M2: Floats | None
) -> list[Region]:
    found = []
    for cells in _connected(kept, grid):
        weights = attention[list(cells)]
        points = np.array([_cell_point(grid, cell, points_M2) for cell in cells])
        x, y = (weights / weights.sum()) @ points
        found.append(Region(cells, _SCORES[score](weights), (float(x), float(y))))
    return sorted(found, key=lambda region: -region.score)


def _connected(kept: Sequence[int], grid: PatchGrid) -> Iterator[tuple[int, ...]]:
    """Groups of cells that share a side, in the order of their first cells."""
    left = dict.fromkeys(kept)
    while left:
        first = next(iter(left))
        del left[first]
        group, queue = [first], deque([first])
        while queue:
            row, column = divmod(queue.popleft(), grid.columns)
            for near_row, near_column in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                near = near_row * grid.columns + near_column
                if 0 <= near_column < grid.columns and near in left:
                    del left[near]
                    group.append(near)
                    queue.append(near)
        yield tuple(sorted(group))


def _cell_point(grid: PatchGrid, cell: int, points_M2: Floats | None) -> Point:
    if points_M2 is None:
        return grid.centre(cell)
    return float(points_M2[cell, 0]), float(points_M2[cell, 1])
