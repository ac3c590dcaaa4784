"""Disk and time of a run.

Role: bytes that a run leaves on disk, and how long its updates take, from the simulator with the sizes of the recipe's own policy. Rule:
what is assumed stands in `Assumptions` and can be changed. Sources: 2 FLOPs per parameter and token in a forward pass, twice that in a
backward pass (arXiv 2001.08361). Non-goals: memory (`dart_train.plan.memory`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from dart_agent.strict_model import StrictModel
from dart_train.config import Recipe
from dart_train.plan.memory import BFLOAT16, FLOAT32, GIB, EngineMemory, trained_parameters
from dart_train.plan.policy_size import PolicySize
from dart_train.simulation.command import scenario_of
from dart_train.simulation.models import SystemModels
from dart_train.simulation.outcome import simulate
from dart_train.simulation.planning import bottleneck
from dart_train.trainer.config import TrainerConfig

SIMULATED_HOURS = 2.0


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


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """Bytes on disk after all updates.

    Attributes:
        checkpoints: The trainer's states that are kept.
        versions: The published versions that are kept.
        images: Screenshots of all trajectories.
        steps: Stored steps of all trajectories.
    """

    checkpoints: int
    versions: int
    images: int
    steps: float


@dataclass(frozen=True, slots=True)
class TimeForecast:
    """How long training takes.

    Attributes:
        update_s: Seconds of a train step.
        updates_per_hour: Train steps per hour, rollouts included.
        hours: Hours until all updates are made.
        actions_per_min: Actions per minute of all desktops.
        desktop_utilisation: Share of the desktops' time in which they execute or wait for a response that is computed.
        worker_utilisation: Share of the inference workers' time in which they serve.
        trainer_utilisation: Share of the trainer's time in which it trains.
        bottleneck: What limits the run.
        reason: Why, in one sentence.
    """

    update_s: float
    updates_per_hour: float
    hours: float
    actions_per_min: float
    desktop_utilisation: float
    worker_utilisation: float
    trainer_utilisation: float
    bottleneck: str
    reason: str


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
    looked_at = (
        train.epochs * train.minibatches > 1
        or curation.high_entropy_step_fraction < 1
        or curation.high_entropy_token_fraction < 1
    )
    return trained + looked_at + bool(train.kl_coefficient)


def forecast_time(recipe: Recipe, size: PolicySize, engine: EngineMemory, assumed: Assumptions) -> TimeForecast:
    """Simulate the recipe with the sizes of its policy.

    Args:
        recipe: The recipe.
        size: The policy.
        engine: Memory of an inference worker.
        assumed: Assumptions.

    Returns:
        The forecast.
    """
    tokens_per_s = train_tokens_per_s(recipe, size, assumed)
    base = SystemModels()
    models = base.model_copy(
        update={
            "episode": base.episode.model_copy(
                update={
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
            "trainer": base.trainer.model_copy(update={"tokens_per_s": tokens_per_s}),
            "publish": base.publish.model_copy(update={"weights_gib": version_bytes(recipe, size) / GIB}),
        }
    )
    scenario = scenario_of(recipe, models, hours=SIMULATED_HOURS)
    outcome = simulate(scenario)
    limit = bottleneck(outcome)
    per_hour = outcome.updates * 3600 / outcome.window_s
    training_s = outcome.trainer.training * outcome.window_s
    return TimeForecast(
        update_s=training_s / outcome.updates if outcome.updates else 0.0,
        updates_per_hour=per_hour,
        hours=recipe.train.updates / per_hour if per_hour else float("inf"),
        actions_per_min=outcome.actions_per_min,
        desktop_utilisation=outcome.slots.utilisation,
        worker_utilisation=outcome.workers.utilisation,
        trainer_utilisation=outcome.trainer.utilisation,
        bottleneck=limit.name,
        reason=limit.reason,
    )


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
    published = trained_parameters(recipe, size) if recipe.inference.publish == "adapter" else size.parameters.total
    return published * (BFLOAT16 if recipe.inference.transfer_dtype == "bfloat16" else FLOAT32)


def forecast_disk(recipe: Recipe, size: PolicySize, time: TimeForecast, assumed: Assumptions) -> DiskForecast:
    """Predict what is on disk after all updates; a checkpoint holds the trained weights and two moments of each.

    Args:
        recipe: The recipe.
        size: The policy.
        time: The forecast of time, whose actions are stored steps.
        assumed: Assumptions.

    Returns:
        The bytes.
    """
    kept = TrainerConfig.model_fields
    steps = time.actions_per_min * 60 * time.hours if time.hours != float("inf") else 0.0
    pixels = size.image_tokens * _pixels_per_token(size)
    return DiskForecast(
        checkpoints=kept["keep_checkpoints"].default * 3 * FLOAT32 * trained_parameters(recipe, size),
        versions=kept["keep_weights"].default * version_bytes(recipe, size),
        images=int(steps * pixels * assumed.image_bytes_per_pixel),
        steps=steps,
    )


def _pixels_per_token(size: PolicySize) -> int:
    return size.patch_px**2 * (size.patches // max(1, size.image_tokens))
