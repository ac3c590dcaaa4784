"""Data types of the training package.

Role: the values that batch builder, model, loss and trainer pass to each other. Rule: frozen, plain tensors, no behaviour.
Axes: B samples of a batch, T tokens of a padded sample (prompt, then response, then padding), N image patches of the batch,
L tokens of packed streams, M sampled tokens of all samples, R tokens of the longest response.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from dart_agent.types import PointedTarget
    from dart_envs.types import RgbImage


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
class PackedTokens:
    """One forward pass over token streams, one behind the other, without padding.

    Attributes:
        input_ids_1L: int64 [1, L]; image placeholders are expanded, exactly as the engine saw them.
        position_ids_31L: int64 [3, 1, L]; positions along time, height and width, from 0 in each stream.
        segments: Lengths of the streams; their sum is L.
        predicts_M: int64 [M]; where the token before each sampled token is.
        targets_M: int64 [M]; the sampled tokens, sample after sample.
        temperatures_M: float32 [M]; at which they were sampled.
        pixel_values: [N, channels * temporal * patch * patch] of the different images, bfloat16 where the vision tower computes in it, else
            float32; None without images.
        image_grid_thw: int64 [images, 3], patches of each along time, height and width; None without images.
        shown_images: Which image each run of placeholders shows, in the order of the streams.
    """

    input_ids_1L: Tensor
    position_ids_31L: Tensor
    segments: tuple[int, ...]
    predicts_M: Tensor
    targets_M: Tensor
    temperatures_M: Tensor
    pixel_values: Tensor | None
    image_grid_thw: Tensor | None
    shown_images: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PointedImage:
    """What an action head found on the image of one step.

    Attributes:
        image: The image that was pointed at, uint8 [H, W, 3].
        targets: What was found, with the log-probs of the policy that acted.
        temperature: Divides the logits; that of the sampling, 1 where it was greedy.
    """

    image: RgbImage
    targets: tuple[PointedTarget, ...]
    temperature: float


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Packed tokens with the inputs of the loss, which sees responses only: row b, column r is position r of the response of sample b.

    The positions of a response are its tokens, and behind them the targets that an action head found for it.

    Attributes:
        tokens: The tokens.
        response_mask_BR: bool [B, R]; True on sampled tokens, in whose order, row after row, the M tokens of `tokens` are.
        rollout_logprobs_BR: float32 [B, R]; log-probs stored when the token or the point was sampled, 0 elsewhere.
        trainable_BR: bool [B, R]; positions that passed the staleness gate.
        advantages_B: float32 [B].
        trajectory_shares_B: float32 [B]; 1 / number of rows of the row's trajectory.
        pointed: Rows with targets: the row, and its targets on its image.
    """

    tokens: PackedTokens
    response_mask_BR: Tensor
    rollout_logprobs_BR: Tensor
    trainable_BR: Tensor
    advantages_B: Tensor
    trajectory_shares_B: Tensor
    pointed: tuple[tuple[int, PointedImage], ...] = ()
