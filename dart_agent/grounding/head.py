"""The action head: a pointer token attends over the visual tokens of the screen.

Role: `ActionHead`, GUI-Actor's head (arXiv 2506.03143, equations 2 to 4), with an optional distribution over the parts of each cell.

    v~ = LayerNorm(v + Dropout(MultiHeadAttention(v, v, v)))     over the visual tokens of one image, without mask or positions
    k  = MLP_enc(v~),  q = MLP_dec(h)                            Linear, GELU, Linear
    a  = softmax(q . k / sqrt(D))                                over all visual tokens of the image

Rule: names and shapes of the parameters are those of the published checkpoints (`multi_patch_pointer_head`); the parameters of the offset
come in addition and start at 0, so that every part of a cell is equally likely before training. `v` are the visual features as they enter
the language model, `h` the states after its final norm. Non-goals: the backbone (`dart_agent.grounding.model`), losses
(`dart_train.grounding`).
Axes: M visual tokens of one image, K pointer tokens, D hidden size, P parts of a cell.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

HEADS = 8
DROPOUT = 0.1


class ActionHead(nn.Module):
    """The head of one backbone.

    Args:
        hidden_size: D; a multiple of 8.
        offset_parts: Parts per side of a cell over which the head gives a distribution; 1: none, points are the middles of cells.
        dropout: Of the self-attention and after it, in training mode.

    Attributes:
        offset_parts: As given.
    """

    def __init__(self, hidden_size: int, offset_parts: int = 1, dropout: float = DROPOUT) -> None:
        super().__init__()
        if hidden_size % HEADS:
            raise ValueError(f"the action head needs a hidden size that is a multiple of {HEADS}, not {hidden_size}")
        self.offset_parts = offset_parts
        self.projection_enc = _projection(hidden_size, hidden_size)
        self.projection_dec = _projection(hidden_size, hidden_size)
        self.self_attention = nn.MultiheadAttention(hidden_size, HEADS, dropout=dropout, batch_first=True)
        self.layer_norm = nn.LayerNorm(hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.offset: nn.Sequential | None = None
        if offset_parts > 1:
            self.offset = _projection(2 * hidden_size, offset_parts**2, inner=hidden_size)
            last = self.offset[2]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def context(self, visual_MD: Tensor) -> Tensor:
        """Let the visual tokens of an image see each other.

        Args:
            visual_MD: Visual features as they enter the language model; [..., M, D] for one or more images.

        Returns:
            v~ [..., M, D].
        """
        visual_BMD = visual_MD if visual_MD.dim() == 3 else visual_MD[None]
        attended_BMD, _ = self.self_attention(visual_BMD, visual_BMD, visual_BMD, need_weights=False)
        mixed: Tensor = self.layer_norm(visual_MD + self.dropout(attended_BMD.reshape(visual_MD.shape)))
        return mixed

    def forward(self, visual_MD: Tensor, pointers_KD: Tensor) -> Tensor:
        """Attend.

        Args:
            visual_MD: Visual features of one image.
            pointers_KD: Hidden states of the pointer tokens that ask about it.

        Returns:
            Logits over the visual tokens [K, M]; the attention is their softmax.
        """
        return self.attend(self.context(visual_MD), pointers_KD)

    def attend(self, context_MD: Tensor, pointers_KD: Tensor) -> Tensor:
        """Attend over visual tokens that have seen each other.

        Args:
            context_MD: As `context` gave it, of one or more images.
            pointers_KD: Hidden states of the pointer tokens [..., K, D].

        Returns:
            Logits over the visual tokens [..., K, M].
        """
        keys_MD, queries_KD = self.projection_enc(context_MD), self.projection_dec(pointers_KD)
        logits_KM: Tensor = queries_KD @ keys_MD.transpose(-1, -2) / math.sqrt(context_MD.shape[-1])
        return logits_KM

    def offset_logits(self, context_MD: Tensor, pointers_KD: Tensor) -> Tensor:
        """Where in a cell the target lies.

        Args:
            context_MD: Context of the cells; [N, D].
            pointers_KD: Hidden state of the pointer token that goes with each cell; [N, D].

        Returns:
            Logits over the parts of each cell [N, P], row by row.

        Raises:
            ValueError: The head has no offsets.
        """
        if self.offset is None:
            raise ValueError("this action head has no offsets: it was made with offset_parts = 1")
        found: Tensor = self.offset(torch.cat([context_MD, self.projection_dec(pointers_KD)], dim=1))
        return found


def _projection(inputs: int, outputs: int, inner: int | None = None) -> nn.Sequential:
    middle = inputs if inner is None else inner
    return nn.Sequential(nn.Linear(inputs, middle), nn.GELU(), nn.Linear(middle, outputs))
