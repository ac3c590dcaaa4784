"""Train steps and a published version, measured in a process of their own: `python -m dart_train.bench.train_step JOB`.

Role: prints one JSON object of `TrainFigures`. Rule: the real trainer with the settings of the recipe; everything of `Trainer.step` counts,
reading images included, and the first step, which warms up, does not. Memory is that of the GPU where there is one, else what the process
holds above what it held before the policy was loaded. Non-goals: several processes, batches from a data manager.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import Field

from dart_agent.data_client.image_store import ImageStore
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.weights.files import weight_files
from dart_agent.strict_model import StrictModel
from dart_envs.clock import SYSTEM_CLOCK
from dart_train.bench.recorded_batch import BatchSize, write_batch
from dart_train.bench.step_meter import measure_steps, resident_kib
from dart_train.model.device import ComputeDevice, matrix_tflops
from dart_train.model.weights import PolicyVersionStore
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.trainer import Trainer


class TrainJob(StrictModel):
    """What is measured.

    Attributes:
        config: Configuration of the trainer; its folders are below the folder of the measurement.
        folder: Folder of the measurement.
        image_wh: Width and height of a screenshot in pixels.
        patch_px: Side of a patch in pixels.
        rollouts: Trajectories of the batch.
        steps: Steps of each.
        response_tokens: Tokens of an answer.
        repeats: Train steps that are measured; 0: only a version is published.
        publish: Whether a version is published and measured.
    """

    config: TrainerConfig
    folder: Path
    image_wh: tuple[int, int]
    patch_px: int = Field(ge=1)
    rollouts: int = Field(ge=2)
    steps: int = Field(ge=1)
    response_tokens: int = Field(ge=1)
    repeats: int = Field(ge=0)
    publish: bool


class TrainFigures(StrictModel):
    """What was measured.

    Attributes:
        device: Where the trainer ran.
        device_tflops: Speed of a matrix product there, in the data type of the train steps.
        stream_tokens: Tokens of the batch, each counted once per stream; 0 where no step was measured.
        step_s: Wall time of each measured step in seconds.
        memory_bytes: Most memory of the trainer, None where no step was measured.
        published_bytes: Bytes of the published version, None where none was.
        publish_s: Seconds until it was written, synced and hashed.
        version: Folder of that version.
        digest: Its digest.
    """

    device: str
    device_tflops: float
    stream_tokens: int = 0
    step_s: tuple[float, ...] = ()
    memory_bytes: int | None = None
    published_bytes: int | None = None
    publish_s: float | None = None
    version: Path | None = None
    digest: str | None = None


def measure_training(job: TrainJob) -> TrainFigures:
    """Measure train steps, then a published version.

    Args:
        job: What is measured.

    Returns:
        The figures.
    """
    import torch
    from transformers import AutoConfig

    torch.set_num_threads(job.config.threads)
    at_start_kib = resident_kib("VmRSS")
    model = job.config.start_model
    trainer = Trainer(job.config, ImageStore(job.folder / "images"))
    trainer.setup(model, 0, None)
    compute = ComputeDevice.resolve(job.config.device, job.config.dtype)
    cuda = compute.device == "cuda"
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if cuda else compute.device,
        "device_tflops": round(matrix_tflops(compute), 4),
    }
    if job.repeats:
        size = BatchSize(job.image_wh, job.rollouts, job.steps, response_tokens=job.response_tokens)
        image_token = AutoConfig.from_pretrained(resolve_checkpoint(model)).image_token_id
        batch = write_batch(job.folder, size, image_token, patch=job.patch_px)
        ends = [row.step.to_value() for row in batch.rows if row.step.index == job.steps - 1]
        found["stream_tokens"] = sum(len(end.prompt_ids_P) + len(end.token_ids_T) for end in ends)

        def step() -> None:
            trainer.step(batch)
            if cuda:
                torch.cuda.synchronize()

        found["step_s"] = measure_steps(step, job.repeats)["wall_s"]
        above_kib = resident_kib("VmHWM") - at_start_kib
        found["memory_bytes"] = torch.cuda.max_memory_allocated() if cuda else 1024 * above_kib
    if job.publish:
        store = PolicyVersionStore(job.config.weights, keep=2)
        began_s = SYSTEM_CLOCK.monotonic()
        version = store.publish(1, trainer.save)
        found |= {"version": version, "digest": weights_digest(version)}
        found["publish_s"] = round(SYSTEM_CLOCK.monotonic() - began_s, 3)
        found["published_bytes"] = sum(file.stat().st_size for file in weight_files(version))
    return TrainFigures.model_validate(found)


def main(file: Path) -> None:
    """Measure and print.

    Args:
        file: The job as JSON.
    """
    job = TrainJob.model_validate_json(file.read_text(encoding="utf-8"))
    print(measure_training(job).model_dump_json())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
