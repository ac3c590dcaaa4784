"""Parameters, gradients and optimiser state divided among processes (FSDP2).

Role: `ShardedModel` divides a model, layer by layer, and runs what uses it; `clip_gradients` bounds gradients of which some are shards.
Rule: parameters that are updated are float32 at least, and bfloat16 is only what layers compute in; where they compute in float32, frozen
parameters are float32, too. Gradients are averaged over the processes, so that a loss is multiplied by their number before `backward`.
Every process runs its layers in the same order and equally often, also those of the vision tower. Non-goals: tensor parallelism, modules
that every process holds whole (`dart_train.trainer.replicas`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")


class ShardedModel(nn.Module):
    """A model whose parameters are divided over all processes, in place.

    Args:
        model: A transformers model of the Qwen-VL families, on the CPU or on the GPU of this process. It may be loaded in bfloat16, the
            type of published checkpoints, which takes half of the memory: what is trained becomes float32, layer by layer, and so does
            what is frozen where layers do not compute in bfloat16.
        device: cpu or cuda.
        bfloat16: Whether layers compute in bfloat16.
    """

    def __init__(self, model: Any, device: str, bfloat16: bool) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        super().__init__()
        self.model = model
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        precision = (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            if bfloat16
            else MixedPrecisionPolicy()
        )
        backbone = model.model
        for part in (*backbone.visual.blocks, *backbone.language_model.layers, self):
            widen(part, frozen=not bfloat16)
            fully_shard(part, mesh=mesh, mp_policy=precision)
        for config in (model.config, model.config.text_config, model.config.vision_config):
            config.dtype = model.lm_head.weight.dtype  # that of what is trained and saved

    def forward(self, compute: Callable[[], T]) -> T:
        """Run what uses the model: the parameters outside its layers are whole meanwhile.

        Args:
            compute: Uses the model; every part of it that needs these parameters is in one call.

        Returns:
            What it returns: tensors in tuples, lists or dictionaries, so that FSDP finds those that need a gradient.
        """
        return compute()

    def __call__(self, compute: Callable[[], T]) -> T:
        """Run `forward`; without gradient the parameters outside the layers are shards again after it, as those of layers are.

        Args:
            compute: Uses the model.

        Returns:
            What it returns.
        """
        found: T = super().__call__(compute)
        if not torch.is_grad_enabled():
            cast("FSDPModule", self).reshard()  # FSDP2 leaves this to the backward pass
        return found

    def whole_weights(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Collect the model's weights on the CPU of the first process, one at a time; every process calls this.

        Args:
            dtype: Data type to which they are rounded before they are sent; None: that of each.

        Returns:
            The weights by name; empty in the other processes.
        """
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        found: dict[str, Tensor] = {}
        parts: dict[str, Any] = get_model_state_dict(self.model)
        for name, part in parts.items():
            rounded = part.to(dtype) if dtype is not None and part.is_floating_point() else part
            whole = rounded.full_tensor() if isinstance(rounded, DTensor) else rounded
            if torch.distributed.get_rank() == 0:
                found[name] = whole.cpu()
        return found


def widen(module: nn.Module, *, frozen: bool) -> None:
    """Turn bfloat16 parameters into float32 ones, in place.

    Args:
        module: Their module.
        frozen: Whether those without gradient, too.
    """
    for parameter in module.parameters():
        if (frozen or parameter.requires_grad) and parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.float()


def split_shards(parameters: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Tell parameters of which this process has a part from those that it has whole.

    Args:
        parameters: The parameters.

    Returns:
        Shards, and whole parameters, each in order. Operations on lists of tensors take one kind at a time.
    """
    shards: list[Any] = []
    whole: list[Any] = []
    for parameter in parameters:
        (shards if isinstance(parameter, DTensor) else whole).append(parameter)
    return shards, whole


def clip_gradients(parameters: Iterable[Any], limit: float) -> Tensor:
    """Bound the norm of all gradients together; every process calls this.

    Args:
        parameters: What has gradients; some may be shards, and the others have the same gradient in every process.
        limit: The greatest norm.

    Returns:
        The norm before that; a scalar.
    """
    shards, whole = split_shards(parameters)
    if not shards:
        return nn.utils.clip_grad_norm_(whole, limit)
    norm = _norm(shards)
    if whole:
        norm = torch.linalg.vector_norm(torch.stack([norm, _norm(whole).to(norm)]))
    factor = float(torch.clamp(limit / (norm + 1e-6), max=1.0))  # that of torch.nn.utils.clip_grad_norm_
    for parameter in (*shards, *whole):
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
    return norm


def _norm(parameters: Iterable[Any]) -> Tensor:
    """The norm of their gradients over all processes."""
    found = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    norm: Tensor = found.full_tensor() if isinstance(found, DTensor) else found
    return norm
