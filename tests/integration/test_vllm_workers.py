"""Two real vLLM workers of one thread each: what they sample, new weights while they serve, and one of them killed.

The model is random and made here. Log-probs are compared with a transformers forward over the returned prompt ids, the image and the
sampled ids, per policy version.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from PIL import Image

from benchmarks.rollouts.transformers_reference import transformers_logprobs
from dart_agent.chat_api.server import ChatApiSettings, build_chat_app
from dart_agent.errors import RequestRejected, WeightUpdateError, WorkerError
from dart_agent.inference.addresses import read_addresses
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.config import InferenceConfig
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.process_group import group_members
from dart_agent.inference.settings import PublishedWeights, WorkerSettings
from dart_agent.inference.supervisor import Supervisor, local_workers
from dart_agent.inference.weight_updater import WeightUpdater, roll_out
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.wire import WorkerHealth
from dart_agent.inference.worker_process import WorkerProcess
from dart_agent.prompts.suppressed_tokens import suppressed_token_ids
from dart_agent.types import Completion, PolicyRequest, SamplingParams
from tests.contract.policy_contract import check_policy, make_request

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]

MAX_ERROR = 1e-4
"""Largest difference of two log-probs of the same token that float32 arithmetic in another order explains."""


@dataclass
class Fleet:
    """The workers, their pool, and the reference models by version."""

    supervisor: Supervisor
    workers: list[WorkerProcess]
    pool: VllmPool
    model: Path
    weights: Path
    references: dict[int, Any]
    shared_before: set[str]
    """What others had in shared memory when it was started."""

    def publish(self, version: int) -> PublishedWeights:
        """A new version: every tensor of the last one moved a little. A test that is run again gets the same bytes."""
        import torch
        from safetensors.torch import load_file, save_file

        before = self.model if version == 1 else self.weights / f"v{version - 1}"
        target = self.weights / f"v{version}"
        shutil.copytree(self.model, target, dirs_exist_ok=True)
        generator = torch.Generator().manual_seed(version)
        tensors = {
            name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in load_file(before / "model.safetensors").items()
        }
        save_file(tensors, target / "model.safetensors")
        self.references[version] = reference(target)
        return PublishedWeights(version, target, weights_digest(target))


def reference(path: Path) -> Any:
    from dart_train.model.policy_model import load_model

    loaded = load_model(path)
    loaded.model.eval()
    return loaded


def largest_error(fleet: Fleet, request: PolicyRequest, completion: Completion) -> float:
    """Over all tokens, each compared with the version that is said to have written it."""
    errors = [0.0]
    for span in completion.version_spans:
        expected = transformers_logprobs(fleet.references[span.version], request, completion)[span.start : span.end]
        errors.append(float(np.abs(expected - np.array(completion.logprobs_T[span.start : span.end])).max()))
    return max(errors)


async def eventually(condition: Callable[[], bool], timeout_s: float) -> None:
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not happen within {timeout_s} s")


def shared_memory() -> set[str]:
    """What Python processes hold in /dev/shm."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("sem.mp-", "psm_"))}


async def first_health(client: WorkerClient) -> WorkerHealth:
    while True:
        with contextlib.suppress(WorkerError):
            return await client.health()
        await asyncio.sleep(0.2)


async def until_engine_runs(client: WorkerClient, requests: int) -> None:
    """Raises TimeoutError where they never run at once."""
    async with asyncio.timeout(60):
        while True:
            page = (await client.metrics()).splitlines()
            gauges = [line for line in page if line.startswith("vllm:num_requests_running")]
            if sum(float(line.split()[-1]) for line in gauges) == requests:
                return
            await asyncio.sleep(0.02)


def noisy_request(request_id: str, picture: int, **sampling: Any) -> PolicyRequest:
    image = np.random.default_rng(picture).integers(0, 256, (160, 256, 3), dtype=np.uint8)
    made = make_request(request_id)
    return replace(made, images=(image,), sampling=replace(SamplingParams(max_tokens=12), **sampling))


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dart-t") as directory:
        yield Path(directory)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(place: Path) -> AsyncIterator[Fleet]:
    import torch

    from dart_train.model.init_model import init_model

    torch.set_num_threads(1)
    model = init_model("tiny", place / "model", seed=3)
    settings = WorkerSettings(model=str(model), dtype="float32", max_model_len=512, threads=1, kv_cache_mib=64)
    workers = local_workers([settings] * 2, directory=place / "w", log_dir=place / "logs")
    clients = [WorkerClient(worker.name, worker.directory) for worker in workers]
    before = shared_memory()
    async with Supervisor(workers) as supervisor, VllmPool(clients) as pool:
        yield Fleet(supervisor, workers, pool, model, place / "weights", {0: reference(model)}, before)
    left = [worker.directory for worker in workers if worker.directory.exists()]
    assert not left, f"{left} were left behind"


