"""The steps of a batch as token streams: one forward pass per stream instead of one per step.

Role: `build_segments` puts steps that continue each other (`dart_agent.data_client.token_stream`) into one segment, `plan_micro_batches`
distributes segments over forward passes and devices by their tokens. Rule: pure functions; a step belongs to exactly one segment and a
segment to exactly one micro-batch. Steps that were left out may lie between two steps of a segment. Non-goals: tensors
(`dart_train.trainer.batches.tensors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dart_agent.data_client.token_stream import continues
from dart_train.trainer.batches.rows import TrainRow

QUESTION_TOKENS = 24
"""Of a question to an action head beside its instruction: turns of the chat and the answer around the pointer token."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps of one trajectory whose prompts continue each other; the last one's prompt and response are the whole stream.

    Attributes:
        rows: The steps in their order.
    """

    rows: tuple[TrainRow, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the stream."""
        last = self.rows[-1].step
        return last.prompt_ids_P + last.token_ids_T

    @property
    def tokens(self) -> int:
        """Length of the stream."""
        last = self.rows[-1].step
        return len(last.prompt_ids_P) + len(last.token_ids_T)

    @property
    def pass_tokens(self) -> int:
        """Tokens of its forward passes: the stream, and for a step that points its last image with a question per target once more.

        That pass is estimated from above, so that nothing has to be tokenised: an image has at most its share of the prompt.
        """
        return self.tokens + sum(_pointing_tokens(row) for row in self.rows if row.targets)


def _pointing_tokens(row: TrainRow) -> int:
    step = row.step
    asked = sum(len(target.instruction.split()) + QUESTION_TOKENS for target in row.targets)
    return len(step.prompt_ids_P) // max(1, len(step.image_sha256)) + asked


def build_segments(rows: Sequence[TrainRow], share_prefixes: bool = True) -> list[Segment]:
    """Put rows that continue each other together.

    Args:
        rows: Rows of a mini-batch, in any order.
        share_prefixes: Whether they are; without it each row is a segment of its own.

    Returns:
        The segments, in the order of their trajectories' first rows.
    """
    trajectories: dict[tuple[str, str], list[TrainRow]] = {}
    for row in rows:
        trajectories.setdefault((row.group_id, row.rollout_id), []).append(row)
    segments: list[Segment] = []
    for members in trajectories.values():
        stream: list[TrainRow] = []
        for row in sorted(members, key=lambda row: row.step.index):
            if stream and not (share_prefixes and continues(row.step, stream[-1].step)):
                segments.append(Segment(tuple(stream)))
                stream = []
            stream.append(row)
        segments.append(Segment(tuple(stream)))
    return segments


def plan_micro_batches(segments: Sequence[Segment], max_tokens: int, ranks: int = 1) -> list[list[Segment]]:
    """Distribute segments over micro-batches whose forward passes have about the same number of tokens.

    Segments keep their order: those of a trajectory, whose prompts show the same images, are in one micro-batch or in neighbouring ones of
    one rank, so that each image is converted once, and its features are computed in few passes. There are as few micro-batches as order and
    limit allow.

    Args:
        segments: The segments.
        max_tokens: Tokens of a micro-batch; a longer segment has one of its own.
        ranks: Devices that work at the same time.

    Returns:
        The micro-batches, a multiple of `ranks`: the one at place i is for rank i modulo `ranks`; fewer than `ranks` of them are empty, but
        all of them are where there is no segment.
    """
    fewest = len(_cut(segments, max_tokens))
    passes = max(1, -(-fewest // ranks))
    too_small, capacity = 0, max_tokens
    while capacity - too_small > 1:
        middle = (too_small + capacity) // 2
        if len(_cut(segments, middle)) <= passes * ranks:
            capacity = middle
        else:
            too_small = middle
    parts = _cut(segments, capacity)
    plan: list[list[Segment]] = [[] for _ in range(passes * ranks)]
    first = 0
    for rank in range(ranks):
        share = len(parts) // ranks + (rank < len(parts) % ranks)
        for number in range(share):
            plan[number * ranks + rank] = parts[first + number]
        first += share
    return plan


def _cut(segments: Sequence[Segment], capacity: int) -> list[list[Segment]]:
    """Neighbouring segments together, as many as the capacity allows and at least one."""
    parts: list[list[Segment]] = []
    free = 0
    for segment in segments:
        if not parts or segment.pass_tokens > free:
            parts.append([])
            free = capacity
        parts[-1].append(segment)
        free -= segment.pass_tokens
    return parts
