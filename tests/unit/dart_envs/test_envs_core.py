"""The episode core: one judgement per episode, and an owner for every failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from toy_task import ToyTask

from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.errors import (
    ActionError,
    DartEnvError,
    DesktopFailedError,
    EvaluatorError,
    FarmError,
    GuestError,
    LeaseLostError,
    SetupError,
)
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType, Desktop, EndReason, Frame, Outcome
from dart_server.wire import A11yElement, DesktopShape, FaultOwner, InputEvent, SettleSpec

SHAPE = DesktopShape(resolution=(64, 64))
CLICK = Action(ActionType.CLICK, x=3, y=4)
DONE = Action(ActionType.DONE)


@pytest.fixture
async def env(farm: FakeFarm) -> AsyncIterator[AsyncDesktopEnv]:
    async with AsyncDesktopEnv(farm, shape=SHAPE) as env:
        yield env


async def test_nothing_is_leased_before_the_first_reset_and_all_is_released(farm: FakeFarm) -> None:
    env = AsyncDesktopEnv(farm, shape=SHAPE)
    assert farm.leases == []
    await env.reset(ToyTask())
    assert len(farm.leases) == 1
    await env.aclose()
    await env.aclose()
    assert farm.leases[0].released


async def test_the_oracle_scores_one_and_doing_nothing_scores_zero(env: AsyncDesktopEnv) -> None:
    task = ToyTask()
    observation, info = await env.reset(task, seed=7)
    assert observation.screenshot.shape == (64, 64, 3)
    assert observation.instruction == "Type hello."
    assert info == {"task_id": task.id, "max_steps": 4, "seed": 7, "pointer": [0, 0]}
    assert env.lease is not None
    typing, done = await task.oracle(env.lease)
    middle = await env.step(typing)
    assert (middle.reward, middle.terminated, middle.truncated, middle.end) == (0.0, False, False, None)
    assert not np.array_equal(middle.observation.screenshot, observation.screenshot)
    last = await env.step(done)
    assert (last.reward, last.terminated, last.truncated, last.end) == (1.0, True, False, EndReason.DONE)
    assert last.info["outcome"] == {"typed": "hello"}
    await env.reset(task)
    assert (await env.step(DONE)).reward == 0.0
    assert task.evaluations == 2


async def test_fail_is_judged_as_fail(env: AsyncDesktopEnv) -> None:
    task = ToyTask()
    await env.reset(task)
    result = await env.step(Action(ActionType.FAIL))
    assert result.terminated
    assert result.end is EndReason.FAIL
    assert task.ends == [EndReason.FAIL]


async def test_the_last_step_is_judged_and_truncates(env: AsyncDesktopEnv) -> None:
    task = ToyTask(max_steps=2)
    await env.reset(task)
    assert (await env.step(Action(ActionType.TYPE, text="hello"))).end is None
    last = await env.step(CLICK)
    assert (last.reward, last.terminated, last.truncated, last.end) == (1.0, False, True, EndReason.MAX_STEPS)
    assert task.evaluations == 1
    with pytest.raises(DartEnvError, match="reset"):
        await env.step(CLICK)
    assert task.evaluations == 1


class SteppedClock:
    """Stands still until a test moves it."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(
    ("thought_s", "quiet_ms"), [(0.0, [100, 400]), (0.15, [100, 250]), (1.0, [100])], ids=["at once", "soon", "later"]
)
async def test_the_desktop_rests_before_it_is_judged(
    farm: FakeFarm, monkeypatch: pytest.MonkeyPatch, thought_s: float, quiet_ms: list[int]
) -> None:
    """GTK presses the button of Enter, waits 250 ms, and only then does what the button is for."""
    clock = SteppedClock()
    async with AsyncDesktopEnv(farm, shape=SHAPE, clock=clock) as env:
        await env.reset(ToyTask())
        asked = _watch_settling(env, monkeypatch)
        await env.step(Action(ActionType.TYPE, text="hello"))
        clock.now_s += thought_s
        assert (await env.step(DONE)).reward == 1.0
    assert asked == quiet_ms


