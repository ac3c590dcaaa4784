"""The optimiser of the warm start, its learning rate, and one update of it.

Role: what pages and screens are learnt with. Rule: matrices decay, biases and norms do not; the rate rises over updates and falls over the
last part of the work; several processes make the same update from the mean of their gradients, and none from one that is not finite.
Non-goals: losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dart_train.trainer.ranks import Ranks
from dart_train.trainer.replicas import sum_gradients
from dart_train.warmup.config import WarmupConfig

if TYPE_CHECKING:
    from torch import Tensor

MIN_WEIGHT_DECAY_NDIM = 2
LEAST_RATE = 0.05
"""Fraction of the greatest learning rate at which the fall ends."""
SLOW_RATE = 0.1
"""Fraction of the learning rate for what should not change much any more."""


def make_optimizer(
    parameters: Sequence[Any], learning_rate: float, config: WarmupConfig, slow: Sequence[Any] = ()
) -> Any:
    """Make the optimiser.

    Args:
        parameters: What is trained.
        learning_rate: The greatest learning rate.
        config: The configuration.
        slow: Those of them that learn at `SLOW_RATE` of the learning rate.

    Returns:
        An AdamW.
    """
    import torch

    is_slow = {id(p) for p in slow}
    groups = []
    for share, chosen in (
        (1.0, [p for p in parameters if id(p) not in is_slow]),
        (SLOW_RATE, [p for p in parameters if id(p) in is_slow]),
    ):
        plain = [p for p in chosen if p.ndim < MIN_WEIGHT_DECAY_NDIM]
        decayed = [p for p in chosen if p.ndim >= MIN_WEIGHT_DECAY_NDIM]
        groups += [
            {"params": decayed, "weight_decay": config.weight_decay, "rate_share": share},
            {"params": plain, "weight_decay": 0.0, "rate_share": share},
        ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        betas=(0.9, 0.98),
    )


def set_rate(optimizer: Any, learning_rate: float, update: int, done: float, config: WarmupConfig) -> None:
    """Set the learning rate of an update.

    Args:
        optimizer: The optimiser.
        learning_rate: The greatest learning rate.
        update: Number of the update, from 0.
        done: Fraction of the work that is done.
        config: The configuration.
    """
    rise = min(1.0, (update + 1) / config.lr_warmup_updates)
    fall = min(1.0, max(LEAST_RATE, (1.0 - done) / config.lr_decay_fraction))
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["rate_share"] * rise * fall


def of_rank(seed: str, ranks: Ranks) -> str:
    """Make the seed of one process.

    Args:
        seed: The seed of the first one.
        ranks: The processes.

    Returns:
        Another seed for each of the others.
    """
    return seed if ranks.first else f"{seed}/process {ranks.rank}"


def sum_of(losses: Sequence[Tensor]) -> Tensor:
    """Add losses.

    Args:
        losses: Scalars.

    Returns:
        Their sum.
    """
    import torch

    return torch.stack(list(losses)).sum()


def make_update(
    optimizer: Any, loss: Tensor, ranks: Ranks, grad_clip: float, applies: Callable[[float], bool] = math.isfinite
) -> None:
    """Make one update with the gradient of a loss, averaged over the processes.

    Args:
        optimizer: The optimiser.
        loss: The loss of this process, a scalar.
        ranks: The processes; each makes the same update.
        grad_clip: Greatest norm of the gradient.
        applies: Tells from its norm before clipping, the same on every rank, whether the update is made.
    """
    import torch

    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if ranks.size > 1:
        sum_gradients(parameters, ranks)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= ranks.size
    norm = ranks.broadcast(float(torch.nn.utils.clip_grad_norm_(parameters, grad_clip)))
    if applies(norm):
        optimizer.step()
