"""What a step must fulfil to be stored.

Role: `checked_columns`, the columns of a step that is in order. Rule: where tokens have log-probs, all have finite ones; where positions
have versions, all have one; slices follow each other; images and their place holders in the prompt agree, and no place holder was sampled,
where the model is known. Non-goals: the database (`dart_train.data_manager.store.steps`).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dart_agent.data_client.payloads import StreamStepPayload
from dart_agent.data_client.token_stream import PACKED_ID_BYTES
from dart_agent.errors import StoreError


@dataclass(frozen=True, slots=True)
class ImagePlaceholders:
    """How a model's prompts stand for images.

    Attributes:
        token_id: The placeholder token.
        side_px: Side of the square of pixels that becomes one token.
    """

    token_id: int
    side_px: int

    def count(self, hw: Sequence[int]) -> int:
        """Return the number of placeholders of an image of this height and width."""
        return (hw[0] // self.side_px) * (hw[1] // self.side_px)


class ImagesUnfitError(StoreError):
    """The images of a step do not fit its prompt as the model reads it, or a placeholder was sampled."""


Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
Placeholders = Callable[[], ImagePlaceholders | None]
"""The placeholders of the run's model, None where it is not known."""


class StepBefore(NamedTuple):
    """What the check of a step needs of the one before it."""

    segment: int
    response_end: int


def checked_columns(
    rollout_id: str, step: StreamStepPayload, before: StepBefore | None, placeholders: Placeholders
) -> dict[str, Any]:
    """Check a step.

    Args:
        rollout_id: Its rollout.
        step: The step.
        before: What is stored of the step before it; None: it is the first, or nothing is.
        placeholders: The model's placeholders.

    Returns:
        Its columns in the database.

    Raises:
        ImagesUnfitError: Its images do not fit its prompt as the model reads it.
        StoreError: It contradicts itself, or does not follow the step before it.
    """
    where = f"step {step.index} of rollout {rollout_id}"
    row: dict[str, Any] = {
        "rollout_id": rollout_id,
        "index": step.index,
        "segment": step.segment,
        "response_start": step.response_start,
        "response_end": step.response_end,
        "prompt_new": base64.b64decode(step.prompt_new),
        "token_ids": base64.b64decode(step.token_ids),
        "logprobs": base64.b64decode(step.logprobs),
        "version_spans": [list(span) for span in step.version_spans],
        "image_sha256_new": step.image_sha256_new,
        "image_hw_new": [list(hw) for hw in step.image_hw_new],
        "text": step.text,
        "action": step.action,
        "parse_error": step.parse_error,
        "sampling": step.sampling.model_dump(),
        "finish_reason": step.finish_reason.value,
        "model_s": step.model_s,
        "env_s": step.env_s,
        "pointers": [list(fields) for fields in step.pointers] or None,
    }
    logprobs = np.frombuffer(row["logprobs"], dtype="<f4")
    ntokens, nnew = len(row["token_ids"]) // PACKED_ID_BYTES, len(row["prompt_new"]) // PACKED_ID_BYTES
    if len(logprobs) and len(logprobs) != ntokens:
        raise StoreError(f"{where} has {ntokens} tokens but {len(logprobs)} log-probs")
    if not (np.isfinite(logprobs).all() and all(math.isfinite(fields[3]) for fields in step.pointers)):
        raise StoreError(f"{where} has a log-prob that is not a finite number")
    if len(step.image_sha256_new) != len(step.image_hw_new):
        raise StoreError(f"{where} names {len(step.image_sha256_new)} images but {len(step.image_hw_new)} sizes")
    begins = step.segment == step.index
    if not begins and (before is None or before.segment != step.segment):
        raise StoreError(f"{where} continues segment {step.segment}, which the step before it is not of")
    held = 0 if begins or before is None else before.response_end
    if (step.response_start, step.response_end) != (held + nnew, held + nnew + ntokens):
        raise StoreError(
            f"{where} answers at [{step.response_start}, {step.response_end}) of its segment, but {held} tokens are stored of it, "
            f"{nnew} are new in the prompt and {ntokens} were sampled"
        )
    position = 0
    for span in step.version_spans:
        if span[1] != position or span[2] <= span[1]:
            raise StoreError(f"{where}: version spans {row['version_spans']} do not follow each other from 0")
        position = span[2]
    if step.version_spans and position != ntokens + len(step.pointers):
        raise StoreError(
            f"{where}: version spans cover {position} positions of {ntokens} tokens and {len(step.pointers)} targets"
        )
    if nnew or ntokens:  # an endpoint tells no ids
        _check_images(
            where, unpacked_ids(row["prompt_new"]), unpacked_ids(row["token_ids"]), step.image_hw_new, placeholders()
        )
    return row


def _check_images(
    where: str, prompt_new: Ids, sampled: Ids, sizes: Sequence[Sequence[int]], model: ImagePlaceholders | None
) -> None:
    """Each image must have exactly its number of place holders: the trainer would compute other features than were sampled from.

    All of them are in the prompt; there is no image for a place holder that was sampled.
    """
    if model is None:
        return
    if model.token_id in sampled:
        raise ImagesUnfitError(
            f"{where} sampled an image placeholder (token {model.token_id}), for which there is no image"
        )
    is_image = np.concatenate(([0], prompt_new == model.token_id, [0]))
    borders = np.flatnonzero(np.diff(is_image))
    found = (borders[1::2] - borders[::2]).tolist()
    wanted = [model.count(hw) for hw in sizes]
    if found != wanted:
        raise ImagesUnfitError(
            f"{where}: its prompt has image placeholders in runs of {found}, but its images of {[list(hw) for hw in sizes]} pixels "
            f"have {wanted}; rollout worker and engine use different image sizes"
        )


def unpacked_ids(content: bytes) -> Ids:
    """Read little-endian int32 token ids without making an object of each."""
    return np.frombuffer(content, dtype="<i4")
