"""The routing rule, and that the incremental router follows it."""

from __future__ import annotations

import random

import pytest

from dart_agent.inference.decisions.routing import (
    ALL_FULL,
    NO_WORKER,
    Route,
    Router,
    RouteRequest,
    RoutingSettings,
    WorkerLoad,
    WorkerState,
    route,
)


def router_of(*names: str, settings: RoutingSettings | None = None) -> Router:
    router = Router(settings)
    for name in names:
        router.set_worker(name, WorkerState.SERVING)
    return router


def send(router: Router, key: str = "") -> str:
    chosen = router.route(RouteRequest(key))
    assert isinstance(chosen, Route), chosen
    router.started(chosen.worker, key)
    return chosen.worker


def test_requests_go_to_the_least_loaded_worker_and_idle_ones_take_turns() -> None:
    router = router_of("a", "b", "c")
    assert [send(router) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]
    router.ended("b")
    assert send(router) == "b"
    for worker in "abcabc":
        router.ended(worker)
    assert len({send(router) for _ in range(3)}) == 3


def test_an_episode_stays_with_the_worker_that_holds_its_prefix_up_to_the_imbalance() -> None:
    router = router_of("a", "b", settings=RoutingSettings(max_imbalance=2))
    holder = send(router, "episode")
    router.ended(holder)
    taken = []
    for _ in range(5):
        chosen = router.route(RouteRequest("episode"))
        assert isinstance(chosen, Route)
        taken.append((chosen.worker == holder, chosen.reason))
        if chosen.worker != holder:
            break
        router.started(holder, "episode")
    assert taken == [(True, "prefix")] * 3 + [(False, "load")]


def test_without_affinity_only_the_load_counts() -> None:
    router = router_of("a", "b", settings=RoutingSettings(prefix_affinity=False))
    assert send(router, "episode") != send(router, "episode")


def test_a_worker_that_lost_its_cache_holds_no_prefix() -> None:
    router = router_of("a", "b")
    holder = send(router, "episode")
    assert router.holder("episode") == holder
    router.cache_cleared(holder)
    assert router.holder("episode") == ""
    again = send(router, "episode")
    router.set_worker(again, WorkerState.DOWN)
    router.set_worker(again, WorkerState.SERVING)
    assert router.holder("episode") == ""


def test_updating_workers_come_last_and_draining_ones_never() -> None:
    router = router_of("a", "b", "c")
    router.set_worker("a", WorkerState.UPDATING)
    router.set_worker("b", WorkerState.DRAINING)
    assert {send(router) for _ in range(9)} == {"c"}
    router.set_worker("c", WorkerState.DOWN)
    assert router.route(RouteRequest()) == Route("a", "updating")
    router.set_worker("a", WorkerState.DOWN)
    assert router.route(RouteRequest()) == NO_WORKER


def test_the_holder_of_a_prefix_is_left_while_it_updates() -> None:
    router = router_of("a", "b")
    holder = send(router, "episode")
    router.set_worker(holder, WorkerState.UPDATING)
    assert send(router, "episode") != holder


def test_a_worker_that_failed_the_request_is_avoided_where_there_is_another() -> None:
    router = router_of("a", "b")
    assert router.route(RouteRequest(avoid=frozenset("a"))) == Route("b", "load")
    router.set_worker("b", WorkerState.DOWN)
    assert router.route(RouteRequest(avoid=frozenset("a"))) == Route("a", "load")


def test_full_workers_let_a_request_wait() -> None:
    router = router_of("a", "b", settings=RoutingSettings(max_in_flight=1))
    first, second = send(router), send(router)
    assert router.route(RouteRequest()) == ALL_FULL
    router.ended(second)
    assert first != send(router) == second


def test_only_so_many_prefixes_are_remembered() -> None:
    router = router_of("a", settings=RoutingSettings(max_prefixes=2))
    for key in ("x", "y", "x", "z"):
        send(router, key)
    assert [router.holder(key) for key in "xyz"] == ["a", "", "a"]
    router.finished("x")
    assert router.holder("x") == ""


@pytest.mark.parametrize("seed", range(20))
def test_the_router_follows_the_rule_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    settings = RoutingSettings(
        prefix_affinity=chance.random() < 0.8,
        max_imbalance=chance.randrange(4),
        max_in_flight=chance.choice([None, 2, 5]),
    )
    router, running = Router(settings), list[str]()
    for name in "abcde":
        router.set_worker(name, WorkerState.SERVING)
    for _ in range(400):
        what = chance.random()
        if what < 0.55:
            avoid = frozenset(chance.sample("abcde", chance.choice([0, 0, 0, 1, 4])))
            request = RouteRequest(chance.choice(["", "e1", "e2", "e3"]), avoid)
            rule = route(router.loads.values(), request, router.holder(request.prefix_key), settings)
            chosen = router.route(request)
            assert chosen == rule
            if isinstance(chosen, Route):
                router.started(chosen.worker, request.prefix_key)
                running.append(chosen.worker)
        elif what < 0.85 and running:
            router.ended(running.pop(chance.randrange(len(running))))
        elif what < 0.97:
            router.set_worker(chance.choice("abcde"), chance.choice(list(WorkerState)))
        else:
            router.cache_cleared(chance.choice("abcde"))


def test_the_rule_leaves_the_loads_alone() -> None:
    loads = [WorkerLoad("a", in_flight=3), WorkerLoad("b", in_flight=1)]
    assert route(loads, RouteRequest("k"), "a", RoutingSettings(max_imbalance=2)) == Route("a", "prefix")
    assert route(loads, RouteRequest("k"), "a", RoutingSettings(max_imbalance=1)) == Route("b", "load")
    assert [load.in_flight for load in loads] == [3, 1]


def test_the_router_does_not_grow_with_the_requests() -> None:
    router = router_of("a", "b")
    for _ in range(2000):
        router.ended(send(router))
    assert sum(len(heap) for heap in router._heaps.values()) < 100


def test_a_request_for_some_workers_goes_to_no_other() -> None:
    router = router_of("a", "b", "c")
    router.started("c")
    assert router.route(RouteRequest(among=frozenset("c"))) == Route("c", "load")
    router.started("a", "episode")
    assert router.route(RouteRequest("episode", among=frozenset("bc"))) == Route("b", "load")
    assert router.route(RouteRequest(among=frozenset())) == NO_WORKER
    router.set_worker("c", WorkerState.DOWN)
    assert router.route(RouteRequest(avoid=frozenset("b"), among=frozenset("c"))) == NO_WORKER
