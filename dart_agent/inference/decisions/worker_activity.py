"""What the inference workers did since they were last asked.

Role: `activity_line` makes the metric line of kind `workers` from two answers of each worker. Rule: pure; a worker that does not answer is
down, and one that was started again was down until then. Non-goals: asking (`dart_agent.inference.component`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dart_agent.inference.wire import WorkerHealth


def activity_line(
    before: Mapping[str, WorkerHealth], now: Mapping[str, WorkerHealth | None], window_s: float
) -> dict[str, Any]:
    """Describe a window.

    Args:
        before: What each worker said at its begin; one that did not answer is missing.
        now: What each says at its end; None: it does not answer.
        window_s: Its length.

    Returns:
        `window_s`, and by worker the seconds in which it was `serving`, `updating` and `down`; for the rest it was idle.
    """
    return {
        "window_s": round(window_s, 4),
        "workers": {name: _seconds(before.get(name), now[name], window_s) for name in now},
    }


def _seconds(before: WorkerHealth | None, now: WorkerHealth | None, window_s: float) -> dict[str, float]:
    if now is None:
        return {"serving": 0.0, "updating": 0.0, "down": round(window_s, 4)}
    same = before if before is not None and before.pid == now.pid else None
    up_s = min(window_s, now.up_s - (same.up_s if same else 0.0))
    serving_s = min(up_s, now.serving_s - (same.serving_s if same else 0.0))
    updating_s = min(up_s - serving_s, now.updating_s - (same.updating_s if same else 0.0))
    # Of one that answered both times, the rest is the difference of two ways to its clock.
    down_s = 0.0 if same else window_s - up_s
    return {"serving": round(serving_s, 4), "updating": round(updating_s, 4), "down": round(down_s, 4)}
