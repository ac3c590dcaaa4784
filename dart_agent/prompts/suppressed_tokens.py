"""Tokens that a policy may read but never write.

Role: `suppressed_token_ids`, used by the engine (they are never sampled) and by the trainer (they have no probability). Rule: both sides
use this one list; otherwise a sampled image place holder would make the trainer look for an image that is not there, and the two would
disagree about every other token's log-prob. Non-goals: special tokens that end a turn.
"""

from __future__ import annotations

from typing import Any

_NAMES = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def suppressed_token_ids(config: Any) -> tuple[int, ...]:
    """Ids of the vision place holders of a model, from its Hugging Face configuration, ascending."""
    found = (getattr(config, name, None) for name in _NAMES)
    return tuple(sorted({token for token in found if isinstance(token, int)}))
