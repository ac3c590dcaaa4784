"""The layouts of published vision-language models, without their weights.

Role: `layout_config(name)` gives the configuration of a layout, `build(name, device)` a model of it with random weights and an image
processor, `count_parameters(config)` the sizes of its parts. Rule: nothing is downloaded, and counting takes no memory. Sources: the
`config.json` of the published models. Non-goals: tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from dart_train.model.policy_model import LoadedModel

LAYOUTS: dict[str, dict[str, Any]] = {
    "qwen2-vl-2b": {
        "family": "qwen2_vl",
        "text": {
            "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
            "num_key_value_heads": 2, "vocab_size": 151_936, "max_window_layers": 28,
        },
        "tied": True,
    },
    "qwen2-vl-7b": {
        "family": "qwen2_vl",
        "text": {
            "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "vocab_size": 152_064, "max_window_layers": 28,
        },
        "tied": False,
    },
    "qwen2.5-vl-3b": {
        "family": "qwen2_5_vl",
        "text": {
            "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
            "num_key_value_heads": 2, "vocab_size": 151_936, "max_window_layers": 36,
        },
        "tied": True,
    },
    "qwen2.5-vl-7b": {
        "family": "qwen2_5_vl",
        "text": {
            "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
            "num_key_value_heads": 4, "vocab_size": 152_064, "max_window_layers": 28,
        },
        "tied": False,
    },
    "qwen3-vl-8b": {
        "family": "qwen3_vl",
        "text": {
            "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936,
        },
        "tied": False,
    },
}  # fmt: skip
PUBLISHED: Mapping[str, str] = {
    "ByteDance-Seed/UI-TARS-2B-SFT": "qwen2-vl-2b",
    "ByteDance-Seed/UI-TARS-7B-SFT": "qwen2-vl-7b",
    "ByteDance-Seed/UI-TARS-7B-DPO": "qwen2-vl-7b",
    "ByteDance-Seed/UI-TARS-1.5-7B": "qwen2.5-vl-7b",
    "Qwen/Qwen2-VL-2B-Instruct": "qwen2-vl-2b",
    "Qwen/Qwen2-VL-7B-Instruct": "qwen2-vl-7b",
    "Qwen/Qwen2.5-VL-3B-Instruct": "qwen2.5-vl-3b",
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2.5-vl-7b",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3-vl-8b",
}
"""Names of checkpoints, and their layouts."""
_VISION: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14, "spatial_merge_size": 2,
    },
    "qwen2_5_vl": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
        "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    },
    "qwen3_vl": {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
        "spatial_merge_size": 2, "deepstack_visual_indexes": [8, 16, 24], "num_position_embeddings": 2304,
    },
}  # fmt: skip
_TINY_TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 2000, "max_window_layers": 2,
}  # fmt: skip
_TINY_VISION = {
    "depth": 2, "hidden_size": 64, "embed_dim": 64, "intermediate_size": 128, "num_heads": 2, "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [0],
}  # fmt: skip
WIDTH_OF_OUTPUT = {"qwen2_vl": "hidden_size", "qwen2_5_vl": "out_hidden_size", "qwen3_vl": "out_hidden_size"}
"""What the vision tower's configuration calls the hidden size of the language model, by family."""
IMAGE_TOKEN, VIDEO_TOKEN, VISION_START, VISION_END = 1001, 1002, 1003, 1004


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """How many parameters a model has.

    Attributes:
        vision: Of the vision tower.
        layers: Of the layers of the language model, and its last norm.
        largest_layer: Of its largest layer.
        embeddings: Of the input and output embeddings; those that are tied count once.
        linear: Of the matrices of linear layers in the language model's layers, as (rows, columns) each.
    """

    vision: int
    layers: int
    largest_layer: int
    embeddings: int
    linear: tuple[tuple[int, int], ...]

    @property
    def total(self) -> int:
        """All parameters."""
        return self.vision + self.layers + self.embeddings


def layout_config(name: str, tiny: bool = False) -> Any:
    """Make the transformers configuration of a layout.

    Args:
        name: A name of `LAYOUTS`.
        tiny: Keep the architecture and shrink every size.

    Returns:
        The configuration.
    """
    from transformers import AutoConfig

    layout = LAYOUTS[name]
    family, text, vision = layout["family"], dict(layout["text"]), dict(_VISION[layout["family"]])
    if tiny:
        text |= {key: value for key, value in _TINY_TEXT.items() if key in text}
        vision |= {key: value for key, value in _TINY_VISION.items() if key in vision}
    head = text.get("head_dim", text["hidden_size"] // text["num_attention_heads"])
    third = head // 2 // 8
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2 * third, 3 * third, 3 * third]}
    if family == "qwen3_vl":
        rope |= {"rope_theta": 5e6, "mrope_interleaved": True, "mrope_section": [3 * third, 3 * third, 2 * third]}
    return AutoConfig.for_model(
        family,
        text_config=text | {"rope_parameters": rope, "max_position_embeddings": 128_000},
        vision_config=vision | {WIDTH_OF_OUTPUT[family]: text["hidden_size"], "temporal_patch_size": 2},
        tie_word_embeddings=layout["tied"],
        image_token_id=IMAGE_TOKEN,
        video_token_id=VIDEO_TOKEN,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
    )


def build(name: str, device: str, tiny: bool = False, bfloat16: bool = False) -> LoadedModel:
    """Make a model with random weights.

    Args:
        name: A name of `LAYOUTS`.
        device: Name of the torch device.
        tiny: Shrink every size.
        bfloat16: Whether its weights are bfloat16 and not float32.

    Returns:
        The model, with an object in place of its processor that has an image processor only.
    """
    import torch
    from transformers import AutoModelForImageTextToText, Qwen2VLImageProcessor

    config = layout_config(name, tiny)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16 if bfloat16 else torch.float32)
    pixels = {"shortest_edge": 56 * 56, "longest_edge": 12_845_056}
    image_processor = Qwen2VLImageProcessor(patch_size=config.vision_config.patch_size, merge_size=2, size=pixels)
    return LoadedModel(model=model, processor=SimpleNamespace(image_processor=image_processor))


def count_parameters(config: Any) -> ParameterCounts:
    """Count the parameters of a model that is not there.

    Args:
        config: A transformers configuration of the Qwen-VL families.

    Returns:
        The counts.
    """
    import torch
    from torch import nn
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    backbone = model.model
    sizes = [_size(layer) for layer in backbone.language_model.layers]
    embeddings = {id(layer.weight): layer.weight.numel() for layer in (backbone.get_input_embeddings(), model.lm_head)}
    linear = tuple(
        (each.out_features, each.in_features)
        for layer in backbone.language_model.layers
        for each in layer.modules()
        if isinstance(each, nn.Linear)
    )
    return ParameterCounts(
        vision=_size(backbone.visual),
        layers=sum(sizes) + _size(backbone.language_model.norm),
        largest_layer=max(sizes),
        embeddings=sum(embeddings.values()),
        linear=linear,
    )


def _size(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
