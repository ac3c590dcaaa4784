"""Which worker gets a request.

Role: `route` is the rule; `Router` keeps the loads of the workers and the holders of prefixes and answers by the same rule, in
O(log workers). Rule: pure and synchronous, no clock, no randomness. A draining worker never gets a request, an updating one only where no
other serves. An episode stays with the worker that holds its prefix while that worker has at most `max_imbalance` requests more than the
least loaded.
Non-goals: whether a worker serves (`decisions.health`), sending (`dart_agent.inference.pool`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class WorkerState(StrEnum):
    """What a worker can do now.

    SERVING answers; UPDATING takes new weights, its requests stand still; DRAINING finishes what runs; DOWN does not answer.
    """

    SERVING = "serving"
    UPDATING = "updating"
    DRAINING = "draining"
    DOWN = "down"


ROUTABLE = (WorkerState.SERVING, WorkerState.UPDATING)
"""States that may get a request, the better one first."""


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Limits of the router.

    Attributes:
        prefix_affinity: Whether an episode stays with the worker that holds its prefix.
        max_imbalance: How many requests more than the least loaded worker the holder of a prefix may have.
        max_in_flight: Most requests of one worker; None: no limit. Where every worker has so many, a request waits.
        max_prefixes: How many holders of prefixes are remembered; the one that was used longest ago is forgotten first.
    """

    prefix_affinity: bool = True
    max_imbalance: int = 16
    max_in_flight: int | None = None
    max_prefixes: int = 100_000


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What the router needs of a request.

    Attributes:
        prefix_key: Requests of one key share a prefix (an episode); empty: none.
        avoid: Workers that failed this request already, or had better not get it; they are taken only where there is no other.
        among: The only workers that may get it; None: all.
    """

    prefix_key: str = ""
    avoid: frozenset[str] = frozenset()
    among: frozenset[str] | None = None


@dataclass(slots=True)
class WorkerLoad:
    """One worker as the router sees it.

    Attributes:
        name: Its name.
        state: What it can do.
        in_flight: Requests that run or wait on it.
        started: Requests that were ever sent to it; breaks ties, so that idle workers take turns.
    """

    name: str
    state: WorkerState = WorkerState.SERVING
    in_flight: int = 0
    started: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """Send the request to `worker`. reason: `prefix` (it holds the prefix), `load` (least loaded), `updating` (no other serves)."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """No worker can take the request now; ask again when a worker's state or load changes."""

    reason: str


NO_WORKER = Wait("no worker serves")
ALL_FULL = Wait("every worker has as many requests as it may have")


def route(workers: Iterable[WorkerLoad], request: RouteRequest, holder: str, settings: RoutingSettings) -> Route | Wait:
    """Choose a worker: the definition, O(workers).

    Args:
        workers: All workers.
        request: The request.
        holder: Name of the worker that holds the request's prefix; empty: none does.
        settings: Limits.

    Returns:
        The worker, or why the request waits.
    """
    among = request.among
    usable = [load for load in workers if load.state in ROUTABLE and (among is None or load.name in among)]
    usable = [load for load in usable if load.name not in request.avoid] or usable
    if not usable:
        return NO_WORKER
    serving = [load for load in usable if load.state is WorkerState.SERVING]
    best = min(serving or usable, key=_order)
    if settings.max_in_flight is not None and best.in_flight >= settings.max_in_flight:
        return ALL_FULL
    if not serving:
        return Route(best.name, "updating")
    for load in serving:
        if load.name == holder and _holder_is_near(load, best, settings):
            return Route(holder, "prefix")
    return Route(best.name, "load")


def _order(load: WorkerLoad) -> tuple[int, int, str]:
    return (load.in_flight, load.started, load.name)


def _holder_is_near(holder: WorkerLoad, best: WorkerLoad, settings: RoutingSettings) -> bool:
    below_limit = settings.max_in_flight is None or holder.in_flight < settings.max_in_flight
    return settings.prefix_affinity and below_limit and holder.in_flight - best.in_flight <= settings.max_imbalance


