"""Which figures of a metrics file are scalars over a step.

Role: `ScalarFilter` turns lines of `metrics.jsonl` into `ScalarLine`s. Rule: a pure function of the lines from the first on, so that
whoever reads the file again gets the same ones; the step of a kind only rises, so that no step comes twice. Non-goals: reading the file,
single episodes and weight updates (the report and `dart-train watch` show them).

    kind         step                  from
    reading      pages seen            the warm start: the vision tower learns to read
    warmup       images seen           the warm start: the policy learns to answer
    sft          updates               `dart-train sft`
    update       policy version        the trainer, one line per train step
    evaluation   policy version        evaluation during training
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STEP_KEYS = {"reading": "pages", "warmup": "images", "sft": "update", "update": "version", "evaluation": "version"}
"""The field that is the step, by kind."""
NOT_SCALARS = frozenset({"kind", "time_s"})


@dataclass(frozen=True, slots=True)
class ScalarLine:
    """The scalars of one line.

    Attributes:
        index: How many lines with scalars are before it.
        kind: Its kind.
        step: Its step.
        time_s: When it was written, in seconds since the epoch; of a line that does not tell, the time of the line before.
        values: Scalars by name, `KIND/FIGURE`.
    """

    index: int
    kind: str
    step: int
    time_s: float
    values: Mapping[str, float]


class ScalarFilter:
    """Reads lines in their order."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._time_s = 0.0
        self._count = 0

    def read(self, line: Mapping[str, Any]) -> ScalarLine | None:
        """Read the next line.

        Args:
            line: The line.

        Returns:
            Its scalars, None where it has none, or its step is not above the last one of its kind.
        """
        self._time_s = _number(line.get("time_s")) or self._time_s
        kind = str(line.get("kind"))
        step = _number(line.get(STEP_KEYS.get(kind, "")))
        if step is None or int(step) <= self._steps.get(kind, -1):
            return None
        numbers = {name: _number(value) for name, value in line.items() if name not in NOT_SCALARS}
        values = {f"{kind}/{name}": number for name, number in numbers.items() if number is not None}
        self._steps[kind] = int(step)
        self._count += 1
        return ScalarLine(self._count - 1, kind, int(step), self._time_s, values)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
