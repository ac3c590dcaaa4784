"""From stored rows to tensors.

Role: `make_batch` pads rows, converts their images to patches and checks that both fit. Rule: the prompt ids are those that the engine
used, with expanded image placeholders; they are never tokenised again. The processor must expand each image to exactly the run of
placeholders in the prompt; otherwise it is an error that names the row, because training on other features than were sampled from is
silent corruption. Non-goals: choosing rows (`data_manager`), advantages (`advantage`). Axes: see `dart_train.types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from dart_agent.data_client.image_store import BlobStorage
from dart_train.trainer.rows import TrainRow
from dart_train.types import TokenBatch, TrainBatch

if TYPE_CHECKING:
    from torch import Tensor


class BatchError(Exception):
    """A row cannot be trained on as it was sampled; the message names it."""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """How a model represents images in a prompt.

    Attributes:
        token_id: The placeholder token, repeated once per `merge_size`^2 patches.
        merge_size: Patches per side that are merged into one token.
        pad_id: The token that fills rows to the same length.
        vocabulary: Number of tokens that the model knows.
    """

    token_id: int
    merge_size: int
    pad_id: int
    vocabulary: int

    @classmethod
    def from_model(cls, model: Any, processor: Any) -> ImageTokens:
        """Read the image tokens of a loaded model.

        Args:
            model: A transformers model.
            processor: Its processor.

        Returns:
            The image tokens.
        """
        pad_id = processor.tokenizer.pad_token_id
        return cls(
            token_id=int(model.config.image_token_id),
            merge_size=int(processor.image_processor.merge_size),
            pad_id=0 if pad_id is None else int(pad_id),
            vocabulary=int(model.get_input_embeddings().num_embeddings),
        )


def make_batch(rows: Sequence[TrainRow], images: BlobStorage, processor: Any, image_tokens: ImageTokens) -> TrainBatch:
    """Convert rows to tensors on the CPU.

    Args:
        rows: Rows to train on, all sampled at the same temperature.
        images: Where their images are stored.
        processor: The processor of the model.
        image_tokens: The image tokens of the model.

    Returns:
        Tensors of the rows, [B, T] right-padded.

    Raises:
        BatchError: Rows were sampled at different temperatures, lack log-probs, do not fit the model, or do not fit their images.
        BlobError: An image is missing or damaged.
    """
    import torch

    temperatures = {row.step.sampling.temperature for row in rows}
    if len(temperatures) != 1:
        raise BatchError(f"rows of one batch were sampled at different temperatures: {sorted(temperatures)}")
    length = max(len(row.step.prompt_ids_P) + len(row.step.token_ids_T) for row in rows)
    shape = (len(rows), length)
    ids_BT = np.full(shape, image_tokens.pad_id, dtype=np.int64)
    attention_BT = np.zeros(shape, dtype=np.int64)
    response_BT = np.zeros(shape, dtype=bool)
    trainable_BT = np.zeros(shape, dtype=bool)
    rollout_BT = np.zeros(shape, dtype=np.float32)
    for index, row in enumerate(rows):
        prompt, sampled = row.step.prompt_ids_P, row.step.token_ids_T
        _check_tokens(row, image_tokens.vocabulary)
        begin, end = len(prompt), len(prompt) + len(sampled)
        ids_BT[index, :begin] = prompt
        ids_BT[index, begin:end] = sampled
        attention_BT[index, :end] = 1
        response_BT[index, begin:end] = True
        rollout_BT[index, begin:end] = row.step.logprobs_T
        for first, last in row.trainable:
            trainable_BT[index, begin + first : begin + last] = True
    pixels, grids = _patches(rows, images, processor, image_tokens)
    return TrainBatch(
        tokens=TokenBatch(
            input_ids_BT=torch.from_numpy(ids_BT),
            attention_mask_BT=torch.from_numpy(attention_BT),
            response_mask_BT=torch.from_numpy(response_BT),
            pixel_values=pixels,
            image_grid_thw=grids,
        ),
        rollout_logprobs_BT=torch.from_numpy(rollout_BT),
        trainable_BT=torch.from_numpy(trainable_BT),
        advantages_B=torch.tensor([row.advantage for row in rows], dtype=torch.float32),
        trajectory_shares_B=torch.tensor([row.trajectory_share for row in rows], dtype=torch.float32),
        temperature=temperatures.pop(),
    )


def _check_tokens(row: TrainRow, vocabulary: int) -> None:
    prompt, sampled = row.step.prompt_ids_P, row.step.token_ids_T
    if len(row.step.logprobs_T) != len(sampled):
        raise BatchError(f"{row.name} has {len(sampled)} tokens but {len(row.step.logprobs_T)} log-probs")
    if not prompt:
        raise BatchError(f"{row.name} has no prompt: nothing predicts its first token")
    if any(not 0 <= token < vocabulary for token in (*prompt, *sampled)):
        raise BatchError(f"{row.name} has a token that the model with {vocabulary} tokens does not know")
    if any(not 0 <= start < end <= len(sampled) for start, end in row.trainable):
        raise BatchError(
            f"{row.name} has {len(sampled)} tokens, and {list(row.trainable)} of them are to be trained on"
        )


def _patches(
    rows: Sequence[TrainRow], images: BlobStorage, processor: Any, image_tokens: ImageTokens
) -> tuple[Tensor | None, Tensor | None]:
    from dart_train.model.policy_model import pixel_inputs

    pictures = []
    owners: list[TrainRow] = []
    for row in rows:
        for sha256, hw in zip(row.step.image_sha256, row.step.image_hw, strict=True):
            picture = images.get(sha256)
            if picture.shape[:2] != tuple(hw):
                raise BatchError(f"{row.name}: image {sha256[:12]} is {picture.shape[:2]}, recorded as {tuple(hw)}")
            pictures.append(picture)
            owners.append(row)
    expected: list[int] = []
    pixels, grids = (None, None) if not pictures else pixel_inputs(processor, pictures)
    if grids is not None:
        expected = [int(patches) // image_tokens.merge_size**2 for patches in grids.prod(-1)]
    counts = iter(expected)
    for row in rows:
        wanted = [next(counts) for _ in row.step.image_sha256]
        found = placeholder_runs(row.step.prompt_ids_P, image_tokens.token_id)
        if wanted != found:
            raise BatchError(
                f"{row.name}: its prompt has image placeholders in runs of {found}, but the processor makes {wanted} of its images; "
                "rollout workers and trainer use different processors or image sizes"
            )
    return pixels, grids


def placeholder_runs(prompt_ids_P: Sequence[int], token_id: int) -> list[int]:
    """Measure the unbroken runs of a token.

    Args:
        prompt_ids_P: Token ids of a prompt, [P].
        token_id: The token to look for.

    Returns:
        Lengths of the runs, in order.
    """
    return [len(list(run)) for is_image, run in groupby(prompt_ids_P, lambda item: item == token_id) if is_image]


def to_device(tokens: TokenBatch, device: str) -> TokenBatch:
    """Move the tensors of a batch to a device.

    Args:
        tokens: The batch.
        device: Name of a torch device.

    Returns:
        The same batch on the device.
    """
    return TokenBatch(
        input_ids_BT=tokens.input_ids_BT.to(device),
        attention_mask_BT=tokens.attention_mask_BT.to(device),
        response_mask_BT=tokens.response_mask_BT.to(device),
        pixel_values=None if tokens.pixel_values is None else tokens.pixel_values.to(device),
        image_grid_thw=None if tokens.image_grid_thw is None else tokens.image_grid_thw.to(device),
    )
