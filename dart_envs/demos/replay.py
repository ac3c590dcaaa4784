"""Doing a demonstration again, on a fresh desktop of the same task.

Role: `replay`. Rule: an action is done once the screen looks as it did for who demonstrated it, or once as much time has passed as they
took and a little more; what the verdict is decides, never how the screen looked. Non-goals: comparing pictures beyond that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.demos.store import Demonstration, DemonstrationError, DemoStep, load_screen
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.tasks.model import Task
from dart_envs.types import Action, ActionType, RgbImage, StepResult
from dart_server.wire import Clock, SettleSpec

MIN_EQUAL_FRACTION = 0.995
"""Share of pixels that are equal on screens that look alike: a caret, a clock, a pointer's shade may differ."""
PIXEL_TOLERANCE = 24
"""Difference of a colour, of 255, that an eye does not see."""
SCREEN_WAIT_GRACE_S = 3.0
MAX_SCREEN_WAIT_S = 60.0
SCREEN_SETTLE = SettleSpec(quiet_ms=100, cap_ms=500)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """How a replay ended. mismatched_steps: steps before which the screen never looked as it did in the demonstration."""

    result: StepResult
    reward: float | None
    mismatched_steps: tuple[int, ...]


def screens_match(one: RgbImage, other: RgbImage) -> bool:
    """Whether two screens look the same to a person."""
    if one.shape != other.shape:
        return False
    apart = np.abs(one.astype(np.int16) - other.astype(np.int16)).max(axis=2) > PIXEL_TOLERANCE
    return float(apart.mean()) <= 1 - MIN_EQUAL_FRACTION


async def replay(
    env: AsyncDesktopEnv,
    task: Task,
    demonstration: Demonstration,
    folder: Path,
    *,
    on_step: Callable[[DemoStep, bool], None] = lambda step, same: None,
    clock: Clock = SYSTEM_CLOCK,
) -> ReplayResult:
    """Play it in an environment of the demonstration's shape, whose budget has room for all its steps.

    `on_step` gets every step and whether the screen looked alike before it. Raises `DemonstrationError` where there is nothing to
    replay, `DartEnvError`.
    """
    steps = demonstration.steps
    if not steps:
        raise DemonstrationError(f"{folder} holds no steps.")
    await env.reset(task)
    mismatched_steps: list[int] = []
    end_s = 0.0
    result: StepResult | None = None
    for step in steps:
        same = await _wait_for_screen(env, load_screen(folder, step.before), max(0.0, step.at_s - end_s), clock)
        if not same:
            mismatched_steps.append(step.index)
        end_s = step.at_s + step.duration_s
        result = await env.step(step.replay_action)
        on_step(step, same)
        if result.end is not None:
            break
    if result is None or result.end is None:
        result = await env.step(Action(ActionType.DONE))
    assert result.end is not None
    return ReplayResult(result, None if result.end.masked else float(result.reward), tuple(mismatched_steps))


async def _wait_for_screen(env: AsyncDesktopEnv, wanted: RgbImage, took_s: float, clock: Clock) -> bool:
    """Wait until the screen looks like `wanted`, at most about as long as the demonstration did."""
    assert env.lease is not None
    deadline_s = clock.monotonic() + min(took_s + SCREEN_WAIT_GRACE_S, MAX_SCREEN_WAIT_S)
    while True:
        frame = await env.lease.step([], SCREEN_SETTLE)
        if screens_match(frame.image, wanted):
            return True
        if clock.monotonic() >= deadline_s:
            return False
        await clock.sleep(0.1)
