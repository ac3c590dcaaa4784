"""Easing curves of pointer movements: pytweening's names, a share of the time in, a share of the way out.

Role: the curves that pyautogui hands on. Rule: pure functions of [0, 1]; formulas are R. Penner's easing equations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Tween = Callable[[float], float]

BOUNCE = 7.5625
ELASTIC_PERIOD = 0.3


def linear(n: float) -> float:
    """Evenly."""
    return n


def easeInPower(power: int) -> Tween:
    """Slow at first, by a power of the time."""
    return lambda n: math.pow(n, power)


def mirrored(curve: Tween) -> Tween:
    """The same curve backwards: fast at first."""
    return lambda n: 1.0 - curve(1.0 - n)


def both(curve: Tween) -> Tween:
    """The curve for the first half of the way, backwards for the second."""
    return lambda n: curve(2 * n) / 2 if n < 0.5 else 1.0 - curve(2 * (1.0 - n)) / 2


def easeOutBounce(n: float) -> float:
    """Bounces at the end."""
    for start, centre, floor in ((1 / 2.75, 0.0, 0.0), (2 / 2.75, 1.5 / 2.75, 0.75), (2.5 / 2.75, 2.25 / 2.75, 0.9375)):
        if n < start:
            return BOUNCE * (n - centre) * (n - centre) + floor
    return BOUNCE * (n - 2.625 / 2.75) * (n - 2.625 / 2.75) + 0.984375


def easeOutElastic(n: float) -> float:
    """Swings past the end and back."""
    if n in (0.0, 1.0):
        return n
    return math.pow(2.0, -10 * n) * math.sin((n - ELASTIC_PERIOD / 4) * 2 * math.pi / ELASTIC_PERIOD) + 1.0


easeInQuad, easeInCubic, easeInQuart, easeInQuint = (easeInPower(power) for power in (2, 3, 4, 5))
easeOutQuad, easeOutCubic, easeOutQuart, easeOutQuint = (
    mirrored(curve) for curve in (easeInQuad, easeInCubic, easeInQuart, easeInQuint)
)
easeInOutQuad, easeInOutCubic, easeInOutQuart, easeInOutQuint = (
    both(curve) for curve in (easeInQuad, easeInCubic, easeInQuart, easeInQuint)
)
easeInBounce, easeInElastic = mirrored(easeOutBounce), mirrored(easeOutElastic)
easeInOutBounce, easeInOutElastic = both(easeInBounce), both(easeInElastic)


def easeInSine(n: float) -> float:
    """Slow at first, by a quarter of a cosine."""
    return 1.0 - math.cos(n * math.pi / 2)


easeOutSine, easeInOutSine = mirrored(easeInSine), both(easeInSine)
