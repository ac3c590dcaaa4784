"""The recipe's section `inference`: what computes the policy.

Role: the schema. Non-goals: the settings of a worker (`dart_agent.inference.config`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from dart_agent.inference.decisions.devices import split_devices
from dart_agent.inference.decisions.weight_updates import UpdateMode
from dart_agent.inference.settings import QuantizationKind, check_precision
from dart_agent.strict_model import StrictModel
from dart_train.model.weights import PublishedDtype, PublishedWeightsKind


class InferenceSection(StrictModel):
    """The inference workers.

    Attributes:
        engine: `vllm`: inference workers; `transformers`: rollout workers load the policy themselves, which is slower and needs no vLLM
            (only policies with an action head, `model.pointer`; of the settings below they use threads, max_model_len and devices).
        workers: Number of workers.
        threads: CPU threads per worker.
        dtype: Data type of the model.
        quantization: `fp8_per_channel`: workers keep the matrices of the language model's layers in float8 with a scale per output channel,
            and quantise published weights when they load them; `dtype` has 16 bits then. None: all weights have `dtype`.
        max_model_len: Longest prompt with its response, in tokens.
        max_num_seqs: Most requests in one batch of a worker.
        kv_cache_mib: Key-value cache per worker in MiB; "auto", or null on the command line: vLLM's own choice, right for GPUs.
        devices: Numbers of the GPUs among those that the run sees, `tensor_parallel` for each worker in turn; None: every worker sees all.
        tensor_parallel: GPUs that one worker's model is split over.
        gpu_memory_fraction: Share of a GPU's memory that a worker may use.
        eager: Skip compilation; false on GPUs.
        kv_after_update: `recompute`: running requests compute their key-value cache again with new weights, which costs a prefill of every
            running request at each update; `keep`: they do not, and their later tokens are marked (`VersionSpan.kept_kv`).
        transfer_dtype: Data type of published weights: `as_trained`, or `bfloat16`, half of what workers read otherwise.
        publish: What the trainer publishes: `model`, all weights (an adapter merged into them), or `adapter`, the LoRA adapter alone, which
            each worker merges into the start model.
        update_mode: `per_worker`: each worker takes a version when it is ready; `global`: all stand still until all have it; None: as
            `rollout.scheduling` says.
        max_updating: Most workers that stand still at the same time (mode `per_worker`).
        start_timeout_s: Seconds that a worker may take from its start until it serves; "auto": 300, and 60 for each GiB of the checkpoint.
        metrics_port: Port of this host's loopback where Prometheus reads the metrics of all workers; None: nowhere.
    """

    engine: Literal["vllm", "transformers"] = "vllm"
    workers: int = Field(default=2, ge=1, le=64)
    threads: int = Field(default=1, ge=1)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    quantization: QuantizationKind | None = None
    max_model_len: int = Field(default=512, ge=64)
    max_num_seqs: int = Field(default=32, ge=1)
    kv_cache_mib: int | None = Field(default=96, ge=8)
    devices: tuple[NonNegativeInt, ...] | None = None
    tensor_parallel: int = Field(default=1, ge=1)
    gpu_memory_fraction: float = Field(default=0.85, gt=0, le=1)
    eager: bool = True
    kv_after_update: Literal["recompute", "keep"] = "recompute"
    transfer_dtype: PublishedDtype = "as_trained"
    publish: PublishedWeightsKind = "model"
    update_mode: UpdateMode | None = None
    max_updating: int = Field(default=1, ge=1)
    start_timeout_s: float | None = Field(default=None, gt=0)
    metrics_port: int | None = Field(default=None, ge=0, le=65535)

    @field_validator("kv_cache_mib", "start_timeout_s", mode="before")
    @classmethod
    def _read_auto(cls, value: object) -> object:
        """TOML has no null."""
        return None if value in ("auto", "null") else value

    @field_validator("quantization", mode="before")
    @classmethod
    def _read_none(cls, value: object) -> object:
        """TOML has no null."""
        return None if value in ("none", "null") else value

    @model_validator(mode="after")
    def _devices_suffice(self) -> InferenceSection:
        split_devices(self.devices, self.workers, self.tensor_parallel)
        return self

    @model_validator(mode="after")
    def _precision_fits(self) -> InferenceSection:
        check_precision(self.dtype, self.quantization)
        return self
