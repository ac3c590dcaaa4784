"""Settings of a worker as vLLM gets them, and the page of metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dart_agent.errors import ConfigError
from dart_agent.inference.config import InferenceConfig, UpdateSection
from dart_agent.inference.decisions.devices import split_devices, visible_devices
from dart_agent.inference.decisions.weight_updates import UpdateMode, UpdateSettings
from dart_agent.inference.engine.arguments import engine_arguments, engine_environment
from dart_agent.inference.metrics_page import MetricsPage, merge_pages
from dart_agent.inference.pool import VllmPool
from dart_agent.inference.settings import WorkerSettings
from tests.unit.dart_agent.fakes import FakeClock, FakeWorkerClient


@pytest.mark.parametrize(
    ("setting", "argument"),
    [
        ({"dtype": "bfloat16"}, {"dtype": "bfloat16"}),
        ({"max_num_seqs": 7}, {"max_num_seqs": 7}),
        ({"max_model_len": 4096}, {"max_model_len": 4096, "max_num_batched_tokens": 4096}),
        ({"kv_cache_mib": 8}, {"kv_cache_memory_bytes": 8 * 2**20}),
        ({"kv_cache_mib": None}, {"kv_cache_memory_bytes": None}),
        ({"kv_block_tokens": None}, {"block_size": None}),
        ({"kv_block_tokens": 16}, {"block_size": 16}),
        ({"gpu_memory_fraction": 0.5}, {"gpu_memory_utilization": 0.5}),
        ({"tensor_parallel": 2}, {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}),
        ({}, {"tensor_parallel_size": 1, "distributed_executor_backend": "uni", "logprobs_mode": "processed_logprobs"}),
        ({"eager": False}, {"enforce_eager": False}),
        (
            {"quantization": "fp8_per_channel", "dtype": "bfloat16"},
            {"quantization": "fp8_per_channel", "quantization_config": {"ignore": ["visual.*"]}, "dtype": "bfloat16"},
        ),
        ({}, {"quantization": None, "quantization_config": None}),
    ],
)
def test_each_setting_reaches_the_engine(setting: dict[str, Any], argument: dict[str, Any]) -> None:
    arguments = engine_arguments(WorkerSettings(model="m", **setting), Path("/models/m"), 4096)
    assert {name: arguments.get(name) for name in argument} == argument


@pytest.mark.parametrize(
    ("setting", "gib"),
    [
        ({"image_pixels": 256 * 160}, 0.1),
        ({"image_pixels": 1932 * 1092, "max_images": 5}, 4.0),
        ({"image_pixels": 1932 * 1092, "max_images": 60}, 2 * 60 * 1932 * 1092 * 24 / 2**30),
        ({"max_images": 5, "max_num_seqs": 3}, 3 * 5 * 1024**2 * 24 / 2**30),
    ],
)
def test_preprocessed_images_of_two_prompts_always_fit(setting: dict[str, Any], gib: float) -> None:
    """vLLM fails a request again and again whose own images do not fit; without a setting the image processor's limit counts."""
    arguments = engine_arguments(WorkerSettings(model="m", **setting), Path("/models/m"), 1024**2)
    assert arguments["mm_processor_cache_gb"] == pytest.approx(gib)


def test_quantised_matrices_need_inputs_of_16_bits() -> None:
    with pytest.raises(ValidationError, match="set dtype = 'bfloat16'"):
        WorkerSettings(model="m", dtype="float32", quantization="fp8_per_channel")


def test_devices_and_threads_reach_the_process() -> None:
    settings = WorkerSettings(model="m", device_ids="2,3", threads=4, tensor_parallel=2)
    environment = engine_environment(settings, Path("/tmp/w"), {})
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment["OMP_NUM_THREADS"] == "4"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment
    assert "CUDA_VISIBLE_DEVICES" not in engine_environment(WorkerSettings(model="m"), Path("/tmp/w"), {})


@pytest.mark.parametrize(
    ("numbers", "inherited", "visible"),
    [
        ("1", None, "1"),
        ("1", "4,5,6,7", "5"),
        ("3,0", " 4, 5,6,7", "7,4"),
        ("0,1", "GPU-8932f937,GPU-d0c1aa07", "GPU-8932f937,GPU-d0c1aa07"),
        ("0", "4,-1,5", "4"),
    ],
)
def test_numbers_of_gpus_count_those_that_the_launcher_sees(numbers: str, inherited: str | None, visible: str) -> None:
    assert visible_devices(numbers, inherited) == visible
    launcher = {} if inherited is None else {"CUDA_VISIBLE_DEVICES": inherited}
    environment = engine_environment(WorkerSettings(model="m", device_ids=numbers), Path("/tmp/w"), launcher)
    assert environment["CUDA_VISIBLE_DEVICES"] == visible


