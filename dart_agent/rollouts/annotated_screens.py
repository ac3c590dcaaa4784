"""Annotated screens of demonstrations: the warm start's extra supervision.

Role: `AnnotatedScreenWriter` keeps the steps of successful demonstrations that a rollout worker plays. Rule: demonstrations only; rollouts
and evaluation never come here. Non-goals: the form of the files (`dart_envs.observations.annotated_screens`), reading them
(`dart_train.warmup`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from dart_agent.rollouts.episode import ObservedStep
from dart_envs.observations.annotated_screens import write_annotated_screen
from dart_envs.types import DecodedAction


class AnnotatedScreenWriter:
    """Writes `<sha256>.png` (the screen before the step) and `<sha256>-<step>.json` beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    async def write(self, task_id: str, seen: ObservedStep) -> None:
        """Keep one step. Raises ValueError when the observation carries no accessibility tree."""
        observation = seen.observation
        if observation.a11y is None:
            raise ValueError("an annotated screen needs the accessibility tree in the observation")
        if isinstance(seen.action, DecodedAction):
            raise ValueError("an annotated screen has one canonical action, not a batch")
        await asyncio.to_thread(
            write_annotated_screen,
            self.directory,
            observation.screenshot,
            task_id=task_id,
            instruction=observation.instruction,
            step=seen.index,
            elements=observation.a11y,
            action=seen.action,
        )
