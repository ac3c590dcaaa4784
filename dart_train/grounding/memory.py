"""What decides how much memory a training takes beside its batch: data types, recomputed activations, sizes of images.

Role: `set_up_backbone` prepares a backbone whose trained parameters are chosen already, and puts it on its device, or a shard of it. Rule:
trained weights are float32; frozen ones become bfloat16 where matrix products are computed in it and no bit of them is lost, which is so
for published checkpoints. The limit of images goes into the processor, so that the model is used as it was trained. Non-goals: what is
trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dart_agent.errors import ConfigError
from dart_train.grounding.config import SupervisedConfig
from dart_train.model.device import ComputeDevice
from dart_train.model.fast_vision import optimize_vision
from dart_train.model.training_mode import cast_frozen, set_up_training

if TYPE_CHECKING:
    from dart_train.model.sharding import ShardedModel


def set_up_backbone(
    backbone: Any, processor: Any, config: SupervisedConfig, compute: ComputeDevice, *, sharded: bool
) -> ShardedModel | None:
    """Prepare a backbone in place.

    Args:
        backbone: A transformers model of images and text on any device, which requires gradients where it is trained.
        processor: Its processor.
        config: The configuration.
        compute: Device and data type.
        sharded: Divide its parameters among the processes of torch.distributed.

    Returns:
        What runs the passes of a sharded backbone; None: it is not sharded.

    Raises:
        ConfigError: `max_pixels` is below what the processor enlarges images to.
    """
    import torch

    if config.max_pixels is not None:
        _limit_images(processor.image_processor, config.max_pixels)
    set_up_training(backbone, config.gradient_checkpointing)
    if compute.bfloat16:
        # The rows of new tokens in the output embeddings are means, which bfloat16 does not hold.
        for part in (backbone.model, backbone.lm_head):
            if _frozen_is_exact(part, torch.bfloat16):
                cast_frozen(part, torch.bfloat16)
    optimize_vision(backbone)
    if sharded:  # layer by layer: no GPU ever holds the whole model
        from dart_train.model.sharding import ShardedModel

        return ShardedModel(backbone, compute.device, compute.bfloat16)
    backbone.to(compute.device)
    return None


def _limit_images(image_processor: Any, max_pixels: int) -> None:
    least = image_processor.size["shortest_edge"]
    if max_pixels < least:
        raise ConfigError(
            f"max_pixels is {max_pixels}, but the model's processor enlarges images to {least} pixels: raise it"
        )
    image_processor.size = type(image_processor.size)(shortest_edge=least, longest_edge=max_pixels)


def _frozen_is_exact(part: Any, dtype: Any) -> bool:
    import torch

    frozen = (one.data for one in part.parameters() if not one.requires_grad and one.is_floating_point())
    return all(torch.equal(one.to(dtype).to(one.dtype), one) for one in frozen)
