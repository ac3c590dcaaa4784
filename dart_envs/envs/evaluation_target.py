"""Where an evaluator runs: on the desktop itself, or on a copy of it.

This module has `EvaluateOn`, `evaluation_desktop` and the checks of a verdict. A copy is forked from the desktop as it
is now and is given back in every case. Where no copy can be had at the end of an episode, the desktop itself is judged
and the verdict says so. This module does not judge (`TaskLike.evaluate`) and does not run episodes
(`dart_envs.envs.core`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum

from dart_envs.errors import DesktopFailedError, EvaluatorError, FarmError, GuestError
from dart_envs.farm.base import LeaseLike
from dart_envs.types import Outcome

log = logging.getLogger(__name__)


class NoCopyWarning(UserWarning):
    """A verdict that was to be given on a copy is given on the desktop itself, which the evaluator may change."""


class EvaluateOn(StrEnum):
    """What the evaluator runs on at the end of an episode."""

    DESKTOP = "desktop"
    """The episode's own desktop, which is not used again after it: nothing is disturbed, and it costs nothing."""
    COPY = "copy"
    """A copy, forked for it: the desktop stays as the policy left it, for one who looks at it or goes on with it afterwards."""


def parse_evaluate_on(name: EvaluateOn | str) -> EvaluateOn:
    """Return the `EvaluateOn` of a value.

    Args:
        name: `desktop`, `copy`, or a member.

    Returns:
        The member.

    Raises:
        ValueError: If there is no such value; the message names those that exist.
    """
    try:
        return EvaluateOn(name)
    except ValueError:
        raise ValueError(f"evaluate_on is {' or '.join(EvaluateOn)}, not {name!r}.") from None


@asynccontextmanager
async def forked_copy(lease: LeaseLike, wait_s: float) -> AsyncIterator[LeaseLike]:
    """Fork a copy of a desktop and give it back when the context ends.

    A copy is asked for its health first: one that came up dead is a failed restore of the host, and no deed of the policy.

    Args:
        lease: The desktop to copy.
        wait_s: Seconds to wait for a free desktop.

    Yields:
        The lease of the copy.

    Raises:
        FarmError: If the farm gives no copy.
        DesktopError: If the desktop failed.
    """
    fork = await lease.fork(1, wait_s=wait_s)
    (copy,) = fork.leases
    try:
        await check_alive(copy)
        yield copy
    finally:
        await copy.release()


@asynccontextmanager
async def evaluation_desktop(lease: LeaseLike, on: EvaluateOn, wait_s: float) -> AsyncIterator[tuple[LeaseLike, str]]:
    """Open the desktop that the end of an episode is judged on.

    Args:
        lease: The episode's own desktop.
        on: Whether to judge that desktop or a copy of it.
        wait_s: Seconds to wait for a copy.

    Yields:
        The desktop to judge, and what it is: `desktop`, `copy`, or the reason why there is no copy.

    Warns:
        NoCopyWarning: If a copy was asked for and the desktop itself is judged; it has the farm's reason and fix.

    Raises:
        DesktopFailedError: If a copy was asked for, and the evaluator failed on it, or on the desktop in its place, which turns
            out to be dead.
    """
    async with AsyncExitStack() as stack:
        desktop, judged_on = lease, str(EvaluateOn.DESKTOP)
        if on is EvaluateOn.COPY:
            try:
                desktop, judged_on = await stack.enter_async_context(forked_copy(lease, wait_s)), str(EvaluateOn.COPY)
            except (FarmError, GuestError, DesktopFailedError) as error:
                log.warning("The episode is judged on its own desktop: %s", error)
                warnings.warn(NoCopyWarning(f"The desktop itself is judged, not a copy: {error}"), stacklevel=2)
                reason = error.cause if isinstance(error, DesktopFailedError) else error.code
                judged_on = f"desktop, since there is no copy: {reason}"
        try:
            yield desktop, judged_on
        except Exception:  # raised again, unless the desktop turns out to be dead
            if on is EvaluateOn.COPY:
                await check_alive(desktop)
            raise


async def check_alive(lease: LeaseLike) -> None:
    """Check that a desktop is alive.

    Args:
        lease: The desktop.

    Raises:
        DesktopFailedError: If it is dead, with the owner of the fault.
    """
    health = await lease.health()
    if not health.alive:
        raise DesktopFailedError(
            f"The desktop died: {health.cause}.", fault_owner=health.fault_owner, cause=health.cause
        )


def check_outcome(outcome: Outcome) -> None:
    """Check the result of an evaluator.

    Args:
        outcome: What the evaluator returned.

    Raises:
        EvaluatorError: If it is not an `Outcome` with a reward in [0, 1].
    """
    if not isinstance(outcome, Outcome) or not 0.0 <= outcome.reward <= 1.0:
        raise EvaluatorError(f"An evaluator answers an Outcome with a reward between 0 and 1, not {outcome!r}.")
