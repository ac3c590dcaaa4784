"""The recipe of a run: one TOML file, checked whole before anything starts.

Role: the single schema of `dart-train run`. Rule: unknown keys and wrong types are errors that name the key's path; values that
disagree are errors here, not at minute forty; imports neither torch nor vLLM. Non-goals: no paths are created, nothing is started.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from dart_agent.strict_model import StrictModel
from dart_agent.types import SamplingParams
from dart_server.wire import DesktopShape, ImageName, Resolution


class RecipeError(Exception):
    """A recipe cannot be run; the message says which key and what to write instead."""


class RunSection(StrictModel):
    """Name of the run's directory and the seed everything random derives from."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    seed: int = Field(default=0, ge=0, lt=2**31)


class DesktopSection(StrictModel):
    """The desktops and how a step waits for the screen."""

    count: int = Field(default=4, ge=1, le=256, description="desktops live at once")
    provider: Literal["runc", "sim"] = "runc"
    image: ImageName = "basic"
    resolution: Resolution = (640, 400)
    font_size: int | None = Field(default=16, ge=6, le=48)
    settle_quiet_ms: int = Field(default=80, ge=0, le=5_000)
    settle_cap_ms: int = Field(default=1_500, ge=0, le=30_000)

    @property
    def shape(self) -> DesktopShape:
        """The same as the farm's wire model."""
        return DesktopShape(image=self.image, resolution=self.resolution, font_size=self.font_size)


class TaskSection(StrictModel):
    """What is trained and evaluated: families of one suite."""

    suite: str = "basics"
    families: tuple[str, ...] = Field(min_length=1)
    max_steps: int = Field(default=3, ge=1, le=200)


class ModelSection(StrictModel):
    """The policy: a preset made here without downloads, or the path of a checkpoint or its name in the local cache. Exactly one of them."""

    preset: Literal["tiny"] | None = None
    path: str | None = None
    prompt: Literal["tiny", "uitars", "qwen"] | None = Field(
        default=None, description="None: the one that the checkpoint was trained for"
    )
    history_images: int = Field(default=1, ge=1, le=16)

    @model_validator(mode="after")
    def _exactly_one_source(self) -> ModelSection:
        if (self.preset is None) == (self.path is None):
            raise ValueError("give either `preset` or `path`, not both and not neither")
        return self


class DemoSection(StrictModel):
    """Oracle demonstrations, collected on the desktops from the train split."""

    per_family: int = Field(default=64, ge=0, description="demonstrations collected per family")


class WarmupSection(StrictModel):
    """Supervised warm start on the demonstrations and on the accessibility trees of their screens. `enabled = false` skips it."""

    enabled: bool = True
    imitated_families: tuple[str, ...] | None = Field(
        default=None,
        description="families whose demonstrated actions are imitated; None = all. Screens of all families are used.",
    )
    imitated_demos_per_family: int = Field(
        default=16, ge=0, description="how many demonstrations per family are imitated"
    )
    imitate_order: bool = Field(
        default=True,
        description="false: imitate any part that the instruction names, so that their order is not taught",
    )
    imitation_fraction: float = Field(
        default=0.5, ge=0, le=1, description="how often an imitated action is asked about, where a screen has one"
    )
    images: int = Field(default=24_000, ge=1, description="training images in all, repeats included")
    queries_per_image: int = Field(default=6, ge=1, le=64)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=7e-4, gt=0)
    max_minutes: float = Field(default=10.0, gt=0)
    threads: int = Field(default=2, ge=1)


class InferenceSection(StrictModel):
    """vLLM workers."""

    workers: int = Field(default=2, ge=1, le=64)
    threads: int = Field(default=1, ge=1, description="CPU threads per worker")
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    max_model_len: int = Field(default=512, ge=64)
    kv_cache_mib: int | None = Field(
        default=96, ge=8, description="key-value cache per worker; None: vLLM's own choice (GPUs)"
    )


class RolloutSection(StrictModel):
    """How training rollouts are sampled."""

    group_size: int = Field(default=8, ge=2, le=256)
    temperature: float = Field(default=1.0, gt=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=24, ge=1)

    @field_validator("top_p")
    @classmethod
    def _whole_distribution(cls, top_p: float) -> float:
        if top_p < 1:
            raise ValueError(
                f"{top_p:g} would cut tokens off that the trainer's log-probs still count, and its ratios would be wrong: "
                "leave it at 1 and lower rollout.temperature instead"
            )
        return top_p

    @property
    def sampling(self) -> SamplingParams:
        """The same as the agent's carrier."""
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens)


class CurationSection(StrictModel):
    """The four levels of adaptive data curation, each switchable."""

    difficulty_aware_tasks: bool = Field(
        default=False, description="more groups for families that sometimes succeed and sometimes fail"
    )
    dynamic_rollout_number: bool = False
    dynamic_rollout_threshold: float = Field(default=0.6, gt=0, le=1)
    dynamic_trajectory_length: bool = False
    high_entropy_step_fraction: float = Field(default=1.0, gt=0, le=1, description="share of steps kept; 1 keeps all")
    experience_pool: bool = False
    max_staleness: int = Field(default=4, ge=0, description="trainer version minus the version that wrote a token")


