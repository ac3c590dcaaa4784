"""How much of an answer from a desktop is read, by route: its bytes, and what its JSON may hold.

Rule: every call into a desktop names one of these; nothing is read without. A limit is a few times what an honest agent sends at most, and
small enough that parsing it holds no other desktop up. Non-goals: reading and deadlines (`guest.client`), the JSON scanner
(`wire.guest_answers`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dart_server.wire.guest_answers import JsonLimit

KIB, MIB = 1024, 1024**2
FRAME_ROOM, PIXEL_NBYTES = MIB, 4
"""Bytes of a frame beside its pixels, and of one pixel: a picture file of noise is a little larger than the pixels."""
LARGEST_FRAME_NBYTES = 256 * MIB
"""Where the size of the screen is not known: more than a raw 8K screen."""


@dataclass(frozen=True, slots=True)
class AnswerLimit:
    """What is read of one kind of answer.

    Attributes:
        nbytes: Bytes of the body.
        depth: Objects and arrays inside each other; 0 where the body is not JSON.
        values: Values and keys of the JSON.
    """

    nbytes: int
    depth: int = 0
    values: int = 0

    @property
    def json(self) -> JsonLimit:
        """What is parsed of the body."""
        return JsonLimit(self.nbytes, self.depth, self.values)


HEALTH = AnswerLimit(64 * KIB, depth=6, values=2_000)
CLOCK = AnswerLimit(4 * KIB, depth=2, values=16)
ERROR = AnswerLimit(64 * KIB, depth=4, values=256)
EXEC = AnswerLimit(20 * MIB, depth=2, values=64)
"""Two streams of 8 MiB with their escapes."""
A11Y = AnswerLimit(8 * MIB, depth=6, values=600_000)
OSWORLD_TREE = AnswerLimit(32 * MIB, depth=2, values=16)
"""OSWorld's tree: XML in one text."""
FILE = AnswerLimit(256 * MIB)
PASSED_THROUGH = AnswerLimit(256 * MIB)


def frame_limit(screen: tuple[int, int] | None) -> AnswerLimit:
    """Bytes that a frame or a picture of a screen (width, height) in pixels can have; an agent that sends more is not ours."""
    if screen is None:
        return AnswerLimit(LARGEST_FRAME_NBYTES)
    width, height = screen
    return AnswerLimit(FRAME_ROOM + PIXEL_NBYTES * width * height)
