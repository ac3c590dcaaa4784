"""Simulated tasks, episodes and prompts: how long an episode is, whether it succeeds, what each of its requests contains.

Role: `TaskBook` draws episodes; `prompt_of` computes the prompt of a step. Rule: what is drawn depends on the seed, the task and how many
episodes of the task were drawn before, so that two systems are compared on the same episodes. Non-goals: time (`engine`, `system`).
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from random import Random
from typing import NamedTuple

from dart_train.simulation.models import EpisodeModel


class EpisodeDraw(NamedTuple):
    """One episode before it runs.

    Attributes:
        steps: Number of its steps.
        succeeds: Whether its reward is 1; else 0.
        stops: Whether its last action is `DONE`; else it ends at the step limit.
    """

    steps: int
    succeeds: bool
    stops: bool


class PromptShape(NamedTuple):
    """The prompt of one step.

    Attributes:
        tokens: Its length.
        reusable: How many of its first tokens the previous request of the episode ended with.
        new_images: Screenshots that the previous prompt did not have.
        images: Screenshots.
    """

    tokens: int
    reusable: int
    new_images: int
    images: int


class TaskBook:
    """Draws tasks and their episodes.

    Args:
        model: The distributions.
        seed: Seed.
    """

    def __init__(self, model: EpisodeModel, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._tasks: dict[str, tuple[float, float]] = {}
        self._drawn: Counter[str] = Counter()

    def draw(self, task_id: str, max_steps: int) -> EpisodeDraw:
        """Draw the next episode of a task.

        Args:
            task_id: The task.
            max_steps: Step limit.

        Returns:
            The episode.
        """
        model = self._model
        centre, success = self._task(task_id)
        random = Random(f"{self._seed}/{task_id}/{self._drawn[task_id]}")
        self._drawn[task_id] += 1
        within = model.sigma * math.sqrt(1 - model.between_tasks)
        natural = max(1, math.ceil(math.exp(centre + within * random.gauss(0.0, 1.0))))
        wins = random.random() < success
        stops = natural <= max_steps
        return EpisodeDraw(min(natural, max_steps), wins and stops, stops)

    def _task(self, task_id: str) -> tuple[float, float]:
        known = self._tasks.get(task_id)
        if known is None:
            model, random = self._model, Random(f"{self._seed}/{task_id}")
            centre = math.log(model.median_steps) + model.sigma * math.sqrt(model.between_tasks) * random.gauss(
                0.0, 1.0
            )
            known = self._tasks[task_id] = (centre, random.betavariate(model.success_alpha, model.success_beta))
        return known


def response_length(model: EpisodeModel, random: Random) -> int:
    """Draw the length of a response.

    Args:
        model: The distributions.
        random: Source of randomness.

    Returns:
        Tokens, at least 1.
    """
    sigma = model.response_sigma
    tokens = model.response_tokens * math.exp(sigma * random.gauss(0.0, 1.0) - 0.5 * sigma * sigma)
    return max(1, min(model.max_response_tokens, round(tokens)))


@cache
def prompt_of(model: EpisodeModel, step: int) -> PromptShape:
    """Compute the prompt of a step.

    With a limit of screenshots each prompt drops the oldest one, so that only the system prompt stays the same. Without a limit the prompt
    grows, until the context is full: then a new segment begins with the newest screenshot and all texts.

    Args:
        model: The distributions; responses count with their mean.
        step: Number of the step, from 0.

    Returns:
        The prompt.
    """
    text, image, fixed = round(model.response_tokens), model.image_tokens, model.system_tokens
    kept = model.history_images
    if kept:
        tokens = fixed + step * text + min(step + 1, kept) * image
        images = min(step + 1, kept)
        if step == 0:
            return PromptShape(tokens, 0, 1, 1)
        reusable = fixed + (step * text + step * image if step < kept else 0)
        return PromptShape(tokens, reusable, 1, images)
    begin, tokens = 0, fixed + image
    for at in range(1, step + 1):
        grown = fixed + at * text + (at - begin + 1) * image
        if grown + model.max_response_tokens > model.context_tokens:
            begin = at
        tokens = fixed + at * text + (at - begin + 1) * image
    images = step - begin + 1
    reusable = 0 if step == 0 else fixed if step == begin else tokens - image
    return PromptShape(tokens, reusable, 1, images)
