"""The distribution over points that the head gives, its samples and their log-probs.

Role: `PointDistribution` of one target: first a visual token, then a part of its cell. Rule: log p(point) = log a(cell) +
log o(part | cell), both under softmax(logits / temperature); a head without offsets has one part, the middle of the cell, with
probability 1. A policy's sample and the trainer's recomputation use this one class, so that they agree on equal weights; the logits may
come from a head in this process (`of_head`) or from an inference worker. The choice without a draw is the part that holds the best region's
point, so that a policy at temperature 0 and `dart_agent.grounding.grounder` point at the same place. Non-goals: how regions are found
(`dart_agent.grounding.regions`).
Axes: M visual tokens, P parts of a cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dart_agent.grounding.forward import QuestionOutput
from dart_agent.grounding.head import ActionHead
from dart_agent.grounding.labels import Floats, PatchGrid
from dart_agent.grounding.regions import find_regions
from dart_agent.grounding.scoring import Point


@dataclass(frozen=True, slots=True)
class PointChoice:
    """A sampled point.

    Attributes:
        cell: Index of the visual token, row by row.
        part: Index of the part of its cell, row by row; 0 without offsets.
    """

    cell: int
    part: int


class PointDistribution:
    """Where one target lies, according to the head.

    Args:
        grid: Visual tokens of the image.
        logits_M: Logits over them.
        parts: Parts per side of a cell.
        part_logits: Gives the logits over the parts [N, P] of cells with the indices [N]; None: a cell has one part.
        temperature: Divides the logits.

    Attributes:
        parts: As given.
    """

    def __init__(
        self,
        grid: PatchGrid,
        logits_M: Tensor,
        *,
        parts: int = 1,
        part_logits: Callable[[Tensor], Tensor] | None = None,
        temperature: float = 1.0,
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"the temperature of a point distribution is above 0, not {temperature}")
        self.parts = parts
        self._grid, self._part_logits, self._temperature = grid, part_logits, temperature
        self.log_attention_M = F.log_softmax(logits_M / temperature, dim=-1)

    @classmethod
    def of_head(
        cls, head: ActionHead, output: QuestionOutput, target: int = 0, temperature: float = 1.0
    ) -> PointDistribution:
        """The distribution of a head in this process.

        Args:
            head: The head.
            output: What it said to the question.
            target: Index of the target.
            temperature: Divides the logits.

        Returns:
            The distribution.
        """

        def part_logits(cells_N: Tensor) -> Tensor:
            pointers_ND = output.pointers_KD[target].expand(len(cells_N), -1)
            return head.offset_logits(output.context_MD[cells_N], pointers_ND)

        return cls(
            output.grid,
            output.logits_KM[target],
            parts=head.offset_parts,
            part_logits=None if head.offset is None else part_logits,
            temperature=temperature,
        )

    def log_parts(self, cells_N: Tensor) -> Tensor:
        """Log-probs of the parts of some cells.

        Args:
            cells_N: Indices of the cells.

        Returns:
            Log-probs [N, P].
        """
        if self._part_logits is None:
            return torch.zeros(len(cells_N), 1, device=cells_N.device)
        return F.log_softmax(self._part_logits(cells_N) / self._temperature, dim=-1)

    def logprob(self, choice: PointChoice) -> Tensor:
        """Log-prob of a point, with its gradient.

        Args:
            choice: The point.

        Returns:
            Nats; a scalar.
        """
        cell_1 = torch.tensor([choice.cell], device=self.log_attention_M.device)
        return self.log_attention_M[choice.cell] + self.log_parts(cell_1)[0, choice.part]

    def entropy(self) -> Tensor:
        """Entropy of the joint distribution of cell and part.

        Returns:
            Nats; a scalar.
        """
        attention_M = self.log_attention_M.exp()
        log_parts_MP = self.log_parts(torch.arange(len(attention_M), device=attention_M.device))
        within_M = -(log_parts_MP.exp() * log_parts_MP).sum(dim=1)
        return (attention_M * (within_M - self.log_attention_M)).sum()

    def sample(self, generator: torch.Generator) -> PointChoice:
        """Draw a point.

        Args:
            generator: Source of randomness.

        Returns:
            The point.
        """
        cell = int(torch.multinomial(self.log_attention_M.detach().exp(), 1, generator=generator))
        log_parts_P = self.log_parts(torch.tensor([cell], device=self.log_attention_M.device))[0]
        return PointChoice(cell, int(torch.multinomial(log_parts_P.detach().exp(), 1, generator=generator)))

    def best(self) -> PointChoice:
        """Choose a point without a draw.

        Returns:
            The part that holds the best region's point, scored by its mean attention; it need not be the likeliest part.
        """
        grid, parts = self._grid, self.parts
        x, y = find_regions(self.attention(), grid, points_M2=self.expected_points())[0].point
        width, height = grid.cell_wh
        across = min(max(0, int(x * parts / width)), grid.columns * parts - 1)
        down = min(max(0, int(y * parts / height)), grid.rows * parts - 1)
        return PointChoice(
            down // parts * grid.columns + across // parts,
            down % parts * parts + across % parts,
        )

    def attention(self) -> Floats:
        """Attention over the visual tokens.

        Returns:
            Shares [M], which add up to 1.
        """
        shares: Floats = self.log_attention_M.detach().exp().double().cpu().numpy()
        return shares

    def point(self, choice: PointChoice) -> Point:
        """Where a choice is.

        Args:
            choice: The choice.

        Returns:
            (x, y), the middle of the part, in pixels of the image.
        """
        grid = self._grid
        row, column = divmod(choice.cell, grid.columns)
        down, across = divmod(choice.part, self.parts)
        width, height = grid.cell_wh
        return (column + (across + 0.5) / self.parts) * width, (row + (down + 0.5) / self.parts) * height

    def expected_points(self) -> Floats:
        """The mean point of each cell.

        Returns:
            (x, y) in pixels of the image, [M, 2].
        """
        import numpy as np

        grid, parts = self._grid, self.parts
        cells = torch.arange(grid.cells, device=self.log_attention_M.device)
        shares_MP = self.log_parts(cells).detach().exp().double().cpu().numpy()
        places = (np.arange(parts) + 0.5) / parts
        across, down = np.tile(places, parts), np.repeat(places, parts)
        width, height = grid.cell_wh
        x = (np.arange(grid.cells) % grid.columns + shares_MP @ across) * width
        y = (np.arange(grid.cells) // grid.columns + shares_MP @ down) * height
        points: Floats = np.stack([x, y], axis=1)
        return points
