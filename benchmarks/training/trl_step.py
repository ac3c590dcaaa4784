"""TRL's GRPO step on a recorded batch: `PYTHON -m benchmarks.training.trl_step DIRECTORY SETTINGS REPEATS`, with a Python that has TRL.

Role: prints one JSON object of `step_meter`. Rule: what is measured is TRL's own loss (`GRPOTrainer._compute_loss`) with backward passes
over micro-batches and a step of AdamW; padding, patches and masks are made before, so that they cost TRL nothing. `SETTINGS`:
`rows` (rows of a micro-batch), `gradient_checkpointing`, and `whole_trajectories`: a row is one step with its prompt, or one whole
trajectory whose responses are masked in, which is how TRL sees several turns. Non-goals: generation, rewards.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch
from dart_train.bench.step_meter import measure_steps
from dart_train.model.policy_model import LoadedModel, load_model, pixel_inputs
from dart_train.trainer.batches.rows import TrainRow, build_rows
from dart_train.trainer.batches.segments import Segment, build_segments


def main(directory: Path, settings: dict[str, Any], repeats: int) -> None:
    """Measure and print.

    Args:
        directory: Holds `model`, `images` and `batch.json`.
        settings: See above.
        repeats: Measured steps.
    """
    import torch
    from datasets import Dataset  # type: ignore[import-not-found,unused-ignore]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found,unused-ignore]

    torch.set_num_threads(1)
    loaded = load_model(directory / "model")
    rows = build_rows(Batch.model_validate_json((directory / "batch.json").read_bytes()), "grpo")
    segments = build_segments(rows) if settings["whole_trajectories"] else [Segment((row,)) for row in rows]
    with tempfile.TemporaryDirectory(prefix="dart-trl") as out:
        trainer = GRPOTrainer(
            model=loaded.model,
            reward_funcs=lambda prompts, **_: [0.0] * len(prompts),
            args=GRPOConfig(
                output_dir=out,
                use_cpu=True,
                bf16=False,
                report_to=[],
                beta=0.0,
                loss_type="grpo",
                learning_rate=1e-4,
                weight_decay=0.0,
                num_generations=2,
                per_device_train_batch_size=2,
                gradient_checkpointing=settings["gradient_checkpointing"],
            ),
            train_dataset=Dataset.from_list([{"prompt": "a"}] * 2),
            processing_class=loaded.processor,
        )
    micro = [segments[start : start + settings["rows"]] for start in range(0, len(segments), settings["rows"])]
    inputs = list(_inputs(micro, loaded, ImageStore(directory / "images")))
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = len(inputs)
    optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-4, weight_decay=0.0)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for each in inputs:
            trainer._compute_loss(trainer.model, each).backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()

    print(json.dumps(measure_steps(step, repeats)))


def _inputs(micro_batches: list[list[Segment]], loaded: LoadedModel, images: ImageStore) -> Iterator[dict[str, Any]]:
    """What TRL's loss takes: prompts padded on the left, completions on the right, and the patches of all images."""
    import torch

    for segments in micro_batches:
        ids = [segment.token_ids for segment in segments]
        begins = [len(segment.rows[0].step.prompt_ids_P) for segment in segments]
        widths = max(begins), max(len(each) - begin for each, begin in zip(ids, begins, strict=True))
        prompt_ids, completion_ids = (torch.zeros((len(ids), width), dtype=torch.long) for width in widths)
        prompt_mask, completion_mask, tool_mask = (
            torch.zeros_like(like) for like in (prompt_ids, completion_ids, completion_ids)
        )
        for index, (each, begin, segment) in enumerate(zip(ids, begins, segments, strict=True)):
            prompt_ids[index, widths[0] - begin :] = torch.tensor(each[:begin])
            prompt_mask[index, widths[0] - begin :] = 1
            completion_ids[index, : len(each) - begin] = torch.tensor(each[begin:])
            completion_mask[index, : len(each) - begin] = 1
            for row in segment.rows:
                first = len(row.step.prompt_ids_P) - begin
                tool_mask[index, first : first + len(row.step.token_ids_T)] = 1
        shown = [_last(segment).step.image_sha256 for segment in segments]
        pixels, grid = pixel_inputs(loaded.processor, [images.get(sha256) for part in shown for sha256 in part])
        everything = torch.cat([prompt_ids, completion_ids], 1)
        yield {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "tool_mask": tool_mask,
            "advantages": torch.tensor([segment.rows[0].advantage for segment in segments]),
            "num_items_in_batch": tool_mask.sum(),
            "pixel_values": pixels,
            "image_grid_thw": grid,
            "num_images": [len(part) for part in shown],
            "mm_token_type_ids": (everything == loaded.model.config.image_token_id).int(),
        }


def _last(segment: Segment) -> TrainRow:
    return segment.rows[-1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]))
