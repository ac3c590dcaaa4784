"""The training of a grounding model: its losses, and what each stage trains.

Role: `train_grounding(config)` trains and writes a model; `HeadTrainer` is what every training of a head has in common. Rule: stage `head`
leaves every other weight bit for bit. Non-goals: the loop (`dart_train.grounding.supervised`), evaluation (`dart-agent ground eval`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dart_agent.errors import ConfigError
from dart_agent.grounding.answers import ADDED_TOKENS
from dart_agent.grounding.labels import offset_targets, token_targets
from dart_agent.grounding.model import GroundingModel, attach_head, load_grounding_model
from dart_agent.grounding.samples import GroundingSample, read_image
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock
from dart_train.grounding.batches import Batch, BatchRow, SampleSet
from dart_train.grounding.config import GroundingConfig, HeadConfig
from dart_train.grounding.memory import set_up_backbone
from dart_train.grounding.supervised import ALONE, Progress, Row, SupervisedTrainer, run_training
from dart_train.model.adapters import AdaptedModel, attach_adapter
from dart_train.model.device import ComputeDevice
from dart_train.model.policy_model import LoadedModel, ModelNotFoundError, load_model
from dart_train.trainer.ranks import Ranks

if TYPE_CHECKING:
    from torch import Tensor

    from dart_agent.grounding.forward import ForwardOutput
    from dart_agent.grounding.packing import PackedQuestions, Question

Settings = TypeVar("Settings", bound=HeadConfig)


def train_grounding(
    config: GroundingConfig,
    on_progress: Progress | None = None,
    clock: Clock = SYSTEM_CLOCK,
    ranks: Ranks | None = None,
) -> GroundingModel:
    """Train a model and write it to `config.out_dir`.

    Args:
        config: The configuration.
        on_progress: Called with every metric line.
        clock: Measures the duration.
        ranks: The processes that train together; None: this one alone.

    Returns:
        The trained model, in evaluation mode; with adapters, they are not merged into it. Where matrix products are computed in bfloat16,
        it may have frozen weights in it, and is asked under autocast. Where several processes trained all of it, each has its shards.

    Raises:
        ConfigError: The samples cannot be used.
        ModelNotFoundError: The start model cannot be loaded.
        FileExistsError: `out_dir` exists already.
    """

    def trainer_of(samples: SampleSet, ranks: Ranks) -> GroundingTrainer:
        return GroundingTrainer(config, samples, load_start_model(config), ranks)

    trainer = run_training(trainer_of, config, "grounding", on_progress, clock, ranks)
    trainer.model.backbone.eval()
    trainer.model.head.eval()
    return trainer.model


def load_start_model(config: HeadConfig) -> GroundingModel:
    """Load what the training starts from, on the CPU; a model without a head gets a new one.

    Args:
        config: The configuration.

    Returns:
        The model.

    Raises:
        ModelNotFoundError: It cannot be loaded.
    """
    try:
        path = resolve_checkpoint(config.start_model) / "config.json"
    except ConfigError as error:
        raise ModelNotFoundError(str(error)) from None
    if "pointer_pad_token_id" in json.loads(path.read_text(encoding="utf-8")):
        return load_grounding_model(config.start_model)
    loaded = load_model(config.start_model)
    return attach_head(
        loaded.model, loaded.processor, offset_parts=config.offset_parts, system=config.system, seed=config.seed
    )


class HeadTrainer(SupervisedTrainer[Row], Generic[Row, Settings]):
    """A model with a head and its optimiser, whatever it learns from. Where all of the backbone is trained, several processes share it.

    Args:
        config: The configuration.
        samples: What is learnt.
        model: The model; it is set up for training in place, and put on the device of the configuration.
        ranks: The processes that train together.
    """

    def __init__(self, config: Settings, samples: SampleSet, model: GroundingModel, ranks: Ranks = ALONE) -> None:
        import torch

        from dart_agent.grounding.packing import QuestionPacker

        self.config, self.samples, self.model = config, samples, model
        self._packer = QuestionPacker(model)
        self._adapted: AdaptedModel | None = None
        self._masked: Any = None
        self.compute = ComputeDevice.resolve(config.device, config.dtype)
        self._choose_trained()
        sharded = ranks.size > 1 and config.stage == "all" and config.lora is None
        shards = set_up_backbone(model.backbone, model.processor, config, self.compute, sharded=sharded)
        model.head.to(self.compute.device)
        if self._masked is not None:
            self._mask_known_rows(self._masked)
        for module in model.head.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = config.dropout
        model.head.self_attention.dropout = config.dropout
        model.head.train()
        undecayed = () if self._masked is None else (self._masked,)
        super().__init__(
            config, {"backbone": model.backbone, "head": model.head}, undecayed, ranks=ranks, shards=shards
        )

    def batch(self, number: int) -> Batch:
        """The batch of an update.

        Args:
            number: Number of the update.

        Returns:
            Image files with samples.
        """
        config = self.config
        return self.samples.batch(number, config.images_per_update, config.questions_per_image, config.seed)

    def forward(self, batch: Batch) -> tuple[PackedQuestions, ForwardOutput]:
        """Run the model.

        Args:
            batch: Image files with samples.

        Returns:
            The questions as tensors, and what the model says.
        """
        from dart_agent.grounding.forward import run_forward

        asked = [[_question(sample) for sample in samples] for _, samples in batch]
        images = [read_image(path, samples[0].image_wh) for path, samples in batch]
        packed = self._packer.pack(images, asked)
        return packed, run_forward(self.model, packed)

    def learnt_tokens(self, batch: Batch) -> int:
        """How many tokens the answers to a batch have for the language model to learn.

        Args:
            batch: Image files with samples.

        Returns:
            The number.
        """
        return sum(self._packer.learnt_tokens(_question(sample)) for _, samples in batch for sample in samples)

    def save(self, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the model, adapters merged in float32; see `SupervisedTrainer.save`."""
        self.model.save(directory, weights if self._adapted is None else self._adapted.merged_state(rounded=False))

    def _choose_trained(self) -> None:
        backbone, config = self.model.backbone, self.config
        self.model.head.requires_grad_(True)
        if config.stage == "all" and config.lora is None:
            backbone.requires_grad_(True)
        elif config.lora is not None:
            self._adapted = attach_adapter(LoadedModel(backbone, self.model.processor), config.lora)
        else:
            backbone.requires_grad_(False)
        if config.stage == "all" and config.freeze_vision:
            backbone.model.visual.requires_grad_(False)
        if config.stage == "head" or config.lora is not None:
            self._masked = backbone.get_input_embeddings().weight
            self._masked.requires_grad_(True)

    def _mask_known_rows(self, weight: Any) -> None:
        """Train the embeddings of the added tokens alone: the gradient of every other row is 0, and weight decay is not for them."""
        import torch

        added = torch.tensor(self.model.tokenizer.convert_tokens_to_ids(list(ADDED_TOKENS)), device=weight.device)
        mask_V1 = torch.zeros(weight.shape[0], 1, device=weight.device, dtype=weight.dtype)
        mask_V1[added] = 1.0
        weight.register_hook(lambda gradient: gradient * mask_V1)


