"""The action head: a pointer token attends over the visual tokens of the screen.

Role: `ActionHead`, GUI-Actor's head (arXiv 2506.03143, equations 2 to 4), with an optional distribution over the parts of each cell.

    v~ = LayerNorm(v + Dropout(MultiHeadAttention(v, v, v)))     over the visual tokens of one image, without mask or positions
    k  = MLP_enc(v~),  q = MLP_dec(h)                            Linear, GELU, Linear
    a  = softmax(q . k / sqrt(D))                                over all visual tokens of the image

Rule: names and shapes of the parameters are those of the published checkpoints (`multi_patch_pointer_head`); the parameters of the offset
come in addition and start at 0, so that every part of a cell is equally likely before training. `v` are the visual features as they enter
the language model, `h` the states after its final norm. Non-goals: the backbone (`dart_agent.grounding.model`), losses
(`dart_train.grounding`).
Axes: M visual tokens of one image, K pointer tokens, D hidden size, P parts of a cell, R width of their keys, N pairs of a cell and a
pointer token.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

HEADS = 8
DROPOUT = 0.1
OFFSET_WIDTH = 128
"""R at most: of a backbone with D = 3584 and 16 parts the offsets then have 8 million parameters."""


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
        self.offset = OffsetScores(hidden_size, offset_parts**2) if offset_parts > 1 else None

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
        found: Tensor = self._offsets()(context_MD, self.projection_dec(pointers_KD))
        return found

    def all_offset_logits(self, context_MD: Tensor, pointers_KD: Tensor) -> Tensor:
        """Score the parts of all cells of an image, as `offset_logits` does for one cell of each pointer token.

        Args:
            context_MD: Context of the cells.
            pointers_KD: Hidden states of the pointer tokens.

        Returns:
            Logits [K, M, P].

        Raises:
            ValueError: The head has no offsets.
        """
        return self._offsets().score_all(context_MD, self.projection_dec(pointers_KD))

    def _offsets(self) -> OffsetScores:
        if self.offset is None:
            raise ValueError("this action head has no offsets: it was made with offset_parts = 1")
        return self.offset


class OffsetScores(nn.Module):
    """Where in a cell the target of a pointer token lies: a key for each part of the cell, and the query of the attention.

    o = softmax((W_p v~ + b_p) . W_q q / sqrt(R)), so that a cell which shows several rows tells them apart by what they are.

    Args:
        hidden_size: D.
        parts: P.
    """

    def __init__(self, hidden_size: int, parts: int) -> None:
        super().__init__()
        self._parts = parts
        width = min(hidden_size, OFFSET_WIDTH)
        self.key = nn.Linear(hidden_size, parts * width)
        self.query = nn.Linear(hidden_size, width, bias=False)
        nn.init.zeros_(self.key.weight)
        nn.init.zeros_(self.key.bias)

    def forward(self, context_ND: Tensor, queries_ND: Tensor) -> Tensor:
        """Score the parts of single cells.

        Args:
            context_ND: Context of the cells.
            queries_ND: The query q of the pointer token that goes with each cell.

        Returns:
            Logits [N, P].
        """
        keys_NPR = self.key(context_ND).unflatten(-1, (self._parts, -1))
        queries_NR = self.query(queries_ND)
        logits_NP: Tensor = (keys_NPR @ queries_NR[:, :, None])[:, :, 0] / math.sqrt(queries_NR.shape[1])
        return logits_NP

    def score_all(self, context_MD: Tensor, queries_KD: Tensor) -> Tensor:
        """Score the parts of all cells for all pointer tokens of an image.

        Args:
            context_MD: Context of the cells.
            queries_KD: The queries of the pointer tokens.

        Returns:
            Logits [K, M, P].
        """
        keys_MPR = self.key(context_MD).unflatten(-1, (self._parts, -1))
        queries_KR = self.query(queries_KD)
        logits_KMP: Tensor = (keys_MPR @ queries_KR.T).permute(2, 0, 1) / math.sqrt(queries_KR.shape[1])
        return logits_KMP


def _projection(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, inputs), nn.GELU(), nn.Linear(inputs, outputs))
