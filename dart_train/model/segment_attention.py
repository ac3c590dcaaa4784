"""Causal attention within each of several token streams that are packed into one sequence.

Role: `use_segment_attention(model)` gives a model's language layers an attention that reads `segments`, the lengths of the streams, and
lets no token attend outside its stream. Rule: one call of the attention kernel per stream, so that neither a mask of tokens x tokens nor
padding exists, on CPUs and GPUs alike. Without `segments` the attention is transformers' `sdpa`. Non-goals: vision towers, which attend
within images by themselves; positions (`dart_train.trainer.batches.tensors`).
"""

from __future__ import annotations

from typing import Any

SEGMENT_ATTENTION = "dart_segments"


def use_segment_attention(model: Any) -> None:
    """Register the attention with transformers and choose it for the language layers of a model.

    Args:
        model: A transformers model of images and text.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(SEGMENT_ATTENTION, _attend)
    AttentionMaskInterface.register(SEGMENT_ATTENTION, sdpa_mask)
    model.model.language_model.config._attn_implementation = SEGMENT_ATTENTION


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    segments: tuple[int, ...] | None = None,
    **options: Any,
) -> tuple[Any, None]:
    """As transformers calls it: query [B, heads, T, head size] to output [B, T, heads, head size]."""
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if segments is None or len(segments) == 1:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    options["is_causal"] = True
    parts = zip(*(tensor.split(segments, dim=2) for tensor in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, *part, None, **options)[0] for part in parts], dim=1), None
