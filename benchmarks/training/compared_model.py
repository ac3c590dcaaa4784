"""A small model with a large vocabulary, for train steps that are compared.

Role: `write_model` writes a model of the Qwen3-VL family with random weights. Non-goals: batches (`dart_train.bench.recorded_batch`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dart_train.bench.recorded_batch import BatchSize

VOCABULARY = 151_936


@dataclass(frozen=True, slots=True)
class ModelSize:
    """How large the model is.

    Attributes:
        hidden: Width of the language model.
        layers: Its layers.
        vision_hidden: Width of the vision tower.
        vision_layers: Its layers.
    """

    hidden: int = 128
    layers: int = 8
    vision_hidden: int = 64
    vision_layers: int = 2


def write_model(directory: Path, size: ModelSize, batch: BatchSize) -> Path:
    """Write a model of the Qwen3-VL family with the vocabulary of the published ones.

    Args:
        directory: The directory to make.
        size: The size.
        batch: The batch, whose screenshots it is made for.

    Returns:
        The directory.
    """
    from dart_train.model.init_model import init_model
    from dart_train.model.policy_model import load_model
    from dart_train.presets import PRESETS

    heads = max(1, size.hidden // 64)
    preset = replace(
        PRESETS["tiny"],
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        text_layers=size.layers,
        heads=heads,
        head_dim=64,
        mrope_section=(12, 10, 10),
        vision_layers=size.vision_layers,
        vision_hidden_size=size.vision_hidden,
        vision_intermediate_size=4 * size.vision_hidden,
        vision_heads=max(1, size.vision_hidden // 64),
        deepstack_layers=(0,),
        max_positions=32_768,
        input_wh=batch.image_wh,
    )
    init_model(preset, directory, seed=1)
    loaded = load_model(directory)
    loaded.model.resize_token_embeddings(VOCABULARY, mean_resizing=False)
    loaded.save(directory)
    return directory
