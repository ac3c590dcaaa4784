"""A simulated multimodal model for the benchmark of exploration: it reads the question's text as a model would, and knows no page.

Role: `SimulatedModel` answers the questions of `dart_agent.explore.model_chooser`. Rule: it sees only the text of the question. To each
row it gives points: the Q-value where the row has one; -1 where one of the latest steps says that the same was without effect or left; -1
for names that sound like leaving; noise. It names the row with the most. Non-goals: how good a real model is at choosing.
"""

from __future__ import annotations

import json
import random
import re

from dart_agent.types import Completion, FinishReason, PolicyRequest

_ROW = re.compile(r"^\[(\d+)\] ([^;]*)(?:; Q=(-?[\d.]+))?")
_HISTORY = re.compile(r"^- (.*) on screen \d+: (?:no change|left)")
_LEAVING = re.compile(r"'(Close|Quit|Exit)")
NOISE = 0.1


class SimulatedModel:
    """Answers in no time.

    Args:
        seed: Of its noise.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"simulated model {seed}")

    async def complete(self, request: PolicyRequest) -> Completion:
        """Name the row with the most points."""
        lines = str(request.messages[1]["content"][-1]["text"]).splitlines()
        useless = {found[1] for line in lines if (found := _HISTORY.match(line))}
        points: dict[int, float] = {}
        for line in lines:
            if found := _ROW.match(line):
                value = float(found[3]) if found[3] else 0.0
                blame = (found[2] in useless) + bool(_LEAVING.search(found[2]))
                points[int(found[1])] = value - blame + self._rng.gauss(0, NOISE)
        choice = json.dumps({"choice": max(points, key=lambda number: points[number])})
        return Completion(choice, (), (), (), (), FinishReason.STOP)
