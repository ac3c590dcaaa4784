"""The one type of a grounding sample, and its file of lines.

Role: `GroundingSample` says what is asked about an image and which answers are right; `read_samples` and `write_samples` keep samples as
JSON lines beside their images. Rule: all coordinates are pixels of the image, origin at its top left corner; `Box` has the edges
(left, top, right, bottom) as real numbers, and both borders count as inside when a point is scored, as the benchmarks do. The name of an
image does not lead out of the folder of the samples; links in that folder are followed. Non-goals: foreign formats
(`dart_agent.grounding.datasets`), whether a point is right (`dart_agent.grounding.scoring`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, ValidationError, field_validator, model_validator

from dart_agent.errors import ConfigError
from dart_agent.strict_model import StrictModel, format_validation_error
from dart_envs.types import RgbImage

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels of the image; right and bottom are the edges, so that the width is right - left."""
Polygon = tuple[tuple[float, float], ...]
"""Corners (x, y) in pixels of the image, in order; the last is joined to the first."""
QueryKind = Literal["name", "visual", "positional", "functional", "outcome"]
"""How a query describes its target: by its name or text, by its look, by its place, by what it does, by what happens after it."""
PolygonBorder = Literal["inside", "even-odd"]
"""Whether the border of a polygon is inside, or each point of it where an even-odd ray to the right says (OSWorld-G's scorer)."""
MIN_CORNERS = 3
LEAST_AREA_PX2 = 1e-6
"""Area from which a target can be hit and learnt, in square pixels: corners on a line have less, whatever rounding makes of it."""


def polygon_area(corners: Sequence[tuple[float, float]]) -> float:
    """The area of a polygon.

    Args:
        corners: Its corners (x, y), in order.

    Returns:
        The absolute value of the shoelace formula; what is surrounded once in each direction cancels.
    """
    twice = sum(
        corners[index - 1][0] * corner[1] - corner[0] * corners[index - 1][1] for index, corner in enumerate(corners)
    )
    return abs(twice) / 2


def leads_outside(name: str) -> bool:
    """Whether a file's name leads out of the folder that it is relative to.

    Args:
        name: The name, with slashes.

    Returns:
        True for an absolute name and for one with `..`.
    """
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts


class GroundingTarget(StrictModel):
    """What one answer may point at: any of the boxes or polygons, each of which has an area.

    Attributes:
        boxes: Right places.
        polygons: Right places with other outlines.
        polygon_border: Which points of a polygon's border are right.
    """

    boxes: tuple[Box, ...] = ()
    polygons: tuple[Polygon, ...] = ()
    polygon_border: PolygonBorder = "inside"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.boxes and not self.polygons:
            raise ValueError("a target needs a box or a polygon")
        for left, top, right, bottom in self.boxes:
            if not (left < right and top < bottom):
                raise ValueError(
                    f"a box is (left, top, right, bottom) with left < right and top < bottom, not {self.boxes}"
                )
        if any(len(polygon) < MIN_CORNERS for polygon in self.polygons):
            raise ValueError("a polygon needs at least three corners")
        for left, top, right, bottom in self.boxes:
            if (right - left) * (bottom - top) < LEAST_AREA_PX2:
                raise ValueError(f"a target needs an area, which the box {(left, top, right, bottom)} lacks: remove it")
        for polygon in self.polygons:
            if polygon_area(polygon) < LEAST_AREA_PX2:
                raise ValueError(f"a target needs an area, which the polygon {polygon} lacks: correct or remove it")
        return self

    def bounds(self) -> Box:
        """The smallest box around the whole target."""
        xs = [x for box in self.boxes for x in (box[0], box[2])] + [x for polygon in self.polygons for x, _ in polygon]
        ys = [y for box in self.boxes for y in (box[1], box[3])] + [y for polygon in self.polygons for _, y in polygon]
        return min(xs), min(ys), max(xs), max(ys)


