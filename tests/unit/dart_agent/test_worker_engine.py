"""What a worker does with its engine, with an engine in memory; and the routes that lead to it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dart_agent.errors import ContextExceededError, PromptTooLongError, RequestRejected, WeightUpdateError, WorkerError
from dart_agent.inference import pointer_wire, wire
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.decisions.retries import RequestFailure, RetrySettings
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.inference.engine.rendering import render_request
from dart_agent.inference.engine.server import build_app
from dart_agent.inference.engine.worker_engine import EngineLoad, WorkerEngine
from dart_agent.inference.pointer_wire import PointRequest, ServedLogits
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.settings import KEY_NAME, PublishedWeights
from dart_agent.inference.weights.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.weights.leases import make_leasable, try_remove
from dart_agent.types import Completion, FinishReason, PolicyRequest, VersionSpan
from tests.unit.dart_agent.fakes import FakeClock, completion, request
from tests.unit.dart_agent.test_pool import until
from tests.unit.dart_agent.test_weights import write_safetensors


class FakeBackend:
    """An engine that writes down what it was told; `hold` makes answers wait, `failure` makes the next call fail."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {"a": (4,)}
        self.tied = False
        self.checkpoint = Path("/nowhere")
        self.calls: list[str] = []
        self.version = 0
        self.salts: list[str] = []
        self.hold: asyncio.Event | None = None
        self.load_failure: Exception | None = None
        self.sample_failure: Exception | None = None
        self.finish = FinishReason.STOP
        self.closed = False

    async def set_version(self, number: int) -> None:
        self.version = number

    async def sample(self, request: PolicyRequest, *, prefix_salt: str) -> Completion:
        self.salts.append(prefix_salt)
        before = self.version
        if self.hold is not None:
            await self.hold.wait()
        if self.sample_failure is not None:
            raise self.sample_failure
        spans = (VersionSpan(before, 0, 1), VersionSpan(self.version, 1, 2))
        answer = completion("Action: wait()", before)
        if before != self.version:
            answer = dataclasses.replace(answer, version_spans=spans)
        return dataclasses.replace(answer, finish_reason=self.finish)

    async def point(self, asked: PointRequest, *, prefix_salt: str) -> tuple[ServedLogits, ...]:
        if self.sample_failure is not None:
            raise self.sample_failure
        return ()

    async def pause(self, *, clear_cache: bool) -> None:
        self.calls.append(f"pause {'clear' if clear_cache else 'keep'}")

    async def resume(self) -> None:
        self.calls.append("resume")

    async def load(self, path: Path, digest: str | None, number: int) -> None:
        self.calls.append(f"load {number}")
        if self.load_failure is not None:
            raise self.load_failure
        self.version = number

    async def check(self) -> None:
        if self.closed:
            raise RuntimeError("the engine is gone")

    def load_now(self) -> EngineLoad:
        return EngineLoad(waiting=2, kv_cache_usage=0.5)

    def metrics(self) -> str:
        return "vllm:x 1\n"

    def close(self) -> None:
        self.closed = True


Publish = Callable[..., PublishedWeights]


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    def make(version: int, *, digest: bool = True, shape: tuple[int, ...] = (4,)) -> PublishedWeights:
        directory = tmp_path / f"v{version}"
        write_safetensors(directory / "model.safetensors", {"a": np.full(shape, version, "f4")})
        make_leasable(directory)
        return PublishedWeights(version, directory, weights_digest(directory) if digest else None)

    return make


async def test_a_swap_pauses_loads_and_goes_on_and_says_the_new_weights(publish: Publish) -> None:
    backend = FakeBackend()
    engine = WorkerEngine(backend)
    published = publish(1)
    await engine.stage(published)
    assert backend.calls == []
    await engine.swap(published.identity)
    assert backend.calls == ["pause clear", "load 1", "resume"]
    assert (await engine.health()).weights == published.identity
    await engine.stage(published)
    await engine.swap(published.identity)
    assert backend.calls == ["pause clear", "load 1", "resume"], "a repeated update does nothing"


