"""From segments of stored rows to tensors.

Role: `BatchMaker.make` packs segments into one sequence without padding and checks that rows fit the model and their images. Rule: the ids
are those that the engine used and sampled, with expanded image placeholders; they are never tokenised again. The processor must expand each
image to exactly the run of placeholders in the prompt; otherwise it is an error that names the row, because training on other features than
were sampled from is silent corruption. Positions are those that the model itself gives each segment. Targets of an action
head are positions behind the tokens of their row. Non-goals: choosing rows
(`data_manager`), advantages (`advantage`), what is packed together (`dart_train.trainer.batches.segments`). Axes: see `dart_train.types`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from dart_agent.data_client.image_store import BlobError, ImageReader
from dart_agent.errors import StoreUnavailableError
from dart_train.trainer.batches.image_patches import ImagePatches, ImageSizeError
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.segments import Segment
from dart_train.types import PackedTokens, PointedImage, TrainBatch

if TYPE_CHECKING:
    from torch import Tensor

    Patches = tuple[Tensor, Tensor]


class BatchError(Exception):
    """A row cannot be trained on as it was sampled; the message names it."""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """How a model represents images in a prompt.

    Attributes:
        token_id: The placeholder token, repeated once per `merge_size`^2 patches.
        merge_size: Patches per side that are merged into one token.
        vocabulary: Number of tokens that the model knows.
    """

    token_id: int
    merge_size: int
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
        return cls(
            token_id=int(model.config.image_token_id),
            merge_size=int(processor.image_processor.merge_size),
            vocabulary=int(model.get_input_embeddings().num_embeddings),
        )


class BatchMaker:
    """Makes the batches of one model.

    Args:
        model: A transformers model of the Qwen-VL families.
        processor: Its processor.
        images: Where the images of rows are stored.
        offset_parts: Parts per side of a cell of its action head; None: it has none.
        patches: What converts the images and keeps them; None: nothing is kept.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        images: ImageReader,
        offset_parts: int | None = None,
        patches: ImagePatches | None = None,
    ) -> None:
        self._images = images
        self._offset_parts = offset_parts
        self._tokens = ImageTokens.from_model(model, processor)
        self._patches = patches or ImagePatches(images, processor, max_bytes=0)
        self._positions = model.model.get_rope_index

    def make(self, segments: Sequence[Segment]) -> TrainBatch:
        """Convert segments to tensors on the CPU.

        Args:
            segments: What is packed together.

        Returns:
            Tensors of the rows, in the order of the segments and of the rows in them.

        Raises:
            BatchError: Rows lack log-probs, do not fit the model, or do not fit their images.
            BlobError: An image is missing or damaged.
            StoreUnavailableError: An image cannot be read now.
        """
        import torch

        rows = [row for segment in segments for row in segment.rows]
        for row in rows:
            _check_tokens(row, self._tokens.vocabulary)
        patches = [self._segment_patches(segment) for segment in segments]
        begins = accumulate((segment.tokens for segment in segments), initial=0)
        starts = [
            begin + len(row.step.prompt_ids_P)
            for begin, segment in zip(begins, segments, strict=False)
            for row in segment.rows
        ]
        pixels, grids, shown = _different_images(segments, patches)
        tokens = PackedTokens(
            input_ids_1L=torch.tensor([list(chain.from_iterable(segment.token_ids for segment in segments))]),
            position_ids_31L=torch.cat(
                [self._segment_positions(segment, found) for segment, found in zip(segments, patches, strict=True)], -1
            ),
            segments=tuple(segment.tokens for segment in segments),
            predicts_M=torch.from_numpy(
                np.concatenate(
                    [
                        np.arange(start - 1, start - 1 + len(row.step.token_ids_T))
                        for start, row in zip(starts, rows, strict=True)
                    ]
                )
            ),
            targets_M=torch.tensor([token for row in rows for token in row.step.token_ids_T]),
            temperatures_M=torch.tensor(
                [row.step.sampling.temperature for row in rows for _ in row.step.token_ids_T], dtype=torch.float32
            ),
            pixel_values=pixels,
            image_grid_thw=grids,
            shown_images=shown,
        )
        pointed = []
        for index, (row, grid) in enumerate(_last_grids(segments, patches)):
            if row.targets:
                pointed.append((index, self._pointed_image(row, grid)))
        return replace(_with_rows(tokens, rows), pointed=tuple(pointed))

    def _pointed_image(self, row: TrainRow, grid: Tensor | None) -> PointedImage:
        """The targets of a row, which must be places of its last image."""
        cells = 0 if grid is None else int(grid.prod()) // self._tokens.merge_size**2
        parts = (self._offset_parts or 0) ** 2
        for target in row.targets:
            if not (0 <= target.cell < cells and 0 <= target.part < parts):
                raise BatchError(
                    f"{row.name} points at part {target.part} of visual token {target.cell}, but its image has {cells} visual tokens and "
                    f"the action head {parts} parts of each"
                )
        image = self._images.get(row.step.image_sha256[-1])
        return PointedImage(image, row.targets, row.step.sampling.temperature or 1.0)

    def _segment_patches(self, segment: Segment) -> list[Patches]:
        """Patches of the images of a segment; each row must have been sampled with them."""
        last = segment.rows[-1].step
        try:
            found = self._patches.get(list(zip(last.image_sha256, last.image_hw, strict=True)))
        except StoreUnavailableError:  # some of these are a BlobError, too; no row is to blame
            raise
        except (BlobError, ImageSizeError) as error:
            names = ", ".join(row.name for row in segment.rows)
            if isinstance(error, BlobError):
                raise BlobError(f"{names}: {error}") from error
            raise BatchError(f"{names}: {error}") from error
        expected = [int(grid.prod()) // self._tokens.merge_size**2 for _, grid in found]
        for row in segment.rows:
            wanted = expected[: len(row.step.image_sha256)]
            runs = placeholder_runs(row.step.prompt_ids_P, self._tokens.token_id)
            if wanted != runs:
                raise BatchError(
                    f"{row.name}: its prompt has image placeholders in runs of {runs}, but the processor makes {wanted} of its images; "
                    "rollout workers and trainer use different processors or image sizes"
                )
        return found

    def _segment_positions(self, segment: Segment, patches: Sequence[Patches]) -> Tensor:
        """Positions [3, 1, tokens] that the model itself gives a segment."""
        import torch

        ids = torch.tensor([segment.token_ids])
        positions: Tensor = self._positions(
            input_ids=ids,
            mm_token_type_ids=(ids == self._tokens.token_id).to(torch.int32),
            image_grid_thw=torch.stack([grid for _, grid in patches]) if patches else None,
        )[0]
        return positions


def _check_tokens(row: TrainRow, vocabulary: int) -> None:
    prompt, sampled = row.step.prompt_ids_P, row.step.token_ids_T
    if len(row.step.logprobs_T) != len(sampled):
        raise BatchError(f"{row.name} has {len(sampled)} tokens but {len(row.step.logprobs_T)} log-probs")
    if not prompt:
        raise BatchError(f"{row.name} has no prompt: nothing predicts its first token")
    if min(prompt) < 0 or min(sampled, default=0) < 0 or max((*prompt, *sampled)) >= vocabulary:
        raise BatchError(f"{row.name} has a token that the model with {vocabulary} tokens does not know")
    if any(not 0 <= start < end <= row.positions for start, end in row.trainable):
        raise BatchError(
            f"{row.name} has {len(sampled)} tokens, and {list(row.trainable)} of them are to be trained on"
        )


def _different_images(
    segments: Sequence[Segment], patches: Sequence[Sequence[Patches]]
) -> tuple[Tensor | None, Tensor | None, tuple[int, ...]]:
    """Patches and grids of the different images, and which of them is shown where."""
    import torch

    different: dict[str, tuple[int, Patches]] = {}
    shown = []
    for segment, found in zip(segments, patches, strict=True):
        for sha256, part in zip(segment.rows[-1].step.image_sha256, found, strict=True):
            shown.append(different.setdefault(sha256, (len(different), part))[0])
    if not different:
        return None, None, ()
    parts = [part for _, part in different.values()]
    return torch.cat([pixels for pixels, _ in parts]), torch.stack([grid for _, grid in parts]), tuple(shown)


def _last_grids(
    segments: Sequence[Segment], patches: Sequence[Sequence[Patches]]
) -> Iterator[tuple[TrainRow, Tensor | None]]:
    """Each row, and the grid of the last image of its prompt."""
    for segment, found in zip(segments, patches, strict=True):
        for row in segment.rows:
            shown = len(row.step.image_sha256)
            yield row, found[shown - 1][1] if shown else None


def _with_rows(tokens: PackedTokens, rows: Sequence[TrainRow]) -> TrainBatch:
    import torch

    shape = (len(rows), max(row.positions for row in rows))
    response_BR = np.zeros(shape, dtype=bool)
    trainable_BR = np.zeros(shape, dtype=bool)
    rollout_BR = np.zeros(shape, dtype=np.float32)
    for index, row in enumerate(rows):
        length = len(row.step.token_ids_T)
        response_BR[index, :length] = True
        rollout_BR[index, : row.positions] = [*row.step.logprobs_T, *(target.logprob for target in row.targets)]
        for first, last in row.trainable:
            trainable_BR[index, first:last] = True
    return TrainBatch(
        tokens=tokens,
        response_mask_BR=torch.from_numpy(response_BR),
        rollout_logprobs_BR=torch.from_numpy(rollout_BR),
        trainable_BR=torch.from_numpy(trainable_BR),
        advantages_B=torch.tensor([row.advantage for row in rows], dtype=torch.float32),
        trajectory_shares_B=torch.tensor([row.trajectory_share for row in rows], dtype=torch.float32),
    )


def placeholder_runs(prompt_ids_P: Sequence[int], token_id: int) -> list[int]:
    """Measure the unbroken runs of a token.

    Args:
        prompt_ids_P: Token ids of a prompt, [P].
        token_id: The token to look for.

    Returns:
        Lengths of the runs, in order.
    """
    return [len(list(run)) for is_image, run in groupby(prompt_ids_P, lambda item: item == token_id) if is_image]


def to_device(tokens: PackedTokens, device: str) -> PackedTokens:
    """Move packed tokens to a device.

    Args:
        tokens: The tokens.
        device: Name of a torch device.

    Returns:
        The same tokens on the device.
    """
    return PackedTokens(
        input_ids_1L=tokens.input_ids_1L.to(device),
        position_ids_31L=tokens.position_ids_31L.to(device),
        segments=tokens.segments,
        predicts_M=tokens.predicts_M.to(device),
        targets_M=tokens.targets_M.to(device),
        temperatures_M=tokens.temperatures_M.to(device),
        pixel_values=None if tokens.pixel_values is None else tokens.pixel_values.to(device),
        image_grid_thw=None if tokens.image_grid_thw is None else tokens.image_grid_thw.to(device),
        shown_images=tokens.shown_images,
    )
