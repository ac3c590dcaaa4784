"""The episode loop: the one place where a policy acts in an environment.

Role: `run_episode`, used for training, evaluation and demonstrations alike. Rule: what the policy does wrong is data in the trajectory, and
reaching a limit is its doing; what the farm does wrong ends the episode with its cause; an episode that never began, or whose policy cannot
answer any more, raises and leaves nothing. A prompt repeats the exact ids of the turns before it: an answer is never tokenised again.
Cancelling it is safe at any point: the environment's next reset starts afresh. Non-goals: claiming work, storing results
(`dart_agent.rollouts.worker`).

    reset ─► observation ─► prompt ─► policy ─► text ─► parse ─► action ─► step ─┬─► record ─► stored ─► end?
                 ▲                                        └─ no action: wait 0 s ┘                      no │
                 └──────────────────────────────────────────────────────────────────────────────────────── ┘
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

from dart_agent.errors import PolicyUnavailableError, PromptTooLongError
from dart_agent.prompts.builder import Prompt, PromptBuilder
from dart_agent.prompts.exact_prefix import continues
from dart_agent.prompts.history import Turn
from dart_agent.rewards.evaluator import EvaluatorReward
from dart_agent.rewards.source import EndedEpisode, RewardSource, reward_episode
from dart_agent.rollouts.episode import (
    Episode,
    EpisodeEnv,
    EpisodeJournal,
    EpisodeSettings,
    EpisodeStopped,
    ObservedStep,
    OnParseError,
    ResumedEpisode,
    no_outage,
)
from dart_agent.rollouts.episode_state import EpisodeProgress, EpisodeState
from dart_agent.rollouts.limits import LimitTracker, LimitUse
from dart_agent.types import (
    Completion,
    Directive,
    FinishReason,
    Policy,
    PolicyRequest,
    Purpose,
    StepRecord,
    StopReason,
    Trajectory,
    WorkItem,
)
from dart_envs.action_formats import ParsedAnswer, ParseError
from dart_envs.actions import actions_to_dict
from dart_envs.clock import SystemClock, wait_first
from dart_envs.errors import ActionError
from dart_envs.hashing import image_sha256
from dart_envs.tasks import Task
from dart_envs.types import Action, ActionType, EndReason, Observation, RgbImage, StepResult
from dart_server.wire import Clock

_NO_OP = Action(ActionType.WAIT, duration_s=0.0)
_LEAST_WAIT_S = 0.5
"""Pause before the time limit is looked at again, where an outage of the inference workers moved it."""


async def run_episode(
    env: EpisodeEnv,
    policy: Policy,
    task: Task,
    item: WorkItem,
    builder: PromptBuilder,
    *,
    clock: Clock | None = None,
    settings: EpisodeSettings | None = None,
    on_step: Callable[[ObservedStep], Awaitable[None]] | None = None,
    journal: EpisodeJournal | None = None,
    resumed: ResumedEpisode | None = None,
    rewards: RewardSource | None = None,
    outage_s: Callable[[], float] = no_outage,
    progress: EpisodeProgress | None = None,
) -> Episode:
    """Play one episode of `task` to its end, from its beginning or from where `resumed` left it.

    task: as `rewards.prepare` returned it. rewards: what gives the episode its reward; None: the environment's evaluator. outage_s: seconds
    so far in which no inference worker served; those of them that an answer is waited for do not count against the wall-clock limit.
    progress: is kept up to date.

    Raises `dart_envs.errors.DartEnvError` when it could not begin, PolicyUnavailableError when the policy cannot answer (a
    PromptTooLongError when not even the first prompt fits), and EpisodeStopped when the journal says so.
    """
    settings = settings or EpisodeSettings()
    progress = progress or EpisodeProgress()
    screenshots = 0 if rewards is None else rewards.screenshots
    episode = _EpisodeRecorder(item, builder, clock or SystemClock(), settings, progress, outage_s, screenshots)
    if resumed is None:
        share_setup = True if item.purpose is Purpose.TRAIN else None
        observation, _ = await env.reset(task, item.sampling.seed, share_setup=share_setup)
        episode.begin()
    else:
        observation = resumed.observation
        episode.restore(resumed, task.instruction)
    while True:
        screen = await asyncio.to_thread(_model_screen, builder, observation)
        asked_s = episode.clock.monotonic()
        asked = await _ask(policy, episode, observation, screen)
        if isinstance(asked, StopReason):
            ended = await env.step(_NO_OP, last=True)
            return await episode.finish(task, ended, asked, rewards, _evaluated_s(env))
        prompt, request, completion = asked
        answered_s = episode.clock.monotonic()
        said = completion.text if completion.action_text is None else completion.action_text
        parsed = builder.spec.parse(said, prompt.points, observation.pointer)
        action = parsed.action if isinstance(parsed, ParsedAnswer) else None
        if on_step is not None:
            await on_step(ObservedStep(len(episode.steps), observation, action))
        limit = episode.count(completion, screen, parsed)
        if journal is not None:
            journal.acting(len(episode.steps))
        retry = limit is None and episode.may_retry()
        last = True if limit is not None else None
        result, refusal = await _perform(env, parsed, settings.on_parse_error, last=last, retry=retry)
        evaluate_s = _evaluated_s(env) if result is not None and result.end is not None else 0.0
        episode.record(
            prompt, request, completion, parsed if isinstance(parsed, ParsedAnswer) and refusal is None else None, refusal,
            model_s=answered_s - asked_s, env_s=max(0.0, episode.clock.monotonic() - answered_s - evaluate_s),
        )  # fmt: skip
        if result is not None and result.end is not None:
            if refusal is not None and settings.on_parse_error is OnParseError.FAIL:
                limit = StopReason.PARSE_ERROR
            return await episode.finish(task, result, limit, rewards, evaluate_s)
        if journal is not None:
            directive = await journal.stored(tuple(episode.steps), screen[0], episode.state())
            episode.let_go(journal.sent_images)
            if directive is not Directive.CONTINUE:
                raise EpisodeStopped(directive)
        if result is not None:
            observation = result.observation


def _evaluated_s(env: EpisodeEnv) -> float:
    """Seconds of the step that ended the episode in which its desktop was evaluated; 0 for an environment that keeps no times."""
    timings_s: Mapping[str, float] = getattr(env, "timings_s", {})
    return timings_s.get("evaluate", 0.0)


async def _ask(
    policy: Policy, episode: _EpisodeRecorder, observation: Observation, screen: tuple[RgbImage, str]
) -> tuple[Prompt, PolicyRequest, Completion] | StopReason:
    """The prompt, the request and its answer; or the limit that leaves no answer."""
    while True:
        left_s = episode.limits.seconds_left(episode.played_s)
        if left_s == 0:
            return StopReason.WALL_CLOCK
        prompt = episode.builder.build_from(observation, screen[0], episode.history)
        request = episode.request(prompt, screen[1])
        try:
            asked = policy.complete(request)
            completion = await (asked if left_s is None else episode.wait_for_answer(asked, left_s))
        except PromptTooLongError:
            if episode.history.shrink():
                continue
            if not episode.steps:
                raise
            return StopReason.CONTEXT
        except TimeoutError:
            return StopReason.WALL_CLOCK
        if completion.finish_reason is FinishReason.ABORT:
            raise PolicyUnavailableError(f"the engine gave up request {request.request_id}")
        return prompt, request, completion


def _model_screen(builder: PromptBuilder, observation: Observation) -> tuple[RgbImage, str]:
    """The screen in the size that the model gets, and its hash. Off the event loop: a large screen takes tens of milliseconds."""
    image = builder.model_image(observation.screenshot)
    return image, image_sha256(image)


async def _perform(
    env: EpisodeEnv,
    parsed: ParsedAnswer | ParseError,
    on_parse_error: OnParseError,
    *,
    last: bool | None,
    retry: bool,
) -> tuple[StepResult | None, str | None]:
    """The transition (None: the same screen is asked again), and why the answer performed nothing (None when it did)."""
    refusal = parsed
    if isinstance(parsed, ParsedAnswer):
        try:
            return await env.step(parsed.action, last=last), None
        except ActionError as refused:
            refusal = ParseError(refused.fault, str(refused))
    if retry:
        return None, str(refusal)
    return await env.step(_NO_OP, last=True if on_parse_error is OnParseError.FAIL else last), str(refusal)


class _EpisodeRecorder:
    """What a running episode has gathered."""

    def __init__(
        self,
        item: WorkItem,
        builder: PromptBuilder,
        clock: Clock,
        settings: EpisodeSettings,
        progress: EpisodeProgress,
        pool_outage_s: Callable[[], float],
        screenshots: int,
    ) -> None:
        self.item = item
        self.progress = progress
        self.builder = builder
        self.clock = clock
        self.settings = settings
        self.limits = LimitTracker(settings.limits)
        self.history = builder.new_history()
        self.steps: list[StepRecord] = []
        self.images: dict[str, RgbImage] = {}
        self.screenshots = screenshots
        self.earlier_images: Mapping[str, RgbImage] = {}
        self.hashes: list[str] = []
        self.messages: tuple[Mapping[str, Any], ...] = ()
        self.reset_s = self.queue_s = 0.0
        self.elapsed_before_s = 0.0
        self.outage_s = 0.0
        self.pool_outage_s = pool_outage_s
        self.started_at_s = clock.time()
        self.began_s = clock.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds that the episode has run, its reset included, time in which it was parked not."""
        return self.elapsed_before_s + self.clock.monotonic() - self.began_s

    @property
    def played_s(self) -> float:
        """Seconds since the first observation; time in which it was parked, or waited while no inference worker served, not counted."""
        return self.elapsed_s - self.reset_s - self.outage_s

    async def wait_for_answer(self, asked: Coroutine[Any, Any, Completion], left_s: float) -> Completion:
        """Wait for an answer until the time limit of the episode, which an outage of the inference workers moves.

        left_s: seconds until the limit without an outage. Raises TimeoutError at the limit; the request is cancelled then.
        """
        answer = asyncio.ensure_future(asked)
        seen_s = self.pool_outage_s()
        try:
            while True:
                await wait_first(self.clock, left_s, [answer])
                before_s, seen_s = seen_s, self.pool_outage_s()
                self.outage_s += seen_s - before_s
                if answer.done():
                    return answer.result()
                if seen_s == before_s:
                    raise TimeoutError
                left_s = max(seen_s - before_s, _LEAST_WAIT_S)
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.wait({answer})

    def may_retry(self) -> bool:
        """Whether an answer that performs nothing is asked for again: of the last answers on this screen, few enough performed nothing."""
        if self.settings.on_parse_error is not OnParseError.RETRY:
            return False
        failed = 0
        while failed < len(self.steps) and self.steps[-1 - failed].parse_error is not None:
            failed += 1
        # Each answer after `parse_retries` failed ones was followed by a step in which nothing happened.
        return failed % (self.settings.parse_retries + 1) < self.settings.parse_retries

    def begin(self) -> None:
        """The reset is over."""
        self.reset_s = self.progress.reset_s = self.clock.monotonic() - self.began_s

    def restore(self, resumed: ResumedEpisode, instruction: str) -> None:
        """Go on after the steps of a saved episode."""
        state, self.earlier_images = resumed.saved.state, resumed.images
        self.queue_s, self.progress.reset_s = state.queue_s, 0.0
        self.limits.use = LimitUse(state.tokens, state.repeats, state.last_action, state.screens)
        self.started_at_s, self.elapsed_before_s, self.reset_s = state.started_at_s, state.elapsed_s, state.reset_s
        self.outage_s = state.outage_s
        self.steps = list(resumed.saved.steps_S)
        self.hashes = [step.image_sha256[-1] for step in self.steps]
        turns = [
            Turn(resumed.images.get(sha256), step.text) for sha256, step in zip(self.hashes, self.steps, strict=True)
        ]
        last = self.steps[-1]
        height, width = last.image_hw[-1]
        self.history.restore_shown(turns[:-1], len(last.image_sha256) - 1)
        self.messages = self.builder.messages(instruction, self.history, (width, height))
        self.history.restore(turns, state.first_turn, state.first_screen)

    def state(self) -> EpisodeState:
        """What another process needs beside the steps; the desktop is not in it."""
        use = self.limits.use
        return EpisodeState(
            worker=self.settings.worker,
            process=self.settings.process,
            started_at_s=self.started_at_s,
            elapsed_s=self.elapsed_s,
            reset_s=self.reset_s,
            outage_s=self.outage_s,
            queue_s=self.queue_s,
            tokens=use.tokens,
            repeats=use.repeats,
            last_action=use.last,
            screens=dict(use.screens),
            first_turn=self.history.first_turn,
            first_screen=self.history.first_screen,
        )

    def request(self, prompt: Prompt, sha256: str) -> PolicyRequest:
        """The next call; it continues the ids of the last one where its messages and images do."""
        index, sampling = len(self.steps), self.item.sampling
        stop = (*sampling.stop, *self.builder.spec.stop)
        sampling = dataclasses.replace(sampling, max_tokens=self.limits.answer_tokens(sampling.max_tokens), stop=stop)
        if sampling.seed is not None:
            sampling = dataclasses.replace(sampling, seed=sampling.seed + index)
        shown = len(prompt.images) - 1
        hashes = (*self.hashes[len(self.hashes) - shown :], sha256)
        prefix: tuple[int, ...] = ()
        if self.steps and continues(prompt.messages, self.messages, hashes, self.steps[-1].image_sha256):
            prefix = self.steps[-1].prompt_ids_P + self.steps[-1].token_ids_T
        return PolicyRequest(
            prompt.messages,
            prompt.images,
            sampling,
            f"{self.item.rollout_id}.{index}",
            image_sha256=hashes,
            prefix_ids_P=prefix,
            prefix_messages=len(self.messages) + 1 if prefix else 0,
            tools=prompt.tools,
            step=index,
        )

    def count(
        self, completion: Completion, screen: tuple[RgbImage, str], parsed: ParsedAnswer | ParseError
    ) -> StopReason | None:
        """Count one answer; the limit that it reaches."""
        done = actions_to_dict(parsed.actions) if isinstance(parsed, ParsedAnswer) else {"no_action": completion.text}
        self.limits.add(completion.sampled_tokens, screen[1], done)
        return self.limits.reached(self.played_s)

    def record(
        self,
        prompt: Prompt,
        request: PolicyRequest,
        completion: Completion,
        performed: ParsedAnswer | None,
        error: str | None,
        *,
        model_s: float,
        env_s: float,
    ) -> None:
        """Keep one finished step."""
        done = self.progress
        done.steps, done.tokens = done.steps + 1, done.tokens + len(completion.token_ids_T)
        done.model_s, done.env_s = done.model_s + model_s, done.env_s + env_s
        done.queue_s, self.queue_s = done.queue_s + completion.queue_s, self.queue_s + completion.queue_s
        present, sha256 = prompt.images[-1], request.image_sha256[-1]
        self.hashes.append(sha256)
        self.images[sha256] = present
        self.messages = prompt.messages
        self.steps.append(
            StepRecord(
                index=len(self.steps),
                prompt_ids_P=completion.prompt_ids_P,
                token_ids_T=completion.token_ids_T,
                logprobs_T=completion.logprobs_T,
                version_spans=completion.version_spans,
                image_sha256=request.image_sha256,
                image_hw=tuple((int(image.shape[0]), int(image.shape[1])) for image in prompt.images),
                text=completion.text,
                action=None if performed is None else actions_to_dict(performed.actions),
                parse_error=error,
                sampling=request.sampling,
                finish_reason=completion.finish_reason,
                model_s=model_s,
                env_s=env_s,
                pointers=completion.pointers,
            )
        )
        self.history.add(present, completion.text)

    def let_go(self, stored: Collection[str]) -> None:
        """Forget images that are stored, but for the latest screens, which the reward source looks at."""
        latest: dict[str, None] = {}
        for sha256 in reversed(self.hashes):
            if len(latest) >= self.screenshots:
                break
            latest[sha256] = None
        self.images = {
            sha256: image for sha256, image in self.images.items() if sha256 in latest or sha256 not in stored
        }

    async def finish(
        self,
        task: Task,
        result: StepResult,
        limit: StopReason | None,
        rewards: RewardSource | None,
        evaluate_s: float,
    ) -> Episode:
        """The episode as the environment ended it, and evaluated it in `evaluate_s`; `limit`: what made its last step the last one."""
        item, info = self.item, result.info
        end = result.end or EndReason.MAX_STEPS
        stop = limit if limit is not None and limit.end is end else StopReason(end.value)
        details: dict[str, Any] = {
            "instruction": task.instruction,
            "reset_s": self.reset_s,
            "queue_s": self.queue_s,
            "evaluate_s": evaluate_s,
        }
        reward, cause = None if end.masked else float(result.reward), info.get("cause")
        if "outcome" in info:
            details["outcome"] = info["outcome"]
        if stop is StopReason.PARSE_ERROR:
            reward, cause = 0.0, f"the answer is no action: {self.steps[-1].parse_error}"
            details["outcome"] = {"cause": cause}
        trajectory = Trajectory(
            rollout_id=item.rollout_id,
            group_id=item.group_id,
            task_id=item.task_id,
            purpose=item.purpose,
            phase=item.phase,
            steps_S=tuple(self.steps),
            reward=reward,
            stop=stop,
            cause=cause,
            started_at_s=self.started_at_s,
            duration_s=self.elapsed_s,
            info=details,
        )
        ended = EndedEpisode(task, trajectory, result.observation.screenshot, {**self.earlier_images, **self.images})
        rewarded = await reward_episode(rewards or EvaluatorReward(), ended, self.clock)
        return Episode(rewarded, self.images)
