"""Which split a task is in: fixed by the hash of its id, for ever.

Role: one function. Rule: it depends on the id and on whether the family is held out, on nothing else, so that adding
variations never moves one. Non-goals: what a split may be used for (the store refuses test tasks as training data).
"""

from __future__ import annotations

import hashlib

from dart_envs.tasks.model import Split

VALIDATION_THRESHOLD = 0.70
TEST_THRESHOLD = 0.85


def hash_fraction(task_id: str) -> float:
    """A number in [0, 1) that an id always has: the first 8 bytes of its sha256, as a fraction."""
    return int.from_bytes(hashlib.sha256(task_id.encode("utf-8")).digest()[:8], "big") / 2**64


def task_split(task_id: str, *, held_out: bool = False) -> Split:
    """The split of a task: 70 % train, 15 % validation, 15 % test; families that are held out are test as a whole."""
    share = hash_fraction(task_id)
    if held_out or share >= TEST_THRESHOLD:
        return Split.TEST
    return Split.VALIDATION if share >= VALIDATION_THRESHOLD else Split.TRAIN
