"""Limits of an episode: each ends it with a verdict and one stop reason, and none masks it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dart_agent.errors import ContextExceededError, PolicyUnavailableError, PromptTooLongError
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.prompts.history import HistorySettings
from dart_agent.rollouts.episode import Episode, EpisodeSettings, OnParseError
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.rollouts.limits import EpisodeLimits, LimitTracker
from dart_agent.types import Completion, FinishReason, PolicyRequest, StopReason
from dart_envs.evaluators.scoring import evaluate
from dart_envs.tasks import Evaluator
from dart_envs.types import ActionType, EndReason
from tests.unit.dart_agent.fakes import FakeClock, ScriptedEnv, ScriptedPolicy, completion, item, task

CLICK = "Thought: OK\nAction: click(start_box='(10,20)')"
OTHER = "Action: click(start_box='(1,1)')"
DONE = "Action: finished(content='')"
TOO_LONG = ContextExceededError(990, 64, 1024)


class StillScreen(ScriptedEnv):
    """A screen that no action changes."""

    def _observe(self):  # type: ignore[no-untyped-def]
        seen = super()._observe()
        return replace(seen, screenshot=seen.screenshot * 0)


async def play(
    answers: Sequence[str | Exception],
    *,
    env: ScriptedEnv | None = None,
    max_steps: int = 9,
    history: HistorySettings | None = None,
    policy: ScriptedPolicy | None = None,
    clock: FakeClock | None = None,
    on_parse_error: OnParseError = OnParseError.NO_ACTION,
    **limits: object,
) -> Episode:
    settings = EpisodeSettings(on_parse_error=on_parse_error, limits=EpisodeLimits.model_validate(limits))
    builder = PromptBuilder(preset("uitars", images=3, history=history))
    chosen = policy or ScriptedPolicy(answers)
    work = item(max_steps=max_steps)
    return await run_episode(
        env or ScriptedEnv(), chosen, task(max_steps), work, builder, clock=clock or FakeClock(), settings=settings
    )


async def test_a_prompt_that_grew_too_long_ends_the_episode_with_the_evaluators_verdict() -> None:
    env = ScriptedEnv(goal=(12, 23))
    trajectory = (await play([CLICK, OTHER, TOO_LONG], env=env)).trajectory
    assert (trajectory.stop, trajectory.end, trajectory.reward) == (StopReason.CONTEXT, EndReason.MAX_STEPS, 1.0)
    assert len(trajectory.steps_S) == 2
    assert (await play([OTHER, TOO_LONG])).trajectory.reward == 0.0


async def test_a_prompt_with_more_images_than_the_worker_takes_is_a_prompt_that_grew_too_long() -> None:
    trajectory = (await play([OTHER, "hm", PromptTooLongError("the prompt has 3 images")])).trajectory
    assert (trajectory.stop, trajectory.reward, len(trajectory.steps_S)) == (StopReason.CONTEXT, 0.0, 2)


async def test_retries_show_as_many_images_as_the_worker_is_started_for() -> None:
    policy = ScriptedPolicy(["hm"] * 12)
    history = HistorySettings(policy="full")
    await play([], policy=policy, max_steps=4, history=history, on_parse_error=OnParseError.RETRY)
    turns = 4 * (1 + EpisodeSettings().parse_retries)
    assert max(len(request.images) for request in policy.requests) == history.most_images(turns) == 12


async def test_tokens_that_an_endpoint_only_counts_are_limited_too() -> None:
    class CountsOnly(ScriptedPolicy):
        async def complete(self, request: PolicyRequest) -> Completion:
            answer = await super().complete(request)
            return replace(answer, token_ids_T=(), logprobs_T=(), version_spans=(), counted_tokens=2)

    policy = CountsOnly([OTHER] * 9)
    trajectory = (await play([], policy=policy, max_tokens=5)).trajectory
    assert (trajectory.stop, len(trajectory.steps_S)) == (StopReason.MAX_TOKENS, 3)
    assert [request.sampling.max_tokens for request in policy.requests] == [5, 3, 1]


async def test_a_first_prompt_that_does_not_fit_is_no_episode() -> None:
    with pytest.raises(ContextExceededError, match=r"990 tokens .* may have 64, but the context is 1024"):
        await play([TOO_LONG])


async def test_a_window_drops_turns_until_the_prompt_fits() -> None:
    policy = ScriptedPolicy([OTHER, OTHER, OTHER, TOO_LONG, TOO_LONG, DONE])
    trajectory = (await play([], policy=policy, history=HistorySettings(policy="window", keep=8))).trajectory
    assert (trajectory.stop, len(trajectory.steps_S)) == (StopReason.DONE, 4)
    assert [len(request.images) for request in policy.requests] == [1, 2, 3, 4, 2, 1]


@pytest.mark.parametrize(
    ("answers", "limits", "stop", "steps"),
    [
        ([OTHER] * 9, {}, StopReason.MAX_STEPS, 9),
        ([OTHER] * 9, {"max_tokens": 5}, StopReason.MAX_TOKENS, 3),
        ([OTHER] * 9, {"wall_clock_s": 25}, StopReason.WALL_CLOCK, 3),
        ([OTHER] * 2 + [CLICK] + [OTHER] * 6, {"loop_repeats": 3}, StopReason.LOOP, 6),
        ([OTHER, DONE], {"loop_repeats": 2}, StopReason.DONE, 2),
        (["hm"] * 9, {"loop_repeats": 2}, StopReason.LOOP, 2),
        ([OTHER, "Action: call_user()"], {"max_tokens": 4}, StopReason.FAIL, 2),
    ],
)
async def test_each_limit_has_its_stop_reason(
    answers: list[str], limits: dict[str, object], stop: StopReason, steps: int
) -> None:
    clock = FakeClock()

    class SlowEnv(StillScreen):
        async def step(self, action, *, last=None):  # type: ignore[no-untyped-def]
            clock.now_s += 10
            return await super().step(action, last=last)

    trajectory = (await play(answers, env=SlowEnv(), clock=clock, **limits)).trajectory
    assert (trajectory.stop, len(trajectory.steps_S)) == (stop, steps)
    assert trajectory.end is stop.end
    assert trajectory.reward is not None


async def test_the_same_action_on_another_screen_is_no_loop() -> None:
    assert (await play([OTHER] * 9, env=ScriptedEnv(), loop_repeats=2)).trajectory.stop is StopReason.MAX_STEPS


async def test_a_caret_that_blinks_hides_no_loop() -> None:
    class BlinkingEnv(ScriptedEnv):
        def _observe(self):  # type: ignore[no-untyped-def]
            seen = super()._observe()
            return replace(seen, screenshot=seen.screenshot * 0 + len(self.actions) % 2)

    trajectory = (await play([OTHER] * 9, env=BlinkingEnv(), loop_repeats=3)).trajectory
    assert (trajectory.stop, len(trajectory.steps_S)) == (StopReason.LOOP, 5)
    mixed = [OTHER, OTHER, OTHER, OTHER, CLICK] * 2
    assert (await play(mixed, env=BlinkingEnv(), loop_repeats=3)).trajectory.stop is StopReason.MAX_STEPS


async def test_different_answers_that_are_no_action_are_no_loop() -> None:
    said = [f"hm {number}" for number in range(9)]
    assert (await play(said, env=StillScreen(), loop_repeats=2)).trajectory.stop is StopReason.MAX_STEPS


async def test_a_model_call_does_not_outlast_the_wall_clock() -> None:
    class Hangs:
        cancelled = False

        async def complete(self, request: PolicyRequest) -> Completion:
            try:
                await asyncio.Event().wait()
            finally:
                Hangs.cancelled = True
            raise AssertionError("never reached")

    clock = FakeClock()
    trajectory = (await play([], policy=Hangs(), clock=clock, wall_clock_s=30)).trajectory  # type: ignore[arg-type]
    assert (trajectory.stop, trajectory.reward, len(trajectory.steps_S)) == (StopReason.WALL_CLOCK, 0.0, 0)
    assert (Hangs.cancelled, clock.now_s) == (True, 30.0)


async def test_no_answer_is_longer_than_what_is_left() -> None:
    policy = ScriptedPolicy([OTHER] * 9)
    await play([], policy=policy, max_tokens=5)
    assert [request.sampling.max_tokens for request in policy.requests] == [5, 3, 1]


async def test_an_answer_that_is_no_action_can_be_the_stop_reason() -> None:
    trajectory = (
        await play([CLICK, "hm"], env=ScriptedEnv(goal=(12, 23)), on_parse_error=OnParseError.FAIL)
    ).trajectory
    assert (trajectory.stop, trajectory.end, trajectory.reward) == (StopReason.PARSE_ERROR, EndReason.MAX_STEPS, 0.0)
    assert trajectory.cause is not None
    assert trajectory.cause.startswith("the answer is no action: no_action: ")
    assert trajectory.info["outcome"] == {"cause": trajectory.cause}


class InfeasibleTaskEnv(ScriptedEnv):
    """Judges as the evaluator `infeasible` does; a step takes 10 s."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock

    async def step(self, action, *, last=None):  # type: ignore[no-untyped-def]
        self.clock.now_s += 10
        result = await super().step(action, last=last)
        if result.end is None:
            return result
        outcome = await evaluate(None, Evaluator(func="infeasible"), end=result.end)  # type: ignore[arg-type]
        return replace(result, reward=outcome.reward, info={"outcome": outcome.details})


