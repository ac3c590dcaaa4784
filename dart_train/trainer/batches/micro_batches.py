"""The forward passes of a mini-batch: which rows each has, on which rank.

Role: `MicroBatches.of` plans segments over passes and ranks and makes each pass's tensors. Rule: every rank has equally many passes,
because each exchanges parameters; a failure on one rank is raised on all; while a pass runs, a thread reads and converts the images of the
next one. Non-goals: losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from dart_agent.data_client.image_store import BlobError, ImageReader
from dart_agent.errors import StoreUnavailableError
from dart_train.model.pointing_model import PointingModel
from dart_train.model.policy_model import LoadedModel
from dart_train.trainer.batches.image_patches import ImagePatches
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.segments import Segment, build_segments, plan_micro_batches
from dart_train.trainer.batches.tensors import BatchError, BatchMaker
from dart_train.trainer.ranks import Ranks

if TYPE_CHECKING:
    from dart_train.types import TrainBatch


class MicroBatches:
    """Makes micro-batches for one model.

    Args:
        loaded: The model and its processor.
        images: Where the images of rows are stored.
        max_tokens: Tokens per forward and backward pass; a longer token stream has a pass of its own.
        ranks: The processes that train together.
        share_prefixes: Whether steps that continue each other share a token stream.
        image_cache_bytes: Bytes of converted images that are kept.
        bfloat16: Whether matrix products are computed in bfloat16.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        images: ImageReader,
        max_tokens: int,
        ranks: Ranks,
        *,
        image_cache_bytes: int,
        share_prefixes: bool = True,
        bfloat16: bool = False,
    ) -> None:
        parts = loaded.head.offset_parts if isinstance(loaded, PointingModel) else None
        patches = ImagePatches(images, loaded.processor, image_cache_bytes, bfloat16=bfloat16)
        self._batches = BatchMaker(loaded.model, loaded.processor, images, parts, patches)
        self._max_tokens = max_tokens
        self._ranks = ranks
        self._share_prefixes = share_prefixes

    def of(self, rows: Sequence[TrainRow]) -> Iterator[tuple[list[TrainRow], TrainBatch]]:
        """Make this rank's micro-batches of some rows.

        Args:
            rows: Rows of a mini-batch, the same on every rank.

        Yields:
            The rows of a pass in their order, and their tensors; a last pass that has no rows trains nothing.

        Raises:
            BatchError: A row cannot be trained on as it was sampled; on every rank.
            BlobError: An image is missing or damaged; on the rank that reads it.
            StoreUnavailableError: The storage of images does not answer; on every rank.
        """
        plan = self._plan(rows)
        own = plan[self._ranks.rank :: self._ranks.size]
        shortest = min((segment for part in plan for segment in part), key=lambda segment: segment.tokens, default=None)
        # a pass without rows trains nothing, and any segment will do
        shown = [part or [shortest] for part in own if shortest is not None]
        with ThreadPoolExecutor(1, "next-micro-batch") as ahead:
            following = ahead.submit(self._make, shown[0]) if shown else None
            for number, part in enumerate(own):
                assert following is not None, "there is a segment where there is a pass"
                batch, failure = following.result()
                failures = [each for each in self._ranks.gather(failure) if each is not None]
                away = next((each for each in failures if isinstance(each, StoreUnavailableError)), None)
                if away is not None:
                    raise away
                if batch is None or failures:
                    raise failure or BatchError(str(failures[0]))
                if number + 1 < len(own):
                    following = ahead.submit(self._make, shown[number + 1])
                if not part:
                    batch = replace(batch, trainable_BR=batch.trainable_BR & False)
                yield [row for segment in part for row in segment.rows], batch

    def passes(self, rows: Sequence[TrainRow]) -> list[list[TrainRow]]:
        """Tell which rows are computed at the same time, on all ranks.

        Args:
            rows: Rows of a mini-batch, the same on every rank.

        Returns:
            The rows of each pass.
        """
        plan, size = self._plan(rows), self._ranks.size
        return [
            [row for part in plan[start : start + size] for segment in part for row in segment.rows]
            for start in range(0, len(plan), size)
        ]

    def _plan(self, rows: Sequence[TrainRow]) -> list[list[Segment]]:
        segments = build_segments(rows, self._share_prefixes)
        return plan_micro_batches(segments, self._max_tokens, self._ranks.size) if segments else []

    def _make(
        self, part: Sequence[Segment]
    ) -> tuple[TrainBatch | None, BatchError | BlobError | StoreUnavailableError | None]:
        """The tensors of a pass, or why there are none."""
        try:
            return self._batches.make(part), None
        except (BatchError, BlobError, StoreUnavailableError) as error:
            return None, error
