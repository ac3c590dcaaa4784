"""Fakes for the agent's unit tests, each named for what it stands in for. None of them is used outside tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dart_agent.errors import WeightUpdateError, WorkerError
from dart_agent.inference.client import WeightUpdateTimes
from dart_agent.inference.decisions.retries import RequestFailure
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.wire import WorkerHealth
from dart_agent.rewards.source import EndedEpisode, Verdict
from dart_agent.types import (
    Completion,
    FinishReason,
    PolicyRequest,
    PolicyVersion,
    Purpose,
    RewardKind,
    SamplingParams,
    Trajectory,
    VersionSpan,
    WorkItem,
)
from dart_envs.actions import check_action
from dart_envs.tasks import Evaluator, Task
from dart_envs.types import Action, ActionType, DecodedAction, EndReason, Observation, RgbImage, StepResult, TaskLike

SCREEN_WH = (64, 64)


class FakeClock:
    """Virtual time: a sleep lets everyone else run, then moves the clock on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1_000_000.0 + self.now_s

    async def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        for _ in range(3):
            await asyncio.sleep(0)
        self.now_s = max(self.now_s, until_s)


def request(request_id: str = "r0", image: RgbImage | None = None) -> PolicyRequest:
    picture = np.zeros((64, 64, 3), np.uint8) if image is None else image
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Click OK"}]}
    return PolicyRequest((message,), (picture,), SamplingParams(), request_id)


def completion(text: str, version: PolicyVersion = 0, worker: str = "fake") -> Completion:
    return Completion(text, (1, 2), (3, 4), (-0.5, -0.25), (VersionSpan(version, 0, 2),), FinishReason.STOP, worker)


class ScriptedPolicy:
    """Answers with the given texts in turn; an exception among them is raised."""

    def __init__(self, answers: Sequence[str | Exception]) -> None:
        self.answers = list(answers)
        self.requests: list[PolicyRequest] = []

    async def complete(self, request: PolicyRequest) -> Completion:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return completion(answer)


def task(max_steps: int | None = 5) -> Task:
    """A task with its own step limit, or, with None, one that states no limit, as task files in OSWorld's form."""
    stated = {} if max_steps is None else {"max_steps": max_steps}
    return Task(id="toy/click/0000", instruction="Click OK", evaluator=Evaluator(func="infeasible"), **stated)


def item(rollout_id: str = "roll_0", *, max_steps: int = 5, seed: int | None = None) -> WorkItem:
    return WorkItem(rollout_id, "grp_0", "toy/click/0000", Purpose.TRAIN, SamplingParams(seed=seed), max_steps, "train")


class FakeScreenJudge:
    """A reward source that remembers what it saw."""

    kind = RewardKind.JUDGE

    def __init__(self, screenshots: int) -> None:
        self.screenshots = screenshots
        self.seen: list[int] = []

    def prepare(self, task: Task) -> Task:
        return task

    async def reward(self, ended: EndedEpisode) -> Verdict:
        self.seen = [int(screen[0, 0, 0]) for screen in ended.last_screens(self.screenshots)]
        return Verdict(1.0)