@pytest.mark.parametrize("on_parse_error", list(OnParseError))
@pytest.mark.parametrize("limits", [{}, {"loop_repeats": 2}, {"max_tokens": 2}, {"wall_clock_s": 5}])
async def test_an_answer_that_is_no_action_never_solves_an_infeasible_task(
    on_parse_error: OnParseError, limits: dict[str, object]
) -> None:
    clock = FakeClock()
    env = InfeasibleTaskEnv(clock)
    settings: dict[str, object] = {"on_parse_error": on_parse_error, **limits}
    trajectory = (await play(["hm"] * 9, env=env, max_steps=2, clock=clock, **settings)).trajectory  # type: ignore[arg-type]
    assert trajectory.reward == 0.0
    assert ActionType.FAIL not in {action.type for action in env.actions}
    if on_parse_error is OnParseError.FAIL:
        assert (trajectory.stop, len(trajectory.steps_S)) == (StopReason.PARSE_ERROR, 1)


async def test_saying_that_an_infeasible_task_cannot_be_done_solves_it() -> None:
    trajectory = (
        await play(["Action: call_user()"], env=InfeasibleTaskEnv(FakeClock()), on_parse_error=OnParseError.FAIL)
    ).trajectory
    assert (trajectory.stop, trajectory.reward) == (StopReason.FAIL, 1.0)


