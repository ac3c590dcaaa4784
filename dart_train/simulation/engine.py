"""A simulated inference worker: prefill, decoding by batch size, key-value cache, prefix cache, pauses.

Role: `SimulatedEngine` computes requests in virtual time. Rule: a fluid model; decoding requests share the engine equally, so the one with
the fewest tokens left ends first, and only two events are outstanding: the end of the present prefill and the next end of a response.
Non-goals: which engine gets a request (`dart_agent.inference.decisions.routing`), when it takes weights (`decisions.weight_updates`).

Let n be the decoding requests and s(n) = step_s + step_s_per_request n the seconds of one decoding step. Each request gets
1 / s(n) tokens per second, times `decode_share` while a prompt is computed. V(t), the integral of that rate, is the service that each
has got; a response of k tokens that begins at V0 ends when V = V0 + k (processor sharing in virtual service time, Parekh and Gallager
1993).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable

from dart_train.simulation.event_heap import EventHeap
from dart_train.simulation.models import EngineModel


class SimulatedRequest:
    """One request for a response.

    Attributes:
        episode: Its episode, by which prefixes are reused.
        prompt_tokens: Length of the prompt.
        reusable_tokens: How much of it can be in the prefix cache.
        images: Screenshots whose features are not known yet.
        cold_images: Screenshots of the prompt, computed again where the prefix is not in the cache.
        response_tokens: Length of the response.
        left_tokens: How much of it was to be sampled when it last began to be computed.
        versions: Version at its first token, and at its last one; -1 before.
        running: Whether an engine computes it.
        engine: The engine that has it.
        owner: Who made it.
        attempt: How often it was sent again.
        sent_s: When it was first sent.
        began_s: When it first began to be computed, where whoever sent it keeps that.
    """

    __slots__ = (
        "attempt",
        "began_s",
        "cancelled",
        "cold_images",
        "end_service",
        "engine",
        "episode",
        "images",
        "left_tokens",
        "owner",
        "prompt_tokens",
        "response_tokens",
        "reusable_tokens",
        "running",
        "sent_s",
        "versions",
    )

    def __init__(
        self,
        owner: object,
        episode: str,
        prompt_tokens: int,
        reusable_tokens: int,
        images: int,
        cold_images: int,
        response_tokens: int,
    ) -> None:
        self.owner = owner
        self.episode = episode
        self.prompt_tokens = prompt_tokens
        self.reusable_tokens = reusable_tokens
        self.images = images
        self.cold_images = cold_images
        self.response_tokens = response_tokens
        self.left_tokens = float(response_tokens)
        self.versions = (-1, -1)
        self.running = False
        self.cancelled = False
        self.engine: SimulatedEngine | None = None
        self.end_service = 0.0
        self.attempt = 0
        self.sent_s = self.began_s = 0.0


class SimulatedEngine:
    """One inference worker.

    Args:
        name: Its name.
        model: Its latencies.
        heap: Virtual time.
        on_running: Called when a request begins to be computed.
        on_done: Called with the request and the worker's name when a response is complete.
        on_busy: Called when the worker begins (True) or ceases (False) to compute something.

    Attributes:
        name: Its name.
        version: Version of its weights.
        paused: Whether its requests stand still.
        kv_tokens: Tokens of running requests in the key-value cache.
        prefill_tokens: Prompt tokens computed so far.
        reused_tokens: Prompt tokens found in the prefix cache so far.
        decoded_tokens: Tokens of complete responses so far.
    """

    def __init__(
        self,
        name: str,
        model: EngineModel,
        heap: EventHeap,
        on_running: Callable[[SimulatedRequest], None],
        on_done: Callable[[SimulatedRequest, str], None],
        on_busy: Callable[[str, bool], None],
    ) -> None:
        self.name = name
        self.model = model
        self.version = 0
        self.paused = False
        self.kv_tokens = 0
        self.prefill_tokens = 0.0
        self.reused_tokens = 0
        self.decoded_tokens = 0
        self._heap = heap
        self._on_running, self._on_done, self._on_busy = on_running, on_done, on_busy
        self._waiting: deque[SimulatedRequest] = deque()
        self._prefilling: SimulatedRequest | None = None
        self._prefill_left_s = 0.0
        self._prefill_epoch = 0
        self._decoding: list[tuple[float, int, SimulatedRequest]] = []
        self._ndecoding = 0
        self._decode_epoch = 0
        self._service = 0.0
        self._since_s = 0.0
        self._count = 0
        self._prefixes: OrderedDict[str, int] = OrderedDict()
        self._prefix_tokens = 0
        self._busy = False

    @property
    def requests(self) -> int:
        """Requests that run or wait."""
        return len(self._waiting) + self._ndecoding + (self._prefilling is not None)

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of the key-value cache that running requests use, and waiting ones need; above 1 where it is short."""
        waiting = sum(each.prompt_tokens + each.response_tokens for each in self._waiting if not each.cancelled)
        return (self.kv_tokens + waiting) / self.model.kv_cache_tokens

    def submit(self, request: SimulatedRequest) -> None:
        """Take a request.

        Args:
            request: The request.
        """
        request.engine = self
        request.running = False
        self._waiting.append(request)
        if self._prefilling is None and not self.paused:
            self._admit()

    def pause(self) -> None:
        """Let all requests stand still."""
        self._advance()
        if self._prefilling is not None:
            self._prefill_epoch += 1
        self._decode_epoch += 1
        self.paused = True
        self._note_busy()

    def resume(self, version: int, *, keeps_prefixes: bool) -> None:
        """Let all requests go on.

        Args:
            version: Version of the weights from now on.
            keeps_prefixes: Whether the prefix cache stays; otherwise running requests compute their prompts again.
        """
        self._since_s = self._heap.now_s
        self.paused = False
        self.version = version
        if not keeps_prefixes:
            self.clear_prefixes()
            self._preempt()
        if self._prefilling is not None:
            self._schedule_prefill()
        else:
            self._admit()
        self._schedule_decode()
        self._note_busy()

    def running(self) -> list[SimulatedRequest]:
        """Return the requests that are computed, or would be if the worker were not paused."""
        found = [request for _, _, request in self._decoding if not request.cancelled]
        return found if self._prefilling is None else [*found, self._prefilling]

    def drop_all(self) -> list[SimulatedRequest]:
        """Fail everything that runs or waits, as where the process ends.

        Returns:
            The requests; the caller sends them again.
        """
        self._advance()
        lost = self.running() + [request for request in self._waiting if not request.cancelled]
        self._decoding, self._ndecoding = [], 0
        self._waiting.clear()
        self._prefilling = None
        self._prefill_epoch += 1
        self._decode_epoch += 1
        self.kv_tokens = 0
        self.clear_prefixes()
        for request in lost:
            request.engine = None
            request.running = False
            request.left_tokens = float(request.response_tokens)
            request.versions = (-1, -1)
        self._note_busy()
        return lost

    def cancel(self, request: SimulatedRequest) -> None:
        """Forget a request whose episode is gone.

        Args:
            request: The request; this engine has it.
        """
        request.cancelled = True
        if request is self._prefilling:
            self._advance()
            self._prefill_epoch += 1
            self._prefilling = None
            self._release(request)
            if not self.paused:
                self._admit()
                self._schedule_decode()
        elif request.running:
            self._advance()
            self._ndecoding -= 1
            self._release(request)
            self._schedule_decode()
        self._note_busy()

    def forget(self, episode: str) -> None:
        """Drop the prefix of an episode that has ended.

        Args:
            episode: The episode.
        """
        self._prefix_tokens -= self._prefixes.pop(episode, 0)

    def clear_prefixes(self) -> None:
        """Drop all prefixes."""
        self._prefixes.clear()
        self._prefix_tokens = 0

    def _preempt(self) -> None:
        """Put all decoding requests in front of those that wait: their prompts and responses so far are computed again."""
        again = []
        for end_service, _, request in sorted(self._decoding, key=lambda entry: entry[1]):
            if not request.cancelled:
                request.left_tokens = max(0.0, end_service - self._service)
                request.running = False
                self.kv_tokens -= request.prompt_tokens + request.response_tokens
                again.append(request)
        self._waiting.extendleft(reversed(again))
        self._decoding, self._ndecoding = [], 0

    def _rate(self) -> float:
        """Tokens per second of each decoding request."""
        model = self.model
        rate = 1.0 / (model.step_s + model.step_s_per_request * self._ndecoding)
        return rate * model.decode_share if self._prefilling is not None else rate

    def _advance(self) -> None:
        now_s = self._heap.now_s
        if self._ndecoding and not self.paused:
            self._service += (now_s - self._since_s) * self._rate()
        if self._prefilling is not None and not self.paused:
            self._prefill_left_s -= now_s - self._since_s
        self._since_s = now_s

    def _admit(self) -> None:
        """Begin the next prefill where there is room; a request that is alone always fits."""
        model, waiting = self.model, self._waiting
        while waiting and waiting[0].cancelled:
            waiting.popleft()
        if not waiting or self._ndecoding >= model.max_requests:
            return
        request = waiting[0]
        tokens = request.prompt_tokens + request.response_tokens
        if self._ndecoding and self.kv_tokens + tokens > model.kv_cache_tokens:
            return
        waiting.popleft()
        self._advance()
        self.kv_tokens += tokens
        cached = min(self._prefixes.get(request.episode, 0), request.reusable_tokens) if model.prefix_cache else 0
        fresh = tokens - request.left_tokens - cached
        self.reused_tokens += cached
        self.prefill_tokens += fresh
        images = request.images if cached else request.cold_images
        self._prefilling = request
        self._prefill_left_s = model.request_s + fresh / model.prefill_tokens_per_s + images * model.image_s
        request.running = True
        self._on_running(request)
        self._schedule_prefill()
        self._schedule_decode()
        if not self._busy:
            self._note_busy()

    def _schedule_prefill(self) -> None:
        self._prefill_epoch += 1
        self._heap.after(self._prefill_left_s, self._end_prefill, self._prefill_epoch)

    def _end_prefill(self, epoch: int) -> None:
        request = self._prefilling
        if epoch != self._prefill_epoch or request is None:
            return
        self._advance()
        self._prefilling = None
        self._count += 1
        if request.versions[0] < 0:
            request.versions = (self.version, self.version)
        request.end_service = self._service + request.left_tokens
        heapq.heappush(self._decoding, (request.end_service, self._count, request))
        self._ndecoding += 1
        self._admit()
        if self._prefilling is None:
            self._schedule_decode()

    def _schedule_decode(self) -> None:
        """Plan the next end of a response; whoever changes the rate or the requests has brought V up to date."""
        self._decode_epoch += 1
        decoding = self._decoding
        while decoding and decoding[0][2].cancelled:
            heapq.heappop(decoding)
        if decoding and not self.paused:
            delay_s = (decoding[0][0] - self._service) / self._rate()
            self._heap.after(delay_s, self._end_decode, self._decode_epoch)

    def _end_decode(self, epoch: int) -> None:
        if epoch != self._decode_epoch:
            return
        self._advance()
        request = heapq.heappop(self._decoding)[2]
        # Rounding must not let the service fall short of what has been finished.
        self._service = max(self._service, request.end_service)
        self._ndecoding -= 1
        self.decoded_tokens += request.response_tokens
        self._release(request)
        request.versions = (request.versions[0], self.version)
        self._keep_prefix(request)
        if self._prefilling is None:
            self._admit()
        self._schedule_decode()
        if not self._ndecoding and self._prefilling is None:
            self._note_busy()
        self._on_done(request, self.name)

    def _release(self, request: SimulatedRequest) -> None:
        request.running = False
        request.engine = None
        self.kv_tokens -= request.prompt_tokens + request.response_tokens

    def _keep_prefix(self, request: SimulatedRequest) -> None:
        if not self.model.prefix_cache:
            return
        tokens = request.prompt_tokens + request.response_tokens
        self._prefix_tokens += tokens - self._prefixes.pop(request.episode, 0)
        self._prefixes[request.episode] = tokens
        # A prefix is shared with the request that runs on it: the larger of both claims is what the cache holds.
        while self._prefix_tokens > self.model.kv_cache_tokens and self._prefixes:
            self._prefix_tokens -= self._prefixes.popitem(last=False)[1]

    def _note_busy(self) -> None:
        busy = (self._ndecoding > 0 or self._prefilling is not None) and not self.paused
        if busy != self._busy:
            self._busy = busy
            self._on_busy(self.name, busy)
