"""When a screen has settled: the rule, with the clock and the screen put in.

Role: wait until input was read and then nothing was drawn for a set time.
Rule: counted from the last input event; never past the cap; no clock of its own.
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


def wait_until_settled(screen: Screen, wanted: Settle, monotonic: Callable[[], float]) -> tuple[bool, float]:
    """Returns (settled, waited ms). `settled` is False when the cap cut the wait."""
    start_s = monotonic()
    last_damage_s = start_s
    read_s: float | None = None
    while True:
        if read_s is None and screen.input_read():
            read_s = monotonic()
        now_s = monotonic()
        quiet_at_s = math.inf
        if read_s is not None:
            quiet_at_s = max(last_damage_s + wanted.quiet_ms / 1000, read_s + wanted.quiet_ms / 1000)
            quiet_at_s = max(quiet_at_s, start_s + wanted.min_ms / 1000)
        cap_at_s = start_s + wanted.cap_ms / 1000
        if now_s >= quiet_at_s:
            return True, (now_s - start_s) * 1000
        if now_s >= cap_at_s:
            return False, (now_s - start_s) * 1000
        if screen.wait_for_damage(min(quiet_at_s, cap_at_s) - now_s):
            last_damage_s = monotonic()
