"""Tiny random checkpoints with the file layout of the published ones, for tests without a network.

Role: `write_checkpoint(kind, directory)`. Rule: everything by which the published checkpoints differ from each other and from what
transformers writes today is kept: flat or nested configuration, tensor names, shards, bfloat16, tied or separate output embeddings, more
embedding rows than tokens, where the chat template lies, the processor's pixel limits, the generation defaults. Only the sizes are not.

    qwen2_vl     flat, `visual.*` and `model.layers.*`, vision tower without what has its default, template in chat_template.json
    qwen2_5_vl   flat, `visual.*` and `model.layers.*`, an image processor of a name that is gone, template in chat_template.json
    qwen3_vl     nested, `model.visual.*` and `model.language_model.*`, tied embeddings stored twice, template in tokenizer_config.json

Where published checkpoints of one architecture differ, the form that is harder to load is taken.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from dart_agent.inference.compat import patch_torch_extras

Kind = Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
KINDS: tuple[Kind, ...] = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
FLAT: frozenset[Kind] = frozenset({"qwen2_vl", "qwen2_5_vl"})
PROMPTS: dict[str, str] = {"qwen2_vl": "qwen2", "qwen2_5_vl": "uitars", "qwen3_vl": "qwen"}
"""Our own prompt for each."""

_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_PLAIN_ADDED_TOKENS = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
_MERGES = ("t h", "th e", "i n", "Ġ c", "Ġc l", "i c", "ic k", "Ġ the", "o n", "A c", "Ac t", "Act i", "Acti on")
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TURN = (
    "{{ '<|im_start|>' + message.role + '\\n' }}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' or 'image' in part %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{{ '<|im_end|>\\n' }}"
)
_OPENING = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
_DEFAULT_SYSTEM = (
    "{% if loop.first and message.role != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
)
_TOOLS = (
    "{% if tools %}{% set said = namespace(system='') %}{% if messages[0].role == 'system' %}{% for part in messages[0].content %}"
    "{% set said.system = said.system + part.text %}{% endfor %}{% set messages = messages[1:] %}{% endif %}{{ '<|im_start|>system\\n' }}"
    "{% if said.system %}{{ said.system + '\\n\\n' }}{% endif %}{{ '# Tools\\n\\nYou may call one or more functions to assist with the "
    "user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}{% for tool in tools %}"
    "{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '\\n</tools>\\n\\nFor each function call, return a json object with function name and "
    "arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>'
    "<|im_end|>\\n' }}{% endif %}"
)
"""What Qwen3-VL's template, and the one of Qwen2.5-VL's tokenizer, print of tools."""
_TEMPLATES: dict[Kind, str] = {
    "qwen2_vl": "{% for message in messages %}" + _DEFAULT_SYSTEM + _TURN + "{% endfor %}" + _OPENING,
    "qwen2_5_vl": "{% for message in messages %}" + _DEFAULT_SYSTEM + _TURN + "{% endfor %}" + _OPENING,
    "qwen3_vl": _TOOLS + "{% for message in messages %}" + _TURN + "{% endfor %}" + _OPENING,
}
_CLIP_MEAN, _CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def write_checkpoint(kind: Kind, directory: Path, seed: int = 0) -> Path:
    """Write a checkpoint and return its directory."""
    directory.mkdir(parents=True)
    tokens = _write_tokenizer(kind, directory)
    config = {"qwen2_vl": _qwen2_vl, "qwen2_5_vl": _qwen2_5_vl, "qwen3_vl": _qwen3_vl}[kind](tokens)
    _write_json(directory / "config.json", config)
    _write_json(
        directory / "generation_config.json",
        {
            "bos_token_id": tokens["<|endoftext|>"],
            "do_sample": True,
            "eos_token_id": [tokens["<|im_end|>"], tokens["<|endoftext|>"]],
            "pad_token_id": tokens["<|endoftext|>"],
            "repetition_penalty": 1.05,
            "temperature": 1e-06,
        },
    )
    _write_processor(kind, directory)
    _write_weights(kind, directory, seed)
    return directory


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_tokenizer(kind: Kind, directory: Path) -> dict[str, int]:
    """Byte-level BPE as Qwen's: a few merges, then the special tokens in the published order. Returns ids by added token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import BPE

    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in _MERGES)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [tuple(merge.split(" ")) for merge in _MERGES]
    core = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(text, normalized=False) for text in _SPECIAL_TOKENS])
    core.add_tokens([AddedToken(text, normalized=False) for text in _PLAIN_ADDED_TOKENS])
    core.save(str(directory / "tokenizer.json"))
    _write_json(directory / "vocab.json", vocabulary)
    (directory / "merges.txt").write_text("".join(f"{merge}\n" for merge in _MERGES), encoding="utf-8")
    added = {text: len(pieces) + index for index, text in enumerate((*_SPECIAL_TOKENS, *_PLAIN_ADDED_TOKENS))}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings: dict[str, Any] = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(index): {"content": text, **flags, "special": text in _SPECIAL_TOKENS} for text, index in added.items()
        },
        "additional_special_tokens": [token for token in _SPECIAL_TOKENS if token != "<|endoftext|>"],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    if kind in FLAT:
        _write_json(directory / "chat_template.json", {"chat_template": _TEMPLATES[kind]})
    else:
        settings["chat_template"] = _TEMPLATES[kind]
    _write_json(directory / "tokenizer_config.json", settings)
    return added


