"""Staleness gate: which tokens of a response are fresh enough to train on.

Role: the only formula, staleness of a token = trainer version - version that sampled it, and its limit. Rule: per token, from the version
spans of the engine; a token without a known version is never trained on. The trajectory of an excluded token still counts in the baseline
of its group; a token of a lost future (`lineage`) is never fresh. Source: version spans of vLLM's completions; the limit per token is the
strict form of AReaL's and DART's limits per group.
Non-goals: correcting what passes (truncated importance sampling in `dart_train.objectives.corrections`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

Span = tuple[int, int, int]
"""version, start, end"""
WithheldReason = Literal["stale", "lost_future"]


def trainable_ranges(
    spans: Iterable[Span], trainer_version: int, max_staleness: int, lost: Collection[int] = ()
) -> list[tuple[int, int]]:
    """Select the token ranges [start, end) with 0 <= staleness <= `max_staleness`.

    A version above the trainer's own comes from before a restart of the trainer from an older checkpoint; it is not trained on either.

    Args:
        spans: Version spans of a response.
        trainer_version: The present version of the trainer.
        max_staleness: The limit.
        lost: Versions that are no ancestors of the trainer's weights.

    Returns:
        The ranges; neighbouring ones are joined.
    """
    ranges: list[tuple[int, int]] = []
    for version, start, end in spans:
        if version in lost or not 0 <= trainer_version - version <= max_staleness:
            continue
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


def withheld_reason(spans: Iterable[Span], trainer_version: int, lost: Collection[int]) -> WithheldReason:
    """Say why no token of a response is trained on.

    Args:
        spans: Version spans of a response without trainable ranges.
        trainer_version: The present version of the trainer.
        lost: Versions that are no ancestors of the trainer's weights.

    Returns:
        `lost_future` where a version of it was lost, else `stale`.
    """
    return "lost_future" if any(span[0] in lost or span[0] > trainer_version for span in spans) else "stale"


def token_staleness(spans: Iterable[Span], trainer_version: int) -> list[int]:
    """Compute the staleness of every token.

    Args:
        spans: Version spans of a response.
        trainer_version: The present version of the trainer.

    Returns:
        Staleness per token, in the order of the spans.
    """
    return [trainer_version - version for version, start, end in spans for _ in range(start, end)]
