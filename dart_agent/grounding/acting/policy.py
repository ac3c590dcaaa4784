"""A policy that plans in words and points with the head.

Role: `GroundedPolicy` lets a planner answer, finds the described targets on the latest image, and returns the answer with the points.
Any `Policy` can plan: vLLM workers, an endpoint, the backbone itself (`dart_agent.grounding.acting.planner`). Rule: text, token ids and
token log-probs of an answer stay the planner's; the points are in `Completion.pointers`, and `Completion.action_text` is what is
performed. Coordinates that the planner writes itself are performed as they are. Non-goals: episodes (`dart_agent.rollouts`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib

from dart_agent.grounding.acting.pointer import Pointer
from dart_agent.grounding.acting.targets import fill_targets, find_targets
from dart_agent.types import Completion, Policy, PolicyRequest
from dart_envs.observations.geometry import Coordinates


class GroundedPolicy:
    """Plans with one policy, points with another.

    Args:
        planner: Says what to do; `dart_agent.grounding.acting.targets` is the language of its targets.
        pointer: Finds targets.
        coordinates: What numbers in the action text mean.
    """

    def __init__(self, planner: Policy, pointer: Pointer, coordinates: Coordinates = "pixels") -> None:
        self._planner = planner
        self._pointer = pointer
        self._coordinates = coordinates

    async def complete(self, request: PolicyRequest) -> Completion:
        """The planner's answer with its points. Raises what the planner raises."""
        completion = await self._planner.complete(request)
        targets = find_targets(completion.text)
        if not targets:
            return completion
        image = request.images[-1]
        pointers = await asyncio.to_thread(
            self._pointer.point,
            image,
            [target.instruction for target in targets],
            temperature=request.sampling.temperature,
            seed=request_seed(request),
        )
        wh = (image.shape[1], image.shape[0])
        points = [pointer.point for pointer in pointers]
        text = fill_targets(completion.text, targets, points, wh, self._coordinates)
        return dataclasses.replace(completion, pointers=tuple(pointers), action_text=text)


def request_seed(request: PolicyRequest) -> int:
    """The seed of what is drawn for a request: that of its sampling, else one of its id.

    Args:
        request: The request.

    Returns:
        A number below 2^63.
    """
    if request.sampling.seed is not None:
        return request.sampling.seed % 2**63
    return int.from_bytes(hashlib.sha256(request.request_id.encode()).digest()[:8], "big") >> 1
