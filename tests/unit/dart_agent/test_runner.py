"""The episode loop with a scripted environment and a scripted policy."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import pytest

from dart_agent.errors import PolicyUnavailableError
from dart_agent.prompts.builder import PromptBuilder, preset
from dart_agent.rollouts.episode import Episode, EpisodeSettings, ObservedStep, OnParseError
from dart_agent.rollouts.episode_loop import run_episode
from dart_agent.rollouts.episode_report import PlayedEpisode, record_episode
from dart_agent.rollouts.limits import EpisodeLimits
from dart_agent.types import Completion, PolicyRequest, StopReason
from dart_envs.action_formats.qwen import Qwen3VlFormat
from dart_envs.errors import FarmError
from dart_envs.hashing import image_sha256
from dart_envs.types import Action, ActionType, DecodedAction, EndReason, StepResult
from tests.unit.dart_agent.fakes import FakeClock, ScriptedEnv, ScriptedPolicy, item, task

CLICK = "Thought: OK\nAction: click(start_box='(10,20)')"
DONE = "Action: finished(content='')"


async def play(env: ScriptedEnv, policy: ScriptedPolicy, *, max_steps: int = 5, **settings: object) -> Episode:
    builder = PromptBuilder(preset("tiny"))
    return await run_episode(
        env, policy, task(max_steps), item(), builder, clock=FakeClock(), **settings  # type: ignore[arg-type]
    )  # fmt: skip


async def test_an_episode_from_reset_to_reward() -> None:
    env, policy = ScriptedEnv(), ScriptedPolicy([CLICK, DONE])
    episode = await play(env, policy)
    trajectory = episode.trajectory
    assert (trajectory.reward, trajectory.end, trajectory.cause) == (1.0, EndReason.DONE, None)
    assert [step.action and step.action["type"] for step in trajectory.steps_S] == ["click", "done"]
    assert trajectory.info["instruction"] == "Click OK"
    assert trajectory.info["outcome"] == {"hit": True}
    first = trajectory.steps_S[0]
    assert (first.token_ids_T, first.logprobs_T, first.prompt_ids_P) == ((3, 4), (-0.5, -0.25), (1, 2))
    assert first.text == CLICK


async def test_steps_name_the_images_that_their_prompts_showed() -> None:
    builder = PromptBuilder(preset("uitars", images=2))
    policy = ScriptedPolicy([CLICK, CLICK, DONE])
    episode = await run_episode(ScriptedEnv(), policy, task(), item(), builder, clock=FakeClock())
    for step, request in zip(episode.trajectory.steps_S, policy.requests, strict=True):
        assert step.image_sha256 == tuple(image_sha256(image) for image in request.images)
        assert step.image_hw == tuple((image.shape[0], image.shape[1]) for image in request.images)
        assert set(step.image_sha256) <= set(episode.images)
    assert [len(step.image_sha256) for step in episode.trajectory.steps_S] == [1, 2, 2]
    assert all(image_sha256(image) == sha256 for sha256, image in episode.images.items())


async def test_an_answer_that_is_no_action_counts_as_a_step_and_does_nothing() -> None:
    env = ScriptedEnv()
    episode = await play(env, ScriptedPolicy(["hello", "Action: click(start_box='(99,0)')", DONE]))
    steps = episode.trajectory.steps_S
    assert [step.parse_error is not None for step in steps] == [True, True, False]
    assert steps[0].parse_error is not None
    assert steps[0].parse_error.startswith("no_action: ")
    assert steps[1].parse_error is not None
    assert steps[1].parse_error.startswith("out_of_screen: ")
    assert steps[0].action is None
    assert [(action.type, action.duration_s) for action in env.actions[:2]] == [(ActionType.WAIT, 0.0)] * 2


async def test_an_answer_that_is_no_action_can_end_the_episode() -> None:
    episode = await play(
        ScriptedEnv(), ScriptedPolicy(["hello"]), settings=EpisodeSettings(on_parse_error=OnParseError.FAIL)
    )
    assert (episode.trajectory.stop, episode.trajectory.reward) == (StopReason.PARSE_ERROR, 0.0)


RETRY = EpisodeSettings(on_parse_error=OnParseError.RETRY, parse_retries=2)


async def test_an_answer_that_performs_nothing_is_asked_for_again_on_the_same_screen() -> None:
    env, policy = ScriptedEnv(), ScriptedPolicy(["hello", "Action: click(start_box='(99,0)')", CLICK, DONE])
    episode = await play(env, policy, settings=RETRY)
    steps = episode.trajectory.steps_S
    assert [(step.parse_error or "").partition(":")[0] for step in steps] == ["no_action", "out_of_screen", "", ""]
    assert [action.type for action in env.actions] == [ActionType.CLICK, ActionType.DONE]
    assert len({step.image_sha256[-1] for step in steps[:3]}) == 1
    assert steps[3].image_sha256[-1] != steps[2].image_sha256[-1]
    assert [step.index for step in steps] == [0, 1, 2, 3]
    assert steps[0].token_ids_T
    assert "hello" in str(policy.requests[1].messages)


async def test_after_so_many_retries_a_step_passes_in_which_nothing_happens() -> None:
    env = ScriptedEnv()
    episode = await play(env, ScriptedPolicy(["a"] * 6 + [DONE]), settings=RETRY)
    assert [(action.type, action.duration_s) for action in env.actions[:2]] == [(ActionType.WAIT, 0.0)] * 2
    assert [action.type for action in env.actions[2:]] == [ActionType.DONE]
    assert len(episode.trajectory.steps_S) == 7


async def test_retries_end_with_the_step_budget() -> None:
    env = ScriptedEnv()
    episode = await play(env, ScriptedPolicy(["a"] * 6), max_steps=2, settings=RETRY)
    assert (episode.trajectory.stop, len(env.actions)) == (StopReason.MAX_STEPS, 2)


async def test_a_retry_uses_the_token_budget() -> None:
    settings = EpisodeSettings(on_parse_error=OnParseError.RETRY, parse_retries=2, limits=EpisodeLimits(max_tokens=4))
    env = ScriptedEnv()
    episode = await play(env, ScriptedPolicy(["a"] * 2), settings=settings)
    assert (episode.trajectory.stop, len(env.actions)) == (StopReason.MAX_TOKENS, 1)


async def test_the_step_budget_ends_it_with_a_verdict() -> None:
    episode = await play(ScriptedEnv(), ScriptedPolicy([CLICK, "nothing"]), max_steps=2)
    assert (episode.trajectory.end, episode.trajectory.reward) == (EndReason.MAX_STEPS, 1.0)


async def test_a_fault_of_the_farm_is_masked_and_keeps_its_cause() -> None:
    env = ScriptedEnv(ends={2: (EndReason.FARM_FAULT, "host_lost: gone")})
    episode = await play(env, ScriptedPolicy([CLICK, CLICK]))
    trajectory = episode.trajectory
    assert (trajectory.reward, trajectory.end, trajectory.cause) == (None, EndReason.FARM_FAULT, "host_lost: gone")
    assert len(trajectory.steps_S) == 2


async def test_a_policy_that_cannot_answer_leaves_no_masked_episode() -> None:
    with pytest.raises(PolicyUnavailableError, match="no worker"):
        await play(ScriptedEnv(), ScriptedPolicy([CLICK, PolicyUnavailableError("no worker")]))


async def test_an_episode_that_cannot_begin_raises() -> None:
    with pytest.raises(FarmError):
        await play(ScriptedEnv(reset_error=FarmError("full", code="no_capacity")), ScriptedPolicy([]))


async def test_each_step_is_watched_before_its_action_is_performed() -> None:
    env, seen = ScriptedEnv(), list[tuple[int, int, bool]]()

    async def watch(step: ObservedStep) -> None:
        seen.append((step.index, len(env.actions), step.action is not None))

    await play(env, ScriptedPolicy([CLICK, "nothing", DONE]), on_step=watch)
    assert seen == [(0, 0, True), (1, 1, False), (2, 2, True)]


async def test_seeds_differ_from_step_to_step() -> None:
    policy = ScriptedPolicy([CLICK, DONE])
    builder = PromptBuilder(preset("tiny"))
    await run_episode(ScriptedEnv(), policy, task(), item(seed=7), builder, clock=FakeClock())
    assert [request.sampling.seed for request in policy.requests] == [7, 8]


async def test_the_format_of_the_prompts_reads_the_answers_and_ends_them() -> None:
    class FakeFormatWithStop(Qwen3VlFormat):
        stop = ("</tool_call>",)

    spec = dataclasses.replace(preset("qwen3-vl"), format=FakeFormatWithStop())
    calls = [{"action": "left_click", "coordinate": [160, 320]}, {"action": "terminate", "status": "success"}]
    answers = [f"<tool_call>{json.dumps({'name': 'computer_use', 'arguments': call})}" for call in calls]
    env, policy = ScriptedEnv(), ScriptedPolicy(answers)
    episode = await run_episode(env, policy, task(), item(), PromptBuilder(spec), clock=FakeClock())
    assert [request.sampling.stop for request in policy.requests] == [("</tool_call>",)] * 2
    assert [(action.type, action.x, action.y) for action in env.actions[:1]] == [(ActionType.CLICK, 10, 20)]
    assert (episode.trajectory.reward, episode.trajectory.stop) == (1.0, StopReason.DONE)


async def test_several_actions_of_an_answer_are_one_step_and_are_stored_as_a_batch() -> None:
    env = ScriptedEnv()
    both = "Action: click(start_box='(28,56)')\n\ntype(content='a')"
    builder = PromptBuilder(preset("dart-gui"))
    episode = await run_episode(env, ScriptedPolicy([both, DONE]), task(), item(), builder, clock=FakeClock())
    first = episode.trajectory.steps_S[0].action
    assert first is not None
    assert [action["type"] for action in first["actions"]] == ["click", "type"]
    assert len(env.actions) == 2


async def test_cancelling_leaves_an_environment_that_can_be_used_again() -> None:
    asked = asyncio.Event()

    class SilentPolicy:
        async def complete(self, request: PolicyRequest) -> Completion:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError("never reached")

    env = ScriptedEnv()
    builder = PromptBuilder(preset("tiny"))
    running = asyncio.create_task(run_episode(env, SilentPolicy(), task(), item(), builder, clock=FakeClock()))
    await asyncio.wait_for(asked.wait(), 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    episode = await play(env, ScriptedPolicy([CLICK, DONE]))
    assert episode.trajectory.reward == 1.0


async def test_an_episode_says_how_long_its_requests_were_queued_and_its_desktop_evaluated(tmp_path: Path) -> None:
    clock = FakeClock()

    class Queued(ScriptedPolicy):
        async def complete(self, request: PolicyRequest) -> Completion:
            clock.now_s += 3.0
            return dataclasses.replace(await super().complete(request), queue_s=2.0)

    class Evaluated(ScriptedEnv):
        timings_s: ClassVar[dict[str, float]] = {}

        async def step(self, action: Action | DecodedAction, *, last: bool | None = None) -> StepResult:
            result = await super().step(action, last=last)
            clock.now_s += 1.0
            if result.end is not None:
                clock.now_s += 5.0
                self.timings_s["evaluate"] = 5.0
            return result

    builder = PromptBuilder(preset("tiny"))
    episode = await run_episode(Evaluated(), Queued([CLICK, DONE]), task(), item(), builder, clock=clock)
    record_episode(tmp_path / "metrics.jsonl", clock, PlayedEpisode(episode, "slot", 0.0))
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["model_s"], line["queue_s"], line["env_s"], line["evaluate_s"]) == (6.0, 4.0, 2.0, 5.0)
