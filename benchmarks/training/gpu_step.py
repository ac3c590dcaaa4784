"""The train step of one layout: `python -m benchmarks.training.gpu_step OPTIONS`, called by `gpu_trainer` with its options as JSON.

Role: prints one JSON object: peak memory, tokens per second, MFU. Rule: see `bench_gpu_trainer`. Non-goals: choosing layouts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dart_agent.data_client.image_store import ImageStore
from dart_train.bench.recorded_batch import BatchSize, write_batch
from dart_train.model.layouts import IMAGE_TOKEN, build
from dart_train.model.policy_model import LoadedModel, ModelLoader
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.trainer import Trainer

STEPS = 5
"""Steps of a trajectory; the last one shows so many screenshots."""
REPEATS = 3
PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "4090": 165.0}
"""Dense bfloat16 peak by a part of the GPU's name, from the vendors' data sheets."""


def main(options: dict[str, Any]) -> None:
    """Measure and print.

    Args:
        options: `name`, `device`, `tiny` and `trajectories`.
    """
    import torch

    full, cuda = options["name"].endswith("3b"), options["device"] == "cuda"
    patch = 16 if options["name"].startswith("qwen3") else 14
    size = BatchSize(
        image_wh=(4 * patch, 4 * patch) if options["tiny"] else (40 * 2 * patch, 22 * 2 * patch),
        rollouts=options["trajectories"],
        steps=STEPS,
        text_tokens=100,
        response_tokens=120,
    )
    with tempfile.TemporaryDirectory(prefix="dart-b") as folder:
        root = Path(folder)
        batch = write_batch(root, size, IMAGE_TOKEN, patch=patch)
        places = {name: root / name for name in ("socket", "images", "weights", "checkpoints", "metrics")}
        fixed = {"start_model": options["name"], "device": options["device"], "dtype": "bfloat16"}
        settings = {"micro_batch_tokens": 16_384, "gradient_checkpointing": True, "freeze_vision": not full}
        lora = {} if full else {"lora": {"rank": 16}}
        config = TrainerConfig.model_validate(places | fixed | settings | lora)
        trainer = Trainer(config, ImageStore(root / "images"), load=_layouts(options["tiny"]))
        trainer.setup(options["name"], 0, None)
        trainer.step(batch)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        began_s = time.monotonic()
        for _ in range(REPEATS):
            trainer.step(batch)
        if cuda:
            torch.cuda.synchronize()
        step_s = (time.monotonic() - began_s) / REPEATS
    ends = [row.step.to_value() for row in batch.rows if row.step.index == STEPS - 1]
    tokens = sum(len(end.prompt_ids_P) + len(end.token_ids_T) for end in ends)
    model = trainer._policy.loaded.model
    flops = _step_flops(model, tokens, tokens // len(ends), full, size)
    gpu = torch.cuda.get_device_name() if cuda else None
    peak = next((value for part, value in PEAK_TFLOPS.items() if gpu and part in gpu), None)
    print(
        json.dumps(
            {
                "trained": "full" if full else "lora",
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "stream_tokens": tokens,
                "sampled_tokens": len(batch.rows) * size.response_tokens,
                "step_s": round(step_s, 3),
                "tokens_per_s": round(tokens / step_s, 1),
                "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
                "model_tflops_per_s": round(flops / step_s / 1e12, 3),
                "mfu": None if peak is None else round(flops / step_s / 1e12 / peak, 3),
                "gpu": gpu,
                "settings": settings | lora,
            }
        )
    )


def _layouts(tiny: bool) -> ModelLoader:
    """Makes layouts with random weights in place of models of that name."""

    def load(name_or_path: str, device: str, *, bfloat16: bool = False) -> LoadedModel:
        return build(name_or_path, device, tiny, bfloat16)

    return load


def _step_flops(model: Any, tokens: int, stream: int, full: bool, size: BatchSize) -> float:
    """Floating-point operations of one step without recomputation."""
    backbone, text = model.model, model.config.text_config
    language = sum(parameter.numel() for parameter in backbone.language_model.layers.parameters())
    vision = sum(parameter.numel() for parameter in backbone.visual.parameters())
    head = model.lm_head.weight.numel()
    sampled, images = size.rollouts * size.steps * size.response_tokens, size.rollouts * size.steps
    patches = images * (size.image_wh[0] * size.image_wh[1]) // backbone.visual.config.patch_size**2
    width = text.num_attention_heads * getattr(text, "head_dim", text.hidden_size // text.num_attention_heads)
    attention = 3 * 2 * text.num_hidden_layers * width * stream * tokens
    per_language, per_vision = (6, 6) if full else (4, 2)
    return float(per_language * (language * tokens + head * sampled) + per_vision * vision * patches + attention)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
