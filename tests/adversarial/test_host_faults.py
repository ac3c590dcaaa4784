"""Every fault of the host that is planted after the policy acted leaves the episode without a verdict: masked, and never a 0.

The farm is the fake one: it raises what the client raises for the real farm's answers. `tests/integration/test_fault_owners.py` and the
chaos benchmark kill real desktops, helpers and servers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from broken_desktops import DONE, SolvedTask

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import (
    DartEnvError,
    DesktopFailedError,
    FarmDatabaseUnavailableError,
    FarmDrainingError,
    FarmError,
    FarmTimeoutError,
    FarmUnreachableError,
    GuestError,
    HostFaultError,
    LeaseExpiredError,
    StaleFencingTokenError,
)
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType, EndReason, StepResult
from dart_server.wire import DesktopShape, FaultOwner

SHAPE = DesktopShape(resolution=(64, 64))
TYPE = Action(ActionType.TYPE, text="hello")


def _died(cause: str) -> DesktopFailedError:
    return DesktopFailedError("died", fault_owner=FaultOwner.HOST, cause=cause)


FAULTS: dict[str, Callable[[], DartEnvError]] = {
    "host_oom": lambda: _died("host_oom"),
    "killed_from_outside": lambda: _died("killed_from_outside"),
    "unknown": lambda: _died("unknown"),
    "quarantined": lambda: _died("quarantined"),
    "helper_gone": lambda: HostFaultError(
        "dart-hostd is not reachable", fault_owner=FaultOwner.HOST, cause="host_fault"
    ),
    "lease_expired": lambda: LeaseExpiredError("expired"),
    "taken_over": lambda: StaleFencingTokenError("another token"),
    "unreachable": lambda: FarmUnreachableError("gone", code="unreachable"),
    "timeout": lambda: FarmTimeoutError("late", code="timeout"),
    "draining": lambda: FarmDrainingError("stopping", code="draining"),
    "database": lambda: FarmDatabaseUnavailableError("no database", code="database_unavailable"),
}
"""What the client raises, by the fault behind it."""
MOMENTS = ("step", "health", "read_file", "guest_error_then_health")
"""Where the fault comes: in a step, in the look before the evaluator, in what the evaluator reads, or behind a call without an answer."""


@pytest.fixture
def farm() -> FakeFarm:
    return FakeFarm()


@pytest.fixture
async def env(farm: FakeFarm) -> AsyncIterator[AsyncDesktopEnv]:
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        yield env


async def _play(env: AsyncDesktopEnv) -> StepResult:
    result = await env.step(TYPE)
    return result if result.end is not None else await env.step(DONE)


async def test_without_a_fault_the_episode_scores_one(env: AsyncDesktopEnv) -> None:
    await env.reset(SolvedTask())
    assert (await _play(env)).reward == 1.0


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", FAULTS)
async def test_a_planted_fault_of_the_host_is_masked(
    env: AsyncDesktopEnv, farm: FakeFarm, name: str, moment: str
) -> None:
    await env.reset(SolvedTask())
    assert (await env.step(TYPE)).end is None
    lease = farm.leases[0]
    if moment == "guest_error_then_health":
        lease.fail_next("step", GuestError("no answer", code="guest_error"))
        lease.fail_next("health", FAULTS[name]())
    else:
        lease.fail_next(moment, FAULTS[name]())
    result = await _play(env)
    assert (result.end, result.info["masked"], result.truncated) == (EndReason.FARM_FAULT, True, True), result.info
    await env.reset(SolvedTask())
    assert (await _play(env)).reward == 1.0, "the next episode is not touched"


async def test_a_farm_that_cannot_reset_a_desktop_is_not_the_policys_fault(
    env: AsyncDesktopEnv, farm: FakeFarm
) -> None:
    await env.reset(SolvedTask())
    assert (await env.step(TYPE)).end is None
    farm.leases[0].fail_next("read_file", GuestError("no answer", code="guest_error"))
    farm.leases[0].fail_next("reset", FarmError("the snapshot did not restore", code="snapshot_broken"))
    result = await _play(env)
    assert (result.end, result.info["masked"]) == (EndReason.EVALUATOR_ERROR, True)
