"""Episodes on leased desktops: the core under the Gymnasium env, the vector env and the rollout runner.

This module leases a desktop, prepares it (setup snapshots), performs steps, judges the episode once, and names the
owner of every failure. It does not know what a task does (`TaskLike`) or how a farm is reached (`FarmLike`). Results
are deterministic except for pixels, so timings are kept beside them. It does not define observation spaces, convert
actions (`dart_envs.envs.env`) or call models (`dart_agent`).

    reset:  lease ─► acquire setup ─► ready: restore a copy ────────────────────────────► settle ─► first observation
                                   └─► build: boot, run the setup, publish, restore ──┘
    step:   action ─► events ─► frame ─► DONE, FAIL or last step? ─► rest ─► health ─► evaluate ─► reward
    faults: policy broke it: terminated, 0.0 · farm or host: truncated, masked, lease replaced · evaluator: truncated, masked
    owner:  after the first action the policy, unless the farm knows better or the evaluator fails on an untouched desktop
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from dart_envs.actions import decode_action
from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.envs.a11y_xml import read_a11y_xml
from dart_envs.envs.agent_code import run_agent_code
from dart_envs.envs.config import EpisodeConfig, EpisodeOptions
from dart_envs.envs.evaluation_target import (
    EvaluateOn,
    check_alive,
    check_outcome,
    evaluation_desktop,
    forked_copy,
)
from dart_envs.envs.prepare import SetupPreparer
from dart_envs.envs.reset_attempts import ResetAttempts
from dart_envs.envs.settling import RESET_SETTLE, step_settle
from dart_envs.errors import (
    ActionError,
    ActionFault,
    DartEnvError,
    DesktopFailedError,
    EvaluatorError,
    FarmError,
    FarmTimeoutError,
    GuestError,
    LeaseLostError,
    SetupError,
)
from dart_envs.evaluators.scorer_choice import parse_scorer
from dart_envs.farm.base import FarmLike, LeaseLike
from dart_envs.types import (
    Action,
    ActionType,
    DecodedAction,
    EndReason,
    Frame,
    Observation,
    Outcome,
    StepResult,
    SupportsRequirements,
    TaskLike,
)
from dart_server.wire import Clock, DesktopShape, FaultOwner

log = logging.getLogger(__name__)

REFUSED_EVENT_CODES = frozenset({"unknown_key", "bad_request"})
LEASE_NOTICE_S = 5.0
"""Seconds without a free desktop after which `reset` says that it waits."""
_TERMINAL_END_REASONS = {ActionType.DONE: EndReason.DONE, ActionType.FAIL: EndReason.FAIL}


class AsyncDesktopEnv:
    """Episodes of tasks on one desktop at a time, for async code.

    Do not call its methods concurrently, and close it with `aclose`.

    Args:
        farm: Where desktops come from; the environment does not close it.
        shape: The desktop to lease; None is the default shape of the farm's protocol.
        config: How episodes run; None is the defaults.
        clock: The clock that waits and measures.
        **options: Fields of `EpisodeConfig`, which replace those of `config`.

    Attributes:
        shape: The desktop to lease.
        timings_s: Durations of the parts of the last `reset` or `step` in seconds: lease, prepare, act, evaluate.

    Raises:
        ValueError: If an option is unknown or has a value that is not allowed.
        EvaluatorError: If there is no such scorer.
    """

    def __init__(
        self,
        farm: FarmLike,
        *,
        shape: DesktopShape | None = None,
        config: EpisodeConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[EpisodeOptions],
    ) -> None:
        self.config = EpisodeConfig.from_options(config, options, ("clock", "shape"))
        self.shape = shape or DesktopShape()
        self._farm = farm
        self._observation_parts = frozenset(self.config.observation.parts)
        scorer = self.config.scorer
        self._evaluate_options: dict[str, Any] = {} if scorer is None else {"scorer": str(parse_scorer(scorer))}
        self._clock = clock
        self._setup_preparer = SetupPreparer(farm, self.shape, clock=clock, wait_s=self.config.setup_wait_s)
        self._lease: LeaseLike | None = None
        self._lease_unusable = False
        self._task: TaskLike | None = None
        self._episode_over = True
        self._steps = 0
        self._step_limit: int | None = None
        self._waited_for_desktop = False
        self._acted = False
        self._settled_s = -math.inf
        self._share_setup: bool | None = None
        self._judged_untouched: set[str] = set()
        """Ids of tasks whose evaluator gave a verdict on a desktop that no policy had touched."""
        self._end: StepResult | None = None
        self._last_observation: Observation | None = None
        self._pointer = (0, 0)
        self.timings_s: dict[str, float] = {}

    @property
    def lease(self) -> LeaseLike | None:
        """The desktop that is held now, for setup tools, oracles and debugging."""
        return self._lease

    @property
    def task(self) -> TaskLike | None:
        """The task of the running or last episode."""
        return self._task

    @property
    def pointer(self) -> tuple[int, int]:
        """Pointer position in the last frame, in screen pixels; the origin before the first frame."""
        return self._pointer

    @property
    def max_steps(self) -> int:
        """Step budget of the episode: the lower one of the configuration's and the limit given to `reset`, else the task's own."""
        asked = [steps for steps in (self.config.max_steps, self._step_limit) if steps is not None]
        return min(asked) if asked else self._task.max_steps if self._task is not None else 1

    @property
    def unfinished_steps(self) -> int:
        """Number of steps of an episode that is running; 0 where none is."""
        return 0 if self._episode_over else self._steps

    # Reset.

    async def reset(
        self,
        task: TaskLike,
        seed: int | None = None,
        *,
        share_setup: bool | None = None,
        step_limit: int | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode of a task on a fresh copy of its prepared desktop.

        A desktop or lease that fails meanwhile is replaced, at most twice. A setup step that misses its success condition on
        two desktops, one after the other, is not tried on a third.

        Args:
            task: The task to play.
            seed: Recorded in `info` only: the desktop itself has no random state of ours.
            share_setup: Whether the prepared state is stored as a snapshot, because more episodes of this task follow;
                None lets the task decide.
            step_limit: A limit of steps from outside the environment. It takes the place of the task's own budget, and the
                budget of the episode is not above it.

        Returns:
            The first observation, and `info` with `task_id`, `max_steps`, `seed` and `pointer`, [x, y] in screen pixels.
            `info["waited_for_desktop"]` is true where no desktop was free for some seconds.

        Raises:
            TaskError: If something that the task needs is missing. This is checked before a desktop is leased, or
                before its setup where only the desktop can tell.
            SetupError: If the same setup step failed on two desktops, or the setup failed in every attempt.
            FarmError: If the farm gave no desktop.
            DesktopFailedError: If the desktop died in every attempt.
            LeaseLostError: If the lease was lost in every attempt.
        """
        self._episode_over, self._task, self._steps, self._last_observation = True, task, 0, None
        self._step_limit, self._end, self._waited_for_desktop, self._acted = step_limit, None, False, False
        self._settled_s, self._share_setup, self.timings_s = -math.inf, share_setup, {}
        if isinstance(task, SupportsRequirements):
            await task.check_requirements(self.shape, local_images=getattr(self._farm, "embedded", False))
        attempts = ResetAttempts()
        while True:
            try:
                observation = await self._start(task, share_setup)
            except (DesktopFailedError, LeaseLostError, GuestError, FarmError, SetupError) as error:
                self._lease_unusable = True
                if attempts.is_final(error):
                    raise
                log.warning("Start %d of %s failed, trying another desktop: %s", attempts.failed, task.id, error)
            except BaseException:  # a cancelled setup leaves a half-made desktop; raised again
                self._lease_unusable = True
                raise
            else:
                self._episode_over, self._last_observation = False, observation
                info: dict[str, Any] = {
                    "task_id": task.id,
                    "max_steps": self.max_steps,
                    "seed": seed,
                    "pointer": list(self._pointer),
                }
                if self._waited_for_desktop:
                    info["waited_for_desktop"] = True
                return observation, info

    async def _start(self, task: TaskLike, share_setup: bool | None) -> Observation:
        started_s = self._clock.monotonic()
        if self._lease is not None and (self._lease_unusable or self._lease.lost):
            await self.release_lease()
        fresh = self._lease is None
        if self._lease is None:
            key = self._setup_preparer.known_setup_key(task, share_setup)
            notice = asyncio.get_running_loop().call_later(LEASE_NOTICE_S, self._report_waiting)
            try:
                self._lease = await self._farm.lease(
                    self.shape, key, ttl_s=self.config.ttl_s, wait_s=self.config.wait_s, labels=self.config.labels
                )
            finally:
                notice.cancel()
            self._lease_unusable = False
        leased_s = self._clock.monotonic()
        await self._setup_preparer.prepare(self._lease, task, fresh=fresh, share=share_setup)
        prepared_s = self._clock.monotonic()
        observation = await self._observe(await self._lease.step([], RESET_SETTLE))
        self.timings_s = {
            "lease": leased_s - started_s,
            "prepare": prepared_s - leased_s,
            "act": self._clock.monotonic() - prepared_s,
        }
        return observation

    def _report_waiting(self) -> None:
        self._waited_for_desktop = True
        log.warning(
            "No desktop was ready for %g s: the farm boots one, all are in use, or this key holds as many as it may. "
            "This reset waits up to %g s (wait_s). `dart-farm claims` shows which: it waits for a desktop, or for the quota.",
            LEASE_NOTICE_S,
            self.config.wait_s,
        )

    # Step.

    async def step(
        self, action: Action | DecodedAction, *, last: bool | None = None, deadline_s: float | None = None
    ) -> StepResult:
        """Perform one action and observe; judge the episode when the action ends it or uses up the step budget.

        Faults of the farm and of the desktop do not raise. They end the episode, and the result names their owner.

        Args:
            action: An `Action`, or a `DecodedAction`, which is performed as it is. After an action with code,
                `info["code"]` says how the code ended.
            last: Whether a limit outside the environment ends the episode after this step; such a limit holds in place of the
                one given to `reset` and of the task's own. None where there is none.
            deadline_s: Seconds after which the action and its observation are given up and the episode ends. The farm then gets as
                long again to say whether the desktop lives. None sets no deadline. The judgement has `evaluate_timeout_s`.

        Returns:
            The transition.

        Raises:
            ActionError: If the action cannot be performed. Nothing has happened then, and the step does not count.
            DartEnvError: If no episode is running.
        """
        if self._episode_over or self._lease is None or self._last_observation is None:
            raise DartEnvError("No episode is running; call reset() first.")
        decoded = action if isinstance(action, DecodedAction) else decode_action(action, self.shape.resolution)
        code_info: dict[str, Any] = {}
        started_s = self._clock.monotonic()
        self.timings_s = {}
        acts = decoded.end is None or bool(decoded.events) or decoded.code is not None
        budget = self.max_steps if last is None else self.config.max_steps
        ends = decoded.end is not None or bool(last) or (budget is not None and self._steps + 1 >= budget)
        try:
            async with asyncio.timeout(deadline_s) as deadline:
                if not self._acted:
                    await check_alive(self._lease)
                    self._acted = acts
                if decoded.code is not None:
                    code_info = {"code": await run_agent_code(self._lease, decoded.code)}
                rested_s = self._clock.monotonic() - self._settled_s
                if settle := step_settle(self.config.settle, rested_s, acts=acts, ends=ends):
                    self._last_observation = await self._observe(await self._lease.step(list(decoded.events), settle))
                    self._settled_s = self._clock.monotonic()
        except TimeoutError:
            if deadline_s is None or not deadline.expired():
                raise
            return await self._end_late_step(deadline_s)
        except GuestError as error:
            if error.code in REFUSED_EVENT_CODES:
                raise ActionError(f"The desktop refused the action: {error}", ActionFault.REFUSED) from error
            return await self._end_with_guest_error(error)
        except (DesktopFailedError, LeaseLostError, FarmError) as error:
            return self._end_with_fault(error)
        except BaseException:  # of a cancelled action nobody knows the effect; raised again
            self._episode_over = self._lease_unusable = True
            raise
        finally:
            self.timings_s["act"] = self._clock.monotonic() - started_s
        self._steps += 1
        if not ends:
            return StepResult(
                self._last_observation, 0.0, terminated=False, truncated=False, end=None, info=self._info() | code_info
            )
        result = await self._evaluate_end(
            EndReason.MAX_STEPS if decoded.end is None else _TERMINAL_END_REASONS[decoded.end]
        )
        return replace(result, info={**result.info, **code_info})

    async def evaluate(self) -> Outcome:
        """Judge the desktop as it is now, on a copy, while the episode goes on after a short pause.

        The copy takes another desktop of the farm for that time.

        Returns:
            The verdict of the task's evaluator. After the end of an episode it is the verdict of that end.

        Raises:
            DartEnvError: If no episode is running, or the last one ended without a verdict.
            EvaluatorError: If the evaluator failed or gave no verdict.
            DesktopError: If the desktop or the copy failed.
            FarmError: If the farm gives no copy: the provider cannot fork, or no desktop is free.
        """
        if self._end is not None and self._end.end is not None:
            if self._end.end.masked:
                raise DartEnvError(f"The episode ended without a verdict ({self._end.info['cause']}); call reset().")
            return Outcome(self._end.reward, self._end.info.get("outcome", {"cause": self._end.info["cause"]}))
        if self._episode_over or self._lease is None or self._task is None:
            raise DartEnvError("No episode is running; call reset() first.")
        await self.settle_for_verdict()
        async with forked_copy(self._lease, self.config.wait_s) as copy:
            try:
                async with asyncio.timeout(self.config.evaluate_timeout_s):
                    outcome = await self._task.evaluate(copy, **self._evaluate_options)
                check_outcome(outcome)
                await check_alive(copy)
            except TimeoutError:
                raise EvaluatorError(f"The evaluator took more than {self.config.evaluate_timeout_s:g} s.") from None
            except DartEnvError:
                raise
            except Exception as error:
                raise EvaluatorError(f"{type(error).__name__}: {error}") from error
        return outcome

    async def settle_for_verdict(self) -> None:
        """Wait until the screen was quiet as long after the last action as it must be before a verdict.

        Raises:
            DartEnvError: If no episode is running, or the desktop or the farm failed.
        """
        if self._episode_over or self._lease is None:
            raise DartEnvError("No episode is running; call reset() first.")
        rested_s = self._clock.monotonic() - self._settled_s
        if settle := step_settle(self.config.settle, rested_s, acts=False, ends=True):
            await self._lease.step([], settle)

    async def _evaluate_end(self, end: EndReason) -> StepResult:
        """Run the evaluator once for this episode.

        A desktop that was broken from inside scores 0 whatever it holds. The health check after a positive reward
        finds a desktop that could not answer the evaluator and so looked solved.
        """
        assert self._lease is not None
        assert self._task is not None
        self._episode_over = True
        started_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(self.config.evaluate_timeout_s) as limit:
                await check_alive(self._lease)
                async with evaluation_desktop(self._lease, self.config.evaluate_on, self.config.wait_s) as (
                    desktop,
                    evaluated_on,
                ):
                    outcome = await self._task.evaluate(desktop, end=end, **self._evaluate_options)
                    check_outcome(outcome)
                    if outcome.reward > 0.0:
                        await check_alive(desktop)
        except (DesktopFailedError, LeaseLostError, FarmError) as error:
            return self._end_with_fault(error)
        except Exception as error:  # noqa: BLE001 - whatever an evaluator raises is its own failure, never a score
            return await self._end_with_evaluator_error(error, late=limit.expired())
        except BaseException:  # a cancelled judgement may have changed the desktop; raised again
            self._lease_unusable = True
            raise
        finally:
            self.timings_s["evaluate"] = self._clock.monotonic() - started_s
        details = dict(outcome.details) | (
            {} if evaluated_on == EvaluateOn.DESKTOP else {"evaluated_on": str(evaluated_on)}
        )
        return self._end_episode(end, reward=float(outcome.reward), details=details)

    async def _end_with_evaluator_error(self, error: Exception, *, late: bool) -> StepResult:
        """End the episode after an evaluator that raised, or that was stopped because it took too long (`late`).

        A dead desktop names the owner of the fault. On a live one it is the policy's if the evaluator gives a verdict on
        a desktop that no policy has touched: nothing else differs. Before the first action it is the evaluator's. Whether a
        verdict comes in time depends on the host as well, so that an earlier one on an untouched desktop proves nothing there.
        """
        if (ended := await self._end_if_dead()) is not None:
            return ended
        what = str(error) if isinstance(error, EvaluatorError) else f"{type(error).__name__}: {error}"
        if late:
            what = f"The evaluator took more than {self.config.evaluate_timeout_s:g} s."
        if self._acted and await self._judges_untouched_desktop(again=late):
            return self._end_episode(EndReason.BROKE_DESKTOP, cause=f"evaluator: {what}")
        log.warning("The evaluator of %s failed: %s", self._task.id if self._task else "?", what)
        return self._end_episode(EndReason.EVALUATOR_ERROR, cause=f"evaluator: {what}")

    async def _judges_untouched_desktop(self, *, again: bool) -> bool:
        """Reset the episode's desktop to the start of the task and return whether the evaluator gives a verdict there in time.

        What is known from an earlier episode is not tried again, unless `again` asks for it.
        """
        assert self._lease is not None
        assert self._task is not None
        if self._task.id in self._judged_untouched and not again:
            return True
        self._lease_unusable = True
        try:
            async with asyncio.timeout(self.config.evaluate_timeout_s + self.config.setup_wait_s):
                await self._setup_preparer.prepare(self._lease, self._task, fresh=False, share=self._share_setup)
                self._lease_unusable = False
                async with asyncio.timeout(self.config.evaluate_timeout_s):
                    outcome = await self._task.evaluate(self._lease, end=EndReason.DONE, **self._evaluate_options)
                check_outcome(outcome)
        except Exception as error:  # noqa: BLE001 - whatever is raised here is not the policy's doing
            log.warning("The evaluator of %s fails on an untouched desktop, too: %r", self._task.id, error)
            return False
        self._judged_untouched.add(self._task.id)
        return True

    # Ends.

    async def _end_if_dead(self) -> StepResult | None:
        """End the episode if its desktop is dead or lost, with the owner of that fault; return None where it lives."""
        assert self._lease is not None
        try:
            await check_alive(self._lease)
        except (DesktopFailedError, LeaseLostError, FarmError) as fault:
            return self._end_with_fault(fault)
        return None

    async def _end_with_guest_error(self, error: GuestError) -> StepResult:
        """End the episode: a desktop that lives and does not do what is asked after the first action was broken by the policy."""
        if (ended := await self._end_if_dead()) is not None:
            return ended
        if not self._acted:
            return self._end_with_fault(error)
        self._lease_unusable = True
        return self._end_episode(EndReason.BROKE_DESKTOP, cause=f"{error.code}: {error}")

    async def _end_late_step(self, deadline_s: float) -> StepResult:
        """End the episode after a step that missed its deadline: a slow desktop has the same owner as one that does not answer.

        A farm that does not say in as long again whether the desktop lives owns the fault.
        """
        self._episode_over = self._lease_unusable = True
        what = f"the step took more than {deadline_s:g} s"
        try:
            async with asyncio.timeout(deadline_s):
                return await self._end_with_guest_error(GuestError(what, code="deadline"))
        except TimeoutError:
            return self._end_with_fault(FarmTimeoutError(f"{what}, and so did the farm's answer", code="deadline"))

    def _end_with_fault(self, error: DesktopFailedError | LeaseLostError | FarmError | GuestError) -> StepResult:
        """End the episode: a desktop that died before the first action is the host's fault whatever the cause."""
        self._episode_over = self._lease_unusable = True
        if self._acted and isinstance(error, DesktopFailedError) and error.fault_owner is FaultOwner.POLICY:
            return self._end_episode(EndReason.BROKE_DESKTOP, cause=error.cause)
        log.warning("The episode of %s ends by a fault of the farm: %s", self._task.id if self._task else "?", error)
        code = error.cause if isinstance(error, DesktopFailedError) else getattr(error, "code", "lease_lost")
        return self._end_episode(EndReason.FARM_FAULT, cause=f"{code}: {error}")

    def _end_episode(
        self, end: EndReason, *, reward: float = 0.0, cause: str | None = None, details: Mapping[str, Any] | None = None
    ) -> StepResult:
        assert self._last_observation is not None
        self._episode_over = True
        terminated = end in {EndReason.DONE, EndReason.FAIL, EndReason.BROKE_DESKTOP}
        info = {**self._info(), "end": end.value, "masked": end.masked, "cause": cause}
        if details is not None:
            info["outcome"] = dict(details)
        self._end = StepResult(
            self._last_observation, reward, terminated=terminated, truncated=not terminated, end=end, info=info
        )
        return self._end

    def _info(self) -> dict[str, Any]:
        return {
            "task_id": self._task.id if self._task else None,
            "steps": self._steps,
            "pointer": list(self._pointer),
        }

    async def _observe(self, frame: Frame) -> Observation:
        assert self._lease is not None
        assert self._task is not None
        self._pointer = frame.header.cursor
        a11y = tuple(await self._lease.a11y()) if "a11y" in self._observation_parts else None
        terminal = await self._lease.terminal() if "terminal" in self._observation_parts else None
        xml = await read_a11y_xml(self._lease) if "a11y_xml" in self._observation_parts else None
        return Observation(frame.image, self._task.instruction, a11y, terminal, xml, self._pointer)

    # The end.

    async def release_lease(self) -> None:
        """Give the desktop back and end the running episode; the next reset leases another desktop. Idempotent."""
        self._episode_over = True
        lease, self._lease = self._lease, None
        self._lease_unusable = False
        if lease is not None:
            await lease.release()

    async def aclose(self) -> None:
        """Give the desktop back. Idempotent."""
        await self.release_lease()

    async def __aenter__(self) -> AsyncDesktopEnv:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        with contextlib.suppress(DartEnvError):
            await self.aclose()
