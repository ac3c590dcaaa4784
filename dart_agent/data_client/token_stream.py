"""A trajectory as token streams: each token is held once, and a step is a slice of its segment.

Role: `slice_step` cuts a step to what is new in it, `StreamReader` puts the full prompts together again. Rule: a step continues the segment
of the step before when its prompt begins with exactly that step's prompt and answer, and its images with exactly that step's images;
anything else begins a segment. Ids are compared, never tokenised. Non-goals: how prompts come about (`dart_agent.prompts`), rows of a
database (`dart_train.data_manager.store`).

    segment of the steps 2, 3, 4:   [ prompt 2 | answer 2 | new 3 | answer 3 | new 4 | answer 4 ]
    prompt of step 4                [ 0                                            response_start )
    answer of step 4                                                              [ response_start, response_end )
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dart_agent.types import StepRecord

Ids = tuple[int, ...]
ImageHw = tuple[int, int]
PACKED_ID_BYTES = 4
"""Bytes of a packed id: little-endian int32."""


@dataclass(frozen=True, slots=True)
class StepSlice:
    """A step within its segment.

    Attributes:
        segment: Index of the first step of the segment.
        response_start: Where its answer begins in the segment; its prompt is everything before.
        response_end: Where its answer ends.
        prompt_new: Ids of its prompt that the segment does not hold before, [P_new].
        image_sha256_new: Hashes of the images that its prompt shows beside those of the step before.
        image_hw_new: Their heights and widths.
    """

    segment: int
    response_start: int
    response_end: int
    prompt_new: Ids
    image_sha256_new: tuple[str, ...]
    image_hw_new: tuple[ImageHw, ...]


def slice_step(step: StepRecord, before: StepRecord | None, before_segment: int = 0) -> StepSlice:
    """Cut a step to what is new in it.

    Args:
        step: The step.
        before: The step before it in the trajectory, None for the first.
        before_segment: Segment of the step before.

    Returns:
        The slice.
    """
    response_start = len(step.prompt_ids_P)
    response_end = response_start + len(step.token_ids_T)
    if before is None or not continues(step, before):
        return StepSlice(
            step.index, response_start, response_end, step.prompt_ids_P, step.image_sha256, step.image_hw
        )  # fmt: skip
    held, shown = len(before.prompt_ids_P) + len(before.token_ids_T), len(before.image_sha256)
    return StepSlice(
        before_segment,
        response_start,
        response_end,
        step.prompt_ids_P[held:],
        step.image_sha256[shown:],
        step.image_hw[shown:],
    )


def continues(step: StepRecord, before: StepRecord) -> bool:
    """Whether a step continues the stream of the step before it."""
    held = len(before.prompt_ids_P) + len(before.token_ids_T)
    shown = len(before.image_sha256)
    return (
        held > 0
        and len(step.prompt_ids_P) >= held
        and step.prompt_ids_P[: len(before.prompt_ids_P)] == before.prompt_ids_P
        and step.prompt_ids_P[len(before.prompt_ids_P) : held] == before.token_ids_T
        and step.image_sha256[:shown] == before.image_sha256
        and step.image_hw[:shown] == before.image_hw
    )


def slice_steps(steps: Sequence[StepRecord], before: StepRecord | None = None, segment: int = 0) -> list[StepSlice]:
    """Cut consecutive steps of one trajectory.

    Args:
        steps: The steps in order.
        before: The step before the first of them, where they do not begin the trajectory.
        segment: Segment of the step before.

    Returns:
        One slice for each step.
    """
    slices: list[StepSlice] = []
    for step in steps:
        slices.append(slice_step(step, before, segment))
        before, segment = step, slices[-1].segment
    return slices


class StreamReader:
    """Puts the prompts of one trajectory together, step after step from the first on."""

    def __init__(self) -> None:
        self._segment = -1
        self._stream: list[int] = []
        self._hashes: list[str] = []
        self._sizes: list[ImageHw] = []

    def read(self, index: int, cut: StepSlice, token_ids_T: Ids) -> tuple[Ids, tuple[str, ...], tuple[ImageHw, ...]]:
        """Read the next step.

        Args:
            index: Index of the step.
            cut: Its slice.
            token_ids_T: Its answer.

        Returns:
            The full prompt [P], and hashes and sizes of all its images.

        Raises:
            ValueError: The slice does not follow the one before.
        """
        if cut.segment == index:
            self._segment, self._stream, self._hashes, self._sizes = index, [], [], []
        elif cut.segment != self._segment:
            raise ValueError(f"step {index} continues segment {cut.segment}, but the step before is of {self._segment}")
        self._stream.extend(cut.prompt_new)
        self._hashes.extend(cut.image_sha256_new)
        self._sizes.extend(cut.image_hw_new)
        prompt = tuple(self._stream)
        self._stream.extend(token_ids_T)
        if (len(prompt), len(self._stream)) != (cut.response_start, cut.response_end):
            raise ValueError(
                f"step {index} answers at [{cut.response_start}, {cut.response_end}) of its segment, "
                f"but its tokens are at [{len(prompt)}, {len(self._stream)})"
            )
        return prompt, tuple(self._hashes), tuple(self._sizes)


@dataclass(frozen=True, slots=True)
class PackedSlice:
    """A step within its segment, as it is stored. Ids are packed as little-endian int32.

    Attributes:
        segment: Index of the first step of the segment.
        response_start: Where its answer begins in the segment, in tokens.
        response_end: Where its answer ends.
        prompt_new: Packed ids of its prompt that the segment does not hold before.
        token_ids: Packed ids of its answer.
        image_sha256_new: Hashes of the images that its prompt shows beside those of the step before.
        image_hw_new: Their heights and widths.
    """

    segment: int
    response_start: int
    response_end: int
    prompt_new: bytes
    token_ids: bytes
    image_sha256_new: Sequence[str]
    image_hw_new: Sequence[Sequence[int]]


class PackedStreamReader:
    """`StreamReader` over packed ids: the same prompts, without an object per token."""

    def __init__(self) -> None:
        self._segment = -1
        self._stream = bytearray()
        self._hashes: list[str] = []
        self._sizes: list[ImageHw] = []

    def read(self, index: int, cut: PackedSlice) -> tuple[bytes, list[str], list[ImageHw]]:
        """Read the next step.

        Args:
            index: Index of the step.
            cut: Its slice.

        Returns:
            The packed ids of the full prompt, and hashes and sizes of all its images.

        Raises:
            ValueError: The slice does not follow the one before.
        """
        if cut.segment == index:
            self._segment, self._stream, self._hashes, self._sizes = index, bytearray(), [], []
        elif cut.segment != self._segment:
            raise ValueError(f"step {index} continues segment {cut.segment}, but the step before is of {self._segment}")
        self._stream += cut.prompt_new
        self._hashes.extend(cut.image_sha256_new)
        self._sizes.extend((height, width) for height, width in cut.image_hw_new)
        prompt = bytes(self._stream)
        self._stream += cut.token_ids
        begin, end = len(prompt) // PACKED_ID_BYTES, len(self._stream) // PACKED_ID_BYTES
        if (begin, end) != (cut.response_start, cut.response_end):
            raise ValueError(
                f"step {index} answers at [{cut.response_start}, {cut.response_end}) of its segment, but its tokens are at "
                f"[{begin}, {end})"
            )
        return prompt, list(self._hashes), list(self._sizes)
