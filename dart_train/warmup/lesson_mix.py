"""Which kinds of lessons the warm start draws: more often those that are not learned yet.

Role: `LessonMix` keeps a running mean of the loss of each kind and draws kinds in proportion to it. Rule: a kind that is learned still
comes, and one that cannot be learned does not crowd out the others: weights stay within `LEAST` and `MOST` times the mean loss. The kinds
of several families differ in size by a factor of ten, and a word that has to be copied is a few per cent of the answers' tokens, so that
screens drawn uniformly teach some kinds hardly at all. Non-goals: what a kind is (`dart_train.warmup.fit`).

Source: sampling in proportion to the loss is that of prioritised replay, T. Schaul et al., arXiv 1511.05952, equation 1 with exponent 1,
without its importance weights: the mix of lessons is a choice and no distribution has to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from random import Random
from statistics import fmean
from typing import Generic, TypeVar

LEAST, MOST = 0.2, 4.0
"""Bounds of a kind's weight, in mean losses."""
KEPT = 0.9
"""Share of the running mean that one more loss keeps."""

Kind = TypeVar("Kind", bound=Hashable)


class LessonMix(Generic[Kind]):
    """Draws kinds of lessons by their losses; all alike until losses are known."""

    def __init__(self) -> None:
        self._loss: dict[Kind, float] = {}

    def draw(self, kinds: Sequence[Kind], random: Random) -> Kind:
        """Draw one kind.

        Args:
            kinds: Those to choose from, at least one.
            random: Source of randomness.

        Returns:
            One of them.
        """
        return random.choices(kinds, self._weights(kinds))[0]

    def draw_several(self, kinds: Sequence[Kind], count: int, random: Random) -> list[int]:
        """Draw some of several lessons without repetition.

        Args:
            kinds: The kind of each lesson.
            count: How many to draw at most.
            random: Source of randomness.

        Returns:
            Their indices. A. Efraimidis and P. Spirakis (2006): those with the greatest u^(1/w) of uniform u.
        """
        keys = [random.random() ** (1 / weight) for weight in self._weights(kinds)]
        return sorted(range(len(kinds)), key=lambda index: -keys[index])[:count]

    def learn(self, losses: Iterable[tuple[Kind, float]]) -> None:
        """Take losses into account.

        Args:
            losses: Kinds and their losses, in nats, at least 0; those that are not finite are left out.
        """
        for kind, loss in losses:
            if not math.isfinite(loss):
                continue
            self._loss[kind] = KEPT * self._loss.get(kind, loss) + (1 - KEPT) * loss

    def _weights(self, kinds: Sequence[Kind]) -> list[float]:
        mean = fmean(self._loss.values()) if self._loss else 0.0
        if mean <= 0:
            return [1.0] * len(kinds)
        return [min(MOST, max(LEAST, self._loss.get(kind, mean) / mean)) for kind in kinds]
