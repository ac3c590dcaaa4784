"""Latency models with the sizes of a recipe: what a simulation of it begins with.

Role: `recipe_models` puts prompts, limits, key-value cache, weights, speed of the trainer and numbers of GPUs of a recipe in the place of
the defaults of `dart_train.simulation.models`. Rule: what is assumed stands in `Assumptions` and can be changed; what no recipe says
(desktops, speed of an engine) keeps its default until it is fitted on a run. Half of the episodes are taken to end within
`MEDIAN_LENGTH` of the step limit, or within the default where that is less. Sources: 2 FLOPs per parameter and token
in a forward pass, twice that in a backward pass (arXiv 2001.08361). Non-goals: memory (`dart_train.plan.memory`), simulating
(`dart_train.plan.forecast`, `dart_train.simulation.command`).
"""

from __future__ import annotations

from pydantic import Field

from dart_agent.strict_model import StrictModel
from dart_train.config import Recipe
from dart_train.plan.memory import BFLOAT16, FLOAT32, GIB, EngineMemory, trained_parameters
from dart_train.plan.policy_size import PolicySize
from dart_train.simulation.models import SystemModels

CPU_TFLOPS_PER_THREAD = 0.05
"""Assumed TFLOP/s of a CPU's thread in float32, where nobody measures them."""

MEDIAN_LENGTH = 0.4
"""Assumed median length of an episode as a share of the step limit: that of the simulator's default, 12 of 30 steps."""


class Assumptions(StrictModel):
    """What a forecast assumes of the hardware and of the tasks.

    Attributes:
        gpu_gib: Memory of a GPU in GiB; None: everything runs on the CPU.
        tflops: TFLOP/s of the trainer's device, of a GPU in dense bfloat16; 989: H100 SXM.
        mfu: Fraction of them that train steps reach.
        image_bytes_per_pixel: Bytes of a stored screenshot per pixel.
    """

    gpu_gib: float | None = Field(default=80.0, gt=0)
    tflops: float = Field(default=989.0, gt=0)
    mfu: float = Field(default=0.35, gt=0, le=1)
    image_bytes_per_pixel: float = Field(default=0.35, gt=0)


def has_gpus(recipe: Recipe) -> bool:
    """Say whether a recipe names GPUs, or this host has one.

    Args:
        recipe: The recipe.
    """
    train = recipe.train
    if train.device == "cuda" or train.devices is not None or recipe.inference.devices is not None:
        return True
    import torch

    return torch.cuda.is_available()


def trains_on_cpu(recipe: Recipe, *, gpus: bool) -> bool:
    """Say whether the trainer runs on the CPU.

    Args:
        recipe: The recipe.
        gpus: Whether there are GPUs.
    """
    return not gpus or recipe.train.device == "cpu"


def recipe_models(recipe: Recipe, size: PolicySize, engine: EngineMemory, assumed: Assumptions) -> SystemModels:
    """Put the sizes of a recipe in the place of defaults.

    Args:
        recipe: The recipe.
        size: The policy.
        engine: Memory of an inference worker.
        assumed: Assumptions.

    Returns:
        The models.
    """
    base, gpus = SystemModels(), assumed.gpu_gib is not None
    on_cpu = trains_on_cpu(recipe, gpus=gpus)
    return base.model_copy(
        update={
            "episode": base.episode.model_copy(
                update={
                    "median_steps": min(base.episode.median_steps, MEDIAN_LENGTH * recipe.tasks.max_steps),
                    "response_tokens": float(size.answer_tokens),
                    "max_response_tokens": recipe.rollout.max_tokens,
                    "system_tokens": size.text_tokens,
                    "image_tokens": size.image_tokens,
                    "history_images": 0 if size.images >= recipe.tasks.max_steps else size.images,
                    "context_tokens": recipe.inference.max_model_len,
                }
            ),
            "engine": base.engine.model_copy(
                update={"kv_cache_tokens": max(1, engine.kv_tokens), "max_requests": recipe.inference.max_num_seqs}
            ),
            "trainer": base.trainer.model_copy(update={"tokens_per_s": train_tokens_per_s(recipe, size, assumed)}),
            "publish": base.publish.model_copy(update={"weights_gib": version_bytes(recipe, size) / GIB}),
            "prices": base.prices.model_copy(
                update={
                    "gpus_per_worker": recipe.inference.tensor_parallel if gpus else 0,
                    "trainer_gpus": 0 if on_cpu else recipe.train.processes,
                }
            ),
        }
    )


def passes(recipe: Recipe) -> float:
    """Count the forward passes that a train step costs, a backward pass as two.

    Args:
        recipe: The recipe.

    Returns:
        Passes per token.
    """
    train, curation = recipe.train, recipe.curation
    backward = 1.0 if train.lora_rank is not None else 2.0  # an adapter needs hardly any gradient of weights
    trained = train.epochs * (1 + backward + bool(train.gradient_checkpointing))
    scored_before = train.epochs if train.epochs * train.minibatches > 1 else 0
    looked_at = curation.high_entropy_step_fraction < 1 or curation.high_entropy_token_fraction < 1
    return trained + scored_before + looked_at + bool(train.kl_coefficient)


def train_tokens_per_s(recipe: Recipe, size: PolicySize, assumed: Assumptions) -> float:
    """Predict how many tokens of streams a train step computes per second, all its passes included.

    Args:
        recipe: The recipe.
        size: The policy.
        assumed: Assumptions.

    Returns:
        Tokens per second of all processes together.
    """
    flops_per_token = 2 * (size.parameters.layers + size.parameters.vision) * passes(recipe)
    return recipe.train.processes * assumed.tflops * 1e12 * assumed.mfu / flops_per_token


def version_bytes(recipe: Recipe, size: PolicySize) -> int:
    """Compute the bytes of a published version.

    Args:
        recipe: The recipe.
        size: The policy.

    Returns:
        Bytes.
    """
    value = BFLOAT16 if recipe.inference.transfer_dtype == "bfloat16" else FLOAT32
    if recipe.inference.publish == "adapter":
        return value * trained_parameters(recipe, size)
    return value * size.parameters.total + FLOAT32 * size.head
