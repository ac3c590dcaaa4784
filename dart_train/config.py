"""The recipe of a run: one TOML file, checked completely before anything starts.

Role: the single schema of `dart-train run`. Rule: unknown keys and wrong types are errors that name the path of the key; contradicting
values are errors here, not after forty minutes; the module imports neither torch nor vLLM. Non-goals: creating paths, starting anything.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from dart_agent.inference.config import split_devices
from dart_agent.inference.decisions.weight_updates import UpdateMode
from dart_agent.prompts.builder import PresetName
from dart_agent.prompts.history import HistorySettings
from dart_agent.rollouts.episode_loop import OnParseError
from dart_agent.strict_model import StrictModel, format_validation_error
from dart_agent.types import SamplingParams
from dart_envs.action_formats import format_names, make_format
from dart_server.wire import DesktopShape, ImageName, Resolution
from dart_train.model.weights import PublishedDtype
from dart_train.objectives.algorithms import SURROGATES, find_algorithm, load_surrogate
from dart_train.objectives.settings import (
    AdvantageKind,
    AdvantageOver,
    Aggregation,
    CorrectionKind,
    KlEstimator,
    LossSettings,
)
from dart_train.scheduling.settings import SchedulingMode

UNBOUNDED = ("dual_clip", "tis_cap")
"""Keys of the section `train` that may have no value."""


class RecipeError(Exception):
    """A recipe cannot be run; the message says which key and what to write instead."""


class RunSection(StrictModel):
    """Name and seed of the run.

    Attributes:
        name: Name of the run folder.
        seed: Seed from which everything random is derived.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    seed: int = Field(default=0, ge=0, lt=2**31)


class DesktopSection(StrictModel):
    """The desktops, and how a step waits for the screen.

    Attributes:
        count: Desktops that are used at the same time.
        provider: What runs them: `runc` containers, or `sim` for simulated ones.
        image: Name of the desktop image.
        resolution: Width and height of the screen in pixels.
        font_size: Font size of the desktop; None: its default.
        settle_quiet_ms: Milliseconds without a change after which the screen counts as settled.
        settle_cap_ms: Longest wait for a settled screen, in milliseconds.
        workers: Rollout worker processes that share the desktops.
    """

    count: int = Field(default=4, ge=1, le=256)
    workers: int = Field(default=1, ge=1, le=64)
    provider: Literal["runc", "sim"] = "runc"
    image: ImageName = "basic"
    resolution: Resolution = (640, 400)
    font_size: int | None = Field(default=16, ge=6, le=48)
    settle_quiet_ms: int = Field(default=80, ge=0, le=5_000)
    settle_cap_ms: int = Field(default=1_500, ge=0, le=30_000)

    @model_validator(mode="after")
    def _a_desktop_per_worker(self) -> DesktopSection:
        if self.workers > self.count:
            raise ValueError(
                f"{self.workers} rollout workers cannot share {self.count} desktops: lower desktops.workers"
            )
        return self

    @property
    def shape(self) -> DesktopShape:
        """The wire model of the farm with the same values."""
        return DesktopShape(image=self.image, resolution=self.resolution, font_size=self.font_size)


class TaskSection(StrictModel):
    """What is trained and evaluated.

    Attributes:
        suite: Name of the task suite.
        families: Families of the suite.
        max_steps: Step limit of an episode.
    """

    suite: str = "basics"
    families: tuple[str, ...] = Field(min_length=1)
    max_steps: int = Field(default=3, ge=1, le=200)