@pytest.mark.parametrize(("inherited", "seen"), [("4,5", 2), ("4,-1,5", 1), ("", 0)])
def test_gpus_that_the_launcher_does_not_see_are_refused_before_anything_starts(
    inherited: str, seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_agent.inference.settings.resolve_checkpoint", lambda name: tmp_path)
    monkeypatch.setattr("dart_agent.inference.settings.read_checkpoint_info", lambda path: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    with pytest.raises(ConfigError, match=f"names GPU 2, but CUDA_VISIBLE_DEVICES={inherited} shows {seen} "):
        WorkerSettings(model="m", device_ids="0,2").check()


def test_each_worker_has_devices_of_its_own() -> None:
    assert split_devices((0, 1, 2, 3), 2, 2) == ["0,1", "2,3"]
    assert split_devices(None, 2, 1) == [None, None]
    for devices in ((0,), (0, 0), (0, 1, 2)):
        with pytest.raises(ValueError, match="2 workers with tensor_parallel = 1 need 2 different ones"):
            split_devices(devices, 2, 1)
    places = {name: Path("/tmp") for name in ("directory", "addresses", "logs")}
    worker = WorkerSettings(model="m")
    config = InferenceConfig(worker=worker, workers=2, devices=(4, 5), **places)
    assert [settings.device_ids for settings in config.worker_settings()] == ["4", "5"]
    with pytest.raises(ValidationError, match="need 2 different ones"):
        InferenceConfig(worker=worker, workers=2, devices=(4,), **places)


@pytest.mark.parametrize("devices", [None, (0, 1, 2)])
def test_no_two_workers_sample_with_the_same_seed(devices: tuple[int, ...] | None) -> None:
    """vLLM numbers the requests of an engine: equal seeds give equal answers to the members of a group on different workers."""
    places = {name: Path("/tmp") for name in ("directory", "addresses", "logs")}
    config = InferenceConfig(worker=WorkerSettings(model="m", seed=7), workers=3, devices=devices, **places)
    seeds = [engine_arguments(settings, Path("/models/m"), 1)["seed"] for settings in config.worker_settings()]
    assert len(set(seeds)) == 3
    assert seeds[0] == 7, "a single worker has the seed of the run"
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [settings.seed for settings in config.worker_settings()]


def test_a_worker_of_a_large_checkpoint_may_take_longer_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dart_agent.inference.settings.resolve_checkpoint", lambda name: tmp_path)
    assert WorkerSettings(model="m").start_limit_s == 300.0
    for shard in range(2):
        with (tmp_path / f"model-{shard}.safetensors").open("wb") as file:
            file.truncate(8 * 2**30)
    assert WorkerSettings(model="m").start_limit_s == 300.0 + 16 * 60.0
    assert WorkerSettings(model="m", start_timeout_s=40.0).start_limit_s == 40.0


def test_transfers_between_gpus_are_refused_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dart_agent.inference.settings.resolve_checkpoint", lambda name: tmp_path)
    monkeypatch.setattr("dart_agent.inference.settings.read_checkpoint_info", lambda path: None)
    WorkerSettings(model="m").check()
    with pytest.raises(ConfigError, match="set weight_transfer = 'files'"):
        WorkerSettings(model="m", weight_transfer="nccl").check()


def test_the_update_section_becomes_the_planners_settings() -> None:
    assert UpdateSection(mode=UpdateMode.GLOBAL, max_updating=3).to_settings() == UpdateSettings(UpdateMode.GLOBAL, 3)


PAGE = """# HELP vllm:x Something.
# TYPE vllm:x gauge
vllm:x{engine="0"} 1.0
# HELP vllm:t Time.
# TYPE vllm:t histogram
vllm:t_bucket{engine="0",le="+Inf"} 2.0
vllm:t_sum{engine="0"} 0.5
vllm:t_count{engine="0"} 2.0
# HELP vllm:n_total Number.
# TYPE vllm:n_total counter
vllm:n_total 3.0
"""


def test_pages_of_several_workers_become_one_that_prometheus_reads() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    families = {
        family.name: family for family in parser.text_string_to_metric_families(merge_pages({"a": PAGE, "b": PAGE}))
    }
    assert {name: family.type for name, family in families.items()} == {
        "vllm:x": "gauge",
        "vllm:t": "histogram",
        "vllm:n": "counter",
    }
    samples = [(sample.labels, sample.value) for sample in families["vllm:x"].samples]
    assert samples == [({"worker": "a", "engine": "0"}, 1.0), ({"worker": "b", "engine": "0"}, 1.0)]
    assert len(families["vllm:t"].samples) == 6


class FakeScrapedClient(FakeWorkerClient):
    async def metrics(self) -> str:
        self._check()
        return PAGE


class FakeSupervisor:
    restarts = 4


async def test_the_page_names_workers_that_do_not_answer() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    first, second = FakeScrapedClient("a"), FakeScrapedClient("b")
    second.die()
    pool = VllmPool([first, second], clock=FakeClock())
    page = await MetricsPage(pool, FakeSupervisor(), None).text()  # type: ignore[arg-type]
    families = {family.name: family for family in parser.text_string_to_metric_families(page)}
    up = {sample.labels["worker"]: sample.value for sample in families["dart_inference_worker_up"].samples}
    assert up == {"a": 1.0, "b": 0.0}
    assert families["dart_inference_worker_restarts"].samples[0].value == 4
    assert [sample.labels["worker"] for sample in families["vllm:x"].samples] == ["a"]