async def test_a_fault_of_the_farm_after_an_answer_that_is_no_action_stays_masked() -> None:
    env = ScriptedEnv(ends={1: (EndReason.FARM_FAULT, "host")})
    trajectory = (await play(["hm"], env=env, on_parse_error=OnParseError.FAIL)).trajectory
    assert (trajectory.stop, trajectory.reward, trajectory.cause) == (StopReason.FARM_FAULT, None, "host")


async def test_an_aborted_answer_is_never_a_step() -> None:
    class Aborts:
        async def complete(self, request: PolicyRequest) -> Completion:
            return replace(completion(DONE), finish_reason=FinishReason.ABORT)

    with pytest.raises(PolicyUnavailableError, match="gave up"):
        await play([], policy=Aborts())  # type: ignore[arg-type]


def test_every_stop_reason_has_an_end_and_every_end_a_stop_reason() -> None:
    assert {reason.end for reason in StopReason} == set(EndReason)
    for end in EndReason:
        assert StopReason(end.value).end is end


def test_what_was_used_can_be_saved() -> None:
    tracker = LimitTracker(EpisodeLimits(loop_repeats=3))
    tracker.add(4, "a", {"type": "click"})
    tracker.add(4, "a", {"type": "click"})
    tracker.add(4, "b", {"type": "click"})
    again = LimitTracker(tracker.limits, tracker.use)
    assert again.reached(0.0) is None
    again.add(4, "a", {"type": "click"})
    assert (again.reached(0.0), again.use.tokens) == (StopReason.LOOP, 16)