class ModelSection(StrictModel):
    """The policy to start from; exactly one of `preset` and `path` is given.

    Attributes:
        preset: A model that is initialised here with random weights.
        path: Path of a checkpoint, or its name in the local cache.
        prompt: Prompt preset, or an action format with the words that a checkpoint was trained with, such as `qwen3-vl`; None: our own
            words for the checkpoint's architecture.
        history_images: Screenshots in a prompt, where `history` is None; an action format's own number where it is not given.
        history: Which turns a prompt shows; None: the last `history_images` screenshots, and all answers.
    """

    preset: Literal["tiny"] | None = None
    path: str | None = None
    prompt: PresetName | None = None
    history_images: int = Field(default=1, ge=1, le=16)
    history: HistorySettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _images_of_the_format(cls, given: Any) -> Any:
        if isinstance(given, dict) and "history_images" not in given and given.get("prompt") in format_names():
            return {**given, "history_images": make_format(given["prompt"]).images}
        return given

    def images_per_prompt(self, max_steps: int) -> int:
        """Return the most images of a prompt, in an episode of `max_steps` steps."""
        return self.history_images if self.history is None else self.history.most_images(max_steps)

    @model_validator(mode="after")
    def _exactly_one_source(self) -> ModelSection:
        if (self.preset is None) == (self.path is None):
            raise ValueError("give either `preset` or `path`, not both and not neither")
        return self


class DemoSection(StrictModel):
    """Demonstrations of the oracle, collected on the desktops from the train split.

    Attributes:
        per_family: Demonstrations per family.
    """

    per_family: int = Field(default=64, ge=0)


class WarmupSection(StrictModel):
    """Supervised warm start on the demonstrations and on the accessibility trees of their screens.

    Attributes:
        enabled: False: the run starts from the model as it is.
        imitated_families: Families whose demonstrated actions are imitated; None: all. Screens of all families are used.
        imitated_demos_per_family: Demonstrations per family that are imitated.
        imitate_order: False: any element that the instruction mentions is imitated, so that their order is not learnt.
        imitation_fraction: How often an imitated action is asked about where a screen has one.
        images: Training images in all, repeats included.
        queries_per_image: Queries per image.
        batch_size: Images per update.
        learning_rate: Greatest learning rate.
        max_minutes: Minutes after which the warm start ends.
        threads: CPU threads.
    """

    enabled: bool = True
    imitated_families: tuple[str, ...] | None = Field(
        default=None,
    )
    imitated_demos_per_family: int = Field(default=16, ge=0)
    imitate_order: bool = Field(
        default=True,
    )
    imitation_fraction: float = Field(default=0.5, ge=0, le=1)
    images: int = Field(default=24_000, ge=1)
    queries_per_image: int = Field(default=6, ge=1, le=64)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=7e-4, gt=0)
    max_minutes: float = Field(default=10.0, gt=0)
    threads: int = Field(default=2, ge=1)


class InferenceSection(StrictModel):
    """The vLLM workers.

    Attributes:
        workers: Number of workers.
        threads: CPU threads per worker.
        dtype: Data type of the model.
        max_model_len: Longest prompt with its response, in tokens.
        max_num_seqs: Most requests in one batch of a worker.
        kv_cache_mib: Key-value cache per worker in MiB; "auto", or null on the command line: vLLM's own choice, right for GPUs.
        devices: Numbers of the GPUs, `tensor_parallel` for each worker in turn; None: every worker sees all.
        tensor_parallel: GPUs that one worker's model is split over.
        gpu_memory_fraction: Share of a GPU's memory that a worker may use.
        eager: Skip compilation; false on GPUs.
        kv_after_update: `recompute`: running requests compute their key-value cache again with new weights, which costs a prefill of every
            running request at each update; `keep`: they do not, and their later tokens are marked (`VersionSpan.kept_kv`).
        transfer_dtype: Data type of published weights: `as_trained`, or `bfloat16`, half of what workers read otherwise.
        update_mode: `per_worker`: each worker takes a version when it is ready; `global`: all stand still until all have it; None: as
            `rollout.scheduling` says.
        max_updating: Most workers that stand still at the same time (mode `per_worker`).
        metrics_port: Port of this host's loopback where Prometheus reads the metrics of all workers; None: nowhere.
    """

    workers: int = Field(default=2, ge=1, le=64)
    threads: int = Field(default=1, ge=1)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    max_model_len: int = Field(default=512, ge=64)
    max_num_seqs: int = Field(default=32, ge=1)
    kv_cache_mib: int | None = Field(default=96, ge=8)
    devices: tuple[int, ...] | None = None
    tensor_parallel: int = Field(default=1, ge=1)
    gpu_memory_fraction: float = Field(default=0.85, gt=0, le=1)
    eager: bool = True
    kv_after_update: Literal["recompute", "keep"] = "recompute"
    transfer_dtype: PublishedDtype = "as_trained"
    update_mode: UpdateMode | None = None
    max_updating: int = Field(default=1, ge=1)
    metrics_port: int | None = Field(default=None, ge=0, le=65535)

    @field_validator("kv_cache_mib", mode="before")
    @classmethod
    def _read_auto(cls, value: object) -> object:
        """TOML has no null."""
        return None if value in ("auto", "null") else value

    @model_validator(mode="after")
    def _devices_suffice(self) -> InferenceSection:
        split_devices(self.devices, self.workers, self.tensor_parallel)
        return self