def _write_processor(kind: Kind, directory: Path) -> None:
    if kind in FLAT:
        name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}[kind]
        settings: dict[str, Any] = {
            "min_pixels": 3136,
            "max_pixels": 12845056,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": _CLIP_MEAN,
            "image_std": _CLIP_STD,
            "image_processor_type": f"{name}ImageProcessor",
            "processor_class": f"{name}Processor",
        }
        _write_json(directory / "preprocessor_config.json", settings)
        return
    shared = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "processor_class": "Qwen3VLProcessor",
    }
    limits = {"longest_edge": 16777216, "shortest_edge": 65536}
    image = {"size": limits, **shared, "image_processor_type": "Qwen2VLImageProcessorFast"}
    _write_json(directory / "preprocessor_config.json", image)
    limits = {"longest_edge": 25165824, "shortest_edge": 4096}
    video = {"size": limits, **shared, "video_processor_type": "Qwen3VLVideoProcessor"}
    _write_json(directory / "video_preprocessor_config.json", video)


def _qwen2_vl(tokens: dict[str, int]) -> dict[str, Any]:
    return _qwen2_5_vl(tokens) | {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "max_position_embeddings": 32768,
        "model_type": "qwen2_vl",
        "transformers_version": "4.41.2",
        "vision_config": {
            "depth": 2,
            "embed_dim": 64,
            "mlp_ratio": 4,
            "num_heads": 2,
            "in_chans": 3,
            "hidden_size": 64,
            "model_type": "qwen2_vl",
            "spatial_patch_size": 14,
        },
    }


def _qwen2_5_vl(tokens: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        "bos_token_id": tokens["<|endoftext|>"],
        "eos_token_id": tokens["<|im_end|>"],
        "vision_start_token_id": tokens["<|vision_start|>"],
        "vision_end_token_id": tokens["<|vision_end|>"],
        "vision_token_id": tokens["<|vision_pad|>"],
        "image_token_id": tokens["<|image_pad|>"],
        "video_token_id": tokens["<|video_pad|>"],
        "hidden_act": "silu",
        "hidden_size": 64,
        "initializer_range": 0.02,
        "intermediate_size": 128,
        "max_position_embeddings": 128000,
        "max_window_layers": 2,
        "model_type": "qwen2_5_vl",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.41.2",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": {
            "depth": 2,
            "hidden_act": "silu",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 2,
            "in_chans": 3,
            "out_hidden_size": 64,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
            "temporal_patch_size": 2,
        },
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "vocab_size": 320,
    }


def _qwen3_vl(tokens: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": tokens["<|image_pad|>"],
        "model_type": "qwen3_vl",
        "text_config": {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": tokens["<|endoftext|>"],
            "dtype": "bfloat16",
            "eos_token_id": tokens["<|im_end|>"],
            "head_dim": 32,
            "hidden_act": "silu",
            "hidden_size": 64,
            "initializer_range": 0.02,
            "intermediate_size": 128,
            "max_position_embeddings": 262144,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [6, 5, 5], "rope_type": "default"},
            "rope_theta": 5000000,
            "tie_word_embeddings": True,
            "use_cache": True,
            "vocab_size": 320,
        },
        "tie_word_embeddings": True,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": tokens["<|video_pad|>"],
        "vision_config": {
            "deepstack_visual_indexes": [0],
            "depth": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 64,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 128,
            "model_type": "qwen3_vl",
            "num_heads": 2,
            "num_position_embeddings": 2304,
            "out_hidden_size": 64,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": tokens["<|vision_end|>"],
        "vision_start_token_id": tokens["<|vision_start|>"],
    }


def _write_weights(kind: Kind, directory: Path, seed: int) -> None:
    """Random tensors under the published names, in bfloat16, in two shards with their index."""
    patch_torch_extras()
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(directory)
    model = AutoModelForImageTextToText.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Any] = {}
    for name, parameter in sorted(model.state_dict().items()):
        spread = 0.1 * torch.randn(parameter.shape, generator=generator)
        value = 1 + spread if "norm" in name and name.endswith("weight") else spread
        tensors[_published_name(kind, name)] = value.to(torch.bfloat16)
    if config.tie_word_embeddings:
        tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"].clone()
    names = list(tensors)
    shards = {
        f"model-0000{number}-of-00002.safetensors": part
        for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1)
    }
    for file, part in shards.items():
        save_file({name: tensors[name].contiguous() for name in part}, directory / file, metadata={"format": "pt"})
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {name: file for file, part in shards.items() for name in part}
    _write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": index})


def _published_name(kind: Kind, name: str) -> str:
    return re.sub(r"^model\.(?:language_(model)|(visual))\.", r"\1\2.", name) if kind in FLAT else name