async def test_the_pool_keeps_the_policy_contract(fleet: Fleet) -> None:
    await check_policy(fleet.pool, samples_tokens=True, name="vllm")


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"temperature": 0.0}, {"seed": 5, "max_tokens": 40}])
async def test_logprobs_are_those_of_a_transformers_forward(fleet: Fleet, sampling: dict[str, Any]) -> None:
    request = noisy_request(f"lp{sampling}", 1, **sampling)
    completion = await fleet.pool.complete(request)
    assert largest_error(fleet, request, completion) < MAX_ERROR


async def test_the_chat_api_gives_log_probs_of_a_picture_and_ends_at_a_text(fleet: Fleet, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(fleet.model)
    settings = ChatApiSettings(key_file=tmp_path / "key", model_name="tiny", max_tokens=40)
    chat = build_chat_app(fleet.pool, settings, "k", lambda token: str(tokenizer.decode([token])))
    Image.fromarray(noisy_request("chat", 4).images[0]).save(file := io.BytesIO(), "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Click."}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": parts}], "temperature": 0, "logprobs": True}
    headers = {"Authorization": "Bearer k"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(chat), base_url="http://agent", headers=headers
    ) as client:
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        (whole,) = answer["choices"]
        tokens = whole["logprobs"]["content"]
        assert len(tokens) == answer["usage"]["completion_tokens"]
        assert all(one["logprob"] <= 0.0 for one in tokens)
        stop = next(
            one["token"] for one in tokens[1:] if one["token"].strip() and one["token"] in whole["message"]["content"]
        )
        (ended,) = (await client.post("/v1/chat/completions", json={**body, "stop": [stop]})).json()["choices"]
    assert ended["message"]["content"] == whole["message"]["content"].split(stop)[0]
    assert ended["finish_reason"] == "stop"


async def test_image_place_holders_come_back_expanded_once(fleet: Fleet) -> None:
    completion = await fleet.pool.complete(noisy_request("expanded", 2))
    image_token = fleet.references[0].model.config.image_token_id
    assert completion.prompt_ids_P.count(image_token) == (160 // 32) * (256 // 32)


async def test_image_place_holders_are_never_sampled(fleet: Fleet) -> None:
    forbidden = set(suppressed_token_ids(fleet.references[0].model.config))
    assert len(forbidden) == 4
    requests = [noisy_request(f"never{index}", index, max_tokens=200, temperature=2.0) for index in range(8)]
    completions = await asyncio.gather(*(fleet.pool.complete(request) for request in requests))
    sampled = [token for completion in completions for token in completion.token_ids_T]
    assert len(sampled) > 800
    assert not forbidden & set(sampled)


async def test_a_hopeless_request_is_refused_and_no_worker_is_blamed(fleet: Fleet) -> None:
    made = noisy_request("long", 3)
    content = [{"type": "image"}, {"type": "text", "text": "word " * 2000}]
    with pytest.raises(RequestRejected):
        await fleet.pool.complete(replace(made, messages=({"role": "user", "content": content},)))
    assert len(fleet.pool.ready) == 2


async def test_new_weights_while_requests_run(fleet: Fleet) -> None:
    """Both workers swap one after the other; every token is right for its version; no request is lost."""
    published = fleet.publish(1)
    requests: list[Any] = []
    running: list[asyncio.Task[Any]] = []
    updated = asyncio.Event()

    async def keep_workers_busy() -> None:
        """Start a request every 50 ms, so that whenever the update comes some requests are in the middle of their tokens."""
        while not updated.is_set():
            requests.append(noisy_request(f"roll{len(requests)}", len(requests), max_tokens=300))
            running.append(asyncio.create_task(fleet.pool.complete(requests[-1])))
            await asyncio.sleep(0.05)

    load = asyncio.create_task(keep_workers_busy())
    await eventually(lambda: all(member.in_flight for member in fleet.pool.members) and len(requests) >= 6, 30)
    report = await roll_out(fleet.pool, published)
    updated.set()
    await load
    completions = await asyncio.gather(*running)
    paused_ms = [round(1000 * seconds) for seconds in report.paused_s.values()]
    print(f"rolling update: paused {paused_ms} ms, {report.total_s:.2f} s in all")
    assert set(report.times) == {"policy-0", "policy-1"}
    assert any(len(completion.version_spans) == 2 for completion in completions), "no request straddled the update"
    for request, completion in zip(requests, completions, strict=True):
        assert largest_error(fleet, request, completion) < MAX_ERROR
    after = noisy_request("after", 9, max_tokens=40)
    completion = await fleet.pool.complete(after)
    assert [span.version for span in completion.version_spans] == [1]
    assert largest_error(fleet, after, completion) < MAX_ERROR


async def test_weights_of_another_model_are_refused_and_the_old_ones_serve(fleet: Fleet, place: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(fleet.model / "model.safetensors")
    tensors.pop(sorted(tensors)[0])
    (place / "bad").mkdir(exist_ok=True)
    save_file(tensors, place / "bad/model.safetensors")
    with pytest.raises(WeightUpdateError, match="1 missing"):
        await roll_out(fleet.pool, PublishedWeights(9, place / "bad"))
    request = noisy_request("still", 4)
    completion = await fleet.pool.complete(request)
    assert [span.version for span in completion.version_spans] == [1]
    assert largest_error(fleet, request, completion) < MAX_ERROR


async def test_weights_whose_bytes_changed_after_publication_are_refused_and_the_old_ones_serve(
    fleet: Fleet, place: Path
) -> None:
    damaged = place / "damaged"
    shutil.copytree(fleet.weights / "v1", damaged, dirs_exist_ok=True)
    published = PublishedWeights(9, damaged, weights_digest(damaged))
    file = damaged / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(WeightUpdateError, match="publish them again"):
        await fleet.pool.members[0].client.stage(published)
    assert (await fleet.pool.members[0].client.health()).version == 1


async def test_versions_in_bfloat16_are_served_in_the_workers_own_precision(fleet: Fleet, place: Path) -> None:
    """Both workers get the last version as it was and again, so the tests after this one find it served."""
    from dart_train.model.weights import cast_to_bfloat16

    half = place / "half"
    shutil.copytree(fleet.weights / "v1", half, dirs_exist_ok=True)
    cast_to_bfloat16(half)
    fleet.references[3] = reference(half)
    client = fleet.pool.members[0].client
    whole = PublishedWeights(1, fleet.weights / "v1", weights_digest(fleet.weights / "v1"))
    for published in (PublishedWeights(3, half, weights_digest(half)), whole):
        await client.stage(published)
        await client.swap(published.identity)
        request = noisy_request(f"half{published.version}", 11, max_tokens=24)
        completion = await client.complete(request)
        assert [span.version for span in completion.version_spans] == [published.version]
        assert largest_error(fleet, request, completion) < MAX_ERROR


async def test_an_adapter_alone_is_swapped_in_while_requests_run(fleet: Fleet, place: Path) -> None:
    """One worker merges it into the model that it was started with, and gets the last version again for the tests after this one."""
    import torch

    from dart_train.model.adapters import LoraSettings, attach_adapter
    from dart_train.model.policy_model import load_model

    adapted = attach_adapter(load_model(fleet.model), LoraSettings(rank=4))
    generator = torch.Generator().manual_seed(4)
    state = {name: 0.1 * torch.randn(part.shape, generator=generator) for name, part in adapted.state().items()}
    adapted.load_state(state)
    adapted.save_adapter(place / "adapter", weights_digest(fleet.model))
    adapted.save(place / "merged")
    fleet.references[4] = reference(place / "merged")
    published = PublishedWeights(4, place / "adapter", weights_digest(place / "adapter"))
    client = fleet.pool.members[0].client
    running = [asyncio.create_task(client.complete(noisy_request(f"mid{n}", n, max_tokens=300))) for n in range(4)]
    async with asyncio.timeout(30):
        while (await client.health()).in_flight < 4:  # noqa: ASYNC110 - a worker's load is asked for
            await asyncio.sleep(0.01)
    await client.stage(published)
    await client.swap(published.identity)
    completions = await asyncio.gather(*running)
    assert any([span.version for span in completion.version_spans] == [1, 4] for completion in completions)
    for number, completion in enumerate(completions):
        assert largest_error(fleet, noisy_request(f"mid{number}", number, max_tokens=300), completion) < MAX_ERROR
    adapted.save_adapter(place / "foreign", "sha256:" + "0" * 64)
    with pytest.raises(WeightUpdateError, match="start the workers with the model that the trainer starts from"):
        await client.stage(PublishedWeights(5, place / "foreign", weights_digest(place / "foreign")))
    whole = PublishedWeights(1, fleet.weights / "v1", weights_digest(fleet.weights / "v1"))
    await client.stage(whole)
    await client.swap(whole.identity)


async def test_requests_whose_images_were_cached_go_on_after_a_swap_that_clears_the_cache(
    fleet: Fleet, place: Path
) -> None:
    """As the rollouts of a group do, which begin on one screen: the engine has to encode the images of running requests again."""
    published = fleet.publish(1)
    worker = WorkerProcess("clears", fleet.workers[0].settings, directory=place / "c", log_path=place / "clears.log")
    await worker.start()
    try:
        await worker.wait_until_ready()
        async with WorkerClient(worker.name, worker.directory) as client:
            asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Press the button. " * 8}]}
            request = replace(noisy_request("first", 21, max_tokens=300), messages=(asked,))
            await client.complete(replace(request, sampling=replace(request.sampling, max_tokens=1)))
            running = [
                asyncio.create_task(client.complete(replace(request, request_id=f"again{index}"))) for index in range(3)
            ]
            await client.stage(published)
            await until_engine_runs(client, len(running))
            await client.swap(published.identity)
            completions = await asyncio.gather(*running)
    finally:
        await worker.stop()
    image_token_id = fleet.references[0].processor.image_token_id
    last_image_token = max(i for i, token in enumerate(completions[0].prompt_ids_P) if token == image_token_id)
    assert all(completion.cached_prompt_tokens > last_image_token for completion in completions)
    assert any([span.version for span in completion.version_spans] == [0, 1] for completion in completions)
    for completion in completions:
        assert largest_error(fleet, request, completion) < MAX_ERROR


async def test_a_kept_cache_gives_new_requests_no_image_features_of_older_weights(fleet: Fleet, place: Path) -> None:
    """A worker of its own, which keeps its caches over a swap; the image is one that it has the features of."""
    settings = fleet.workers[0].settings.model_copy(update={"kv_after_update": "keep"})
    worker = WorkerProcess("keeps", settings, directory=place / "keeps", log_path=place / "keeps.log")
    await worker.start()
    try:
        await worker.wait_until_ready()
        async with WorkerClient(worker.name, worker.directory) as client:
            request = replace(noisy_request("seen", 13, max_tokens=24), image_sha256=("ab" * 32,))
            first = await client.complete(request)
            assert largest_error(fleet, request, first) < MAX_ERROR
            whole = PublishedWeights(1, fleet.weights / "v1", weights_digest(fleet.weights / "v1"))
            await client.stage(whole)
            await client.swap(whole.identity)
            again = await client.complete(replace(request, request_id="again"))
    finally:
        await worker.stop()
    assert [span.version for span in again.version_spans] == [1]
    assert largest_error(fleet, request, again) < MAX_ERROR


async def test_the_second_turn_of_an_episode_finds_the_first_in_the_cache(fleet: Fleet) -> None:
    first = noisy_request("cached.0", 12, max_tokens=8)
    before = await fleet.pool.complete(first)
    said = {"role": "assistant", "content": [{"type": "text", "text": before.text}]}
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Again."}]}
    again = replace(first, messages=(*first.messages, said), request_id="cached.1")
    again = replace(again, messages=(*first.messages, said, {**asked, "content": asked["content"][1:]}))
    after = await fleet.pool.complete(again)
    assert after.worker == before.worker
    assert after.cached_prompt_tokens >= 32


async def test_a_killed_worker_costs_no_request_and_comes_back_up_to_date(fleet: Fleet) -> None:
    published = fleet.weights / "v1"
    for worker in fleet.workers:
        worker.published = PublishedWeights(1, published, weights_digest(published))
    victim = fleet.workers[0]
    killed_pid = victim.pid
    assert killed_pid is not None
    requests = [noisy_request(f"kill{index}", index, max_tokens=300) for index in range(8)]
    running = [asyncio.create_task(fleet.pool.complete(request)) for request in requests]
    await eventually(lambda: all(member.in_flight for member in fleet.pool.members), 30)
    os.kill(killed_pid, signal.SIGKILL)
    completions = await asyncio.gather(*running)
    assert fleet.pool.retries > 0
    for request, completion in zip(requests, completions, strict=True):
        assert largest_error(fleet, request, completion) < MAX_ERROR
    await eventually(lambda: len(fleet.pool.ready) == 2 and victim.pid != killed_pid, 300)
    assert fleet.supervisor.restarts == 1
    health = await fleet.pool.members[0].client.health()
    assert health.version == 1
    request = noisy_request("back", 5)
    completion = await fleet.pool.members[0].client.complete(request)
    assert largest_error(fleet, request, completion) < MAX_ERROR


async def test_a_killed_supervisor_takes_its_workers_along(fleet: Fleet, place: Path) -> None:
    before = shared_memory()
    config = InferenceConfig(
        worker=fleet.workers[0].settings,
        workers=1,
        directory=place / "s",
        addresses=place / "addresses.json",
        logs=place / "supervised",
    )
    file = place / "inference.json"
    file.write_text(config.model_dump_json())
    command = [sys.executable, "-m", "dart_agent.inference", "--config", str(file)]
    supervisor = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    try:
        await eventually(config.addresses.exists, 60)
        (address,) = read_addresses(config.addresses)
        async with WorkerClient(address.name, address.directory) as client:
            async with asyncio.timeout(300):
                health = await first_health(client)
            assert (await client.complete(noisy_request("supervised", 7))).worker == address.name
        assert group_members(health.pid)
    finally:
        supervisor.kill()
        await supervisor.wait()
    await eventually(lambda: not group_members(health.pid) and not address.directory.exists(), 10)
    assert shared_memory() <= before


async def test_one_version_answers_an_evaluation_while_others_go_on(fleet: Fleet) -> None:
    evaluated = fleet.weights / "v1"
    versions = [PublishedWeights(1, evaluated, weights_digest(evaluated))]
    held = versions[:]

    async def latest() -> PublishedWeights:
        return versions[-1]

    async def held_version() -> PublishedWeights | None:
        return held[-1] if held else None

    def serving(pool: VllmPool) -> dict[str, int]:
        return {member.client.name: member.version for member in pool.ready}

    clients = [WorkerClient(worker.name, worker.directory) for worker in fleet.workers]
    holder = clients[1].name
    async with VllmPool(clients, holding=[holder]) as pool:
        updater = WeightUpdater(pool, latest, held=held_version, holding=[holder])
        following = asyncio.create_task(updater.run())
        try:
            await eventually(lambda: set(serving(pool).values()) == {1}, 60)
            versions.append(fleet.publish(2))
            await eventually(lambda: serving(pool) == {clients[0].name: 2, holder: 1}, 60)
            asked = [
                noisy_request(f"held{index}.0", index, version=version) for index, version in enumerate([1, None] * 4)
            ]
            answers = await asyncio.gather(*(pool.complete(request) for request in asked))
            for request, answer in zip(asked, answers, strict=True):
                assert {span.version for span in answer.version_spans} == {request.sampling.version or 2}
                assert (answer.worker == holder) is (request.sampling.version == 1)
                assert largest_error(fleet, request, answer) < MAX_ERROR
            held.clear()
            await eventually(lambda: set(serving(pool).values()) == {2}, 60)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_stopped_workers_leave_nothing(fleet: Fleet) -> None:
    """Last, for it ends the fleet: stopped with requests running, it leaves no process of a group, no directory, no shared memory."""
    groups = [worker.pid for worker in fleet.workers if worker.pid is not None]
    assert len(groups) == 2
    assert all(group_members(group) for group in groups)
    running = [
        asyncio.create_task(fleet.pool.complete(noisy_request(f"lost{index}", index, max_tokens=400)))
        for index in range(4)
    ]
    await eventually(lambda: all(member.in_flight for member in fleet.pool.members), 30)
    await fleet.supervisor.stop()
    for request in running:
        request.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert not any(group_members(group) for group in groups)
    assert not any(worker.directory.exists() for worker in fleet.workers)
    assert shared_memory() <= fleet.shared_before