class RolloutSection(StrictModel):
    """How training rollouts are sampled and scheduled.

    Attributes:
        group_size: Rollouts per group.
        temperature: Sampling temperature.
        top_p: Must be 1, because the trainer's log-probs are those of the full distribution.
        max_tokens: Longest response, in tokens.
        max_episode_tokens: Most sampled tokens of an episode; None: no limit.
        max_episode_s: Longest episode, in seconds after its first screenshot; None: no limit.
        loop_repeats: So many times in a row may an action be taken on the same screen, and the last one ends the episode; None: no limit.
        partial: Whether steps are stored as they happen, and unfinished episodes are continued.
        on_parse_error: What a response that performs nothing leads to: `no_action` (a step in which nothing happens), `fail` (the end
            of the episode) or `retry` (another response on the same screen, which costs no step).
        parse_retries: Further responses in a row that `retry` asks for before a step in which nothing happens.
        scheduling: What a desktop waits for before its next training rollout: `batch`, `task`, `rollout-global` or `rollout-per-worker`.
        over_provision: Rollouts that are launched over those that are needed; 1: no more.
        parallel_groups: Training groups whose rollouts start at the same time; none: the staleness budget decides.
        max_kv_cache_usage: No rollout starts where the inference workers report more than this fraction of their key-value cache in use.
    """

    group_size: int = Field(default=8, ge=2, le=256)
    temperature: float = Field(default=1.0, gt=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=24, ge=1)
    max_episode_tokens: int | None = Field(default=None, ge=1)
    max_episode_s: float | None = Field(default=None, gt=0)
    loop_repeats: int | None = Field(default=None, ge=2)
    partial: bool = False
    on_parse_error: OnParseError = OnParseError.NO_ACTION
    parse_retries: int = Field(default=2, ge=1, le=16)
    scheduling: SchedulingMode = SchedulingMode.ROLLOUT_PER_WORKER
    over_provision: float = Field(default=1.0, ge=1, le=4)
    parallel_groups: int | None = Field(default=None, ge=1)
    max_kv_cache_usage: float = Field(default=0.95, gt=0, le=1)

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
        """The sampling parameters of the agent with the same values."""
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens)


class CurationSection(StrictModel):
    """The four levels of adaptive data curation, each switchable.

    Attributes:
        difficulty_aware_tasks: Whether families with mixed results get more groups.
        dynamic_rollout_number: Whether families that mostly succeed get smaller groups.
        dynamic_rollout_threshold: Success rate from which a group is smaller.
        dynamic_trajectory_length: Whether episodes are shortened to the length of past successes.
        high_entropy_step_fraction: Fraction of a group's steps that is trained on; 1 keeps all.
        experience_pool: Whether stored successes complete groups in which every rollout failed.
        max_staleness: Limit of the trainer version minus the version that sampled a token.
    """

    difficulty_aware_tasks: bool = False
    dynamic_rollout_number: bool = False
    dynamic_rollout_threshold: float = Field(default=0.6, gt=0, le=1)
    dynamic_trajectory_length: bool = False
    high_entropy_step_fraction: float = Field(default=1.0, gt=0, le=1)
    experience_pool: bool = False
    max_staleness: int = Field(default=4, ge=0)


