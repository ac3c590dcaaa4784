"""The simulated engine against times computed by hand."""

from __future__ import annotations

import pytest

from dart_train.simulation.engine import SimulatedEngine, SimulatedRequest
from dart_train.simulation.event_heap import EventHeap
from dart_train.simulation.models import EngineModel

MODEL = EngineModel(
    prefill_tokens_per_s=1000.0,
    image_s=0.0,
    request_s=0.0,
    step_s=0.01,
    step_s_per_request=0.0,
    decode_share=0.5,
    max_requests=8,
    kv_cache_tokens=10_000,
)


class Bench:
    """An engine with a log of when requests began and ended."""

    def __init__(self, model: EngineModel = MODEL) -> None:
        self.heap = EventHeap()
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.busy: list[tuple[float, bool]] = []
        self.engine = SimulatedEngine("policy-0", model, self.heap, self._began, self._ended, self._busy)

    def _began(self, request: SimulatedRequest) -> None:
        self.began.setdefault(request.episode, self.heap.now_s)

    def _ended(self, request: SimulatedRequest, worker: str) -> None:
        assert worker == "policy-0"
        self.ended[request.episode] = self.heap.now_s

    def _busy(self, worker: str, busy: bool) -> None:
        self.busy.append((self.heap.now_s, busy))


def request(episode: str, prompt: int = 1000, response: int = 100, reusable: int = 0) -> SimulatedRequest:
    return SimulatedRequest(None, episode, prompt, reusable, 1, 1, response)


def test_a_request_alone_takes_prefill_and_decoding() -> None:
    bench = Bench()
    bench.engine.submit(request("a"))
    bench.heap.run(10.0)
    assert bench.began == {"a": 0.0}
    assert bench.ended == {"a": pytest.approx(1.0 + 1.0)}  # 1000 tokens at 1000/s, then 100 steps of 10 ms
    assert bench.busy == [(0.0, True), (pytest.approx(2.0), False)]
    assert bench.engine.kv_tokens == 0


def test_prompts_are_computed_one_after_the_other_and_slow_the_decoding() -> None:
    bench = Bench()
    for name in "ab":
        bench.engine.submit(request(name))
    bench.heap.run(10.0)
    # b's prefill runs from 1 to 2 s: a gets half the speed, 50 tokens; its other 50 take 0.5 s more.
    assert bench.began == {"a": 0.0, "b": pytest.approx(1.0)}
    assert bench.ended == {"a": pytest.approx(2.5), "b": pytest.approx(3.0)}


def test_a_larger_batch_is_slower_for_each_request() -> None:
    model = MODEL.model_copy(update={"step_s_per_request": 0.005, "prefill_tokens_per_s": 1e9})
    bench = Bench(model)
    for name in "ab":
        bench.engine.submit(request(name))
    bench.heap.run(10.0)
    assert bench.ended == {"a": pytest.approx(2.0, abs=1e-3), "b": pytest.approx(2.0, abs=1e-3)}  # 100 steps of 20 ms


def test_a_prefix_in_the_cache_is_not_computed_again() -> None:
    bench = Bench()
    bench.engine.submit(request("a"))
    bench.heap.run(5.0)
    bench.engine.submit(request("a", prompt=1500, reusable=1100))
    bench.heap.run(20.0)
    assert bench.ended["a"] == pytest.approx(5.0 + 0.4 + 1.0)
    assert (bench.engine.reused_tokens, bench.engine.prefill_tokens) == (1100, 1000 + 400)


def test_a_full_key_value_cache_lets_requests_wait() -> None:
    bench = Bench(MODEL.model_copy(update={"kv_cache_tokens": 2000}))
    for name in "ab":
        bench.engine.submit(request(name))
    bench.heap.run(10.0)
    assert bench.began["b"] == pytest.approx(2.0)  # after a has ended
    assert bench.ended["b"] == pytest.approx(4.0)


@pytest.mark.parametrize(("keeps_prefixes", "end_s"), [(True, 2.0 + 3.0), (False, 2.0 + 3.0 + 1.05)])
def test_a_pause_for_new_weights_stops_the_clock_of_running_requests(keeps_prefixes: bool, end_s: float) -> None:
    bench = Bench()
    held = request("a")
    bench.engine.submit(held)
    bench.heap.run(1.5)  # 50 of 100 tokens are sampled
    bench.engine.pause()
    bench.heap.run(4.5)
    assert bench.ended == {}
    bench.engine.resume(7, keeps_prefixes=keeps_prefixes)
    bench.heap.run(20.0)
    # Without the cache the prompt and the 50 tokens are computed again: 1.05 s.
    assert bench.ended == {"a": pytest.approx(end_s)}
    assert held.versions == (0, 7)


def test_a_lost_worker_gives_its_requests_back_unchanged() -> None:
    bench = Bench()
    sent = [request(name) for name in "abc"]
    for each in sent:
        bench.engine.submit(each)
    bench.heap.run(1.5)
    assert bench.engine.drop_all() == [sent[0], sent[1], sent[2]]
    assert bench.engine.kv_tokens == 0
    assert all(each.left_tokens == 100 and not each.running for each in sent)
    bench.heap.run(20.0)
    assert bench.ended == {}


def test_a_cancelled_request_frees_its_place() -> None:
    bench = Bench()
    sent = [request(name) for name in "ab"]
    for each in sent:
        bench.engine.submit(each)
    bench.heap.run(0.5)
    bench.engine.cancel(sent[0])
    bench.heap.run(20.0)
    assert bench.ended == {"b": pytest.approx(0.5 + 1.0 + 1.0)}
    assert bench.engine.kv_tokens == 0


def test_events_of_one_time_run_in_the_order_in_which_they_were_added() -> None:
    heap, seen = EventHeap(), []
    for name in "abc":
        heap.at(1.0, seen.append, name)
    heap.at(0.5, lambda _: heap.after(0.5, seen.append, "d"))
    heap.run(2.0)
    assert seen == ["a", "b", "c", "d"]
    assert heap.now_s == 2.0
    with pytest.raises(ValueError, match="cannot be added"):
        heap.at(1.0, seen.append, "e")
