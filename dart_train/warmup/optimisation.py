"""The optimiser of the warm start and its learning rate.

Role: what pages and screens are learnt with. Rule: matrices decay, biases and norms do not; the rate rises over updates and falls over the
last part of the work. Non-goals: losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dart_train.warmup.config import WarmupConfig

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
