"""Settings of one inference worker, shared by launcher and server process.

Role: validate what a worker is started with, before a process exists. Rule: unknown keys are errors; imports neither torch nor vLLM.
Non-goals: how many workers there are (`dart_agent.inference.pool`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from dart_agent.errors import ConfigError
from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
from dart_agent.inference.decisions.devices import VISIBLE_DEVICES, visible_devices
from dart_agent.inference.decisions.weight_updates import WeightsId
from dart_agent.strict_model import StrictModel
from dart_agent.types import PolicyVersion

QuantizationKind = Literal["fp8_per_channel"]
"""How an engine stores and multiplies matrices: in float8 (e4m3), with a scale per output channel and a scale per token of the input."""
START_S = 300.0
"""For the start of a small model: processes, compilation, graphs."""
START_S_PER_GIB = 60.0
"""More for each GiB of the checkpoint, which storage of 50 MB/s reads three times in it: at the start, for the digest and for the load of a
version that is newer than the checkpoint."""
SOCKET_NAME = "worker.sock"
KEY_NAME = "key"


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A policy version, the directory of its weights, and their digest (None: not published, nothing is compared)."""

    version: PolicyVersion
    path: Path
    digest: str | None = None

    @property
    def identity(self) -> WeightsId:
        """Number and digest."""
        return WeightsId(self.version, self.digest)


def check_precision(dtype: str, quantization: QuantizationKind | None) -> None:
    """Check that an engine can have both.

    Args:
        dtype: Data type of what is not quantised.
        quantization: How matrices are quantised; None: they are not.

    Raises:
        ValueError: It cannot.
    """
    if quantization is not None and dtype == "float32":
        raise ValueError(
            f"quantization = {quantization!r} takes inputs of 16 bits, not those of dtype = 'float32': set dtype = 'bfloat16'"
        )


class WorkerSettings(StrictModel):
    """One vLLM engine.

    model: directory of a Hugging Face checkpoint, or its name in the local cache. threads: OpenMP threads of the engine (CPU builds).
    max_num_seqs: requests in one batch. max_images, image_pixels: most images of a prompt, and pixels of the largest of them (None: as many
    as the checkpoint's image processor leaves); preprocessed images are kept for them. kv_cache_mib: memory of the key-value cache (None:
    vLLM's own choice, right for GPUs).
    kv_block_tokens: tokens of one block of that cache, which is what prefixes are shared in (None: vLLM's own choice, 128 on CPUs). eager:
    skip compilation; starts much faster, and on small models runs as fast. quantization: the engine quantises the matrices of the language
    model's layers when it loads weights, also published ones; vision tower and embeddings keep `dtype`, which has 16 bits then (None: all
    weights have `dtype`). device_ids: numbers of this worker's GPUs among those that the launcher sees. seed: of the
    engine, for requests that have none.
    kv_after_update: whether running requests compute their key-value cache again with new weights, so that a forward pass gives their
    log-probs again, or keep it. weight_transfer: how weights come; `nccl` and `ipc` need GPUs. start_timeout_s: how long the worker may
    take until it serves (None: `START_S`, and `START_S_PER_GIB` for each GiB of the checkpoint). drain_timeout_s: how long running requests
    may go on when the worker is stopped or replaced.
    """

    model: str = Field(min_length=1)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantization: QuantizationKind | None = None
    max_model_len: int = Field(default=1024, ge=64)
    max_num_seqs: int = Field(default=32, ge=1)
    max_images: int = Field(default=1, ge=1)
    image_pixels: int | None = Field(default=None, ge=1)
    threads: int = Field(default=1, ge=1)
    kv_cache_mib: int | None = Field(default=96, ge=8)
    kv_block_tokens: int | None = Field(default=32, ge=1)
    eager: bool = True
    tensor_parallel: int = Field(default=1, ge=1)
    gpu_memory_fraction: float = Field(default=0.85, gt=0, le=1)
    device_ids: str | None = Field(default=None, pattern=r"^\d+(,\d+)*$")
    seed: int = 0
    kv_after_update: Literal["recompute", "keep"] = "recompute"
    weight_transfer: Literal["files", "nccl", "ipc"] = "files"
    start_timeout_s: float | None = Field(default=None, gt=0)
    stop_timeout_s: float = Field(default=10.0, gt=0)
    drain_timeout_s: float = Field(default=5.0, ge=0)
    probe_interval_s: float = Field(default=15.0, gt=0)

    @model_validator(mode="after")
    def _check_precision(self) -> Self:
        check_precision(self.dtype, self.quantization)
        return self

    @property
    def start_limit_s(self) -> float:
        """How long the worker may take until it serves, in seconds. Raises ConfigError where the model is not there."""
        if self.start_timeout_s is not None:
            return self.start_timeout_s
        files = resolve_checkpoint(self.model).glob("*.safetensors")
        return START_S + START_S_PER_GIB * sum(file.stat().st_size for file in files) / 2**30

    def check(self) -> None:
        """Raise ConfigError for what can be known to be wrong before a process is started."""
        read_checkpoint_info(resolve_checkpoint(self.model))
        if self.device_ids is not None:
            visible_devices(self.device_ids, os.environ.get(VISIBLE_DEVICES))
        if self.weight_transfer != "files":
            raise ConfigError(
                f"weight_transfer = {self.weight_transfer!r} moves weights between GPUs, and the trainer does not send them that way "
                "(the page Inference workers of the documentation says what is missing): set weight_transfer = 'files'"
            )
