"""Simulated inference workers behind the protocol of their client.

Role: `SimulatedInferenceWorker` is one worker: an engine by the latency models, its state, staged weights; `client()` gives what pool and
updater speak to (`dart_agent.inference.pool.PolicyWorker`). Rule: a held health request is answered the moment the state changes, as a
worker does it. Non-goals: routing, retries, the order of updates: those are production's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from dart_agent.errors import RequestRejected, WeightUpdateError, WorkerError
from dart_agent.inference.client import WeightUpdateTimes
from dart_agent.inference.decisions.retries import RequestFailure
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.inference.engine.activity_clock import ActivityClock
from dart_agent.inference.pointer_wire import PointAnswer, PointRequest
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.wire import WorkerHealth
from dart_agent.types import Completion, FinishReason, PolicyRequest, VersionSpan
from dart_envs.clock import wait_first, wait_for
from dart_server.wire import Clock
from dart_train.simulation.engine import SimulatedEngine, SimulatedRequest
from dart_train.simulation.episodes import prompt_of, response_length
from dart_train.simulation.event_heap import EventHeap
from dart_train.simulation.models import SystemModels

TOKEN_ID = 5
"""What every simulated token is."""
FIRST_PROMPT = (TOKEN_ID,) * 8
"""Prompts are not as long as the latency models count them: what is stored would only cost memory."""


class ClockHeap(EventHeap):
    """An event heap on a clock: its events run when the clock reaches their time.

    Args:
        clock: The clock.
    """

    __slots__ = ("_clock", "_tasks")

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def after(self, delay_s: float, callback: Callable[[Any], None], argument: Any = None) -> None:
        """Add an event.

        Args:
            delay_s: Seconds from now.
            callback: What runs then.
            argument: Its argument.
        """
        task = asyncio.ensure_future(self._fire(self._clock.monotonic() + max(0.0, delay_s), callback, argument))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def read(self) -> None:
        """Bring `now_s` up to date; called before an engine is told of anything."""
        self.now_s = self._clock.monotonic()

    async def aclose(self) -> None:
        """Drop all events."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _fire(self, at_s: float, callback: Callable[[Any], None], argument: Any) -> None:
        await self._clock.sleep(at_s - self._clock.monotonic())
        self.now_s = self._clock.monotonic()
        callback(argument)


class SimulatedInferenceWorker:
    """One inference worker.

    Args:
        name: Its name.
        models: Latencies.
        clock: The clock on which they pass.
        seed: Seed of the lengths of responses.

    Attributes:
        name: Its name.
        engine: What computes.
    """

    def __init__(self, name: str, models: SystemModels, clock: Clock, seed: int) -> None:
        self.name = name
        self.models = models
        self.clock = clock
        self.heap = ClockHeap(clock)
        self.engine = SimulatedEngine(name, models.engine, self.heap, self._note_start, self._answer, _ignore)
        self.activity = ActivityClock(clock)
        self.random = Random(f"{seed}/{name}")
        self.weights = WeightsId(0)
        self.state = WorkerState.SERVING
        self.revision = 0
        self.staged: WeightsId | None = None
        self._changed = asyncio.Event()

    def client(self) -> SimulatedWorkerClient:
        """Make a connection to it."""
        return SimulatedWorkerClient(self)

    def set_state(self, state: WorkerState) -> None:
        """Enter a state, and tell who waits for a change.

        Args:
            state: The state.
        """
        self.state = state
        self.note_activity()
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, revision: int, wait_s: float) -> None:
        """Wait until the revision is another one.

        Args:
            revision: The known one.
            wait_s: Longest wait in seconds.
        """
        if revision == self.revision:
            waiter = asyncio.ensure_future(self._changed.wait())
            try:
                await wait_first(self.clock, wait_s, [waiter])
            finally:
                waiter.cancel()

    def stand_still(self) -> None:
        """Let all requests stand still."""
        self.heap.read()
        if not self.engine.paused:
            self.engine.pause()
        if not self.models.publish.keeps_requests:
            for request in self.engine.drop_all():
                assert isinstance(request.owner, asyncio.Future)
                request.owner.set_exception(
                    WorkerError(f"{self.name} starts again with new weights", RequestFailure.ABORTED)
                )
        self.set_state(WorkerState.UPDATING)

    def go_on(self) -> None:
        """Let all requests go on with the present weights."""
        self.heap.read()
        self.engine.resume(self.weights.number, keeps_prefixes=self.models.publish.keeps_prefixes)
        self.set_state(WorkerState.SERVING)

    def note_activity(self) -> None:
        """Bring the activity clock up to date, after a request came or went."""
        self.activity.change(in_flight=self.engine.requests, updating=self.state is WorkerState.UPDATING)

    def _note_start(self, request: SimulatedRequest) -> None:
        if not request.began_s:
            request.began_s = self.heap.now_s

    def _answer(self, request: SimulatedRequest, worker: str) -> None:
        self.note_activity()
        answered = request.owner
        assert isinstance(answered, asyncio.Future)
        if not answered.done():
            answered.set_result(None)


