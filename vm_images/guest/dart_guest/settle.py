"""When a screen has settled: the rule, with the clock and the damage source put in.

Role: wait until nothing was drawn for a set time.
Rule: counted from the last input event; never past the cap; no clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dart_guest.events import Settle


class DamageSource(Protocol):
    """Tells of drawing on the screen."""

    def wait_for_damage(self, timeout_s: float) -> bool:
        """Block up to `timeout_s`; True as soon as something was drawn, False when nothing was."""


def wait_until_settled(source: DamageSource, wanted: Settle, monotonic: Callable[[], float]) -> tuple[bool, float]:
    """Returns (settled, waited ms). `settled` is False when the cap cut the wait."""
    start_s = monotonic()
    last_damage_s = start_s
    while True:
        now_s = monotonic()
        quiet_at_s = max(last_damage_s + wanted.quiet_ms / 1000, start_s + wanted.min_ms / 1000)
        cap_at_s = start_s + wanted.cap_ms / 1000
        if now_s >= quiet_at_s:
            return True, (now_s - start_s) * 1000
        if now_s >= cap_at_s:
            return False, (now_s - start_s) * 1000
        if source.wait_for_damage(min(quiet_at_s, cap_at_s) - now_s):
            last_damage_s = monotonic()
