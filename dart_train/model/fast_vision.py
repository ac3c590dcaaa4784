"""The computations of the vision tower, rearranged for training.

Role: `optimize_vision(model)` replaces two forward methods of a vision tower of the Qwen-VL families by equivalent ones. The patch
embedding is one matrix product instead of a three-dimensional convolution. Attention is one call for all pictures, or windows of pictures,
that have the same number of patches, where transformers makes one call for each: a screen of 1932 x 1092 pixels has 180 windows in
Qwen2.5-VL, of four sizes. Rule: the results are the same up to rounding; other architectures are not changed. Non-goals: other
optimisations, flash attention, which has a form of its own for pictures of different sizes and is left alone.
"""

from __future__ import annotations

import itertools
import types
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

KEPT_PLANS = 2
"""Borders of pictures and of windows, which the layers of one pass share."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Which patches attend to each other.

    Attributes:
        sizes: For each number of patches that pictures or windows have: the number, and how many have it.
        order: Patches by size [T], None where they lie so already.
        inverse: Where each patch is in that order [T].
    """

    sizes: tuple[tuple[int, int], ...]
    order: Tensor | None = None
    inverse: Tensor | None = None

    @classmethod
    def of(cls, borders: Tensor, patches: int) -> AttentionPlan:
        """Make the plan of a pass.

        Args:
            borders: Where pictures or windows begin, and the end of the last one.
            patches: How many patches there are.

        Returns:
            The plan.
        """
        import torch

        lengths = [length for length in (borders[1:] - borders[:-1]).tolist() if length] or [patches]
        counts = Counter(lengths)
        runs = 1 + sum(one != other for one, other in itertools.pairwise(lengths))
        if runs == len(counts):
            return cls(tuple(counts.items()))
        starts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
        sizes = torch.tensor(lengths)
        order = torch.cat([(starts[sizes == size, None] + torch.arange(size)).flatten() for size in counts])
        return cls(tuple(counts.items()), order.to(borders.device), order.argsort().to(borders.device))


class BatchedAttention:
    """Attention of the layers of one vision tower, in the place of their own methods."""

    def __init__(self) -> None:
        self._plans: list[tuple[Tensor, AttentionPlan]] = []

    def attend(
        self, module: Any, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any = None, **_: Any
    ) -> Any:
        """Attention within each picture or window.

        Args:
            module: The layer's attention.
            hidden_states: The patches, [T, D].
            cu_seqlens: Borders of the pictures or windows.
            position_embeddings: Cosines and sines of their positions.

        Returns:
            The patches after it, [T, D].
        """
        import torch
        import torch.nn.functional as F
        from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision

        plan = self._plan(cu_seqlens, hidden_states.shape[0])
        parts = module.qkv(hidden_states).reshape(hidden_states.shape[0], 3, module.num_heads, -1).permute(1, 0, 2, 3)
        query, key, value = parts.unbind(0)
        query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
        if plan.order is not None:
            query, key, value = (part[plan.order] for part in (query, key, value))
        pieces = [size * count for size, count in plan.sizes]
        # bfloat16 attention has a slow backward pass on CPUs: attend at least in float32 there, whatever autocast says.
        on_cpu = hidden_states.device.type == "cpu"
        dtype = torch.promote_types(query.dtype, torch.float32) if on_cpu else query.dtype
        mixed = []
        with torch.autocast(hidden_states.device.type, enabled=False):
            split = (part.to(dtype).split(pieces) for part in (query, key, value))
            for (size, _count), *piece in zip(plan.sizes, *split, strict=True):
                batched = [part.reshape(-1, size, *part.shape[1:]).transpose(1, 2) for part in piece]
                mixed.append(F.scaled_dot_product_attention(*batched).transpose(1, 2).flatten(0, 1).flatten(1))
        attended = torch.cat(mixed).to(hidden_states.dtype)
        return module.proj(attended if plan.inverse is None else attended[plan.inverse])

    def _plan(self, borders: Tensor, patches: int) -> AttentionPlan:
        for known, plan in self._plans:
            if known is borders:
                return plan
        plan = AttentionPlan.of(borders, patches)
        self._plans = [(borders, plan), *self._plans][:KEPT_PLANS]
        return plan


def optimize_vision(model: Any) -> bool:
    """Replace the forward methods of the vision tower of a Qwen-VL model.

    Args:
        model: A transformers model.

    Returns:
        True where the model was changed, False for another architecture.
    """
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
    from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

    known = (Qwen2VisionTransformerPretrainedModel, Qwen2_5_VisionTransformerPretrainedModel, Qwen3VLVisionModel)
    tower = getattr(model.model, "visual", None)
    if not isinstance(tower, known):
        return False
    tower.patch_embed.forward = types.MethodType(_embed_patches, tower.patch_embed)
    if "flash" not in (tower.config._attn_implementation or ""):
        attention = BatchedAttention()
        for block in tower.blocks:
            block.attn.forward = types.MethodType(attention.attend, block.attn)
    return True


def _embed_patches(module: Any, hidden_states: Any) -> Any:
    import torch.nn.functional as F

    flat = hidden_states.to(module.proj.weight.dtype).reshape(-1, module.proj.weight[0].numel())
    return F.linear(flat, module.proj.weight.view(module.embed_dim, -1), module.proj.bias)
