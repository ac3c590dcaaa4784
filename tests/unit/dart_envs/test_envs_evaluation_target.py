"""What an episode's end is judged on: its own desktop or a copy of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from toy_task import ToyTask

from dart_envs.actions import Action
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.evaluation_target import EvaluateOn, NoCopyWarning, evaluation_desktop
from dart_envs.errors import DesktopFailedError, EvaluatorError, GuestError, HostFaultError, UnsupportedCapabilityError
from dart_envs.testing.fake_farm import FakeFarm, FakeLease
from dart_envs.types import ActionType, Desktop, EndReason, Outcome
from dart_server.wire import DesktopShape, FaultOwner

SHAPE = DesktopShape(resolution=(320, 200))
TYPE = Action(ActionType.TYPE, text="hello")
CLICK = Action(ActionType.CLICK, x=5, y=5)
DONE = Action(ActionType.DONE)


class MutatingTask(ToyTask):
    """An evaluator that leaves traces where it looks."""

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        outcome = await super().evaluate(desktop, end=end)
        await desktop.write_file("/home/user/trace", b"judged")
        return outcome


def traces(lease: FakeLease) -> bool:
    return "/home/user/trace" in lease.state.files


async def test_a_copy_keeps_the_evaluator_off_the_desktop_and_is_given_back(farm: FakeFarm) -> None:
    async with AsyncDesktopEnv(farm, shape=SHAPE, evaluate_on="copy") as env:
        await env.reset(MutatingTask())
        await env.step(TYPE)
        result = await env.step(DONE)
        original, copy = farm.leases
        assert result.reward == 1.0
        assert result.info["outcome"]["evaluated_on"] == "copy"
        assert (traces(original), traces(copy)) == (False, True)
        assert env.lease is original
        assert (original.released, copy.released) == (False, True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UnsupportedCapabilityError("no forks", code="capability_missing"), "capability_missing"),
        (GuestError("its calls do not end", code="busy"), "busy"),
        (HostFaultError("the dump failed", cause="host_fault"), "host_fault"),
    ],
)
async def test_without_a_copy_the_desktop_itself_is_judged_and_the_verdict_says_so(
    farm: FakeFarm, error: Exception, said: str
) -> None:
    async with AsyncDesktopEnv(farm, shape=SHAPE, evaluate_on="copy") as env:
        await env.reset(ToyTask())
        await env.step(TYPE)
        farm.leases[0].fail_next("fork", error)
        with pytest.warns(NoCopyWarning, match=re.escape(str(error))):
            result = await env.step(DONE)
    assert result.reward == 1.0
    assert result.info["outcome"]["evaluated_on"] == f"desktop, since there is no copy: {said}"


@pytest.mark.parametrize(
    ("owner", "end"), [(FaultOwner.POLICY, EndReason.BROKE_DESKTOP), (FaultOwner.HOST, EndReason.FARM_FAULT)]
)
async def test_a_copy_that_dies_follows_its_owner(farm: FakeFarm, owner: FaultOwner, end: EndReason) -> None:
    class Killer(ToyTask):
        async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
            farm.leases[-1].kill(owner, "oom")
            raise EvaluatorError("the program said nothing")

    async with AsyncDesktopEnv(farm, shape=SHAPE, evaluate_on="copy") as env:
        await env.reset(Killer())
        await env.step(CLICK)
        assert (await env.step(DONE)).end is end


@pytest.mark.filterwarnings("ignore::dart_envs.envs.evaluation_target.NoCopyWarning")
async def test_a_desktop_that_dies_in_the_place_of_its_copy_is_told(farm: FakeFarm) -> None:
    lease = await farm.lease(SHAPE)
    farm.max_desktops = 1

    async def judge() -> None:
        async with evaluation_desktop(lease, EvaluateOn.COPY, 0.0) as (desktop, _):
            assert desktop is lease
            lease.kill(FaultOwner.POLICY, "oom")
            raise EvaluatorError("the program said nothing")

    with pytest.raises(DesktopFailedError, match="oom"):
        await judge()


async def test_a_copy_that_came_up_dead_is_no_fault_of_the_policy(
    farm: FakeFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = FakeLease.fork

    async def dead_copy(self: FakeLease, count: int = 1, **options: Any) -> Any:
        made = await fork(self, count, **options)
        made.leases[0].kill(FaultOwner.HOST, "session_dead")
        return made

    monkeypatch.setattr(FakeLease, "fork", dead_copy)
    async with AsyncDesktopEnv(farm, shape=SHAPE, evaluate_on="copy") as env:
        await env.reset(ToyTask())
        await env.step(TYPE)
        with pytest.raises(DesktopFailedError, match="session_dead"):
            await env.evaluate()
        with pytest.warns(NoCopyWarning, match="session_dead"):
            result = await env.step(DONE)
    assert (result.reward, result.end) == (1.0, EndReason.DONE)
    assert result.info["outcome"]["evaluated_on"] == "desktop, since there is no copy: session_dead"


async def test_the_scorer_is_handed_to_the_task() -> None:
    asked: list[Mapping[str, object]] = []

    class Asking(ToyTask):
        async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None, **how: object) -> Outcome:
            asked.append(how)
            return Outcome(0.0)

    for scorer in ("osworld", None):
        async with AsyncDesktopEnv(FakeFarm(), shape=SHAPE, scorer=scorer) as env:
            await env.reset(Asking())
            await env.step(DONE)
    assert asked == [{"scorer": "osworld"}, {}]


def test_a_wrong_setting_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        AsyncDesktopEnv(FakeFarm(), shape=SHAPE, evaluate_on="nowhere")
    with pytest.raises(EvaluatorError, match="auto, builtin or osworld"):
        AsyncDesktopEnv(FakeFarm(), shape=SHAPE, scorer="mine")
