"""What a train step depends on: trained parameters and the optimiser's state of each, by name.

Role: the one naming of these tensors in checkpoints. Rule: a parameter that no sample reached has the gradient 0, so that its state exists
and an update depends on nothing else. Non-goals: files (`dart_train.trainer.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def train_state(trained: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Tensor]:
    """Name the tensors that the next train step depends on.

    Args:
        trained: The parameters that are trained, by name.
        optimizer: Their optimiser.

    Returns:
        `model.NAME` for each parameter, and `optimizer.NAME.KEY` for what the optimiser keeps of it; nothing is copied.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in trained.items():
        found[f"model.{name}"] = parameter.detach()
        found |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state[parameter].items()}
    return found


def zero_missing_gradients(parameters: Iterable[Any]) -> None:
    """Give each parameter without a gradient the gradient 0, as it has in a shard.

    Args:
        parameters: The parameters that are trained.
    """
    import torch

    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
