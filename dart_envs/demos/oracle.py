"""A task's own solution, played and told step by step; recorded like a person's demonstration where that is wanted.

Role: `run_script`. Non-goals: solutions (`dart_envs.tasks.script`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dart_envs.actions import decode_action
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.demos.store import DemoWriter
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.tasks.model import Task
from dart_envs.types import Action, ActionType, DecodedAction, Observation, StepResult
from dart_server.wire import Clock


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One step of a played solution: what was done, on which named part of the screen, and what came of it."""

    index: int
    action: Action | DecodedAction
    target: str
    result: StepResult


async def run_script(
    env: AsyncDesktopEnv,
    task: Task,
    observation: Observation,
    *,
    script: Literal["oracle", "near_miss"] = "oracle",
    writer: DemoWriter | None = None,
    on_step: Callable[[ScriptStep], None] = lambda told: None,
    clock: Clock = SYSTEM_CLOCK,
) -> StepResult:
    """Play to the episode's end, from its first observation. Raises `DartEnvError`."""
    start_s = clock.monotonic()
    index = 0
    while True:
        assert env.lease is not None, "an episode is running"
        plays = await task.resolve_script(env.lease, script=script, step=index)
        action = plays[0].action if plays else Action(ActionType.DONE)
        at_s = clock.monotonic()
        result = await env.step(action)
        if writer is not None:
            decoded = action if isinstance(action, DecodedAction) else decode_action(action, env.shape.resolution)
            writer.add(
                action if isinstance(action, Action) else None,
                decoded.events,
                before=observation.screenshot,
                after=result.observation.screenshot,
                at_s=at_s - start_s,
                duration_s=clock.monotonic() - at_s if result.end is None else 0.0,
                elements=observation.a11y,
            )
        index += 1
        target = plays[0].target if plays else None
        on_step(ScriptStep(index, action, f"{target.role} {target.name!r}" if target else "", result))
        if result.end is not None:
            return result
        observation = result.observation
