"""What a worker does with its engine: answer requests, take new weights, drain; whatever the engine is.

Role: `WorkerEngine` over an `EngineBackend`. Rule: weights are staged (held, checked, digest compared) while requests run, and swapped
between two tokens; a swap that fails in the middle leaves the worker broken, out of service until it is started again, so that half of a
version never answers; every token is told the version that sampled it. Non-goals: vLLM (`vllm_engine`), HTTP (`server`), which worker
swaps when (`dart_agent.inference.decisions.weight_updates`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from dart_agent.errors import RequestRejected, WeightUpdateError, WorkerError
from dart_agent.inference.decisions.retries import RequestFailure
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.inference.engine.activity_clock import ActivityClock
from dart_agent.inference.pointer_wire import PointAnswer, PointRequest, ServedLogits
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.weights.adapters import check_adapter_matches, is_adapter, read_adapter
from dart_agent.inference.weights.digest import check_digest, weights_digest
from dart_agent.inference.weights.files import Shapes, check_weights_match
from dart_agent.inference.weights.leases import WeightLease, hold
from dart_agent.inference.wire import WorkerHealth
from dart_agent.types import Completion, FinishReason, PolicyRequest
from dart_envs.clock import SYSTEM_CLOCK, wait_first
from dart_server.wire import Clock


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """waiting: requests without room in the batch. kv_cache_usage: used share of the key-value cache, 0 to 1."""

    waiting: int = 0
    kv_cache_usage: float = 0.0


class EngineBackend(Protocol):
    """What is needed of an engine: `VllmEngine`, or a fake in tests.

    checkpoint: directory that it was started with, the base of published adapters. shapes: of the tensors that it serves. tied: whether its
    output embedding is its input embedding.
    """

    checkpoint: Path
    shapes: Shapes
    tied: bool

    async def set_version(self, number: int) -> None:
        """Number the weights that it has."""
        ...

    async def sample(self, request: PolicyRequest, *, prefix_salt: str) -> Completion:
        """Sample one response; prefixes of another salt are not shared.

        Raises RequestRejected for a request that can never be answered, and anything else when the engine failed.
        """
        ...

    async def point(self, asked: PointRequest, *, prefix_salt: str) -> tuple[ServedLogits, ...]:
        """What the action head says about targets on an image. Raises like `sample`; RequestRejected where there is no head."""
        ...

    async def pause(self, *, clear_cache: bool) -> None:
        """Let all requests stand still at the next token; clear_cache: and compute their prefixes again when they go on."""
        ...

    async def resume(self) -> None:
        """Let them go on."""
        ...

    async def load(self, path: Path, digest: str | None, number: int) -> None:
        """Replace all weights, by a whole model or by the checkpoint with an adapter merged into it.

        digest: of the bytes that are loaded, None: not compared. Any failure leaves the engine unusable.
        """
        ...

    async def check(self) -> None:
        """Raises when it cannot go on."""
        ...

    def load_now(self) -> EngineLoad:
        """How full it is."""
        ...

    def metrics(self) -> str:
        """Prometheus text."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class WorkerEngine:
    """One engine with states, versions and leases.

    keep_kv: running requests keep their key-value cache over a swap; their later tokens are marked (`VersionSpan.kept_kv`).
    """

    def __init__(self, backend: EngineBackend, *, keep_kv: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        self.backend = backend
        self.state = WorkerState.SERVING
        self.weights = WeightsId(0)
        self.in_flight = 0
        self.broken = ""
        self._keep_kv = keep_kv
        self._clock = clock
        self._activity = ActivityClock(clock)
        self._revision = 0
        self._changed = asyncio.Event()
        self._updating = asyncio.Lock()
        self._served: WeightLease | None = None
        self._staged: tuple[PublishedWeights, WeightLease] | None = None
        self._base_digest: str | None = None
        self._swaps = 0

    async def start(self, published: PublishedWeights | None) -> None:
        """Number the weights of the start-up 0, or load `published` in their place. Raises WeightUpdateError."""
        await self.backend.set_version(0)
        if published is not None:
            await self.stage(published)
            await self.swap(published.identity)

    async def generate(self, request: PolicyRequest) -> Completion:
        """Sample one response. Raises RequestRejected for a hopeless request, WorkerError for one that another worker can answer."""
        self._check_takes_requests()
        began, stood_s = self.weights, self._activity.updating_s
        self._count(1)
        try:
            async with self._checked_failures():
                completion = await self.backend.sample(request, prefix_salt=self._salt(began))
        finally:
            self._count(-1)
        stood_s = self._activity.updating_s - stood_s
        if self.broken:
            raise WorkerError(self.broken)
        if completion.finish_reason is FinishReason.ABORT:
            raise WorkerError(f"the engine stopped request {request.request_id} early", RequestFailure.ABORTED)
        # A request that came while the worker stood still was in the engine's queue for as long.
        completion = replace(completion, queue_s=max(completion.queue_s, stood_s))
        return self._mark_kept(completion, began) if self._keep_kv else completion

    async def point(self, asked: PointRequest) -> PointAnswer:
        """Ask the action head; again where new weights came in between, so that one version computed all of an answer.

        Raises RequestRejected for a hopeless request, WorkerError for one that another worker can answer.
        """
        self._check_takes_requests()
        self._count(1)
        try:
            while True:
                began = self.weights
                async with self._checked_failures():
                    targets = await self.backend.point(asked, prefix_salt=self._salt(began))
                if self.broken:
                    raise WorkerError(self.broken)
                if self.weights == began:
                    return PointAnswer(began.number, targets)
        finally:
            self._count(-1)

    @asynccontextmanager
    async def _checked_failures(self) -> AsyncIterator[None]:
        """A request that fails may be the first sign of an engine that is gone: its answer says so, and no other request is tried on it."""
        try:
            yield
        except RequestRejected:
            raise
        except Exception:  # raised again, whatever it is
            try:
                await self.backend.check()
            except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not healthy
                self._break(f"{type(error).__name__}: {error}")
            raise

    def _break(self, why: str) -> None:
        """This worker is out of service until it is started again."""
        self.broken = self.broken or why
        self._changed.set()

    def _count(self, requests: int) -> None:
        self.in_flight += requests
        self._note_activity()

    def _note_activity(self) -> None:
        self._activity.change(in_flight=self.in_flight, updating=self.state is WorkerState.UPDATING)

    def _check_takes_requests(self) -> None:
        if self.broken:
            raise WorkerError(self.broken)
        if self.state is WorkerState.DRAINING:
            raise WorkerError("this worker takes no new requests: it is being drained", RequestFailure.BUSY)

    def _salt(self, weights: WeightsId) -> str:
        """Names the caches of these weights since the last swap: requests that kept theirs over it may have the same weights again."""
        return f"{weights.number}:{weights.digest}:{self._swaps}" if self._keep_kv else ""

    @staticmethod
    def _mark_kept(completion: Completion, began: WeightsId) -> Completion:
        """Mark what was sampled after a swap: also by the weights that the request came in under, where these came back."""
        spans = (
            replace(span, kept_kv=index > 0 or span.version != began.number)
            for index, span in enumerate(completion.version_spans)
        )
        return replace(completion, version_spans=tuple(spans))

    async def stage(self, published: PublishedWeights) -> float:
        """Hold and check weights while requests run. Returns seconds. Raises WeightUpdateError; what is served stays as it is."""
        began_s = self._clock.monotonic()
        if published.identity == self.weights and published.digest is not None:
            return 0.0
        lease = await asyncio.to_thread(hold, published.path)
        try:
            await asyncio.to_thread(self._check_fits, published.path)
            # In one thread: others serve meanwhile, and nothing waits for it.
            await asyncio.to_thread(check_digest, published.path, published.digest, 1)
        except BaseException:  # also when cancelled: nobody else would release it
            lease.release()
            raise
        async with self._updating:
            self._drop_staged()
            self._staged = (published, lease)
        return self._clock.monotonic() - began_s

    def _check_fits(self, directory: Path) -> None:
        """Compare the files with what is served: a whole model with its tensors, an adapter with its base, too."""
        backend = self.backend
        if not is_adapter(directory):
            check_weights_match(directory, backend.shapes, tied=backend.tied)
            return
        adapter = read_adapter(directory)
        check_adapter_matches(adapter, backend.shapes)
        if adapter.base_digest is None:
            return
        if self._base_digest is None:
            self._base_digest = weights_digest(backend.checkpoint, 1)
        if self._base_digest != adapter.base_digest:
            raise WeightUpdateError(
                f"the adapter in {directory} belongs to weights with the digest {adapter.base_digest[:23]}..., this worker was started "
                f"with {self._base_digest[:23]}...: start the workers with the model that the trainer starts from"
            )

    async def swap(self, weights: WeightsId, *, pause: bool = True) -> tuple[float, float]:
        """Swap to the staged weights between two tokens; running requests go on under them. Idempotent.

        Returns the seconds until requests stood still, and of the load. Raises WeightUpdateError when other weights are staged. Any other
        error leaves the worker broken.
        """
        async with self._updating:
            if self._staged is None or self._staged[0].identity != weights:
                if self.weights == weights:
                    return 0.0, 0.0
                raise WeightUpdateError(f"version {weights.number} was not staged on this worker: stage it first")
            published, lease = self._staged
            began_s = self._clock.monotonic()
            if pause:
                await self._stand_still()
            paused_s = self._clock.monotonic()
            with self._broken_by(f"loading version {weights.number}"):
                await self.backend.load(published.path, published.digest, weights.number)
            self._staged = None
            if self._served is not None:
                self._served.release()
            self._served, self.weights = lease, weights
            self._swaps += 1
            loaded_s = self._clock.monotonic()
            if pause:
                await self._go_on()
            self._bump()
        return paused_s - began_s, loaded_s - paused_s

    async def pause(self) -> None:
        """Let all requests stand still until `resume`: a swap for all workers at once."""
        async with self._updating:
            await self._stand_still()

    async def resume(self) -> None:
        """Let requests go on."""
        async with self._updating:
            await self._go_on()

    async def _stand_still(self) -> None:
        self._set_state(WorkerState.UPDATING)
        with self._broken_by("letting requests stand still"):
            await self.backend.pause(clear_cache=not self._keep_kv)

    async def _go_on(self) -> None:
        with self._broken_by("letting requests go on"):
            await self.backend.resume()
        self._set_state(WorkerState.SERVING)

    @contextmanager
    def _broken_by(self, what: str) -> Iterator[None]:
        """Whatever fails in the context leaves the worker broken, also where it is cancelled half-way."""
        try:
            yield
        except BaseException as error:  # raised again
            self._break(f"{what} failed half-way: {type(error).__name__}: {error}")
            raise

    def drain(self) -> int:
        """Take no new request from now on, for good. Returns how many run."""
        self.state = WorkerState.DRAINING
        self._note_activity()
        self._bump()
        return self.in_flight

    async def health(self, after: int | None = None, wait_s: float = 0.0) -> WorkerHealth:
        """The worker's state; with `after`, as soon as its revision is another than that, at most `wait_s` later.

        Raises WorkerError, or what the engine raises, when it cannot go on.
        """
        deadline_s = self._clock.monotonic() + wait_s
        while after == self._revision and not self.broken and (left_s := deadline_s - self._clock.monotonic()) > 0:
            changed = asyncio.ensure_future(self._changed.wait())
            try:
                await wait_first(self._clock, left_s, [changed])
            finally:
                changed.cancel()
        if self.broken:
            raise WorkerError(self.broken)
        await self.backend.check()
        load = self.backend.load_now()
        return WorkerHealth(
            version=self.weights.number,
            in_flight=self.in_flight,
            pid=os.getpid(),
            state=self.state,
            digest=self.weights.digest,
            revision=self._revision,
            waiting=load.waiting,
            kv_cache_usage=load.kv_cache_usage,
            up_s=self._activity.up_s,
            serving_s=self._activity.serving_s,
            updating_s=self._activity.updating_s,
        )

    def close(self) -> None:
        """End the engine and let go of the weights."""
        self.backend.close()
        self._drop_staged()
        if self._served is not None:
            self._served.release()

    def _drop_staged(self) -> None:
        if self._staged is not None:
            self._staged[1].release()
            self._staged = None

    def _set_state(self, state: WorkerState) -> None:
        if self.state is not WorkerState.DRAINING:
            self.state = state
            self._note_activity()
            self._bump()

    def _bump(self) -> None:
        self._revision += 1
        self._changed.set()
        self._changed = asyncio.Event()
