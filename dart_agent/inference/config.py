"""Configuration file of the inference component: `python -m dart_agent.inference --config FILE`.

Role: one schema, shared with whoever writes the file. Rule: unknown keys are errors; imports neither torch nor vLLM.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Self

from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from dart_agent.chat_api.server import ChatApiSettings
from dart_agent.data_client.address import OptionalDataManagerAddress
from dart_agent.errors import ConfigError
from dart_agent.inference.decisions.devices import split_devices
from dart_agent.inference.decisions.weight_updates import UpdateMode, UpdateSettings
from dart_agent.inference.settings import WorkerSettings
from dart_agent.strict_model import StrictModel, format_validation_error


class UpdateSection(StrictModel):
    """How new versions reach the workers (`dart_agent.inference.decisions.weight_updates`).

    mode: `per_worker`: each swaps when it is ready; `global`: all stand still until all have the version. max_updating: most workers that
    stand still at the same time (mode `per_worker`).
    """

    mode: UpdateMode = UpdateMode.PER_WORKER
    max_updating: int = Field(default=1, ge=1)

    def to_settings(self) -> UpdateSettings:
        """Settings of the planner."""
        return UpdateSettings(mode=self.mode, max_updating=self.max_updating)


class InferenceConfig(OptionalDataManagerAddress):
    """K workers of one model that follow the versions of one data manager.

    devices: numbers of the GPUs among those that the component sees, `worker.tensor_parallel` for each worker in turn; None: all workers
    see all of them.
    directory: where sockets and keys live (short: Unix sockets; default: made below the runtime directory). addresses: file that tells
    the rollout workers where the workers are. Without the address of a data manager the model's own weights are served for ever.
    holding_workers: so many of the workers, the last ones, have the version of an evaluation during training as long as it lasts.
    metrics: JSONL file that gets one line per update of all workers. metrics_port: port of this machine's loopback where Prometheus reads
    the metrics of all workers, 0: a free one, None: nowhere. chat: OpenAI's chat API in front of the workers, None: none.
    """

    worker: WorkerSettings
    workers: int = Field(default=2, ge=1, le=64)
    devices: tuple[NonNegativeInt, ...] | None = None
    directory: Path
    addresses: Path
    logs: Path
    metrics: Path | None = None
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    chat: ChatApiSettings | None = None
    updates: UpdateSection = UpdateSection()
    holding_workers: int = Field(default=0, ge=0)
    poll_s: float = Field(default=0.5, gt=0)

    @model_validator(mode="after")
    def _some_follow_training(self) -> Self:
        if self.holding_workers >= self.workers:
            raise ValueError(
                f"holding_workers = {self.holding_workers} of {self.workers} workers leaves none to training: leave one out at least"
            )
        return self

    @model_validator(mode="after")
    def _devices_suffice(self) -> Self:
        split_devices(self.devices, self.workers, self.worker.tensor_parallel)
        return self

    def worker_settings(self) -> list[WorkerSettings]:
        """Settings of each worker, with the devices and the seed that are its own."""
        shares = split_devices(self.devices, self.workers, self.worker.tensor_parallel)
        seeds = [worker_seed(self.worker.seed, index) for index in range(self.workers)]
        return [
            self.worker.model_copy(
                update={"device_ids": self.worker.device_ids if share is None else share, "seed": seed}
            )
            for share, seed in zip(shares, seeds, strict=True)
        ]


def worker_seed(seed: int, index: int) -> int:
    """Derive the seed of a worker.

    vLLM draws the random numbers of a request without a seed from one generator per engine, in the order in which requests come. With equal
    seeds the n-th requests of two workers get the same random numbers, and with the same prompt the same answer.

    Args:
        seed: Seed of all workers.
        index: Number of the worker, from 0.

    Returns:
        The seed itself for the first worker, another one below 2**31 for each other.
    """
    return seed if index == 0 else random.Random(f"{seed}/{index}").getrandbits(31)


def load_inference_config(path: Path) -> InferenceConfig:
    """Read the file. Raises ConfigError with the key's path."""
    try:
        return InferenceConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {format_validation_error(error)}") from error