async def test_weights_whose_digest_is_another_are_refused_and_the_old_ones_serve(publish: Publish) -> None:
    backend = FakeBackend()
    engine = WorkerEngine(backend)
    published = publish(1)
    file = published.path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(WeightUpdateError, match="published was sha256:"):
        await engine.stage(published)
    assert backend.calls == []
    assert (await engine.generate(request())).version_spans[0].version == 0
    assert try_remove(published.path), "a refused version is not held"


async def test_weights_of_another_model_and_weights_that_are_gone_are_refused(publish: Publish) -> None:
    engine = WorkerEngine(FakeBackend())
    with pytest.raises(WeightUpdateError, match="of another shape"):
        await engine.stage(publish(1, shape=(5,)))
    with pytest.raises(WeightUpdateError, match="were removed"):
        await engine.stage(PublishedWeights(9, Path("/nowhere/v9")))
    with pytest.raises(WeightUpdateError, match="version 3 was not staged"):
        await engine.swap(WeightsId(3))


def write_adapter(directory: Path, base_digest: str, columns: int = 3) -> PublishedWeights:
    """An adapter of rank 2 on one layer, in PEFT's layout."""
    names = [f"base_model.model.model.layers.0.mlp.up_proj.lora_{part}.weight" for part in "AB"]
    tensors = {names[0]: np.ones((2, columns), "f4"), names[1]: np.ones((4, 2), "f4")}
    write_safetensors(directory / ADAPTER_WEIGHTS, tensors, {"base_digest": base_digest})
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"}
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config))
    make_leasable(directory)
    return PublishedWeights(1, directory, weights_digest(directory))


async def test_an_adapter_is_taken_on_its_own_base_only(tmp_path: Path) -> None:
    backend = FakeBackend()
    backend.checkpoint = tmp_path / "base"
    layer = "model.language_model.layers.0.mlp.up_proj.weight"
    backend.shapes = {"a": (4,), layer: (4, 3)}
    write_safetensors(backend.checkpoint / "model.safetensors", {"a": np.zeros(4, "f4"), layer: np.zeros((4, 3), "f4")})
    engine = WorkerEngine(backend)
    own = weights_digest(backend.checkpoint)
    with pytest.raises(WeightUpdateError, match="belongs to weights with the digest sha256:0000"):
        await engine.stage(write_adapter(tmp_path / "foreign", "sha256:" + "0" * 64))
    with pytest.raises(WeightUpdateError, match=r"has the shape \(4, 3\), and its A and B have \(2, 5\)"):
        await engine.stage(write_adapter(tmp_path / "wide", own, columns=5))
    published = write_adapter(tmp_path / "fits", own)
    config = published.path / ADAPTER_CONFIG
    config.write_text(config.read_text().replace('"lora_alpha": 4', '"lora_alpha": 8'))
    with pytest.raises(WeightUpdateError, match="published was sha256:"):
        await engine.stage(published)
    assert backend.calls == []
    config.write_text(config.read_text().replace('"lora_alpha": 8', '"lora_alpha": 4'))
    await engine.stage(published)
    await engine.swap(published.identity)
    assert backend.calls == ["pause clear", "load 1", "resume"]
    assert (await engine.health()).weights == published.identity


async def test_nothing_that_is_staged_or_served_is_removed(publish: Publish) -> None:
    engine = WorkerEngine(FakeBackend())
    first, second, third = publish(1), publish(2), publish(3)
    await engine.stage(first)
    await engine.swap(first.identity)
    await engine.stage(second)
    await engine.stage(third)
    assert try_remove(second.path), "nobody wants it any more"
    assert not try_remove(first.path)
    await engine.swap(third.identity)
    assert try_remove(first.path)
    assert not try_remove(third.path)
    engine.close()
    assert try_remove(third.path)


