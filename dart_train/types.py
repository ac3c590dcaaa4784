"""Data types of the training package.

Role: the values that batch builder, model, loss and trainer pass to each other. Rule: frozen, plain tensors, no behaviour.
Axes: B samples of a batch, T tokens of a padded sample (prompt, then response, then padding), N image patches of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """One forward pass over right-padded samples.

    Attributes:
        input_ids_BT: int64 [B, T]; image placeholders are expanded, exactly as the engine saw them.
        attention_mask_BT: [B, T], 1 on real tokens, 0 on padding.
        response_mask_BT: [B, T], 1 on sampled tokens (the end of turn included), 0 on prompt and padding.
        pixel_values: float32 [N, channels * temporal * patch * patch], image after image in the order of the samples; None without images.
        image_grid_thw: int64 [images, 3], patches along time, height and width; None without images.
    """

    input_ids_BT: Tensor
    attention_mask_BT: Tensor
    response_mask_BT: Tensor
    pixel_values: Tensor | None
    image_grid_thw: Tensor | None


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """A `TokenBatch` with the per-token and per-row inputs of the loss; all [B, T] share the axes of `tokens`.

    Attributes:
        tokens: The tokens.
        rollout_logprobs_BT: float32 [B, T]; log-probs stored when the token was sampled, 0 elsewhere.
        trainable_BT: bool [B, T]; sampled tokens that passed the staleness gate.
        advantages_B: float32 [B].
        trajectory_shares_B: float32 [B]; 1 / number of rows of the row's trajectory.
        temperature: Temperature of all rows; logits are divided by it, so that log-probs are those of the distribution that was sampled
        from.
    """

    tokens: TokenBatch
    rollout_logprobs_BT: Tensor
    trainable_BT: Tensor
    advantages_B: Tensor
    trajectory_shares_B: Tensor
    temperature: float
