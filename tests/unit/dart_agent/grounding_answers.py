"""Answers about elements, made up: attention on one cell, fixed grounders and verifiers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from dart_agent.grounding.forward import QuestionOutput  # noqa: E402
from dart_agent.grounding.grounder import Grounder, GroundingAnswer, TargetAnswer  # noqa: E402
from dart_agent.grounding.head import ActionHead  # noqa: E402
from dart_agent.grounding.labels import PatchGrid  # noqa: E402
from dart_agent.grounding.regions import find_regions, verifier_pool  # noqa: E402
from dart_agent.grounding.verifier import (  # noqa: E402
    Verifier,
)

GRID = PatchGrid(4, 2, (128, 64))


def answer_at(cell: int, grid: PatchGrid = GRID, targets: int = 1, refusal: float = 0.0) -> GroundingAnswer:
    """An answer whose attention is on one cell, with a weaker second one."""
    attention = np.full(grid.cells, 0.01)
    attention[cell], attention[(cell + 2) % grid.cells] = 0.6, 0.25
    points = np.array([grid.centre(number) for number in range(grid.cells)])
    regions = tuple(find_regions(attention, grid))
    located = TargetAnswer(attention, points, regions, tuple(verifier_pool(attention, grid)))
    return GroundingAnswer(grid, (located,) * targets, refusal)


class FixedGrounder(Grounder):
    """Says the same of every question, and keeps what it was asked."""

    def __init__(self, cell: int = 1, refusal: float = 0.0) -> None:
        self.cell, self.refusal = cell, refusal
        self.asked: list[tuple[Any, list[str]]] = []

    def ask(self, image: Any, instructions: Any, targets: int = 1) -> list[GroundingAnswer]:
        self.asked.append((image, list(instructions)))
        grid = PatchGrid(4, 2, (image.shape[1], image.shape[0]))
        return [answer_at(self.cell, grid, targets, self.refusal) for _ in instructions]


class FixedVerifier(Verifier):
    """Prefers the candidate nearest to a point."""

    def __init__(self, wanted: tuple[float, float]) -> None:
        object.__setattr__(self, "wanted", wanted)

    def scores(self, image: Any, instruction: str, points: Any) -> list[float]:
        wanted = self.wanted  # type: ignore[attr-defined]
        return [0.7 / (1 + abs(x - wanted[0]) + abs(y - wanted[1])) for x, y in points]


def random_output(parts: int = 3) -> tuple[ActionHead, QuestionOutput]:
    torch.manual_seed(2)
    head = ActionHead(16, parts).double().eval()
    if head.offset is not None:
        torch.nn.init.normal_(head.offset.key.weight)
    context, pointers = torch.randn(8, 16).double(), torch.randn(2, 16).double()
    return head, QuestionOutput(GRID, head.attend(context, pointers) * 5, context, pointers)
