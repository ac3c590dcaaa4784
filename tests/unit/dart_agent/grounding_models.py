"""Small random models with an action head, one per family of backbones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dart_agent.grounding.model import GroundingModel, attach_head
from dart_agent.inference.compat import patch_torch_extras
from dart_train.model.init_model import init_model
from dart_train.model.tokenizer import build_tokenizer

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
WORDS = ("click", "the", "button", "field", "named", "Apple", "Save")


def small_model(family: str, directory: Path, **options: Any) -> GroundingModel:
    """A model of a family with a new head, in evaluation mode."""
    patch_torch_extras()
    backbone, processor = _qwen3(directory) if family == "qwen3_vl" else _older(family)
    model = attach_head(backbone.eval(), processor, **options)
    model.head.eval()
    return model


def screen(width: int = 96, height: int = 64, seed: int = 0) -> Any:
    """A random picture, uint8 [H, W, 3]."""
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)


def relative_error(found: Any, wanted: Any) -> float:
    """The greatest difference of two tensors, as a share of the greatest value that is wanted."""
    assert found.shape == wanted.shape
    return float((found - wanted).detach().abs().max() / wanted.detach().abs().max())


def _qwen3(directory: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    path = init_model("tiny", directory / "start")
    return AutoModelForImageTextToText.from_pretrained(path), AutoProcessor.from_pretrained(path)


def _older(family: str) -> tuple[Any, Any]:
    import torch
    import transformers as hf

    tokenizer = build_tokenizer(WORDS)
    ids = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        "bos_token_id": None,
        "eos_token_id": ids("<|im_end|>"),
    }
    vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
    if family == "qwen2_vl":
        vision |= {"embed_dim": 64, "hidden_size": 64, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 64, "fullatt_block_indexes": [1]}
    config_type, model_type, processor_type = {
        "qwen2_vl": (hf.Qwen2VLConfig, hf.Qwen2VLForConditionalGeneration, hf.Qwen2VLProcessor),
        "qwen2_5_vl": (hf.Qwen2_5_VLConfig, hf.Qwen2_5_VLForConditionalGeneration, hf.Qwen2_5_VLProcessor),
    }[family]
    config = config_type(
        text_config=text,
        vision_config=vision,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
    )
    torch.manual_seed(0)
    processor = processor_type(
        image_processor=hf.Qwen2VLImageProcessor(size={"shortest_edge": 28 * 28, "longest_edge": 256 * 28 * 28}),
        tokenizer=tokenizer,
        video_processor=hf.Qwen2VLVideoProcessor(),
        chat_template=tokenizer.chat_template,
    )
    return model_type(config), processor
