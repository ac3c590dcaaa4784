"""Where an evaluator looks: at the desktop itself, or at a copy of it.

Role: `EvaluateOn`, `evaluation_desktop`, and the checks of a verdict. Rule: a copy is forked from the desktop as it is now and given back
whatever happens; where none can be had at an episode's end, the desktop itself is judged and the verdict says so. Non-goals: judging
(`TaskLike.evaluate`), episodes (`dart_envs.envs.core`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum

from dart_envs.errors import DesktopFailedError, EvaluatorError, FarmError, GuestError, HostFaultError
from dart_envs.farm.base import LeaseLike
from dart_envs.types import Outcome

log = logging.getLogger(__name__)


class EvaluateOn(StrEnum):
    """What the evaluator at an episode's end runs on."""

    DESKTOP = "desktop"
    """The episode's own desktop, which is not used again after it: nothing is disturbed, and it costs nothing."""
    COPY = "copy"
    """A copy, forked for it: the desktop stays as the policy left it, for one who looks at it or goes on with it afterwards."""


def parse_evaluate_on(name: EvaluateOn | str) -> EvaluateOn:
    """By value. Raises ValueError naming those that exist."""
    try:
        return EvaluateOn(name)
    except ValueError:
        raise ValueError(f"evaluate_on is {' or '.join(EvaluateOn)}, not {name!r}.") from None


@asynccontextmanager
async def forked_copy(lease: LeaseLike, wait_s: float) -> AsyncIterator[LeaseLike]:
    """A copy of a desktop, given back at the end. Raises FarmError or DesktopError where there is none."""
    fork = await lease.fork(1, wait_s=wait_s)
    (copy,) = fork.leases
    try:
        yield copy
    finally:
        await copy.release()


@asynccontextmanager
async def evaluation_desktop(lease: LeaseLike, on: EvaluateOn, wait_s: float) -> AsyncIterator[tuple[LeaseLike, str]]:
    """The desktop that an episode's end is judged on, and what to say of it: `desktop`, `copy`, or why it is no copy.

    An evaluator that fails on a copy that turns out to be dead raises `DesktopFailedError`, with its owner.
    """
    async with AsyncExitStack() as stack:
        desktop, said = lease, str(EvaluateOn.DESKTOP)
        if on is EvaluateOn.COPY:
            try:
                desktop, said = await stack.enter_async_context(forked_copy(lease, wait_s)), str(EvaluateOn.COPY)
            except (FarmError, GuestError, HostFaultError) as error:
                log.warning("The episode is judged on its own desktop: %s", error)
                reason = error.cause if isinstance(error, HostFaultError) else error.code
                said = f"desktop, since there is no copy: {reason}"
        try:
            yield desktop, said
        except Exception:  # raised again, unless the copy turns out to be dead
            if desktop is not lease:
                await check_alive(desktop)
            raise


async def check_alive(lease: LeaseLike) -> None:
    """Raise `DesktopFailedError`, with its owner, where the desktop is dead."""
    health = await lease.health()
    if not health.alive:
        raise DesktopFailedError(
            f"The desktop died: {health.cause}.", fault_owner=health.fault_owner, cause=health.cause
        )


def check_outcome(outcome: Outcome) -> None:
    """Raise `EvaluatorError` for what is no verdict."""
    if not isinstance(outcome, Outcome) or not 0.0 <= outcome.reward <= 1.0:
        raise EvaluatorError(f"An evaluator answers an Outcome with a reward between 0 and 1, not {outcome!r}.")
