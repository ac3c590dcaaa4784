"""Runs setup steps in order.

Role: parse, perform, retry, and say which step failed and why. Rule: a step is tried `ATTEMPTS` times, but only where
trying again cannot do anything twice; errors of the desktop itself pass through unchanged, so that their owner stays
known. Non-goals: what a step does (`dart_envs.setup.steps`), snapshots (`dart_envs.envs.core`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import GuestError, SetupError
from dart_envs.setup import browser_steps
from dart_envs.setup import steps as perform
from dart_envs.setup.params import NETWORK_STEP_HINT, NETWORK_STEPS, check_parameters
from dart_envs.setup.steps import Performer, SetupContext, StepFailedError
from dart_envs.task_parts import SetupStepLike
from dart_envs.types import Desktop
from dart_server.wire import Clock

PERFORMERS: Mapping[str, Performer] = {**perform.PERFORMERS, **browser_steps.PERFORMERS}
ATTEMPTS = 2
RETRYABLE_STEPS = frozenset(
    {
        "activate_window",
        "close_window",
        "wait_window",
        "wait_element",
        "place_window",
        "upload_file",
        "write_file",
        "write_binary",
    }
)


async def run_steps(
    desktop: Desktop,
    steps: Sequence[SetupStepLike],
    *,
    clock: Clock = SYSTEM_CLOCK,
    assets: Path | None = None,
    ignore_failures: bool = False,
    step_outputs: dict[str, str] | None = None,
    task_id: str = "",
) -> tuple[str, ...]:
    """Perform `steps` in order; returns one sentence per failed step (only where `ignore_failures`, otherwise it is empty).

    step_outputs: takes what steps with `stdout` or `stderr` printed, by the name they give it. ignore_failures: for the evaluator's
    post-configuration, where a window that the policy closed is not our failure.
    task_id: whose files the asset cache is asked for.
    Raises SetupError naming the step, AssetError where a file cannot be had, and `DesktopError` when the desktop itself is lost.
    """
    failures: list[str] = []
    context = SetupContext(desktop, clock, assets, {} if step_outputs is None else step_outputs, task_id)
    for index, step in enumerate(steps):
        try:
            await run_step(context, step)
        except (StepFailedError, GuestError) as error:
            sentence = f"step {index} ({step.type}) failed: {error}"
            if not ignore_failures:
                raise SetupError(f"Setup {sentence}") from error
            failures.append(sentence)
    return tuple(failures)


async def run_step(context: SetupContext, step: SetupStepLike) -> None:
    """Perform one step, a second time where that is harmless. Raises StepFailedError, GuestError or SetupError."""
    if step.type in NETWORK_STEPS:
        raise SetupError(f"Setup step {step.type!r} is not performed: {NETWORK_STEP_HINT}.")
    parameters = check_parameters(step.type, step.parameters)
    attempts = ATTEMPTS if step.type in RETRYABLE_STEPS else 1
    for attempt in range(1, attempts + 1):
        try:
            await PERFORMERS[step.type](context, parameters)
            return
        except (StepFailedError, GuestError):
            if attempt == attempts:
                raise