class TrainSection(StrictModel):
    """GRPO; `learning_rate = 0` runs the same code and changes nothing, which is the control experiment.

    Attributes:
        updates: Policy versions to make.
        max_minutes: Minutes after which training ends.
        groups_per_batch: Groups per train step.
        epochs: Passes over a batch.
        minibatches: Optimiser steps per pass.
        learning_rate: Learning rate after its warm-up.
        lr_warmup_updates: Train steps over which the learning rate rises.
        beta2: AdamW's decay of the mean of squared gradients.
        weight_decay: Weight decay.
        grad_clip: Greatest norm of a gradient.
        algorithm: Which settings the keys below have unless the recipe says otherwise (`dart_train.objectives.algorithms`): `grpo`,
            `grpo-trajectory`, `dr-grpo`, `rloo`, `dapo`, `gspo`, `cispo`, or one of a package.
        surrogate: What is maximised per token: `clipped`, `sequence_clipped`, `weighted`, `policy_gradient`, or your own `module:function`.
        clip_low: Lower clip width of the ratio.
        clip_high: Upper clip width of the ratio.
        dual_clip: Bound of the loss for negative advantages, as a factor of the advantage; "none": no bound.
        correction: How the difference between sampling policy and trainer is corrected (`dart_train.objectives.corrections`).
        tis_cap: Upper bound of the importance weight; "none": no bound, and under `token_truncate` no weight.
        correction_floor: Lower bound of the ratio that the masks keep.
        kl_coefficient: Weight of the KL term to the start model.
        kl_estimator: `k3`, or `k1`, whose gradient vanishes in expectation.
        entropy_coefficient: Weight of the entropy bonus.
        advantage: Formula of the advantages: `grpo`, (reward - mean) / deviation; `no_std`, without the deviation; `leave_one_out`, minus
            the mean of the other trajectories.
        advantage_over: What that mean and deviation are taken over: `group_steps`, all steps of a group (DART), or `group_trajectories`,
            its trajectories. The default is the one whose advantages cancel in the default aggregation.
        aggregation: How token losses become one number: `seq_mean_token_mean`, every step counts once (goes with `group_steps`);
            `trajectory_mean`, every trajectory counts once (goes with `group_trajectories`); `token_mean`, every token counts once;
            `constant_length`, every token counts once, and the number of trajectories times `constant_length` divides.
        constant_length: Tokens by which `constant_length` divides.
        micro_batch_rows: Steps per forward and backward pass; lower it where memory is short.
        device: Where the trainer and the warm start run; auto: a GPU where torch finds one.
        dtype: Data type of matrix products; auto: bfloat16 on a GPU and in the warm start, else float32.
        threads: CPU threads.
        checkpoint_every: Train steps per checkpoint.
    """

    updates: int = Field(default=60, ge=0)
    max_minutes: float = Field(default=25.0, gt=0)
    groups_per_batch: int = Field(default=8, ge=1)
    epochs: int = Field(default=1, ge=1)
    minibatches: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-4, ge=0)
    lr_warmup_updates: int = Field(default=5, ge=0)
    beta2: float = Field(default=0.99, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    algorithm: str = "grpo"
    surrogate: str = "clipped"
    clip_low: float = Field(default=0.2, gt=0)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    correction: CorrectionKind = "token_truncate"
    tis_cap: float | None = Field(default=2.0, gt=0)
    correction_floor: float = Field(default=0.5, ge=0)
    kl_coefficient: float = Field(default=0.0, ge=0)
    kl_estimator: KlEstimator = "k3"
    entropy_coefficient: float = Field(default=0.0, ge=0)
    advantage: AdvantageKind = "grpo"
    advantage_over: AdvantageOver = "group_steps"
    aggregation: Aggregation = "seq_mean_token_mean"
    constant_length: int = Field(default=512, ge=1)
    micro_batch_rows: int = Field(default=32, ge=1)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
    )
    threads: int = Field(default=1, ge=1)
    checkpoint_every: int = Field(default=1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _begin_with_the_algorithm(cls, section: Any) -> Any:
        """The algorithm's settings, and over them what the recipe says; TOML has no null, so that "none" stands for it."""
        if not isinstance(section, dict):
            return section
        name = section.get("algorithm", "grpo")
        settings = {**find_algorithm(name).settings, **section} if isinstance(name, str) else section
        return {key: None if key in UNBOUNDED and value == "none" else value for key, value in settings.items()}

    @model_validator(mode="after")
    def _loss_can_be_made(self) -> TrainSection:
        LossSettings.model_validate({name: getattr(self, name) for name in LossSettings.model_fields})
        if self.surrogate not in SURROGATES:
            load_surrogate(self.surrogate)
        if self.advantage == "leave_one_out" and self.advantage_over == "group_steps":
            raise ValueError(
                'advantage = "leave_one_out" leaves out whole trajectories: set advantage_over = "group_trajectories" and '
                'aggregation = "trajectory_mean" with it'
            )
        return self


class EvalSection(StrictModel):
    """Greedy evaluation on validation variations, the same list before and after training.

    Attributes:
        episodes: Episodes of an evaluation.
        baseline_episodes: Episodes of the random and of the blank-screenshot policy.
        min_gain_points: A gain at or below this many points counts as not learned: exit code 1.
    """

    episodes: int = Field(default=300, ge=1)
    baseline_episodes: int = Field(default=0, ge=0)
    min_gain_points: float = 0.0


class LimitSection(StrictModel):
    """What the host must have free, checked before the run starts, and how long a run waits.

    Attributes:
        min_free_disk_gib: Disk space in GiB.
        min_free_memory_gib: Memory in GiB.
        stall_minutes: Minutes without any progress (an episode, an update, a worker that is ready) after which a run ends with the reason.
    """

    min_free_disk_gib: float = Field(default=4.0, ge=0)
    min_free_memory_gib: float = Field(default=6.0, ge=0)
    stall_minutes: float = Field(default=30.0, gt=0)


class Recipe(StrictModel):
    """A whole run; see the sections.

    Attributes:
        run: Name and seed.
        desktops: The desktops.
        tasks: What is trained and evaluated.
        model: The policy to start from.
        demos: Demonstrations.
        warmup: Supervised warm start.
        inference: The vLLM workers.
        rollout: How training rollouts are sampled.
        curation: Adaptive data curation.
        train: GRPO.
        eval: Evaluation.
        limits: What the host must have free.
    """

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
        if self.inference.update_mode not in (None, self.update_mode):
            raise ValueError(
                f"rollout.scheduling {self.rollout.scheduling.value!r} updates inference workers in mode {self.update_mode.value!r}: "
                "leave inference.update_mode out, or choose another rollout.scheduling"
            )
        return self

    @property
    def update_mode(self) -> UpdateMode:
        """In which order inference workers take a new version."""
        return UpdateMode.GLOBAL if self.rollout.scheduling.weight_sync == "global" else UpdateMode.PER_WORKER


Override = Annotated[str, "KEY.PATH=TOML-VALUE"]


def load_recipe(path: Path, overrides: tuple[Override, ...] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: The TOML file.
        overrides: `section.key=value` with a TOML value, applied on top.

    Returns:
        The recipe.

    Raises:
        RecipeError: One clause per mistake, each with the path of the key.
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