async def test_a_load_that_fails_half_way_takes_the_worker_out_for_good(publish: Publish) -> None:
    backend = FakeBackend()
    engine = WorkerEngine(backend)
    published = publish(1)
    await engine.stage(published)
    backend.hold = asyncio.Event()
    running = asyncio.create_task(engine.generate(request()))
    await asyncio.sleep(0)
    backend.load_failure = OSError("disk gone")
    with pytest.raises(OSError, match="disk gone"):
        await engine.swap(published.identity)
    assert "resume" not in backend.calls, "nothing is sampled from half of a version"
    backend.hold.set()
    for call in (running, engine.generate(request()), engine.health()):
        with pytest.raises(WorkerError, match="loading version 1 failed half-way: OSError: disk gone"):
            await call


@pytest.mark.parametrize("fails", ["pause", "resume"])
async def test_requests_that_cannot_be_stopped_or_go_on_take_the_worker_out(fails: str, publish: Publish) -> None:
    class FailingBackend(FakeBackend):
        async def pause(self, *, clear_cache: bool) -> None:
            if fails == "pause":
                raise OSError("engine gone")
            await super().pause(clear_cache=clear_cache)

        async def resume(self) -> None:
            raise OSError("engine gone")

    engine = WorkerEngine(FailingBackend())
    published = publish(1)
    await engine.stage(published)
    with pytest.raises(OSError, match="engine gone"):
        await engine.swap(published.identity)
    with pytest.raises(WorkerError, match="failed half-way: OSError: engine gone"):
        await engine.health()


async def test_a_swap_for_all_workers_at_once_leaves_pausing_to_the_caller(publish: Publish) -> None:
    backend = FakeBackend()
    engine = WorkerEngine(backend)
    published = publish(1)
    await engine.stage(published)
    await engine.pause()
    assert (await engine.health()).state is WorkerState.UPDATING
    await engine.swap(published.identity, pause=False)
    await engine.resume()
    assert backend.calls == ["pause clear", "load 1", "resume"]
    assert (await engine.health()).state is WorkerState.SERVING


async def test_a_kept_cache_marks_what_was_sampled_over_it(publish: Publish) -> None:
    backend = FakeBackend()
    engine = WorkerEngine(backend, keep_kv=True)
    published = publish(1)
    await engine.stage(published)
    backend.hold = asyncio.Event()
    straddling = asyncio.create_task(engine.generate(request("r0")))
    await asyncio.sleep(0)
    await engine.swap(published.identity)
    backend.hold.set()
    assert [(span.version, span.kept_kv) for span in (await straddling).version_spans] == [(0, False), (1, True)]
    after = await engine.generate(request("r1"))
    assert [span.kept_kv for span in after.version_spans] == [False]
    assert backend.calls[0] == "pause keep"
    assert len(set(backend.salts)) == 2, "a new request shares no prefix that older weights computed"


async def test_weights_that_come_back_share_no_cache_that_others_computed(publish: Publish) -> None:
    """A worker that holds a version for an evaluation goes back to the newest one, which may be the one of before."""
    backend = FakeBackend()
    engine = WorkerEngine(backend, keep_kv=True)
    newest, older = publish(2), publish(1)
    for published in (newest, older, newest):
        await engine.stage(published)
        await engine.swap(published.identity)
        await engine.generate(request())
    assert len(set(backend.salts)) == 3
    spans = (VersionSpan(2, 0, 1), VersionSpan(1, 1, 2), VersionSpan(2, 2, 3))
    marked = engine._mark_kept(
        dataclasses.replace(completion("Action: wait()", 2), version_spans=spans), newest.identity
    )
    assert [span.kept_kv for span in marked.version_spans] == [False, True, True]


async def test_a_recomputed_cache_marks_nothing_and_needs_no_salt(publish: Publish) -> None:
    backend = FakeBackend()
    engine = WorkerEngine(backend)
    published = publish(1)
    await engine.stage(published)
    backend.hold = asyncio.Event()
    straddling = asyncio.create_task(engine.generate(request()))
    await asyncio.sleep(0)
    await engine.swap(published.identity)
    backend.hold.set()
    assert [span.kept_kv for span in (await straddling).version_spans] == [False, False]
    assert backend.salts == [""]


