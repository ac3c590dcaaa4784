"""The schema of a recipe: its sections, and what they must agree on.

Role: the rules between sections. Non-goals: the sections (a module each), files and overrides (`dart_train.config.loading`).
"""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from dart_agent.inference.decisions.weight_updates import UpdateMode
from dart_agent.rewards.settings import RewardSettings
from dart_agent.rollouts.worker_config import PolicyKind
from dart_agent.strict_model import StrictModel
from dart_train.config.curation import CurationSection
from dart_train.config.data import DataSection
from dart_train.config.desktops import DesktopSection
from dart_train.config.evaluation import EvalSection
from dart_train.config.inference import InferenceSection
from dart_train.config.model import ModelSection
from dart_train.config.rollout import RolloutSection
from dart_train.config.run import LimitSection, RunSection
from dart_train.config.sft import SftSection
from dart_train.config.tasks import DemoSection, TaskSection
from dart_train.config.tracking import TrackingSection
from dart_train.config.train import TrainSection
from dart_train.config.warmup import WarmupSection

DART_TIS_CAP = 1.0
MAX_SHARED_FRACTION = 0.6
"""Of the memory of a GPU, what an inference worker may take where a trainer is on the same one."""


class Recipe(StrictModel):
    """A whole run; see the sections.

    Attributes:
        run: Name and seed.
        desktops: The desktops.
        tasks: What is trained and evaluated.
        model: The policy to start from.
        demos: Demonstrations.
        warmup: Supervised warm start.
        sft: Supervised fine-tuning by `dart-train sft`.
        inference: The vLLM workers.
        data: Where trajectories are stored.
        rollout: How training rollouts are sampled.
        reward: Where rewards come from, and what counts as a success.
        curation: Adaptive data curation.
        train: GRPO.
        eval: Evaluation.
        limits: What the host must have free.
        tracking: Where else the metrics are shown.
    """

    run: RunSection
    desktops: DesktopSection = DesktopSection()
    tasks: TaskSection
    model: ModelSection
    demos: DemoSection = DemoSection()
    warmup: WarmupSection = WarmupSection()
    sft: SftSection = SftSection()
    inference: InferenceSection = InferenceSection()
    data: DataSection = DataSection()
    rollout: RolloutSection = RolloutSection()
    reward: RewardSettings = RewardSettings()
    curation: CurationSection = CurationSection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    limits: LimitSection = LimitSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="before")
    @classmethod
    def _align_as_in_dart(cls, recipe: Any) -> Any:
        """DART's curation has a fourth level, the importance weights of tokens, whose bound belongs to the section `train`.

        It is the bound of truncated weights. A correction that masks has a bound of its own: at 1 it would leave out each token whose
        probability rose.
        """
        if not isinstance(recipe, dict):
            return recipe
        curation, train = recipe.get("curation"), recipe.get("train", {})
        is_dart = isinstance(curation, dict) and curation.get("preset") == "dart" and isinstance(train, dict)
        if is_dart and train.get("correction", "token_truncate") == "token_truncate":
            return {**recipe, "train": {"tis_cap": DART_TIS_CAP, **train}}
        return recipe

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
        devices = self.train.devices
        if self.warmup.enabled and devices is not None and self.warmup.processes > len(devices):
            raise ValueError(
                f"warmup.processes is {self.warmup.processes}, and train.devices names {len(devices)}: give each process a GPU"
            )
        if self.warmup.imitated_demos_per_family > self.demos.per_family:
            raise ValueError("warmup.imitated_demos_per_family is larger than demos.per_family")
        if self.eval.during_training and self.eval.during_desktops >= self.desktops.count:
            raise ValueError(
                f"eval.during_desktops = {self.eval.during_desktops} leaves training none of the {self.desktops.count} desktops: lower it, "
                "or raise desktops.count"
            )
        if self.eval.during_workers >= self.inference.workers:
            raise ValueError(
                f"eval.during_workers = {self.eval.during_workers} leaves training none of the {self.inference.workers} inference workers: "
                "lower it, or raise inference.workers"
            )
        if self.eval.during_workers and (self.inference.engine == "transformers" or self.model.pointer):
            raise ValueError(
                "eval.during_workers keeps the tokens of an evaluation to one version, not the points of an action head: set it to 0"
            )
        if self.train.sft_coefficient and self.demos.path is None and not self.collects_demonstrations:
            raise ValueError(
                "train.sft_coefficient imitates demonstrations, and there are none, because a run collects its own for a warm start only: "
                "set demos.path"
            )
        shared = sorted(set(self.inference.devices or ()) & set(self.train.devices or ()))
        if shared and self.inference.gpu_memory_fraction > MAX_SHARED_FRACTION:
            raise ValueError(
                f"train.devices and inference.devices share GPU {shared[0]}, and an inference worker takes "
                f"{self.inference.gpu_memory_fraction:g} of its memory: lower inference.gpu_memory_fraction to "
                f"{MAX_SHARED_FRACTION:g} or less, or give the trainer GPUs of its own"
            )
        if self.inference.publish == "adapter" and self.train.lora is None:
            raise ValueError(
                'inference.publish = "adapter" needs a LoRA adapter: set train.lora_rank, or publish = "model"'
            )
        if self.inference.quantization is not None and not self.train.corrects:
            cap = ' with train.tis_cap = "none"' if self.train.correction != "none" else ""
            raise ValueError(
                f"inference.quantization = {self.inference.quantization!r} samples from another distribution than the trainer's, and "
                f"train.correction = {self.train.correction!r}{cap} does not correct the difference: set train.correction = "
                '"token_truncate" and train.tis_cap = 2, or leave inference.quantization out'
            )
        if self.inference.update_mode not in (None, self.update_mode):
            raise ValueError(
                f"rollout.scheduling {self.rollout.scheduling.value!r} updates inference workers in mode {self.update_mode.value!r}: "
                "leave inference.update_mode out, or choose another rollout.scheduling"
            )
        return self

    @model_validator(mode="after")
    def _head_can_act_and_train(self) -> Recipe:
        own_engine = self.inference.engine == "transformers"
        if own_engine and self.inference.quantization is not None:
            raise ValueError(
                'inference.engine = "transformers" has no quantised weights: leave inference.quantization out, or set engine = "vllm"'
            )
        if not self.model.pointer:
            if own_engine:
                raise ValueError(
                    'inference.engine = "transformers" is for policies with an action head: set model.pointer = true, or engine = "vllm"'
                )
            return self
        train = self.train
        fixes = {
            'set inference.publish = "model"': self.inference.publish == "adapter",
            "set train.kl_coefficient = 0": train.kl_coefficient > 0,
            'set rollout.scheduling = "rollout-per-worker", or inference.engine = "vllm"': own_engine
            and self.update_mode is UpdateMode.GLOBAL,
            "set eval.baseline_episodes = 0": self.eval.baseline_episodes > 0,
            'set demos.thoughts = "instruction"': self.demos.thoughts == "none" and self.imitates,
        }
        needed = [fix for fix, wrong in fixes.items() if wrong]
        if needed:
            raise ValueError(
                "model.pointer trains a head, which an adapter alone does not hold, and no reference, no baseline and no "
                "demonstration without thoughts describes targets: " + ", ".join(needed)
            )
        return self

    @property
    def trainer_shards(self) -> int:
        """Among how many processes the trainer's policy is divided; each holds the whole of an adapted policy."""
        return 1 if self.train.lora_rank is not None else self.train.processes

    @property
    def imitates(self) -> bool:
        """Whether demonstrations become answers: in the imitation term, or of a folder in `dart-train sft`."""
        return self.train.sft_coefficient > 0 or self.demos.path is not None

    @property
    def collects_demonstrations(self) -> bool:
        """Whether the run begins with demonstrations of the oracle, which its warm start needs."""
        return self.warmup.enabled and self.demos.per_family > 0

    @property
    def acting_policy(self) -> PolicyKind:
        """What acts in training and evaluation: inference workers, or the rollout workers' own model with its action head."""
        return self.inference.engine

    @property
    def update_mode(self) -> UpdateMode:
        """In which order inference workers take a new version."""
        return UpdateMode.GLOBAL if self.rollout.scheduling.weight_sync == "global" else UpdateMode.PER_WORKER
