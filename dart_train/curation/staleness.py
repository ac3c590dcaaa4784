"""Staleness gate: which tokens of a response are fresh enough to train on.

Role: the one formula, staleness of a token = trainer version - version that wrote it, and the one bound. Rule: per token, from the
engine's version spans; a token without a known version never trains. A withheld token's trajectory still counts in the baseline of its
group. Source: version spans of vLLM's completions; the per-token bound is the strict form of AReaL's and DART's per-group bounds.
Non-goals: correcting what passes (truncated importance sampling in `dart_train.trainer.loss`).
"""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int, int]
"""version, start, end"""


def trainable_ranges(spans: Iterable[Span], trainer_version: int, max_staleness: int) -> list[tuple[int, int]]:
    """Token ranges [start, end) with 0 <= staleness <= `max_staleness`; neighbours are joined.

    A version above the trainer's own is a lost future (the trainer resumed from an older checkpoint): it does not train either.
    """
    ranges: list[tuple[int, int]] = []
    for version, start, end in spans:
        if not 0 <= trainer_version - version <= max_staleness:
            continue
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return ranges


def token_staleness(spans: Iterable[Span], trainer_version: int) -> list[int]:
    """Staleness of every token, in order of the spans."""
    return [trainer_version - version for version, start, end in spans for _ in range(start, end)]
