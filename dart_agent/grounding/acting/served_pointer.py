"""Points for described targets by the action head of the inference workers.

Role: `ServedPointer` asks the workers for the head's logits and draws here. Rule: the draw is that of `Pointer`, from the same numbers, so
that seeds and log-probs do not depend on where the head runs. Non-goals: the head's arithmetic (`dart_agent.grounding.serving`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dart_agent.grounding.acting.pointer import FoundTargets, draw_target, point_seed
from dart_agent.inference.pointer_wire import PointAnswer, PointRequest
from dart_agent.types import PointedTarget, PolicyRequest


class PointingWorkers(Protocol):
    """Workers whose model has a head: `dart_agent.inference.pool.VllmPool`, or one `WorkerClient`."""

    async def point(self, asked: PointRequest) -> PointAnswer:
        """Raises RequestRejected, or PolicyUnavailableError when no worker could answer."""
        ...


class ServedPointer:
    """Points with the head of workers.

    Args:
        workers: The workers.
    """

    def __init__(self, workers: PointingWorkers) -> None:
        self._workers = workers

    async def find(self, request: PolicyRequest, instructions: Sequence[str]) -> FoundTargets:
        """Find targets on the latest image of a request, with its temperature and seed.

        Args:
            request: What the planner was asked.
            instructions: What the head is asked, one for each target.

        Returns:
            A point for each. Raises what the workers raise.
        """
        image = request.images[-1]
        digest = request.image_sha256[-1] if request.image_sha256 else ""
        asked = PointRequest(image, tuple(instructions), f"{request.request_id}-points", digest)
        answer = await self._workers.point(asked)
        return FoundTargets(answer.version, tuple(await asyncio.to_thread(_draw, request, asked, answer)))


def _draw(request: PolicyRequest, asked: PointRequest, answer: PointAnswer) -> list[PointedTarget]:
    import torch

    from dart_agent.grounding.labels import PatchGrid
    from dart_agent.grounding.pointing import PointDistribution

    height, width = asked.image.shape[:2]
    temperature = request.sampling.temperature
    generator = torch.Generator().manual_seed(point_seed(request))
    found = []
    for instruction, target in zip(asked.instructions, answer.targets, strict=True):
        parts_MP = None if target.parts_MP is None else torch.tensor(target.parts_MP)
        distribution = PointDistribution(
            PatchGrid(target.columns, target.rows, (width, height)),
            torch.tensor(target.cells_M),
            parts=target.parts,
            part_logits=None if parts_MP is None else parts_MP.__getitem__,
            temperature=temperature or 1.0,
        )
        found.append(draw_target(distribution, instruction, generator if temperature else None))
    return found