async def test_a_held_health_request_is_answered_when_the_state_changes(publish: Publish) -> None:
    engine = WorkerEngine(FakeBackend())
    first = await engine.health()
    held = asyncio.create_task(engine.health(after=first.revision, wait_s=60.0))
    await asyncio.sleep(0.01)
    assert not held.done()
    await engine.pause()
    assert (await asyncio.wait_for(held, 5)).state is WorkerState.UPDATING
    late = await engine.health(after=(await engine.health()).revision, wait_s=0.01)
    assert (late.waiting, late.kv_cache_usage) == (2, 0.5)


async def test_a_draining_worker_finishes_what_runs_and_takes_nothing_new(publish: Publish) -> None:
    backend = FakeBackend()
    engine = WorkerEngine(backend)
    backend.hold = asyncio.Event()
    running = asyncio.create_task(engine.generate(request()))
    await asyncio.sleep(0)
    assert engine.drain() == 1
    with pytest.raises(WorkerError) as refused:
        await engine.generate(request("late"))
    assert refused.value.failure is RequestFailure.BUSY
    backend.hold.set()
    await running
    assert engine.drain() == 0


@pytest.fixture
async def worker() -> AsyncIterator[tuple[FakeBackend, WorkerEngine, httpx.AsyncClient]]:
    backend = FakeBackend()
    engine = WorkerEngine(backend)
    transport = httpx.ASGITransport(build_app(engine, "k"))
    headers = {"Authorization": "Bearer k"}
    async with httpx.AsyncClient(transport=transport, base_url="http://worker", headers=headers) as client:
        yield backend, engine, client


Worker = tuple[FakeBackend, WorkerEngine, httpx.AsyncClient]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (RequestRejected("no image"), 400, "invalid"),
        (ContextExceededError(990, 64, 1024), 400, "context"),
        (PromptTooLongError("the prompt has 5 images"), 400, "context"),
        (ValueError("a tensor had the wrong size"), 500, "engine"),
        (RuntimeError("no answer"), 500, "engine"),
    ],
)
async def test_only_what_every_worker_would_refuse_is_called_invalid(
    worker: Worker, failure: Exception, status: int, code: str
) -> None:
    backend, _, client = worker
    backend.sample_failure = failure
    reply = await client.post(wire.GENERATE_PATH, content=wire.encode_request(request()))
    assert (reply.status_code, reply.json()["error"]) == (status, code)
    found = wire.decode_prompt_too_long(reply.json())
    assert (type(found), str(found)) == ((type(failure), str(failure)) if code == "context" else (type(None), "None"))
    if isinstance(failure, ContextExceededError):
        assert isinstance(found, ContextExceededError)
        assert (found.prompt_tokens, found.max_tokens, found.context) == (990, 64, 1024)
    assert (await client.get(wire.HEALTH_PATH)).status_code == 200, "one failed request does not break the worker"


@pytest.mark.parametrize("path", [wire.GENERATE_PATH, pointer_wire.POINT_PATH])
async def test_a_request_that_an_engine_does_not_survive_says_that_the_worker_is_broken(
    worker: Worker, path: str
) -> None:
    backend, engine, client = worker
    backend.sample_failure, backend.closed = RuntimeError("EngineCore encountered an issue"), True
    asked = PointRequest(request().images[0], ("click Save",), "r.0")
    held = asyncio.create_task(engine.health(after=0, wait_s=600.0))
    await asyncio.sleep(0)
    body = wire.encode_request(request()) if path == wire.GENERATE_PATH else pointer_wire.encode_point_request(asked)
    reply = await client.post(path, content=body)
    assert (reply.status_code, reply.json()["error"]) == (500, "broken")
    assert "EngineCore encountered an issue" in reply.json()["detail"]
    with pytest.raises(WorkerError, match="RuntimeError: the engine is gone"):
        await held