async def test_the_last_action_rests_longer_and_done_alone_does_not_rest(
    farm: FakeFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncDesktopEnv(farm, shape=SHAPE, max_steps=2) as env:
        await env.reset(ToyTask())
        asked = _watch_settling(env, monkeypatch)
        await env.step(CLICK)
        await env.step(CLICK)
        assert asked == [100, 400]
        await env.reset(ToyTask())
        asked = _watch_settling(env, monkeypatch)
        await env.step(DONE)
        assert asked == []


def _watch_settling(env: AsyncDesktopEnv, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Quiet times, in milliseconds, that the environment asks its desktop for from now on."""
    asked: list[int] = []
    lease = env.lease
    assert lease is not None
    inner = lease.step

    async def step(events: list[InputEvent], settle: SettleSpec | None = None, **options: Any) -> Frame:
        assert settle is not None
        asked.append(settle.quiet_ms)
        return await inner(events, settle, **options)

    monkeypatch.setattr(lease, "step", step)
    return asked


async def test_own_budget_overrides_the_tasks(farm: FakeFarm) -> None:
    async with AsyncDesktopEnv(farm, shape=SHAPE, max_steps=1) as env:
        await env.reset(ToyTask())
        assert (await env.step(CLICK)).end is EndReason.MAX_STEPS


async def test_an_action_outside_the_screen_does_not_count(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    await env.reset(ToyTask(max_steps=1))
    steps_before = farm.leases[0].calls.count("step")
    with pytest.raises(ActionError, match="between 0 and 63"):
        await env.step(Action(ActionType.CLICK, x=64, y=0))
    assert farm.leases[0].calls.count("step") == steps_before
    assert (await env.step(CLICK)).end is EndReason.MAX_STEPS


async def test_a_key_that_the_guest_does_not_know_is_an_action_error(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    await env.reset(ToyTask())
    farm.leases[0].fail_next("step", GuestError("unknown_key: q", code="bad_request"))
    with pytest.raises(ActionError, match="unknown_key"):
        await env.step(Action(ActionType.KEY, keys=("q",)))
    assert (await env.step(DONE)).end is EndReason.DONE


@pytest.mark.parametrize("cause", ["oom", "session_dead", "pids", "disk_full"])
async def test_breaking_the_desktop_scores_zero(env: AsyncDesktopEnv, farm: FakeFarm, cause: str) -> None:
    task = ToyTask()
    await env.reset(task)
    await env.step(CLICK)
    farm.leases[0].kill(FaultOwner.POLICY, cause)
    result = await env.step(CLICK)
    assert (result.reward, result.terminated, result.truncated) == (0.0, True, False)
    assert result.end is EndReason.BROKE_DESKTOP
    assert result.info["cause"] == cause
    assert result.info["masked"] is False
    assert task.evaluations == 0


@pytest.mark.parametrize("action", [CLICK, DONE])
async def test_what_dies_before_the_first_action_is_the_hosts_fault(
    env: AsyncDesktopEnv, farm: FakeFarm, action: Action
) -> None:
    await env.reset(ToyTask())
    farm.leases[0].kill(FaultOwner.POLICY, "session_dead")
    result = await env.step(action)
    assert (result.end, result.info["masked"]) == (EndReason.FARM_FAULT, True)
    await env.reset(ToyTask())
    await env.step(CLICK)
    farm.leases[1].kill(FaultOwner.POLICY, "session_dead")
    assert (await env.step(action)).end is EndReason.BROKE_DESKTOP


async def test_a_first_action_that_breaks_the_desktop_scores_zero(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    await env.reset(ToyTask())
    farm.leases[0].fail_next("step", DesktopFailedError("died", fault_owner=FaultOwner.POLICY, cause="session_dead"))
    assert (await env.step(CLICK)).end is EndReason.BROKE_DESKTOP


async def test_a_solved_task_on_a_broken_desktop_scores_zero(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    task = ToyTask()
    await env.reset(task)
    await env.step(Action(ActionType.TYPE, text="hello"))
    farm.leases[0].kill(FaultOwner.POLICY, "session_dead")
    result = await env.step(DONE)
    assert result.end is EndReason.BROKE_DESKTOP
    assert result.reward == 0.0
    assert task.evaluations == 0


HOST_FAULTS = [
    DesktopFailedError("killed", fault_owner=FaultOwner.HOST, cause="killed_from_outside"),
    DesktopFailedError("nobody knows", fault_owner=FaultOwner.NONE),
    LeaseLostError("expired"),
    FarmError("unreachable", code="unreachable"),
    FarmError("late", code="timeout"),
]


@pytest.mark.parametrize("fault", HOST_FAULTS, ids=lambda fault: f"{type(fault).__name__}-{fault}")
async def test_a_fault_of_the_farm_truncates_is_masked_and_replaces_the_lease(
    env: AsyncDesktopEnv, farm: FakeFarm, fault: Exception
) -> None:
    task = ToyTask()
    await env.reset(task)
    farm.leases[0].fail_next("step", fault)
    result = await env.step(CLICK)
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, True)
    assert result.end is EndReason.FARM_FAULT
    assert result.info["masked"] is True
    assert task.evaluations == 0
    await env.reset(task)
    assert farm.leases[0].released
    assert len(farm.leases) == 2
    assert (await env.step(DONE)).end is EndReason.DONE


@pytest.mark.parametrize("method", ["read_file", "exec"])
@pytest.mark.parametrize(
    ("owner", "end"), [(FaultOwner.POLICY, EndReason.BROKE_DESKTOP), (FaultOwner.HOST, EndReason.FARM_FAULT)]
)
async def test_a_desktop_that_dies_while_it_is_judged_follows_its_owner(
    env: AsyncDesktopEnv, farm: FakeFarm, method: str, owner: FaultOwner, end: EndReason
) -> None:
    await env.reset(ToyTask())
    await env.step(CLICK)
    farm.leases[0].fail_next(method, DesktopFailedError("died", fault_owner=owner, cause="x"))
    result = await env.step(DONE)
    assert result.end is end
    assert result.reward == 0.0


async def test_a_verdict_that_a_broken_desktop_gave_is_none(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    class Breaking(ToyTask):
        async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
            farm.leases[0].kill(FaultOwner.POLICY, "pids")
            return Outcome(1.0)

    await env.reset(Breaking())
    await env.step(CLICK)
    result = await env.step(DONE)
    assert (result.end, result.reward, result.info["cause"]) == (EndReason.BROKE_DESKTOP, 0.0, "pids")


@pytest.mark.parametrize("error", [EvaluatorError("no getter"), KeyError("typo"), GuestError("half")])
async def test_an_evaluator_that_raises_gives_no_verdict(env: AsyncDesktopEnv, error: Exception) -> None:
    task = ToyTask(evaluate_error=error)
    await env.reset(task)
    result = await env.step(DONE)
    assert (result.reward, result.terminated, result.truncated) == (0.0, False, True)
    assert result.end is EndReason.EVALUATOR_ERROR
    assert result.info["masked"] is True
    assert task.evaluations == 1


async def test_an_evaluator_that_fails_on_a_dead_desktop_is_not_to_blame(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    class Killer(ToyTask):
        async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
            farm.leases[0].kill(FaultOwner.POLICY, "oom")
            raise EvaluatorError("the program said nothing")

    await env.reset(Killer())
    await env.step(CLICK)
    assert (await env.step(DONE)).end is EndReason.BROKE_DESKTOP


class Confused(ToyTask):
    """Its evaluator cannot judge a desktop on which something was typed."""

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        outcome = await super().evaluate(desktop, end=end)
        if outcome.details["typed"]:
            raise EvaluatorError("the tree never came")
        return outcome


TYPE = Action(ActionType.TYPE, text="x")


async def test_an_evaluator_that_only_the_policy_can_have_confused_scores_zero(
    env: AsyncDesktopEnv, farm: FakeFarm
) -> None:
    task = Confused()
    for evaluations in (2, 3):
        await env.reset(task)
        await env.step(TYPE)
        result = await env.step(DONE)
        assert (result.end, result.reward, result.terminated) == (EndReason.BROKE_DESKTOP, 0.0, True)
        assert (result.info["masked"], result.info["cause"]) == (False, "evaluator: the tree never came")
        assert task.evaluations == evaluations, "what is known is not tried again"
    assert len(farm.leases) == 1


async def test_an_evaluator_that_fails_on_an_untouched_desktop_is_masked(env: AsyncDesktopEnv) -> None:
    task = ToyTask(evaluate_error=EvaluatorError("no getter"))
    await env.reset(task)
    await env.step(TYPE)
    assert (await env.step(DONE)).end is EndReason.EVALUATOR_ERROR
    assert task.evaluations == 2


async def test_a_farm_that_cannot_prepare_an_untouched_desktop_is_to_blame(
    env: AsyncDesktopEnv, farm: FakeFarm
) -> None:
    await env.reset(Confused())
    await env.step(TYPE)
    farm.leases[0].fail_next("reset", FarmError("full", code="no_capacity"))
    assert (await env.step(DONE)).end is EndReason.EVALUATOR_ERROR
    await env.reset(Confused())
    assert len(farm.leases) == 2


async def test_a_living_desktop_that_does_not_do_what_is_asked_was_broken_by_the_policy(
    env: AsyncDesktopEnv, farm: FakeFarm
) -> None:
    await env.reset(ToyTask())
    await env.step(CLICK)
    farm.leases[0].fail_next("step", GuestError("no answer", code="guest_error"))
    result = await env.step(CLICK)
    assert (result.end, result.info["cause"]) == (EndReason.BROKE_DESKTOP, "guest_error: no answer")
    await env.reset(ToyTask())
    assert len(farm.leases) == 2


@pytest.mark.parametrize("owner", [FaultOwner.POLICY, FaultOwner.HOST])
async def test_what_a_dead_desktop_does_not_do_follows_its_owner(
    env: AsyncDesktopEnv, farm: FakeFarm, owner: FaultOwner
) -> None:
    await env.reset(ToyTask())
    await env.step(CLICK)
    died = DesktopFailedError("died", fault_owner=owner, cause="x")
    farm.leases[0].fail_next("step", GuestError("no answer", code="guest_error"))
    farm.leases[0].fail_next("health", died)
    end = (await env.step(CLICK)).end
    assert end is (EndReason.BROKE_DESKTOP if owner is FaultOwner.POLICY else EndReason.FARM_FAULT)


@pytest.mark.parametrize("reward", [1.5, -0.1, float("nan")])
async def test_a_reward_outside_its_range_is_the_evaluators_error(env: AsyncDesktopEnv, reward: float) -> None:
    class Generous(ToyTask):
        async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
            return Outcome(reward)

    await env.reset(Generous())
    assert (await env.step(DONE)).end is EndReason.EVALUATOR_ERROR


async def test_an_evaluator_that_never_answers_is_cut_off(farm: FakeFarm) -> None:
    class Stuck(ToyTask):
        async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
            await asyncio.Event().wait()
            return Outcome(1.0)

    async with AsyncDesktopEnv(farm, shape=SHAPE, evaluate_timeout_s=0.02) as env:
        await env.reset(Stuck())
        assert (await env.step(DONE)).end is EndReason.EVALUATOR_ERROR


class Slow(ToyTask):
    """Its evaluator gives no verdict on a desktop on which something was typed, nor anywhere while the host is busy."""

    busy = False

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        outcome = await super().evaluate(desktop, end=end)
        if self.busy or outcome.details["typed"]:
            await asyncio.Event().wait()
        return outcome


async def test_an_evaluator_that_only_the_policy_can_have_slowed_scores_zero(farm: FakeFarm) -> None:
    async with AsyncDesktopEnv(farm, shape=SHAPE, evaluate_timeout_s=0.3) as env:
        await env.reset(Slow())
        await env.step(TYPE)
        result = await env.step(DONE)
    assert (result.end, result.reward, result.info["masked"]) == (EndReason.BROKE_DESKTOP, 0.0, False)
    assert result.info["cause"] == "evaluator: The evaluator took more than 0.3 s."


async def test_a_verdict_that_a_busy_host_delays_is_masked(farm: FakeFarm) -> None:
    """Also where the evaluator gave a verdict on an untouched desktop before."""
    task = Slow()
    async with AsyncDesktopEnv(farm, shape=SHAPE, evaluate_timeout_s=0.3) as env:
        await env.reset(task)
        await env.step(TYPE)
        assert (await env.step(DONE)).end is EndReason.BROKE_DESKTOP
        task.busy = True
        await env.reset(task)
        await env.step(CLICK)
        result = await env.step(DONE)
    assert (result.end, result.info["masked"]) == (EndReason.EVALUATOR_ERROR, True)


async def test_a_cancelled_step_ends_the_episode_and_replaces_the_desktop(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    await env.reset(ToyTask())
    farm.leases[0].fail_next("step", asyncio.CancelledError())  # type: ignore[arg-type]
    with pytest.raises(asyncio.CancelledError):
        await env.step(CLICK)
    with pytest.raises(DartEnvError, match="reset"):
        await env.step(CLICK)
    await env.reset(ToyTask())
    assert len(farm.leases) == 2


async def test_the_extra_observations_come_only_when_asked_for(farm: FakeFarm) -> None:
    element = A11yElement(role="push button", name="OK", x=1, y=2, w=3, h=4)
    async with AsyncDesktopEnv(farm, shape=SHAPE, observation=("screenshot", "a11y", "terminal")) as env:
        await env.reset(ToyTask())
        farm.leases[0].state.elements.append(element)
        result = await env.step(Action(ActionType.TYPE, text="ls"))
        assert result.observation.a11y == (element,)
        assert result.observation.terminal == "ls"
    async with AsyncDesktopEnv(farm, shape=SHAPE) as plain:
        observation, _ = await plain.reset(ToyTask())
        assert observation.a11y is None
        assert "a11y" not in farm.leases[-1].calls


async def test_options_are_checked_at_once(farm: FakeFarm) -> None:
    with pytest.raises(ValueError, match="screenshot"):
        AsyncDesktopEnv(farm, observation=("a11y",))
    with pytest.raises(ValueError, match="max_steps"):
        AsyncDesktopEnv(farm, max_steps=0)


async def test_info_holds_no_clock_and_timings_lie_beside_it(env: AsyncDesktopEnv) -> None:
    task = ToyTask()
    await env.reset(task)
    assert set(env.timings_s) == {"lease", "prepare", "act"}
    first = await env.step(DONE)
    assert set(env.timings_s) == {"act", "evaluate"}
    await env.reset(task)
    assert dict((await env.step(DONE)).info) == dict(first.info)


async def test_a_reset_that_meets_a_host_fault_takes_another_desktop(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    task = ToyTask()
    await env.reset(task)
    farm.leases[0].fail_next("reset", DesktopFailedError("restore failed"))
    await env.reset(task)
    assert len(farm.leases) == 2
    assert farm.leases[0].released


async def test_a_reset_gives_up_after_three_desktops(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    with pytest.raises(SetupError, match="no such program"):
        await env.reset(ToyTask(prepare_error=SetupError("no such program")))
    assert len(farm.leases) == 3
    assert len(farm.abandoned) == 3


async def test_a_setup_step_that_fails_on_two_desktops_is_not_tried_on_a_third(
    env: AsyncDesktopEnv, farm: FakeFarm
) -> None:
    task = ToyTask(prepare_error=SetupError("Setup step 2 (place_window) failed: no window", failed_step=2))
    with pytest.raises(SetupError, match="place_window"):
        await env.reset(task)
    assert (task.prepared, len(farm.leases)) == (2, 2)


async def test_two_setup_steps_that_fail_in_turn_are_tried_on_a_third_desktop(
    env: AsyncDesktopEnv, farm: FakeFarm
) -> None:
    class Flaky(ToyTask):
        async def prepare(self, desktop: Desktop) -> None:
            self.prepare_error = SetupError("no window", failed_step=self.prepared)
            await super().prepare(desktop)

    with pytest.raises(SetupError):
        await env.reset(task := Flaky())
    assert task.prepared == 3


async def test_a_refusal_that_would_repeat_itself_is_raised_at_once(env: AsyncDesktopEnv, farm: FakeFarm) -> None:
    farm.fail_next_lease(FarmError("no image", code="image_missing"))
    with pytest.raises(FarmError, match="no image"):
        await env.reset(ToyTask())
    assert farm.leases == []
