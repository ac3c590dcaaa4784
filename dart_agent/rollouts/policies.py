"""Policies that are not a model: the oracle, chance, and a model that may not look.

Role: `OraclePolicy` plays a task's own solution (demonstrations), `RandomPolicy` and `BlankScreenshotPolicy` are the floors that a
trained policy is compared with. Rule: they answer in the same language as the model, through the same episode loop; none reports token
ids it has not sampled. Non-goals: the model itself (`dart_agent.inference.pool.VllmPool`).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from dart_agent.errors import PolicyUnavailableError
from dart_agent.prompts.builder import PromptSpec
from dart_agent.types import Completion, FinishReason, Policy, PolicyRequest
from dart_envs.errors import ActionError, DartEnvError
from dart_envs.observations.geometry import Coordinates, PointMap
from dart_envs.types import Action, ActionType, DecodedAction, Desktop
from dart_server.wire import A11yElement

GREY = 128


class SolutionStepLike(Protocol):
    """One move of a solution: `dart_envs.tasks.Play`."""

    @property
    def action(self) -> Action | DecodedAction:
        """In screen pixels."""
        ...

    @property
    def target(self) -> A11yElement | None:
        """What it points at."""
        ...


class SolvableTask(Protocol):
    """A task that knows its solution: `dart_envs.tasks.Task`."""

    async def resolve_script(self, desktop: Desktop, *, step: int = 0) -> Sequence[SolutionStepLike]:
        """Moves from the `step`-th on, as far as the screen shows their targets; empty past the end."""
        ...


class OraclePolicy:
    """Plays a task's solution, move `step` of it in step `step` of the episode, and says that it is done.

    The thought names what the action is about.
    """

    def __init__(self, task: SolvableTask, desktop: Callable[[], Desktop | None], spec: PromptSpec) -> None:
        self._task = task
        self._desktop = desktop
        self._spec = spec

    async def complete(self, request: PolicyRequest) -> Completion:
        """The move of this step. Raises PolicyUnavailableError when the solution is stuck or the desktop is gone."""
        desktop = self._desktop()
        if desktop is None:
            raise PolicyUnavailableError("the oracle has no desktop to look at")
        try:
            plays = await self._task.resolve_script(desktop, step=request.step)
        except DartEnvError as error:
            raise PolicyUnavailableError(f"the oracle is stuck: {error}") from error
        action = plays[0].action if plays else Action(ActionType.DONE)
        if not isinstance(action, Action):
            raise PolicyUnavailableError("the oracle runs code at this step, which a policy's text cannot say")
        target = plays[0].target if plays else None
        points = _points(request, desktop.resolution, self._spec.coordinates)
        try:
            return _answer(self._spec.write(action, points, thought="" if target is None else target.name))
        except ActionError as error:
            raise PolicyUnavailableError(
                f"the prompt {self._spec.preset} has no words for this step: {error}"
            ) from error


class RandomPolicy:
    """Clicks anywhere, and now and then says that it is done. The same request always gets the same answer."""

    def __init__(self, spec: PromptSpec, *, seed: int = 0, done_probability: float = 0.2) -> None:
        self._spec = spec
        self._seed = seed
        self._done_probability = done_probability

    async def complete(self, request: PolicyRequest) -> Completion:
        """One uniformly random click in the picture, or `finished`."""
        chance = random.Random(f"{self._seed}/{request.request_id}")
        model_wh = _model_wh(request)
        if chance.random() < self._done_probability:
            action = Action(ActionType.DONE)
        else:
            action = Action(ActionType.CLICK, x=chance.randrange(model_wh[0]), y=chance.randrange(model_wh[1]))
        return _answer(self._spec.write(action, _points(request, model_wh, self._spec.coordinates)))


class BlankScreenshotPolicy:
    """A model that sees a grey rectangle instead of the screen."""

    def __init__(self, inner: Policy) -> None:
        self._inner = inner

    async def complete(self, request: PolicyRequest) -> Completion:
        """The inner policy's answer without its eyes."""
        blank = tuple(np.full_like(image, GREY) for image in request.images)
        return await self._inner.complete(dataclasses.replace(request, images=blank, image_sha256=()))


def _model_wh(request: PolicyRequest) -> tuple[int, int]:
    height, width = request.images[-1].shape[:2]
    return width, height


def _points(request: PolicyRequest, screen_wh: tuple[int, int], coordinates: Coordinates) -> PointMap:
    return PointMap(_model_wh(request), screen_wh, coordinates)


def _answer(text: str) -> Completion:
    return Completion(
        text=text, prompt_ids_P=(), token_ids_T=(), logprobs_T=(), version_spans=(), finish_reason=FinishReason.STOP
    )
