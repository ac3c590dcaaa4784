"""Gradients that are not applied, and the rows that are to blame.

Role: `clip_checked` clips a gradient and refuses one that is not finite or too large; `find_culprits` finds rows by halves;
`GradientGate` leaves out updates of trainings without batches to blame. Rule: all of them decide alike on every rank. Non-goals: what
becomes of a batch that failed (`dart_train.trainer.trainer`, `dart_train.sft.fit`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from dart_agent.data_client.image_store import BlobError
from dart_agent.errors import ConfigError, StoreUnavailableError
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.tensors import BatchError

if TYPE_CHECKING:
    from dart_train.trainer.trained_policy import TrainedPolicy

MAX_REFUSED_UPDATES = 5
"""In a row; after that a training ends."""
log = logging.getLogger(__name__)


class GradientRefused(Exception):
    """A gradient must not be applied; the message says why."""


class GradientNotFinite(GradientRefused):
    """The gradient of a mini-batch has a NaN or an infinity."""


class GradientExploded(GradientRefused):
    """The norm of the gradient of a mini-batch is above the bound. It is a property of all its rows: no single one is to blame."""


class GradientGate:
    """Tells whether the gradient of an update is applied, and ends a training after several in a row that were not.

    Args:
        advice: What the user can do, for the last sentence.
        max_norm: Greatest norm before clipping; None: no bound.
    """

    def __init__(self, advice: str, max_norm: float | None = None) -> None:
        self._advice = advice
        self._max_norm = max_norm
        self._refused_in_a_row = 0

    def lets_through(self, norm: float, update: int) -> bool:
        """Judge a gradient.

        Args:
            norm: Its norm before clipping, the same on every rank.
            update: Number of the update, from 1.

        Returns:
            Whether it is applied.

        Raises:
            ConfigError: `MAX_REFUSED_UPDATES` in a row were not.
        """
        if math.isfinite(norm) and (self._max_norm is None or norm <= self._max_norm):
            self._refused_in_a_row = 0
            return True
        cause = f"above max_grad_norm = {self._max_norm:g}" if math.isfinite(norm) else "not finite"
        log.warning("update %d is left out: the norm of its gradient, %g, is %s", update, norm, cause)
        self._refused_in_a_row += 1
        if self._refused_in_a_row >= MAX_REFUSED_UPDATES:
            raise ConfigError(
                f"{self._refused_in_a_row} updates in a row could not be applied, the last ({update}) because the norm of its gradient is "
                f"{cause}: {self._advice}"
            )
        return False


def clip_checked(policy: TrainedPolicy, update: int) -> float:
    """Clip the gradient of all processes.

    Args:
        policy: The policy with its gradient.
        update: Number of the update, from 1, for the message.

    Returns:
        The norm before clipping.

    Raises:
        GradientNotFinite: It is not finite.
        GradientExploded: Its norm is above `max_grad_norm`.
    """
    norm = policy.ranks.broadcast(float(policy.clip_gradient()))  # every rank decides alike
    if not math.isfinite(norm):
        raise GradientNotFinite(f"the gradient of update {update} is not finite")
    bound = policy.config.optimizer.max_grad_norm
    if bound is not None and norm > bound:
        raise GradientExploded(
            f"the gradient of update {update} has the norm {norm:.4g}, above train.max_grad_norm = {bound:g}"
        )
    return norm


def find_culprits(
    policy: TrainedPolicy, passes: Iterable[Sequence[TrainRow]], accumulate: Callable[[Sequence[TrainRow]], object]
) -> list[TrainRow]:
    """Find the rows that cannot be made a batch of, or have a gradient that is not finite, even alone.

    Each pass is tried once, and one that fails is halved until single rows are left, so that n passes with one bad row of m cost
    about n + 2 log2 m passes, most of them short. The gradient is lost.

    Args:
        policy: The policy.
        passes: Rows by pass.
        accumulate: Computes the gradient of some rows from nothing.

    Returns:
        The culprits, in the order of the passes; none where rows fail only together.

    Raises:
        StoreUnavailableError: The storage of images does not answer, so that no row can be told to fail alone.
    """

    def fails(rows: Sequence[TrainRow]) -> bool:
        try:
            accumulate(rows)
        except StoreUnavailableError:  # some of these are a BlobError, too
            raise
        except (BatchError, BlobError):
            return True
        return not math.isfinite(policy.ranks.broadcast(float(policy.clip_gradient())))

    found: list[TrainRow] = []
    waiting = [list(rows) for rows in passes][::-1]
    while waiting:
        rows = waiting.pop()
        if not fails(rows):
            continue
        if len(rows) == 1:
            found += rows
            continue
        half = len(rows) // 2
        waiting += [rows[half:], rows[:half]]
    policy.optimizer.zero_grad(set_to_none=True)
    return found
