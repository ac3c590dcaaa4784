"""Ask a model where something is.

Role: `Grounder.ask` gives for each question the attention map, the regions and the point of every target, and how likely the model refuses.
Rule: one forward pass for all questions about an image, without decoding; the answer is the best region's point. The model may see the
image at another size; points are always pixels of the image that was asked about. Non-goals: checking the answer
(`dart_agent.grounding.verifier`), a second look (`dart_agent.grounding.zoom`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt

from dart_agent.grounding.labels import Floats, PatchGrid
from dart_agent.grounding.model import GroundingModel
from dart_agent.grounding.regions import Region, RegionScore, find_regions, verifier_pool
from dart_agent.grounding.scoring import Point
from dart_envs.observations.transforms import resize_image
from dart_envs.types import RgbImage

REFUSE_ABOVE = 0.5
"""Probability of a refusal from which the model is taken to refuse."""


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """Where one target lies.

    Attributes:
        attention_M: Attention over the visual tokens.
        points_M2: Expected point of each cell, in pixels of the image.
        regions: Regions, the best first.
        pool: Points that a verifier chooses from.
    """

    attention_M: Floats
    points_M2: Floats
    regions: tuple[Region, ...]
    pool: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class GroundingAnswer:
    """The answer to one question.

    Attributes:
        grid: Visual tokens of the image.
        targets: One answer per target.
        refusal: Probability that the model refuses.
    """

    grid: PatchGrid
    targets: tuple[TargetAnswer, ...]
    refusal: float

    @property
    def points(self) -> tuple[Point, ...]:
        """The best point of each target."""
        return tuple(target.regions[0].point for target in self.targets)

    def candidates(self, k: int) -> list[tuple[Point, ...]]:
        """The first answers: with several targets, the regions of equal rank together.

        Args:
            k: How many.

        Returns:
            At most `k` answers, the best first.
        """
        depth = max(len(target.regions) for target in self.targets)
        return [
            tuple(target.regions[min(rank, len(target.regions) - 1)].point for target in self.targets)
            for rank in range(min(k, depth))
        ]


def size_of_area(image_wh: tuple[int, int], pixels: int) -> tuple[int, int]:
    """The size with an area in which an image keeps its shape.

    Args:
        image_wh: (width, height) of the image in pixels.
        pixels: The area.

    Returns:
        (width, height) in whole pixels, rounded down, as GUI-Actor's evaluation does; at least one pixel each.
    """
    width, height = image_wh
    return max(1, isqrt(pixels * width // height)), max(1, isqrt(pixels * height // width))


class Grounder:
    """Asks one model.

    Args:
        model: The model, in evaluation mode.
        score: How regions are scored.
        resize_to_pixels: Area that every image is enlarged or shrunk to before the model's processor takes it; None: it takes the image
            itself.
    """

    def __init__(self, model: GroundingModel, score: RegionScore = "mean", resize_to_pixels: int | None = None) -> None:
        self.model = model
        self._score = score
        self._resize_to_pixels = resize_to_pixels

    def ask(self, image: RgbImage, instructions: Sequence[str], targets: int = 1) -> list[GroundingAnswer]:
        """Ask several questions about an image.

        Args:
            image: The image, uint8 [H, W, 3].
            instructions: What is asked.
            targets: Points per answer: 1 for a click, 2 for a drag.

        Returns:
            One answer per instruction.

        Raises:
            ConfigError: The image or an instruction cannot be asked (`dart_agent.grounding.answers.check_question`).
        """
        import torch

        from dart_agent.grounding.forward import refusal_probabilities, run_forward
        from dart_agent.grounding.packing import Question, pack
        from dart_agent.grounding.pointing import PointDistribution

        image_wh = image.shape[1], image.shape[0]
        if self._resize_to_pixels is not None:
            image = resize_image(image, size_of_area(image_wh, self._resize_to_pixels))
        packed = pack(self.model, [image], [[Question.point(instruction, targets) for instruction in instructions]])
        answers = []
        with torch.inference_mode():
            output = run_forward(self.model, packed)
            refusals = refusal_probabilities(self.model, packed, output)[0]
            for said, refusal in zip(output.questions[0], refusals, strict=True):
                found = replace(said, grid=replace(said.grid, image_wh=image_wh))
                located = []
                for index in range(targets):
                    distribution = PointDistribution.of_head(self.model.head, found, index)
                    attention_M = distribution.attention()
                    points_M2 = distribution.expected_points()
                    regions = find_regions(attention_M, found.grid, score=self._score, points_M2=points_M2)
                    pool = verifier_pool(attention_M, found.grid, score=self._score, points_M2=points_M2)
                    located.append(TargetAnswer(attention_M, points_M2, tuple(regions), tuple(pool)))
                answers.append(GroundingAnswer(found.grid, tuple(located), refusal))
        return answers