class ScriptedEnv:
    """Pays 1.0 when there was a click at `goal`; each step's screen has its own grey. `ends` forces an end by step."""

    def __init__(
        self,
        goal: tuple[int, int] = (10, 20),
        *,
        ends: Mapping[int, tuple[EndReason, str]] | None = None,
        reset_error: Exception | None = None,
    ) -> None:
        self.goal = goal
        self.ends = dict(ends or {})
        self.reset_error = reset_error
        self.actions: list[Any] = []
        self.resets = 0
        self.started = asyncio.Event()
        self.closed = False
        self.lease = None
        self._max_steps = 1

    async def reset(
        self, task: TaskLike, seed: int | None = None, *, share_setup: bool | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        await asyncio.sleep(0)
        if self.reset_error is not None:
            raise self.reset_error
        self.resets += 1
        self.started.set()
        self.actions = []
        self._max_steps = task.max_steps
        return self._observe(), {}

    async def step(self, action: Action | DecodedAction, *, last: bool | None = None) -> StepResult:
        await asyncio.sleep(0)
        if isinstance(action, Action):
            check_action(action, SCREEN_WH)
        kind = action.type if isinstance(action, Action) else action.end
        self.actions.append(action)
        step = len(self.actions)
        if step in self.ends:
            end, cause = self.ends[step]
            return StepResult(self._observe(), 0.0, False, True, end, {"cause": cause})
        if kind in (ActionType.DONE, ActionType.FAIL) or last or step >= self._max_steps:
            hit = any(
                isinstance(past, Action) and past.type is ActionType.CLICK and (past.x, past.y) == self.goal
                for past in self.actions
            )
            ends = {ActionType.DONE: EndReason.DONE, ActionType.FAIL: EndReason.FAIL}
            end = EndReason.MAX_STEPS if kind is None else ends.get(kind, EndReason.MAX_STEPS)
            return StepResult(self._observe(), float(hit), True, False, end, {"outcome": {"hit": hit}})
        return StepResult(self._observe(), 0.0, False, False, None, {})

    async def aclose(self) -> None:
        self.closed = True

    def _observe(self) -> Observation:
        grey = 100 + len(self.actions)
        return Observation(np.full((SCREEN_WH[1], SCREEN_WH[0], 3), grey, np.uint8), "Click OK")


class FakeWorkSource:
    """Hands out the items of a list; remembers what came back. `empty`: the list ran out; `all_back`: everything was ended."""

    def __init__(self, items: Sequence[WorkItem]) -> None:
        self.items = list(items)
        self.reported: list[tuple[Trajectory, dict[str, RgbImage]]] = []
        self.abandoned: list[tuple[str, str]] = []
        self.used_attempts: list[str] = []
        self.empty = asyncio.Event()
        self.all_back = asyncio.Event()
        self._left = len(items)

    def _back(self) -> None:
        self._left -= 1
        if not self._left:
            self.all_back.set()

    async def acquire(self, worker_id: str) -> WorkItem | None:
        if not self.items:
            self.empty.set()
            return None
        return self.items.pop(0)

    async def report(self, trajectory: Trajectory, images: Mapping[str, RgbImage]) -> None:
        self.reported.append((trajectory, dict(images)))
        self._back()

    async def abandon(self, item: WorkItem, cause: str, *, uses_attempt: bool = True) -> None:
        if uses_attempt:
            self.used_attempts.append(item.rollout_id)
        self.abandoned.append((item.rollout_id, cause))
        self._back()


class FakeWorkerClient:
    """An inference worker in memory. `alive`, `hold` (answers wait for it), `refuses` and `failure` are set by the test.

    failure: how its next requests fail, in turn; None: not.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.weights = WeightsId(0)
        self.state = WorkerState.SERVING
        self.staged: PublishedWeights | None = None
        self.refuses = False
        self.late = False
        self.hold: asyncio.Event | None = None
        self.failures: list[RequestFailure | None] = []
        self.served: list[str] = []
        self.loads: list[PolicyVersion] = []
        self.calls: list[str] = []
        self.closed = False
        self.revision = 0
        self.standing = False
        self._changed = asyncio.Event()

    @property
    def version(self) -> PolicyVersion:
        return self.weights.number

    async def health(self, *, after: int | None = None, wait_s: float = 0.0) -> WorkerHealth:
        self._check()
        if after == self.revision:
            await self._changed.wait()
            self._check()
        return WorkerHealth(
            version=self.version,
            in_flight=0,
            pid=1,
            state=self.state,
            digest=self.weights.digest,
            revision=self.revision,
            kv_cache_usage=0.25,
        )

    async def complete(self, request: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
        self._check()
        if self.hold is not None:
            await self.hold.wait()
        self._check()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise WorkerError(f"{self.name} failed this request", failure)
        self.served.append(request.request_id)
        return completion("Action: wait()", self.version, self.name)

    async def stage(self, published: PublishedWeights) -> float:
        self.calls.append("stage")
        self._check()
        if self.refuses:
            raise WeightUpdateError(f"{self.name}: these weights do not fit")
        self.staged = published
        return 0.01

    async def swap(self, weights: WeightsId, *, pause: bool = True) -> WeightUpdateTimes:
        self.calls.append("swap")
        self._check()
        if self.late:
            raise WorkerError(f"{self.name} gave no answer", RequestFailure.TIMEOUT)
        assert self.staged is not None
        assert self.staged.identity == weights
        assert pause or self.standing
        FakeWorkerClient.now_loading += 1
        FakeWorkerClient.peak_loading = max(FakeWorkerClient.peak_loading, FakeWorkerClient.now_loading)
        if pause:
            self.set_state(WorkerState.UPDATING)
        await asyncio.sleep(0)
        FakeWorkerClient.now_loading -= 1
        self.weights = weights
        self.loads.append(weights.number)
        self.set_state(WorkerState.SERVING if pause else self.state)
        return WeightUpdateTimes(0.02, 0.05)

    async def pause(self) -> None:
        self.calls.append("pause")
        self._check()
        self.standing = True
        self.set_state(WorkerState.UPDATING)

    async def resume(self) -> None:
        self.calls.append("resume")
        self._check()
        self.standing = False
        self.set_state(WorkerState.SERVING)

    async def aclose(self) -> None:
        self.closed = True

    def set_state(self, state: WorkerState) -> None:
        self.state = state
        self.revision += 1
        self._wake()

    def die(self) -> None:
        self.alive = False
        if self.hold is not None:
            self.hold.set()
        self._wake()

    def come_back(self, weights: WeightsId = WeightsId(0)) -> None:
        """A new process at the same place, with the weights that it was started with."""
        self.alive, self.weights, self.hold, self.staged = True, weights, None, None
        self.state, self.standing, self.revision = WorkerState.SERVING, False, 0
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _check(self) -> None:
        if not self.alive:
            raise WorkerError(f"{self.name} does not answer")

    now_loading = 0
    peak_loading = 0
