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

    The longest segment goes first, each to the micro-batch with the fewest tokens. There are as few micro-batches as the limit allows.

    Args:
        segments: The segments.
        max_tokens: Tokens of a micro-batch; a longer segment has one of its own.
        ranks: Devices that work at the same time.

    Returns:
        The micro-batches, a multiple of `ranks`, those with most tokens first; fewer than `ranks` of them are empty, but all of them are
        where there is no segment.
    """
    longest_first = sorted(segments, key=lambda segment: -segment.pass_tokens)
    count = -(-sum(segment.pass_tokens for segment in segments) // max_tokens)
    count = max(1, -(-count // ranks)) * ranks
    while True:
        parts: list[list[Segment]] = [[] for _ in range(count)]
        sizes = [0] * count
        for segment in longest_first:
            least = sizes.index(min(sizes))
            parts[least].append(segment)
            sizes[least] += segment.pass_tokens
        if all(size <= max_tokens or len(part) == 1 for size, part in zip(sizes, parts, strict=True)):
            order = sorted(range(count), key=lambda index: -sizes[index])
            needed = max(1, -(-min(count, len(segments)) // ranks)) * ranks
            return [parts[index] for index in order[:needed]]
        count += ranks
