"""How often the images of a batch are converted, and in what data type they are kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from published_checkpoints import write_checkpoint
from trainer_harness import screen, tiny_model

from dart_agent.data_client.image_store import ImageStore
from dart_agent.types import FinishReason, SamplingParams, StepRecord, VersionSpan
from dart_envs.types import RgbImage
from dart_train.model.policy_model import load_model
from dart_train.trainer.batches.image_patches import ImagePatches
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.segments import build_segments, plan_micro_batches

STEPS, SHOWN = 30, 5
FAKE_PATCH_BYTES = 4 * 4


class FakeImages:
    """Images of one size; counts what is read."""

    def __init__(self) -> None:
        self.read = Counter[str]()

    def get(self, sha256: str) -> RgbImage:
        self.read[sha256] += 1
        return np.zeros((2, 2, 3), dtype=np.uint8)


class FakeProcessor:
    """Makes four patches of one value from every image."""

    def image_processor(self, images: list[RgbImage], return_tensors: str) -> dict[str, torch.Tensor]:
        grids = torch.tensor([[1, 2, 2]] * len(images))
        return {"pixel_values": torch.zeros(4 * len(images), 1), "image_grid_thw": grids}


def sliding_rows(trajectories: int) -> list[TrainRow]:
    """Prompts that show the latest screenshots only, so that no step continues the one before; answers differ in length."""
    random, rows = Random(0), []
    for number in range(trajectories):
        for index in range(STEPS):
            shown = tuple(f"{number}/{each}" for each in range(max(0, index - SHOWN + 1), index + 1))
            step = StepRecord(
                index=index,
                prompt_ids_P=(number, index, *[7] * (20 * len(shown) + 3 * index)),
                token_ids_T=(9,) * random.randrange(5, 60),
                logprobs_T=(),
                version_spans=(VersionSpan(0, 0, 5),),
                image_sha256=shown,
                image_hw=((2, 2),) * len(shown),
                text="",
                action=None,
                parse_error=None,
                sampling=SamplingParams(),
                finish_reason=FinishReason.STOP,
                model_s=0.0,
                env_s=0.0,
            )
            rows.append(TrainRow(f"r{number}", "g", step, ((0, 5),), 1.0))
    return rows


def conversions(rows: list[TrainRow], max_tokens: int, kept_images: int, ranks: int = 1) -> float:
    """Mean conversions per image in one pass over the rows."""
    images = FakeImages()
    plan = plan_micro_batches(build_segments(rows), max_tokens, ranks)
    for rank in range(ranks):
        patches = ImagePatches(images, FakeProcessor(), max_bytes=kept_images * FAKE_PATCH_BYTES)  # type: ignore[arg-type]
        for part in plan[rank::ranks]:
            for segment in part:
                last = segment.rows[-1].step
                patches.get(list(zip(last.image_sha256, last.image_hw, strict=True)))
    return images.read.total() / len(images.read)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_small_cache_converts_an_image_about_once_per_pass_over_the_batch(ranks: int) -> None:
    rows = sliding_rows(trajectories=16)
    assert len(build_segments(rows)) == len(rows) == 480
    assert conversions(rows, max_tokens=600, kept_images=30, ranks=ranks) <= 1.05


@pytest.mark.parametrize("model", ["tiny", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_patches_in_bfloat16_take_half_the_bytes_and_change_no_feature(model: str, tmp_path: Path) -> None:
    path = tiny_model(tmp_path)[0] if model == "tiny" else write_checkpoint(model, tmp_path / model)
    loaded, images = load_model(path), ImageStore(tmp_path / "images")
    shown = [(images.put(screen(73)), (64, 64))]

    def made(bfloat16: bool) -> tuple[Any, Any]:
        return ImagePatches(images, loaded.processor, 2**30, bfloat16=bfloat16).get(shown)[0]

    (exact, grid), (half, _) = made(False), made(True)
    assert 2 * half.nbytes == exact.nbytes
    for frozen in (False, True):
        if frozen:
            loaded.model.to(torch.bfloat16)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            one, other = (loaded.model.model.get_image_features(each, grid[None]) for each in (exact, half))
        assert torch.equal(torch.cat(tuple(one.pooler_output)), torch.cat(tuple(other.pooler_output)))
