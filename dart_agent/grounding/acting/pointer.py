"""Points for described targets, sampled with their log-probs.

Role: `Pointer.point` finds the targets of one answer on one image; `draw_target` is the draw, wherever the logits were computed. Rule: a
point is drawn from `PointDistribution`, first the visual token, then the part of its cell; its log-prob is that of the distribution that
it was drawn from, as for tokens. At temperature 0 it is the point that `dart_agent.grounding.grounder` answers, to the part of a cell, with
its log-prob at temperature 1. The same image, instructions and seed give the same points. Each target is a question of its own in one
forward pass (`dart_agent.grounding.packing`), so that `dart_train.grounding.rollouts` finds the same log-probs. Non-goals: text.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dart_agent.grounding.model import GroundingModel
from dart_agent.types import PointedTarget, PolicyRequest, PolicyVersion
from dart_envs.types import RgbImage

if TYPE_CHECKING:
    from torch import Generator

    from dart_agent.grounding.pointing import PointDistribution


@dataclass(frozen=True, slots=True)
class FoundTargets:
    """The points of one answer.

    Attributes:
        version: Policy version of the weights that found all of them.
        targets: In the order in which they were asked for.
    """

    version: PolicyVersion
    targets: tuple[PointedTarget, ...]


class Pointer:
    """Points with one model; calls from several threads wait for each other.

    Args:
        model: The model, in evaluation mode.
        version: Policy version of its weights.
    """

    def __init__(self, model: GroundingModel, version: PolicyVersion = 0) -> None:
        self.model = model
        self.version = version
        self._one_at_a_time = threading.Lock()

    async def find(self, request: PolicyRequest, instructions: Sequence[str]) -> FoundTargets:
        """Find targets on the latest image of a request, with its temperature and seed.

        Args:
            request: What the planner was asked.
            instructions: What the head is asked, one for each target.

        Returns:
            A point for each.
        """
        found = await asyncio.to_thread(
            self.point,
            request.images[-1],
            instructions,
            temperature=request.sampling.temperature,
            seed=point_seed(request),
        )
        return FoundTargets(self.version, tuple(found))

    def point(
        self, image: RgbImage, instructions: Sequence[str], *, temperature: float, seed: int
    ) -> list[PointedTarget]:
        """Find targets.

        Args:
            image: The image, uint8 [H, W, 3].
            instructions: What is asked, one for each target.
            temperature: Divides the logits; 0: the best region's point.
            seed: Of the draw.

        Returns:
            A point for each.
        """
        import torch

        from dart_agent.grounding.forward import run_forward
        from dart_agent.grounding.packing import Question, pack
        from dart_agent.grounding.pointing import PointDistribution

        head = self.model.head
        packed = pack(self.model, [image], [[Question.point(instruction) for instruction in instructions]])
        generator = torch.Generator(self.model.device).manual_seed(seed)
        found = []
        with self._one_at_a_time, torch.inference_mode():
            for instruction, output in zip(instructions, run_forward(self.model, packed).questions[0], strict=True):
                distribution = PointDistribution.of_head(head, output, temperature=temperature or 1.0)
                found.append(draw_target(distribution, instruction, generator if temperature else None))
        return found


def draw_target(distribution: PointDistribution, instruction: str, generator: Generator | None) -> PointedTarget:
    """Draw the point of one target.

    Args:
        distribution: Where it lies.
        instruction: What the head was asked.
        generator: Source of randomness; None: the best region's point.

    Returns:
        The point with its log-prob.
    """
    choice = distribution.best() if generator is None else distribution.sample(generator)
    logprob = float(distribution.logprob(choice))
    return PointedTarget(instruction, choice.cell, choice.part, logprob, distribution.point(choice))


def request_seed(request: PolicyRequest) -> int:
    """The seed of what is drawn for a request: that of its sampling, else one of its id.

    Args:
        request: The request.

    Returns:
        A number below 2^63.
    """
    if request.sampling.seed is not None:
        return request.sampling.seed % 2**63
    return _hashed(request.request_id)


def point_seed(request: PolicyRequest) -> int:
    """The seed of the points of an answer, another one than that of its text, so that both are drawn independently.

    Args:
        request: The request.

    Returns:
        A number below 2^63.
    """
    return _hashed(f"points of {request_seed(request)}")


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
