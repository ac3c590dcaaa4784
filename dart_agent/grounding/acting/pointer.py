"""Points for described targets, sampled with their log-probs.

Role: `Pointer.point` finds the targets of one answer on one image. Rule: a point is drawn from `PointDistribution`, first the visual
token, then the part of its cell; its log-prob is that of the distribution that it was drawn from, as for tokens. At temperature 0 it is
the likeliest point, with its log-prob at temperature 1. The same image, instructions and seed give the same points. Each target is a
question of its own in one forward pass (`dart_agent.grounding.packing`), so that `dart_train.grounding.rollouts` finds the same
log-probs. Regions are not used: they have no log-prob. Non-goals: text.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dart_agent.grounding.model import GroundingModel
from dart_agent.types import PointedTarget
from dart_envs.types import RgbImage


class Pointer:
    """Points with one model; calls from several threads wait for each other.

    Args:
        model: The model, in evaluation mode.
    """

    def __init__(self, model: GroundingModel) -> None:
        self.model = model
        self._one_at_a_time = threading.Lock()

    def point(
        self, image: RgbImage, instructions: Sequence[str], *, temperature: float, seed: int
    ) -> list[PointedTarget]:
        """Find targets.

        Args:
            image: The image, uint8 [H, W, 3].
            instructions: What is asked, one for each target.
            temperature: Divides the logits; 0: the likeliest point.
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
                distribution = PointDistribution(head, output, temperature=temperature or 1.0)
                choice = distribution.sample(generator) if temperature else distribution.best()
                logprob = float(distribution.logprob(choice))
                found.append(PointedTarget(instruction, choice.cell, choice.part, logprob, distribution.point(choice)))
        return found
