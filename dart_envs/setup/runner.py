"""Runs setup steps in order.

Role: parse, perform, retry, and say which step failed and why. Rule: a step is tried `ATTEMPTS` times, but only where
trying again cannot do anything twice, and where it did not use up its time; errors of the desktop itself pass through
unchanged, so that their owner stays known. Non-goals: what a step does (`dart_envs.setup.steps`), snapshots (`dart_envs.envs.core`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import GuestError, SetupError
from dart_envs.setup import browser_steps, windows
from dart_envs.setup import steps as perform
from dart_envs.setup.applications import APPLICATION_PROGRAMS
from dart_envs.setup.params import NETWORK_STEP_HINT, NETWORK_STEPS, LaunchParameters, check_parameters
from dart_envs.setup.steps import Performer, SetupContext, StepFailedError, StepTimedOutError
from dart_envs.task_parts import SetupStepLike
from dart_envs.types import Desktop
from dart_server.wire import Clock

log = logging.getLogger(__name__)

PERFORMERS: Mapping[str, Performer] = {**perform.PERFORMERS, **browser_steps.PERFORMERS}
ATTEMPTS = 2
WINDOW_TIMEOUT_S = 20.0
WINDOW_STEPS = frozenset({"activate_window", "close_window", "wait_window", "wait_element", "place_window"})
"""Steps that wait for a window themselves."""
WINDOWED_PROGRAMS = frozenset(program for programs in APPLICATION_PROGRAMS.values() for program in programs)
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
    started = started_windows(steps, desktop.resolution)
    before: list[str] = []
    for index, step in enumerate(steps):
        try:
            if started and index == started[0]:
                before = await windows.window_ids(desktop)
            await run_step(context, step)
        except (StepFailedError, GuestError) as error:
            sentence = f"step {index} ({step.type}) failed: {error}"
            if not ignore_failures:
                failed_step = index if isinstance(error, StepFailedError) else None
                raise SetupError(f"Setup {sentence}", failed_step=failed_step) from error
            failures.append(sentence)
    if started and not await windows.wait_started(desktop, before, len(started), WINDOW_TIMEOUT_S):
        log.warning("The setup of %s started %d programs, and not all opened a window.", task_id or "?", len(started))
    return tuple(failures)


def started_windows(steps: Sequence[SetupStepLike], resolution: tuple[int, int]) -> list[int]:
    """Return the indices of the last steps that start programs with windows that no later step waits for.

    Args:
        steps: The setup.
        resolution: The screen as (width, height) in pixels.
    """
    found: list[int] = []
    for index, step in enumerate(steps):
        if step.type in WINDOW_STEPS or step.type.startswith("chrome_"):
            found = []
        elif step.type == "launch":
            parameters = check_parameters(step.type, step.parameters)
            assert isinstance(parameters, LaunchParameters)
            words = perform.command_argv(parameters.command, shell=parameters.shell, resolution=resolution)
            if words[0].rpartition("/")[2] in WINDOWED_PROGRAMS and "--headless" not in words:
                found.append(index)
    return found


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
        except (StepFailedError, GuestError) as error:
            if attempt == attempts or isinstance(error, StepTimedOutError):
                raise