class GroundingTrainer(HeadTrainer[BatchRow, GroundingConfig]):
    """A model with a head and its optimiser, which learns from labels."""

    def rows(self, number: int) -> Batch:
        """The images of an update with their samples; see `SupervisedTrainer.rows`."""
        return self.batch(number)

    def losses(self, rows: Batch, batch: Batch) -> dict[str, Tensor]:
        """The losses of pointer, offset and language; see `SupervisedTrainer.losses`."""
        from dart_train.grounding.losses import mean_loss, share

        tokens = self.learnt_tokens(batch) if self.config.lm_weight else 0
        with self.precision():
            packed, output = self.forward(rows)
            language = self._language_loss(packed, output)
        attention, offsets = self._pointing_losses(rows, output)  # the head has the precision of its weights
        part = share(len(attention), _count_pointing(batch))
        return {
            "pointer_loss": mean_loss(attention, output.hidden_BTD) * part,
            "offset_loss": mean_loss(offsets, output.hidden_BTD) * part,
            "language_loss": language * share(self.learnt_tokens(rows) if tokens else 0, tokens),
        }

    def _pointing_losses(self, rows: Batch, output: ForwardOutput) -> tuple[list[Tensor], list[Tensor]]:
        """The losses of attention and offset of each question with a target."""
        import torch

        from dart_train.grounding.losses import attention_loss, offset_loss

        config, head = self.config, self.model.head
        attention, offsets = [], []
        for row, (_, samples) in zip(output.questions, rows, strict=True):
            for found, sample in zip(row, samples, strict=True):
                if sample.is_refusal:
                    continue
                labels = token_targets(found.grid, sample.targets, soft=config.soft_labels)
                targets_KM = torch.from_numpy(labels).to(found.logits_KM)
                attention.append(attention_loss(found.logits_KM, targets_KM))
                if head.offset is not None:
                    parts = torch.from_numpy(offset_targets(found.grid, sample.targets, head.offset_parts))
                    offsets.append(offset_loss(head, found, targets_KM, parts.to(found.logits_KM)))
        return attention, offsets

    def _language_loss(self, packed: PackedQuestions, output: ForwardOutput) -> Tensor:
        from dart_train.grounding.losses import language_loss, mean_loss

        if not self.config.lm_weight:
            return mean_loss([], output.hidden_BTD)
        return language_loss(self.model.backbone, output.hidden_BTD, packed)

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The losses under the configuration's weights."""
        config = self.config
        return (
            config.pointer_weight * losses["pointer_loss"]
            + config.offset_weight * losses["offset_loss"]
            + config.lm_weight * losses["language_loss"]
        )


def _question(sample: GroundingSample) -> Question:
    from dart_agent.grounding.packing import Question

    return Question.point(sample.instruction, len(sample.targets))


def _count_pointing(batch: Batch) -> int:
    """How many samples have a target."""
    return sum(not sample.is_refusal for _, samples in batch for sample in samples)
