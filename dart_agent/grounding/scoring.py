"""Whether an answer is right, and the hit rates of many answers.

Role: `is_hit` judges one point or refusal against a `GroundingSample`; `hit_rates` counts. Rule: a point on the border of a box is inside
(ScreenSpot's rule, l <= x <= r and t <= y <= b); polygons are judged by ray casting, with their border inside unless the target follows
OSWorld-G's scorer; where nothing fits, only a refusal is right, and where something does, a refusal is wrong; an answer that cannot be read
is wrong. Micro is the mean over samples, macro the mean over the classes' means; a score names which it is. Non-goals: reading foreign
data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from dart_agent.grounding.samples import Box, GroundingSample, GroundingTarget, Polygon, PolygonBorder

Point = tuple[float, float]
"""(x, y) in pixels of the image."""


def in_box(point: Point, box: Box) -> bool:
    """Whether a point is in a box, borders included.

    Args:
        point: The point.
        box: The box.

    Returns:
        True on the borders, too.
    """
    (x, y), (left, top, right, bottom) = point, box
    return left <= x <= right and top <= y <= bottom


def in_polygon(point: Point, polygon: Polygon, border: PolygonBorder = "inside") -> bool:
    """Whether a point is in a polygon.

    Args:
        point: The point.
        polygon: The corners.
        border: Whether all of the border is inside, or what the ray says of it: with "even-odd" left and upper borders of an upright
            rectangle are inside, right and lower ones outside.

    Returns:
        True where a ray from the point to the right crosses the border an odd number of times.
    """
    x, y = point
    inside = False
    for (x0, y0), (x1, y1) in zip(polygon, (*polygon[1:], polygon[0]), strict=True):
        across = (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)
        if border == "inside" and across == 0 and min(x0, x1) <= x <= max(x0, x1) and min(y0, y1) <= y <= max(y0, y1):
            return True
        if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
            inside = not inside
    return inside


def in_target(point: Point, target: GroundingTarget) -> bool:
    """Whether a point is in one of a target's boxes or polygons.

    Args:
        point: The point.
        target: The target.

    Returns:
        Whether it is.
    """
    return any(in_box(point, box) for box in target.boxes) or any(
        in_polygon(point, polygon, target.polygon_border) for polygon in target.polygons
    )


def is_hit(sample: GroundingSample, points: Sequence[Point] | None) -> bool:
    """Judge one answer.

    Args:
        sample: The question.
        points: One point per target, in order; none: the policy refuses; None: the answer could not be read.

    Returns:
        Whether the answer is right.
    """
    if points is None or len(points) != len(sample.targets):
        return False
    return all(in_target(point, target) for point, target in zip(points, sample.targets, strict=True))


def is_hit_at(sample: GroundingSample, candidates: Sequence[Sequence[Point]], k: int) -> bool:
    """Judge whether one of the first answers is right.

    Args:
        sample: The question.
        candidates: Answers as in `is_hit`, the best first.
        k: How many count.

    Returns:
        Whether one of them is right.
    """
    return any(is_hit(sample, points) for points in candidates[:k])


@dataclass(frozen=True, slots=True)
class HitRates:
    """Hit rates of one set of answers.

    Attributes:
        samples: How many were judged.
        micro: Mean over samples; NaN without any.
        macro: Mean over the means of the classes; NaN without any.
        by_class: By class: (right, judged).
    """

    samples: int
    micro: float
    macro: float
    by_class: dict[Hashable, tuple[int, int]]


def hit_rates(
    judged: Iterable[tuple[GroundingSample, bool]], classify: Callable[[GroundingSample], Hashable]
) -> HitRates:
    """Count hits.

    Args:
        judged: Samples, each with whether its answer is right.
        classify: The class of a sample.

    Returns:
        The rates.
    """
    tallies: dict[Hashable, list[int]] = defaultdict(lambda: [0, 0])
    for sample, hit in judged:
        tally = tallies[classify(sample)]
        tally[0] += hit
        tally[1] += 1
    right, total = sum(hits for hits, _ in tallies.values()), sum(count for _, count in tallies.values())
    means = [hits / count for hits, count in tallies.values()]
    return HitRates(
        samples=total,
        micro=right / total if total else float("nan"),
        macro=sum(means) / len(means) if means else float("nan"),
        by_class={name: (hits, count) for name, (hits, count) in tallies.items()},
    )


def label_rates(
    judged: Iterable[tuple[GroundingSample, bool]], labels: Callable[[GroundingSample], Iterable[str]]
) -> dict[str, tuple[int, int]]:
    """Count hits by labels of which a sample may have any number.

    Args:
        judged: Samples, each with whether its answer is right.
        labels: The labels of a sample.

    Returns:
        By label, sorted: (right, judged).
    """
    tallies: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for sample, hit in judged:
        for label in labels(sample):
            tallies[label][0] += hit
            tallies[label][1] += 1
    return {name: (tallies[name][0], tallies[name][1]) for name in sorted(tallies)}
