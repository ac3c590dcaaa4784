"""Which visual tokens a target covers, as the distribution that the action head should attend with.

Role: `PatchGrid` is the grid of an image's visual tokens; `token_targets` gives the target distribution over them, `offset_targets` the one
over the parts of each token's cell. Rule (GUI-Actor, appendix B): a cell is positive where it overlaps a box with an area above 0, so that
a box [l, r) covers the columns floor(l W) to ceil(r W) - 1; the distribution is uniform over the positive cells. With `soft` each positive
cell weighs as much as the share of it that is covered. Comparisons multiply instead of divide, so that boxes on the edges of cells are
exact. Non-goals: losses (`dart_train.grounding`), points (`dart_agent.grounding.regions`).
Axes: M visual tokens, row by row; P parts of a cell, row by row; S parts per side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dart_agent.grounding.samples import Box, GroundingTarget, Polygon, polygon_area

Floats = NDArray[np.float64]
NORMALISER_EPSILON = 1e-8
"""Added to the sum that labels are divided by (GUI-Actor's loss)."""


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """The cells of an image's visual tokens.

    Attributes:
        columns: Cells per row.
        rows: Rows of cells.
        image_wh: (width, height) in pixels of the image that is asked about; the cells divide it evenly, whatever size the model got.
    """

    columns: int
    rows: int
    image_wh: tuple[int, int]

    @classmethod
    def of(cls, grid_thw: Sequence[int], merge_size: int, image_wh: tuple[int, int]) -> PatchGrid:
        """Make the grid of an image.

        Args:
            grid_thw: The processor's patches along time, height and width.
            merge_size: Patches per side that become one visual token, from the processor.
            image_wh: (width, height) of the image in pixels.

        Returns:
            The grid.
        """
        return cls(int(grid_thw[2]) // merge_size, int(grid_thw[1]) // merge_size, image_wh)

    @property
    def cells(self) -> int:
        """Number of visual tokens."""
        return self.columns * self.rows

    @property
    def cell_wh(self) -> tuple[float, float]:
        """(width, height) of a cell in pixels of the image."""
        return self.image_wh[0] / self.columns, self.image_wh[1] / self.rows

    def split(self, parts: int) -> PatchGrid:
        """Divide each cell.

        Args:
            parts: Parts per side.

        Returns:
            The finer grid.
        """
        return PatchGrid(self.columns * parts, self.rows * parts, self.image_wh)

    def centre(self, cell: int) -> tuple[float, float]:
        """Middle of a cell.

        Args:
            cell: Its index, row by row.

        Returns:
            (x, y) in pixels of the image.
        """
        row, column = divmod(cell, self.columns)
        width, height = self.cell_wh
        return (column + 0.5) * width, (row + 0.5) * height


def coverage(grid: PatchGrid, target: GroundingTarget) -> Floats:
    """Which share of each cell a target covers; where its parts overlap, the greatest share counts.

    Args:
        grid: The grid.
        target: The target.

    Returns:
        Shares in [0, 1], [M]; above 0 exactly where the overlap has an area.
    """
    parts = [_box_coverage(grid, box) for box in target.boxes]
    parts += [_polygon_coverage(grid, polygon) for polygon in target.polygons]
    shares: Floats = np.max(parts, axis=0)
    return shares.reshape(-1)


def token_targets(grid: PatchGrid, targets: Sequence[GroundingTarget], *, soft: bool = False) -> Floats:
    """The distributions that the pointer tokens should attend with.

    Args:
        grid: The grid of the image.
        targets: One per pointer token.
        soft: Weigh each cell by the covered share of it, instead of all alike.

    Returns:
        Distributions [K, M].

    Raises:
        ValueError: A target lies outside the image.
    """
    labels = np.stack([coverage(grid, target) for target in targets])
    if not labels.any(axis=1).all():
        raise ValueError("a target lies outside the image: it covers no visual token")
    if not soft:
        labels = (labels > 0).astype(np.float64)
    normalised: Floats = labels / (labels.sum(axis=1, keepdims=True) + NORMALISER_EPSILON)
    return normalised


def offset_targets(grid: PatchGrid, targets: Sequence[GroundingTarget], parts: int) -> Floats:
    """The distributions over the parts of each cell: uniform over those whose middle lies in the target's covered parts.

    Args:
        grid: The grid of the image.
        targets: One per pointer token.
        parts: Parts per side of a cell.

    Returns:
        Distributions [K, M, P] over the P = parts x parts parts, by their covered share; all 0 in cells that a target does not cover.
    """
    fine = np.stack([coverage(grid.split(parts), target) for target in targets])
    cut = fine.reshape(len(targets), grid.rows, parts, grid.columns, parts).transpose(0, 1, 3, 2, 4)
    shares = cut.reshape(len(targets), grid.cells, parts * parts)
    total = shares.sum(axis=2, keepdims=True)
    distributions: Floats = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
    return distributions


def _box_coverage(grid: PatchGrid, box: Box) -> Floats:
    across = _overlap(box[0], box[2], grid.columns, grid.image_wh[0])
    down = _overlap(box[1], box[3], grid.rows, grid.image_wh[1])
    shares: Floats = down[:, None] * across[None]
    return shares


def _overlap(low: float, high: float, cells: int, length: int) -> Floats:
    """Which share of each of `cells` equal parts of [0, length] the interval [low, high] covers; cell i is [i, i + 1] x length."""
    edges = np.arange(cells + 1, dtype=np.float64) * length
    shared = np.minimum(high * cells, edges[1:]) - np.maximum(low * cells, edges[:-1])
    shares: Floats = np.clip(shared / length, 0.0, 1.0)
    return shares


def _polygon_coverage(grid: PatchGrid, polygon: Polygon) -> Floats:
    """Area of the polygon in each cell, cut off one side of the cell after the other (Sutherland and Hodgman)."""
    shares: Floats = np.zeros((grid.rows, grid.columns), np.float64)
    scaled = [(x * grid.columns / grid.image_wh[0], y * grid.rows / grid.image_wh[1]) for x, y in polygon]
    for row in range(grid.rows):
        band = _cut(_cut(scaled, 1, row, 1), 1, row + 1, -1)
        for column in range(grid.columns) if band else ():
            piece = _cut(_cut(band, 0, column, 1), 0, column + 1, -1)
            shares[row, column] = min(1.0, polygon_area(piece))
    return shares


def _cut(corners: list[tuple[float, float]], axis: int, at: float, side: int) -> list[tuple[float, float]]:
    """The part of a polygon with side x (coordinate - at) >= 0."""
    kept: list[tuple[float, float]] = []
    for index, corner in enumerate(corners):
        previous = corners[index - 1]
        here, before = side * (corner[axis] - at), side * (previous[axis] - at)
        if (here >= 0) != (before >= 0):
            share = before / (before - here)
            kept.append(
                (previous[0] + share * (corner[0] - previous[0]), previous[1] + share * (corner[1] - previous[1]))
            )
        if here >= 0:
            kept.append(corner)
    return kept
