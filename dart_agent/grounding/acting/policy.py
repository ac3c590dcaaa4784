"""A policy that plans in words and points with the head.

Role: `GroundedPolicy` lets a planner answer, finds the described targets on the latest image, and returns the answer with the points.
Any `Policy` can plan: vLLM workers, an endpoint, the backbone itself (`dart_agent.grounding.acting.planner`). Rule: text, token ids and
token log-probs of an answer stay the planner's; the points are in `Completion.pointers`, their version is a span behind those of the
tokens, and `Completion.action_text` is what is performed. Coordinates that the planner writes itself are performed as they are.
Non-goals: episodes (`dart_agent.rollouts`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from dart_agent.grounding.acting.pointer import FoundTargets
from dart_agent.grounding.acting.targets import fill_targets, find_targets
from dart_agent.types import Completion, Policy, PolicyRequest, VersionSpan
from dart_envs.observations.geometry import Coordinates


class TargetFinder(Protocol):
    """What finds targets: a head in this process (`Pointer`), or that of inference workers (`ServedPointer`)."""

    async def find(self, request: PolicyRequest, instructions: Sequence[str]) -> FoundTargets:
        """A point for each instruction on the latest image of a request, drawn with its temperature and seed."""
        ...


class GroundedPolicy:
    """Plans with one policy, points with another.

    Args:
        planner: Says what to do; `dart_agent.grounding.acting.targets` is the language of its targets.
        pointer: Finds targets.
        coordinates: What numbers in the action text mean.
    """

    def __init__(self, planner: Policy, pointer: TargetFinder, coordinates: Coordinates = "pixels") -> None:
        self._planner = planner
        self._pointer = pointer
        self._coordinates = coordinates

    async def complete(self, request: PolicyRequest) -> Completion:
        """The planner's answer with its points. Raises what planner and pointer raise."""
        completion = await self._planner.complete(request)
        targets = find_targets(completion.text)
        if not targets:
            return completion
        image = request.images[-1]
        found = await self._pointer.find(request, [target.instruction for target in targets])
        wh = (image.shape[1], image.shape[0])
        points = [target.point for target in found.targets]
        text = fill_targets(completion.text, targets, points, wh, self._coordinates)
        spans = completion.version_spans
        if spans:  # without those of the tokens nothing is trained on
            ntokens = len(completion.token_ids_T)
            spans = (*spans, VersionSpan(found.version, ntokens, ntokens + len(found.targets)))
        return dataclasses.replace(completion, pointers=found.targets, action_text=text, version_spans=spans)