class GroundingSample(StrictModel):
    """One question about one image, with its right answers.

    Attributes:
        sample_id: Unique in its file.
        image: The image's file, relative to the folder of the file of samples; it does not lead out of that folder.
        image_wh: (width, height) of the image in pixels.
        instruction: What is asked, such as "click the element that saves the file".
        targets: In order: one for a click, start and end for a drag. None of them: nothing on the image fits, and to refuse is right.
        application: Name of the application that owns the target; "" where it is not known.
        element_type: "text" or "icon", as the benchmarks tell them apart, or a category of the data set; "" where it is not known.
        role: Role of the target in the accessibility tree; "" where it is not known.
        kind: How the query describes the target.
        screen_id: Which screen the image shows. Samples of one screen belong into one split.
        platform: Kind of system or device that the image shows, as the data set names it; "" where it is not known.
        group: Further class for scores, such as a benchmark's group of applications.
        categories: Abilities that the question tests, where a benchmark names several for one question.
        distractors: Other elements of the screen, each with its role: hard negatives of a verifier.
    """

    sample_id: str = Field(min_length=1)
    image: str = Field(min_length=1)
    image_wh: tuple[int, int]
    instruction: str = Field(min_length=1)
    targets: tuple[GroundingTarget, ...]
    application: str = ""
    element_type: str = ""
    role: str = ""
    kind: QueryKind = "name"
    screen_id: str = ""
    platform: str = ""
    group: str = ""
    categories: tuple[str, ...] = ()
    distractors: tuple[tuple[str, Box], ...] = ()

    @field_validator("image")
    @classmethod
    def _check_image(cls, image: str) -> str:
        if leads_outside(image):
            raise ValueError(
                f"{image} leads out of the folder of the samples: move the image into that folder and name it relative to it"
            )
        return image

    @model_validator(mode="after")
    def _check(self) -> Self:
        if min(self.image_wh) < 1:
            raise ValueError(f"image_wh is (width, height) in pixels, not {self.image_wh}")
        return self

    @property
    def is_refusal(self) -> bool:
        """Whether nothing on the image fits, so that only a refusal is right."""
        return not self.targets


def read_samples(path: Path) -> Iterator[GroundingSample]:
    """Read a file of samples.

    Args:
        path: JSON lines, one sample each.

    Yields:
        The samples in the order of the file.

    Raises:
        ConfigError: The file cannot be read, or a line is no sample; the sentence names the line.
    """
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the grounding samples {path} cannot be read: {error.strerror}") from None
    with file:
        for number, line in enumerate(file, 1):
            try:
                yield GroundingSample.model_validate_json(line)
            except ValidationError as error:
                raise ConfigError(
                    f"line {number} of {path} is no grounding sample: {format_validation_error(error)}"
                ) from None


def write_samples(path: Path, samples: Iterable[GroundingSample]) -> int:
    """Write a file of samples, completely or not at all.

    Args:
        path: The file; images lie relative to its folder.
        samples: The samples.

    Returns:
        How many were written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    count = 0
    with temporary.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(sample.model_dump_json(exclude_defaults=True) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return count


def read_image(path: Path, image_wh: tuple[int, int] | None = None) -> RgbImage:
    """Read an image file.

    Args:
        path: PNG, JPEG or WebP.
        image_wh: (width, height) that its samples say; None: any.

    Returns:
        uint8 [H, W, 3].

    Raises:
        ConfigError: It cannot be read, or has another size.
    """
    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
    except OSError as error:
        raise ConfigError(f"the image {path} cannot be read: {error}") from None
    if image_wh is not None and (pixels.shape[1], pixels.shape[0]) != image_wh:
        raise ConfigError(
            f"{path} has {pixels.shape[1]}x{pixels.shape[0]} pixels, but its samples say {image_wh[0]}x{image_wh[1]}"
        )
    return pixels


__all__ = [
    "Box",
    "GroundingSample",
    "GroundingTarget",
    "Polygon",
    "PolygonBorder",
    "QueryKind",
    "leads_outside",
    "polygon_area",
    "read_image",
    "read_samples",
    "write_samples",
]
