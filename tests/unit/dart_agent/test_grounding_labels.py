"""Labels, regions and scores, with what lies on an edge."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from dart_agent.errors import ConfigError
from dart_agent.grounding.labels import PatchGrid, coverage, offset_targets, token_targets
from dart_agent.grounding.regions import find_regions, verifier_pool
from dart_agent.grounding.samples import GroundingSample, GroundingTarget, read_samples, write_samples
from dart_agent.grounding.scoring import hit_rates, in_box, in_polygon, is_hit, is_hit_at

GRID = PatchGrid(4, 3, (128, 96))
L_SHAPE = ((0.0, 0.0), (64.0, 0.0), (64.0, 32.0), (32.0, 32.0), (32.0, 96.0), (0.0, 96.0))


def box(left: float, top: float, right: float, bottom: float) -> GroundingTarget:
    return GroundingTarget(boxes=((left, top, right, bottom),))


def sample(*targets: GroundingTarget, **fields: object) -> GroundingSample:
    content = {"sample_id": "s", "image": "a.png", "image_wh": (128, 96), "instruction": "click it", "targets": targets}
    return GroundingSample.model_validate(content | fields)


def positives(grid: PatchGrid, target: GroundingTarget) -> list[int]:
    return np.flatnonzero(token_targets(grid, [target])[0]).tolist()


@pytest.mark.parametrize(
    ("edges", "cells"),
    [
        ((32, 32, 64, 64), [5]),  # on the edges of a cell: its neighbours only touch
        ((31, 32, 64, 64), [4, 5]),
        ((32, 32, 65, 64), [5, 6]),
        ((32, 31, 64, 65), [1, 5, 9]),
        ((40, 40, 41, 41), [5]),  # tiny, within one cell
        ((0, 0, 128, 96), list(range(12))),
        ((63.5, 63.5, 64.5, 64.5), [5, 6, 9, 10]),
        ((-20, -20, 10, 10), [0]),  # partly outside
    ],
)
def test_a_cell_is_positive_where_the_overlap_has_an_area(
    edges: tuple[float, float, float, float], cells: list[int]
) -> None:
    assert positives(GRID, box(*edges)) == cells


@pytest.mark.parametrize("columns", [3, 7, 11, 13, 40, 60])
def test_columns_are_those_of_the_published_rule(columns: int) -> None:
    """floor(l W) to ceil(r W) - 1 on every pixel edge of a width that the grid does not divide."""
    width = 1013
    grid = PatchGrid(columns, 1, (width, 10))
    for left in range(0, width, 7):
        for right in (left + 1, min(width, left + 30)):
            wanted = list(range(left * columns // width, -(-right * columns // width)))
            assert positives(grid, box(left, 0, right, 10)) == wanted


def test_labels_sum_to_one_and_soft_ones_follow_the_covered_share() -> None:
    target = box(16, 0, 64, 32)  # half of cell 0, all of cell 1
    hard, soft = token_targets(GRID, [target]), token_targets(GRID, [target], soft=True)
    assert hard[0, :2] == pytest.approx([1 / 2, 1 / 2])
    assert soft[0, :2] == pytest.approx([1 / 3, 2 / 3])
    assert hard.sum() == pytest.approx(1)


def test_two_boxes_and_drags() -> None:
    two = GroundingTarget(boxes=((0, 0, 32, 32), (96, 64, 128, 96)))
    labels = token_targets(GRID, [two, box(32, 0, 64, 32)])
    assert labels.shape == (2, 12)
    assert labels[0].nonzero()[0].tolist() == [0, 11]
    assert labels[1].nonzero()[0].tolist() == [1]


def test_a_polygon_covers_what_is_in_it() -> None:
    assert coverage(GRID, GroundingTarget(polygons=(L_SHAPE,))).tolist() == [1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    triangle = GroundingTarget(polygons=(((0, 0), (32, 0), (0, 32)),))
    assert coverage(GRID, triangle)[0] == pytest.approx(0.5)
    assert coverage(GRID, triangle)[1:].sum() == 0


def test_a_target_outside_the_image_has_no_label() -> None:
    with pytest.raises(ValueError, match="outside the image"):
        token_targets(GRID, [box(128, 0, 140, 20)])


def test_offsets_are_parts_of_covered_cells() -> None:
    labels = offset_targets(GRID, [box(48, 32, 64, 64)], 2)  # the right half of cell 5
    assert labels.shape == (1, 12, 4)
    assert labels[0, 5].tolist() == [0, 0.5, 0, 0.5]
    assert labels[0, [0, 4, 6]].sum() == 0


def test_regions_are_joined_by_sides_and_ordered_by_score() -> None:
    attention = np.zeros(12)
    attention[[0, 1]] = 0.2, 0.1  # a region of two
    attention[6] = 0.18  # touches cell 1 by a corner only
    by_mean = find_regions(attention, GRID)
    assert [region.cells for region in by_mean] == [(6,), (0, 1)]
    assert by_mean[1].point == pytest.approx(((16 * 0.2 + 48 * 0.1) / 0.3, 16))
    assert [region.cells for region in find_regions(attention, GRID, score="sum")] == [(0, 1), (6,)]
    assert [region.score for region in find_regions(attention, GRID, score="max")] == [0.2, 0.18]
    assert [region.cells for region in find_regions(attention, GRID, threshold=0.95)] == [(0,)]


def test_regions_do_not_wrap_around_the_screen() -> None:
    attention = np.zeros(12)
    attention[[3, 4]] = 0.5  # the end of a row and the start of the next
    assert [region.cells for region in find_regions(attention, GRID)] == [(3,), (4,)]


def test_the_pool_has_regions_before_cells_and_no_point_twice() -> None:
    attention = np.zeros(12)
    attention[[0, 1, 6]] = 0.2, 0.1, 0.18
    pool = verifier_pool(attention, GRID)
    assert pool[0] == GRID.centre(6)
    assert pool[1] == find_regions(attention, GRID)[1].point
    assert pool[2:] == [GRID.centre(0), GRID.centre(1)]
    many = PatchGrid(30, 1, (300, 10))
    assert len(verifier_pool(np.full(30, 1 / 30), many)) == 21  # one region, and at most 20 cells


def test_borders_are_inside() -> None:
    edges = (10.0, 20.0, 30.0, 40.0)
    for point in ((10, 20), (30, 40), (30, 20), (20, 40)):
        assert in_box(point, edges)
    assert not in_box((30.001, 40), edges)
    assert in_polygon((32, 50), L_SHAPE)  # on the inner edge
    assert in_polygon((64, 0), L_SHAPE)
    assert in_polygon((10, 90), L_SHAPE)
    assert not in_polygon((50, 50), L_SHAPE)
    assert not in_polygon((65, 10), L_SHAPE)
    assert not in_polygon((-1, 32), L_SHAPE)  # level with a corner


def test_refusals_and_drags() -> None:
    nothing, drag = sample(), sample(box(0, 0, 10, 10), box(50, 50, 60, 60))
    assert is_hit(nothing, ())
    assert not is_hit(nothing, None)
    assert not is_hit(nothing, [(1, 1)])
    assert not is_hit(drag, ())
    assert is_hit(drag, [(5, 5), (60, 60)])
    assert not is_hit(drag, [(60, 60), (5, 5)])
    assert is_hit_at(drag, [[(60, 60), (5, 5)], [(5, 5), (55, 55)]], 2)
    assert not is_hit_at(drag, [[(60, 60), (5, 5)], [(5, 5), (55, 55)]], 1)


def test_macro_is_the_mean_of_the_classes() -> None:
    judged = [(sample(box(0, 0, 1, 1), group="a"), True)] + [
        (sample(box(0, 0, 1, 1), group="b"), hit) for hit in (False, False, True)
    ]
    rates = hit_rates(judged, lambda item: item.group)
    assert (rates.samples, rates.micro, rates.macro) == (4, 0.5, pytest.approx((1 + 1 / 3) / 2))
    assert rates.by_class == {"a": (1, 1), "b": (1, 3)}
    assert math.isnan(hit_rates([], lambda item: item.group).micro)


def test_samples_are_read_as_written(tmp_path: Path) -> None:
    written = [
        sample(box(0, 0, 10, 10), application="Mousepad"),
        sample(GroundingTarget(polygons=(L_SHAPE,))),
        sample(),
    ]
    assert write_samples(tmp_path / "samples.jsonl", written) == 3
    assert list(read_samples(tmp_path / "samples.jsonl")) == written
    assert written[1].targets[0].bounds() == (0, 0, 64, 96)


def test_wrong_samples_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(sample().model_dump_json() + '\n{"sample_id": "x"}\n')
    with pytest.raises(ConfigError, match=r"line 2 of .* is no grounding sample"):
        list(read_samples(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_samples(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match="left < right"):
        box(10, 0, 10, 5)
