"""When a screen has settled: the rule, with the clock and the screen put in.

Role: wait until input was read and then nothing was drawn for a set time; have the picture taken while that time runs.
Rule: counted from the last input event; never past the cap; no clock of its own; a picture counts only when nothing was drawn since.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from dart_guest.events import Settle


class Screen(Protocol):
    """Tells of drawing on the screen and of input that was read."""

    def input_read(self) -> bool:
        """Whether the programs that the input went to have read it; from then on always True."""

    def wait_for_damage(self, timeout_s: float) -> bool:
        """Block up to `timeout_s`; True as soon as something was drawn, False when nothing was or the input was read meanwhile."""


class Picture(Protocol):
    """The step's picture, which may be taken before the quiet time is over."""

    def cost_s(self) -> float:
        """How long taking it is expected to last."""

    def take(self) -> None:
        """Take it now, when all damage so far has been told."""

    def spoil(self) -> None:
        """Something was drawn since it was taken."""


AHEAD = 3.0
"""A picture is taken this many times its cost before the end of the quiet time, so that it can also be sent by then."""

LONGEST_SHARE, DEAREST_SHARE = 0.75, 0.6
"""Of the quiet time: how early a picture may be taken, and how much it may cost; one that costs more is taken at the end."""


def wait_until_settled(
    screen: Screen, wanted: Settle, monotonic: Callable[[], float], picture: Picture | None = None
) -> tuple[bool, float]:
    """Returns (settled, waited ms). `settled` is False when the cap cut the wait."""
    quiet_s = wanted.quiet_ms / 1000
    start_s = monotonic()
    last_damage_s = start_s
    read_s: float | None = None
    taken = False
    cost_s = picture.cost_s() if picture is not None else math.inf
    lead_s = min(AHEAD * cost_s, LONGEST_SHARE * quiet_s) if cost_s <= DEAREST_SHARE * quiet_s else math.inf
    while True:
        if read_s is None and screen.input_read():
            read_s = monotonic()
        now_s = monotonic()
        quiet_at_s = math.inf
        if read_s is not None:
            quiet_at_s = max(last_damage_s, read_s) + quiet_s
            quiet_at_s = max(quiet_at_s, start_s + wanted.min_ms / 1000)
        cap_at_s = start_s + wanted.cap_ms / 1000
        if now_s >= quiet_at_s:
            return True, (now_s - start_s) * 1000
        if now_s >= cap_at_s:
            return False, (now_s - start_s) * 1000
        wake_s = min(quiet_at_s, cap_at_s)
        if picture is not None and not taken and read_s is not None and lead_s < math.inf:
            wake_s = min(wake_s, quiet_at_s - lead_s)
            if now_s >= wake_s:
                picture.take()
                taken = True
        if screen.wait_for_damage(max(wake_s - now_s, 0.0)):
            last_damage_s = monotonic()
            if picture is not None and taken:
                picture.spoil()
                taken = False