class SimulatedWorkerClient:
    """A connection to a simulated worker.

    Args:
        worker: The worker.

    Attributes:
        name: Its name.
    """

    def __init__(self, worker: SimulatedInferenceWorker) -> None:
        self.name = worker.name
        self._worker = worker

    async def health(self, *, after: int | None = None, wait_s: float = 0.0) -> WorkerHealth:
        """Say how the worker is.

        Args:
            after: Known revision: the answer comes when it is another one.
            wait_s: Longest wait in seconds.

        Returns:
            State, weights and load.
        """
        worker = self._worker
        if after is not None:
            await worker.wait_for_change(after, wait_s)
        return WorkerHealth(
            version=worker.weights.number,
            in_flight=worker.engine.requests,
            pid=1,
            state=worker.state,
            digest=worker.weights.digest,
            revision=worker.revision,
            kv_cache_usage=worker.engine.kv_cache_usage,
            up_s=worker.activity.up_s,
            serving_s=worker.activity.serving_s,
            updating_s=worker.activity.updating_s,
        )

    async def complete(self, request: PolicyRequest, *, timeout_s: float | None = None) -> Completion:
        """Sample a response.

        Args:
            request: The request; its id names rollout, step and attempt.
            timeout_s: Limit in seconds.

        Returns:
            The response, without a text.

        Raises:
            WorkerError: It took too long.
        """
        worker, heap = self._worker, self._worker.heap
        rollout_id, _, step = request.request_id.partition("#")[0].rpartition(".")
        shape = prompt_of(worker.models.episode, int(step))
        tokens = min(request.sampling.max_tokens, response_length(worker.models.episode, worker.random))
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent = SimulatedRequest(
            answered, rollout_id, shape.tokens, shape.reusable, shape.new_images, shape.images, tokens
        )
        heap.read()
        sent.sent_s, stood_s = heap.now_s, worker.activity.updating_s
        worker.engine.submit(sent)
        worker.note_activity()
        try:
            await (answered if timeout_s is None else wait_for(worker.clock, timeout_s, answered))
        except TimeoutError:
            raise WorkerError(f"{self.name} gave no answer in time", RequestFailure.TIMEOUT) from None
        finally:
            if sent.engine is not None:
                heap.read()
                worker.engine.cancel(sent)
                worker.note_activity()
        stood_s = worker.activity.updating_s - stood_s
        first, last = sent.versions
        cut = tokens if first == last else max(1, tokens // 2)
        spans = [VersionSpan(first, 0, cut), *([VersionSpan(last, cut, tokens)] if cut < tokens else [])]
        return Completion(
            text="",
            prompt_ids_P=(*request.prefix_ids_P, TOKEN_ID) if request.prefix_ids_P else FIRST_PROMPT,
            token_ids_T=(TOKEN_ID,) * tokens,
            logprobs_T=(-0.5,) * tokens,
            version_spans=tuple(spans),
            finish_reason=FinishReason.STOP,
            worker=self.name,
            queue_s=max(sent.began_s - sent.sent_s, stood_s),
        )

    async def point(self, asked: PointRequest, *, timeout_s: float | None = None) -> PointAnswer:
        """Raises RequestRejected: a simulated model has no action head."""
        raise RequestRejected(f"{self.name} is simulated and has no action head: point with a model of your own")

    async def stage(self, published: PublishedWeights) -> float:
        """Read weights while requests run.

        Args:
            published: The weights.

        Returns:
            Seconds.
        """
        worker, publish = self._worker, self._worker.models.publish
        stage_s = publish.stage_s_per_gib * publish.weights_gib
        await worker.clock.sleep(stage_s)
        worker.staged = published.identity
        return stage_s

    async def swap(self, weights: WeightsId, *, pause: bool = True) -> WeightUpdateTimes:
        """Swap to staged weights.

        Args:
            weights: The weights.
            pause: Whether requests stand still for it, and go on afterwards.

        Returns:
            Seconds.

        Raises:
            WeightUpdateError: Others are staged.
        """
        worker, swap_s = self._worker, self._worker.models.publish.swap_s
        if worker.staged != weights:
            raise WeightUpdateError(f"{self.name} has other weights staged")
        if pause:
            worker.stand_still()
        await worker.clock.sleep(swap_s)
        worker.weights = weights
        if pause:
            worker.go_on()
        return WeightUpdateTimes(pause_s=0.0, load_s=swap_s)

    async def pause(self) -> None:
        """Let all requests stand still."""
        self._worker.stand_still()

    async def resume(self) -> None:
        """Let all requests go on."""
        self._worker.go_on()

    async def aclose(self) -> None:
        """Nothing is open."""


def _ignore(*_facts: object) -> None:
    """What nobody asks for."""
