"""Metrics: compare what a getter read with what is expected.

Role: `METRICS[func](result, expected, options)` returns a reward in [0, 1]; one module per kind of thing compared, each with a table of its
own, put together here. Rule: pure; two modules never serve the same name. Non-goals: reading desktops.
"""

from __future__ import annotations

from collections.abc import Mapping

from dart_envs.evaluators.metrics import media, office, osworld, system, text
from dart_envs.evaluators.metrics.base import Metric
from dart_envs.evaluators.metrics.osworld import OSWORLD_EQUIVALENT_GETTERS, OSWORLD_EQUIVALENT_METRICS

__all__ = ["METRICS", "OSWORLD_EQUIVALENT_GETTERS", "OSWORLD_EQUIVALENT_METRICS", "Metric"]

METRICS: Mapping[str, Metric] = {
    **text.METRICS,
    **osworld.METRICS,
    **media.METRICS,
    **office.METRICS,
    **system.METRICS,
}