class TrainSection(StrictModel):
    """GRPO. `learning_rate = 0` runs the same path and changes nothing (the control)."""

    updates: int = Field(default=60, ge=0, description="policy versions to make")
    max_minutes: float = Field(default=25.0, gt=0)
    groups_per_batch: int = Field(default=8, ge=1)
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-4, ge=0)
    lr_warmup_updates: int = Field(default=5, ge=0, description="updates over which the rate rises")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="AdamW's memory of squared gradients")
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    tis_cap: float = Field(default=2.0, gt=0)
    kl_coefficient: float = Field(default=0.0, ge=0)
    entropy_coefficient: float = Field(default=0.0, ge=0)
    advantage: Literal["grpo", "no_std", "leave_one_out"] = "grpo"
    aggregation: Literal["token_mean", "seq_mean_token_mean"] = "seq_mean_token_mean"
    micro_batch_rows: int = Field(
        default=32, ge=1, description="steps per forward and backward pass: lower it where memory is short"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="of the trainer and the warm start; auto: a GPU where torch finds one"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="of matrix products; weights and optimiser stay float32. auto: bfloat16 on a GPU and in the warm start, else float32",
    )
    threads: int = Field(default=1, ge=1)
    checkpoint_every: int = Field(default=1, ge=1)


class EvalSection(StrictModel):
    """Greedy evaluation on validation variations, the same list before and after training."""

    episodes: int = Field(default=300, ge=1)
    baseline_episodes: int = Field(
        default=0, ge=0, description="episodes of the random and of the blank-screenshot policy"
    )
    min_gain_points: float = Field(
        default=0.0, description="a point gain at or below this counts as not learned: exit code 1"
    )


class LimitSection(StrictModel):
    """What the run may use; checked before it starts."""

    min_free_disk_gib: float = Field(default=4.0, ge=0)
    min_free_memory_gib: float = Field(default=6.0, ge=0)


class Recipe(StrictModel):
    """A whole run."""

    run: RunSection
    desktops: DesktopSection = DesktopSection()
    tasks: TaskSection
    model: ModelSection
    demos: DemoSection = DemoSection()
    warmup: WarmupSection = WarmupSection()
    inference: InferenceSection = InferenceSection()
    rollout: RolloutSection = RolloutSection()
    curation: CurationSection = CurationSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    limits: LimitSection = LimitSection()

    @model_validator(mode="after")
    def _sections_agree(self) -> Recipe:
        chosen = set(self.warmup.imitated_families or ())
        unknown = sorted(chosen - set(self.tasks.families))
        if unknown:
            raise ValueError(f"warmup.imitated_families names {unknown}, which are not in tasks.families")
        if self.warmup.enabled and self.demos.per_family == 0:
            raise ValueError(
                "warmup.enabled needs demonstrations: set demos.per_family above 0 or warmup.enabled = false"
            )
        if self.model.preset is not None and not self.warmup.enabled:
            raise ValueError(
                "a preset starts from random weights and cannot act: set warmup.enabled = true or give model.path"
            )
        if self.warmup.imitated_demos_per_family > self.demos.per_family:
            raise ValueError("warmup.imitated_demos_per_family is larger than demos.per_family")
        return self


Override = Annotated[str, "KEY.PATH=TOML-VALUE"]


def load_recipe(path: Path, overrides: tuple[Override, ...] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: the TOML file.
        overrides: `section.key=value` with a TOML value, applied on top.

    Raises:
        RecipeError: one sentence per mistake, each with the key's path.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(
            f"recipe {path} does not exist: give the path of a TOML file, e.g. dart_train/recipes/demo.toml"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} is not valid TOML: {error}") from None
    for override in overrides:
        _apply(data, override)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise RecipeError(f"recipe {path}: {format_validation_error(error)}") from None


def _apply(data: dict[str, Any], override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator:
        raise RecipeError(f"override {override!r} is not of the form section.key=value")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *sections, last = key.strip().split(".")
    target: Any = data
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise RecipeError(f"override {override!r}: {section} is not a section")
    target[last] = parsed


def format_validation_error(error: ValidationError) -> str:
    """Format the mistakes of a recipe for display.

    Args:
        error: What pydantic found.

    Returns:
        One clause per mistake, each with the path of its key, joined by semicolons.
    """
    return "; ".join(_format_error(item) for item in error.errors())


def _format_error(item: Any) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "the recipe"
    if item["type"] == "extra_forbidden":
        return f"unknown key `{path}`"
    message = str(item["msg"]).removeprefix("Value error, ")
    given = "" if item["type"] in {"missing", "value_error"} else f" (got {item['input']!r})"
    return f"`{path}`: {message[0].lower()}{message[1:]}{given}"
