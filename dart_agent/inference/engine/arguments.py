"""From the settings of a worker to the arguments of its vLLM engine.

Role: `engine_arguments` and `engine_environment`, the one place where names of ours become vLLM's. Rule: pure; imports neither torch nor
vLLM. Non-goals: making the engine (`dart_agent.inference.engine.vllm_engine`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dart_agent.inference.decisions.devices import VISIBLE_DEVICES, visible_devices
from dart_agent.inference.settings import WorkerSettings

FILE_BACKEND = "dart_file"
"""Name of our weight-transfer backend (`dart_agent.inference.engine.weight_transfer`)."""


NOT_QUANTIZED = ("visual.*",)
"""Names of modules that keep the engine's data type, as patterns: the vision tower, which is small and sees what is clicked on."""
POINTER_WORKER = "dart_agent.grounding.serving.worker.PointerWorker"
"""What vLLM's worker class gets where the model has an action head."""


IMAGE_BYTES_PER_PIXEL = 24
"""Of a preprocessed image: three channels of two frames in float32."""
IMAGE_CACHE_GIB = 4.0
"""Room for the images of all requests of a batch, at most; vLLM's own choice."""
LEAST_IMAGE_CACHE_GIB = 0.1
MOST_PIXELS = 2**24
"""Of an image, where neither the settings nor the image processor have a limit: 4096 x 4096."""


def engine_arguments(
    settings: WorkerSettings, model: Path, max_pixels: int, *, has_pointer: bool = False
) -> dict[str, Any]:
    """Arguments of `vllm.engine.arg_utils.AsyncEngineArgs`.

    Args:
        settings: Of the worker.
        model: Directory of the checkpoint.
        max_pixels: Pixels of the largest image that the checkpoint's image processor leaves as it is.
        has_pointer: The checkpoint has an action head.

    Returns:
        Keyword arguments; where a setting is None, vLLM's own choice is left.
    """
    arguments: dict[str, Any] = {
        "model": str(model),
        "dtype": settings.dtype,
        "enforce_eager": settings.eager,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": max(2048, settings.max_model_len),
        "gpu_memory_utilization": settings.gpu_memory_fraction,
        "tensor_parallel_size": settings.tensor_parallel,
        "distributed_executor_backend": "uni" if settings.tensor_parallel == 1 else "mp",
        "limit_mm_per_prompt": {"image": settings.max_images, "video": 0},
        "mm_processor_cache_gb": image_cache_gib(
            settings.max_num_seqs,
            settings.max_images,
            max_pixels if settings.image_pixels is None else settings.image_pixels,
        ),
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "weight_transfer_config": {"backend": FILE_BACKEND},
        "seed": settings.seed,
        "disable_log_stats": False,
    }
    if settings.quantization is not None:
        arguments |= {
            "quantization": settings.quantization,
            "quantization_config": {"ignore": list(NOT_QUANTIZED)},
        }
    if settings.kv_cache_mib is not None:
        arguments["kv_cache_memory_bytes"] = settings.kv_cache_mib * 2**20
    if has_pointer:
        arguments["worker_extension_cls"] = POINTER_WORKER
    if settings.kv_block_tokens is not None:
        arguments["block_size"] = settings.kv_block_tokens
    return arguments


def image_cache_gib(requests: int, images: int, pixels: int) -> float:
    """Size of the cache of preprocessed images, which fills as far as there are different ones.

    With images of one prompt that do not fit, vLLM throws out what it has just counted on, and fails such requests again and again.

    Args:
        requests: Of a batch.
        images: Of a request, at most.
        pixels: Of the largest image.

    Returns:
        GiB: room for the images of a batch up to `IMAGE_CACHE_GIB`, and always for those of two prompts.
    """
    prompt_gib = images * min(pixels, MOST_PIXELS) * IMAGE_BYTES_PER_PIXEL / 2**30
    return max(LEAST_IMAGE_CACHE_GIB, 2 * prompt_gib, min(IMAGE_CACHE_GIB, requests * prompt_gib))


def engine_environment(settings: WorkerSettings, temporary: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of a worker's process.

    Args:
        settings: Of the worker.
        temporary: Directory for its temporary files.
        inherited: Environment of the launcher.

    Returns:
        What is set on top of the launcher's environment.

    Raises:
        ConfigError: The launcher does not see the devices.
    """
    environment = {
        "TMPDIR": str(temporary),
        "VLLM_RPC_BASE_PATH": str(temporary),
        "OMP_NUM_THREADS": str(settings.threads),
        "MKL_NUM_THREADS": str(settings.threads),
        "OMP_WAIT_POLICY": "passive",
        "KMP_BLOCKTIME": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if settings.tensor_parallel == 1:
        # One process fewer: the engine computes in its own process instead of a worker's.
        environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if settings.eager:
        environment |= {"TORCH_COMPILE_DISABLE": "1", "VLLM_CACHE_ROOT": str(temporary / "cache")}
    if settings.device_ids is not None:
        environment[VISIBLE_DEVICES] = visible_devices(settings.device_ids, inherited.get(VISIBLE_DEVICES))
    return environment
