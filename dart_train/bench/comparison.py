"""Predicted against measured: the rows of the table of `dart-train bench`.

Role: pure functions from the plan's formulas and the figures of this host to rows. Rule: a prediction is the plan's own formula for exactly
what was measured: this batch, this device's speed, this version. Non-goals: measuring (`train_step`, `engine_rate`).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from dart_train.bench.engine_rate import EngineFigures
from dart_train.bench.train_step import TrainFigures
from dart_train.config import Recipe
from dart_train.plan.latencies import Assumptions, train_tokens_per_s, version_bytes
from dart_train.plan.memory import GIB, trainer_memory
from dart_train.plan.policy_size import PolicySize
from dart_train.simulation.models import SystemModels

GB = 1e9


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: What it is.
        unit: Unit of both values.
        predicted: What the plan says; None: it says nothing about it.
        measured: What this host did.
    """

    name: str
    unit: str
    predicted: float | None
    measured: float

    @property
    def ratio(self) -> float | None:
        """Measured, as a multiple of the prediction."""
        return self.measured / self.predicted if self.predicted else None


def training_rows(recipe: Recipe, size: PolicySize, assumed: Assumptions, found: TrainFigures) -> list[Row]:
    """Compare train steps and the published version.

    Args:
        recipe: The recipe, as it was measured.
        size: Its policy.
        assumed: Assumptions; their TFLOP/s are those of the device that was measured.
        found: The figures.

    Returns:
        The rows of what was measured.
    """
    rows = []
    if found.step_s and found.memory_bytes is not None:
        rate, step_s = train_tokens_per_s(recipe, size, assumed), median(found.step_s)
        memory = trainer_memory(recipe, size)
        rows += [
            Row(f"train step of {found.stream_tokens:,} tokens", "s", found.stream_tokens / rate, step_s),
            Row("train step", "tokens/s", rate, found.stream_tokens / step_s),
            Row(
                "memory of the trainer, without what is reserved",
                "GiB",
                (memory.total - memory.reserved) / GIB,
                found.memory_bytes / GIB,
            ),
        ]
    if found.published_bytes is not None and found.publish_s is not None:
        models, predicted = SystemModels().publish, version_bytes(recipe, size)
        publish_s = models.publish_s + models.publish_s_per_gib * predicted / GIB
        rows += [
            Row("published version", "GB", predicted / GB, found.published_bytes / GB),
            Row("publishing it", "s", publish_s, found.publish_s),
            Row("publishing", "s/GB", publish_s / (predicted / GB), found.publish_s / (found.published_bytes / GB)),
        ]
    return rows


def engine_rows(found: EngineFigures, published_bytes: int | None) -> list[Row]:
    """Compare an inference worker.

    Args:
        found: The figures.
        published_bytes: Size of the version that it took, None where it took none.

    Returns:
        The rows.
    """
    models = SystemModels()
    engine = models.engine
    mean_tokens = found.response_tokens / found.requests
    prefill_s = found.prompt_tokens / engine.prefill_tokens_per_s + found.requests * (engine.image_s + engine.request_s)
    predicted_s = prefill_s + mean_tokens * (engine.step_s + engine.step_s_per_request * found.requests)
    rows = [
        Row(
            f"engine, {found.requests} requests at once",
            "sampled tokens/s",
            found.response_tokens / predicted_s,
            found.response_tokens / found.seconds,
        ),
        Row(
            "engine, prompts included", "tokens/s", None, (found.prompt_tokens + found.response_tokens) / found.seconds
        ),
        Row("start of the engine", "s", None, found.start_s),
    ]
    if found.stage_s is not None and found.swap_s is not None and published_bytes is not None:
        stage_s = models.publish.stage_s_per_gib * published_bytes / GIB
        rows += [
            Row("engine reads a version", "s", stage_s, found.stage_s),
            Row("engine stands still for it", "s", models.publish.swap_s, found.swap_s),
        ]
    return rows