class Router:
    """Loads and holders of prefixes, kept up to date by whoever sends the requests.

    Every method costs O(log workers). Use it as: `route`, then `started` with the chosen worker, then `ended`.

    Args:
        settings: Limits.
    """

    def __init__(self, settings: RoutingSettings | None = None) -> None:
        self.settings = settings or RoutingSettings()
        self.loads: dict[str, WorkerLoad] = {}
        self._holders: OrderedDict[str, tuple[str, int]] = OrderedDict()
        self._cache_generation: dict[str, int] = {}
        self._heaps: dict[WorkerState, list[tuple[int, int, str]]] = {state: [] for state in ROUTABLE}

    def set_worker(self, name: str, state: WorkerState) -> None:
        """Say what a worker can do; a new name adds it, and DOWN clears its caches.

        Args:
            name: The worker.
            state: Its state.
        """
        load = self.loads.get(name)
        if load is None:
            load = self.loads[name] = WorkerLoad(name, state)
            self._cache_generation[name] = 0
        elif load.state is state:
            return
        load.state = state
        if state is WorkerState.DOWN:
            self.cache_cleared(name)
        self._push(load)

    def route(self, request: RouteRequest) -> Route | Wait:
        """Choose a worker by the rule of the function `route`.

        Args:
            request: The request.

        Returns:
            The worker, or why the request waits.
        """
        if request.avoid or request.among is not None:
            return route(self.loads.values(), request, self.holder(request.prefix_key), self.settings)
        best = self._least(WorkerState.SERVING)
        reason = "load"
        if best is None:
            best, reason = self._least(WorkerState.UPDATING), "updating"
        if best is None:
            return NO_WORKER
        if self.settings.max_in_flight is not None and best.in_flight >= self.settings.max_in_flight:
            return ALL_FULL
        if reason == "load":
            held = self.loads.get(self.holder(request.prefix_key))
            if held is not None and held.state is WorkerState.SERVING and _holder_is_near(held, best, self.settings):
                return Route(held.name, "prefix")
        return Route(best.name, reason)

    def started(self, worker: str, prefix_key: str = "") -> None:
        """A request was sent: `worker` has one more, and holds the prefix from now on.

        Args:
            worker: The chosen worker.
            prefix_key: The request's; empty: none.
        """
        load = self.loads[worker]
        load.in_flight += 1
        load.started += 1
        self._push(load)
        if prefix_key:
            self._holders[prefix_key] = (worker, self._cache_generation[worker])
            self._holders.move_to_end(prefix_key)
            if len(self._holders) > self.settings.max_prefixes:
                self._holders.popitem(last=False)

    def ended(self, worker: str) -> None:
        """A request was answered, failed or was cancelled.

        Args:
            worker: The worker that had it.
        """
        load = self.loads[worker]
        load.in_flight -= 1
        self._push(load)

    def finished(self, prefix_key: str) -> None:
        """No request with this prefix comes any more (the episode ended).

        Args:
            prefix_key: The prefix.
        """
        self._holders.pop(prefix_key, None)

    def cache_cleared(self, worker: str) -> None:
        """The worker holds no prefix any more: it was restarted, or took weights and cleared its caches.

        Args:
            worker: The worker.
        """
        self._cache_generation[worker] += 1

    def holder(self, prefix_key: str) -> str:
        """Name the worker that holds a prefix.

        Args:
            prefix_key: The prefix.

        Returns:
            The worker; empty where none does.
        """
        worker, generation = self._holders.get(prefix_key, ("", 0))
        return worker if worker and self._cache_generation[worker] == generation else ""

    def _push(self, load: WorkerLoad) -> None:
        if load.state not in ROUTABLE:
            return
        heap = self._heaps[load.state]
        heapq.heappush(heap, _order(load))
        if len(heap) > 4 * len(self.loads) + 64:
            # Mostly entries that later ones replaced.
            heap[:] = [_order(other) for other in self.loads.values() if other.state is load.state]
            heapq.heapify(heap)

    def _least(self, state: WorkerState) -> WorkerLoad | None:
        """The least loaded worker of a state; entries of the heap that a later one replaced are dropped on the way."""
        heap = self._heaps[state]
        while heap:
            load = self.loads[heap[0][2]]
            if load.state is state and _order(load) == heap[0]:
                return load
            heapq.heappop(heap)
        return None
