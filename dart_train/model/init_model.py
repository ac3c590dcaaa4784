"""Make a small random vision-language model from a preset.

Role: `init_model(preset, out_dir, seed)` writes a complete Hugging Face directory: weights, configuration, tokenizer with chat
template, processor, generation defaults. transformers and vLLM load it by its path.
Rule: nothing is downloaded; the same preset and seed give the same weights; a directory with files is never overwritten.
Non-goals: training (`dart_train.warmup`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dart_agent.inference.checkpoint_files import PROMPT_KEY
from dart_train.model.tokenizer import END_OF_TURN, PADDING, build_tokenizer
from dart_train.model.weights import write_directory_atomically
from dart_train.presets import PRESETS, ModelPreset

TEMPORAL_PATCH_SIZE = 2


def init_model(preset: str | ModelPreset, out_dir: Path, seed: int = 0) -> Path:
    """Write a model with random weights.

    Args:
        preset: Name of a preset, or a preset.
        out_dir: The directory to make; it may exist when it is empty.
        seed: Seed of the weights.

    Returns:
        `out_dir`.

    Raises:
        ValueError: The preset is not known.
        FileExistsError: `out_dir` holds files.
    """
    from dart_agent.inference.compat import patch_torch_extras

    spec = _resolve(preset)
    if out_dir.exists() and any(out_dir.iterdir()):
        raise FileExistsError(f"{out_dir} is not empty: choose another directory, or remove it first")
    patch_torch_extras()
    import torch
    from transformers import GenerationConfig, Qwen3VLForConditionalGeneration

    tokenizer = build_tokenizer(spec.words)
    config = model_config(spec, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3VLForConditionalGeneration(config)
        _init_weights(model, spec.initializer_range)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids(END_OF_TURN),
        pad_token_id=tokenizer.convert_tokens_to_ids(PADDING),
    )

    def save(directory: Path) -> None:
        model.save_pretrained(directory)
        _processor(spec, tokenizer).save_pretrained(directory)

    write_directory_atomically(out_dir, save)
    return out_dir


def _resolve(preset: str | ModelPreset) -> ModelPreset:
    if isinstance(preset, ModelPreset):
        return preset
    if preset not in PRESETS:
        raise ValueError(f"unknown model preset {preset!r}: choose one of {', '.join(sorted(PRESETS))}")
    return PRESETS[preset]


def model_config(preset: str | ModelPreset, tokenizer: Any | None = None) -> Any:
    """Make the configuration of a preset's model.

    Args:
        preset: Name of a preset, or a preset.
        tokenizer: Its tokenizer; None: it is built.

    Returns:
        The transformers configuration.

    Raises:
        ValueError: The preset is not known.
    """
    from transformers import Qwen3VLConfig

    spec = _resolve(preset)
    tokenizer = tokenizer or build_tokenizer(spec.words)
    ids = tokenizer.convert_tokens_to_ids
    return Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": spec.hidden_size,
            "intermediate_size": spec.intermediate_size,
            "num_hidden_layers": spec.text_layers,
            "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.heads,
            "head_dim": spec.head_dim,
            "max_position_embeddings": spec.max_positions,
            "initializer_range": spec.initializer_range,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "mrope_section": list(spec.mrope_section),
                "mrope_interleaved": True,
            },
            "tie_word_embeddings": False,
            "eos_token_id": ids(END_OF_TURN),
            "pad_token_id": ids(PADDING),
        },
        vision_config={
            "depth": spec.vision_layers,
            "hidden_size": spec.vision_hidden_size,
            "intermediate_size": spec.vision_intermediate_size,
            "num_heads": spec.vision_heads,
            "patch_size": spec.patch_size,
            "spatial_merge_size": spec.merge_size,
            "temporal_patch_size": TEMPORAL_PATCH_SIZE,
            "out_hidden_size": spec.hidden_size,
            "num_position_embeddings": spec.position_grid**2,
            "deepstack_visual_indexes": list(spec.deepstack_layers),
            "initializer_range": spec.initializer_range,
        },
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
        dtype="float32",
        # For trainers that are given the tokenizer alone and then take the model for one of text: they look for the limit here.
        max_position_embeddings=spec.max_positions,
        **{PROMPT_KEY: "tiny"},
    )


def _init_weights(model: Any, std: float) -> None:
    """Position embeddings are not touched by transformers' own initialisation: give them the same scale as the rest."""
    import torch

    with torch.no_grad():
        model.model.visual.pos_embed.weight.normal_(0.0, std)


def _processor(spec: ModelPreset, tokenizer: Any) -> Any:
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor
    from transformers.image_utils import PILImageResampling

    pixels = spec.input_wh[0] * spec.input_wh[1]
    shared = {
        "patch_size": spec.patch_size,
        "temporal_patch_size": TEMPORAL_PATCH_SIZE,
        "merge_size": spec.merge_size,
        "image_mean": [spec.pixel_mean] * 3,
        "image_std": [spec.pixel_std] * 3,
    }
    image_processor = Qwen2VLImageProcessor(
        size={"shortest_edge": (spec.patch_size * spec.merge_size) ** 2, "longest_edge": pixels},
        resample=PILImageResampling.BICUBIC,
        **shared,
    )
    video_processor = Qwen3VLVideoProcessor(**shared)
    return Qwen3VLProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        video_processor=video_processor,
        chat_template=tokenizer.chat_template,
    )