class RestartedWorker:
    """The routes of the worker that lives at one place; the test puts another one there."""

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.restart()

    def restart(self) -> None:
        self.backend = FakeBackend()
        self._app = build_app(WorkerEngine(self.backend), "k")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)


async def test_a_request_waits_for_the_restart_of_the_only_worker_whose_engine_died(tmp_path: Path) -> None:
    """Its requests fail at once and again and again until the process ends, which takes longer than their attempts last."""
    place, client = RestartedWorker(), WorkerClient("a", tmp_path)
    (tmp_path / KEY_NAME).write_text("k")
    await client.aclose()
    client._http = httpx.AsyncClient(transport=httpx.ASGITransport(place), base_url="http://worker")
    async with VllmPool([client], clock=FakeClock(), retry=RetrySettings(max_attempts=2)) as pool:
        await until(lambda: len(pool.ready) == 1)
        place.backend.sample_failure, place.backend.closed = RuntimeError("EngineCore encountered an issue"), True
        asked = asyncio.create_task(pool.complete(request()))
        await until(lambda: not pool.ready)
        assert pool.failures[RequestFailure.CONNECTION] == 1
        place.restart()
        assert (await asked).worker == "a"


async def test_an_aborted_answer_is_a_failure(worker: Worker) -> None:
    backend, _, client = worker
    backend.finish = FinishReason.ABORT
    reply = await client.post(wire.GENERATE_PATH, content=wire.encode_request(request()))
    assert (reply.status_code, reply.json()["error"]) == (500, "engine")


async def test_the_routes_of_an_update(worker: Worker, publish: Publish) -> None:
    backend, _, client = worker
    published = publish(1)
    body: dict[str, Any] = {"path": str(published.path), "version": 1, "digest": "sha256:other"}
    assert (await client.post(wire.STAGE_PATH, json=body)).json()["error"] == "weights"
    body["digest"] = published.digest
    assert (await client.post(wire.STAGE_PATH, json=body)).json()["stage_s"] >= 0
    swap = {"version": 1, "digest": published.digest, "pause": True}
    assert (await client.post(wire.SWAP_PATH, json=swap)).status_code == 200
    seen = wire.decode_health((await client.get(wire.HEALTH_PATH)).json())
    assert seen.weights == published.identity
    assert (await client.get(wire.METRICS_PATH)).json() == {"text": "vllm:x 1\n"}
    assert (await client.post(wire.DRAIN_PATH, json={})).json() == {"in_flight": 0}
    refused = await client.post(wire.GENERATE_PATH, content=wire.encode_request(request()))
    assert (refused.status_code, refused.json()["error"]) == (503, "busy")
    backend.closed = True
    assert (await client.get(wire.HEALTH_PATH)).json()["error"] == "broken"
    assert (await client.get(wire.HEALTH_PATH, headers={"Authorization": "Bearer x"})).status_code == 401


async def test_too_many_images_are_refused_before_the_engine_sees_them() -> None:
    two = dataclasses.replace(request(), images=request().images * 2)
    with pytest.raises(
        PromptTooLongError, match="has 2 images, but the worker was started for 1: raise its max_images"
    ):
        await render_request(None, None, None, two, max_images=1)


async def test_a_worker_knows_how_long_it_served_and_took_new_weights(publish: Publish) -> None:
    clock, backend = FakeClock(), FakeBackend()
    engine = WorkerEngine(backend, clock=clock)
    backend.hold = asyncio.Event()
    clock.now_s = 5.0
    answer = asyncio.create_task(engine.generate(request()))
    await asyncio.sleep(0)
    clock.now_s = 9.0
    await engine.pause()
    clock.now_s = 12.0
    await engine.resume()
    clock.now_s = 14.0
    backend.hold.set()
    assert (await answer).queue_s == 3.0, "it stood still for new weights"
    clock.now_s = 20.0
    health = wire.decode_health(json.loads(json.dumps(wire.encode_health(await engine.health()))))
    assert (health.up_s, health.serving_s, health.updating_s) == (20.0, 6.0, 3.0)
