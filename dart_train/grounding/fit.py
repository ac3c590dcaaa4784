"""The training loop of a grounding model.

Role: `train_grounding(config)` trains, keeps checkpoints and writes the model. Rule: an update depends on trained weights, optimiser, seed
and number of the update alone (dropout included), so that a killed training that is started again ends with the same bits; the result
appears under its final name only when it is complete. Non-goals: evaluation (`dart-agent ground eval`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_agent.errors import ConfigError
from dart_agent.grounding.answers import ADDED_TOKENS
from dart_agent.grounding.labels import offset_targets, token_targets
from dart_agent.grounding.model import GroundingModel, attach_head, load_grounding_model
from dart_agent.grounding.samples import read_image
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.metrics_file import append_metrics
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock
from dart_train.grounding.batches import SampleSet
from dart_train.grounding.config import GroundingConfig
from dart_train.model.adapters import AdaptedModel, attach_adapter
from dart_train.model.cpu_vision import optimize_vision_for_cpu
from dart_train.model.device import ComputeDevice
from dart_train.model.policy_model import LoadedModel, ModelNotFoundError, load_model
from dart_train.model.weights import write_directory_atomically
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.schedule import learning_rate

if TYPE_CHECKING:
    from torch import Tensor

KEPT_STATES = 2


def train_grounding(
    config: GroundingConfig,
    on_progress: Callable[[Mapping[str, Any]], None] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> GroundingModel:
    """Train a model and write it to `config.out_dir`.

    Args:
        config: The configuration.
        on_progress: Called with every metric line.
        clock: Measures the duration.

    Returns:
        The trained model, in evaluation mode; with adapters, they are not merged into it.

    Raises:
        ConfigError: The samples cannot be used.
        ModelNotFoundError: The start model cannot be loaded.
        FileExistsError: `out_dir` exists already.
    """
    if config.out_dir.exists():
        raise FileExistsError(f"{config.out_dir} exists already: remove it to train again")
    samples = SampleSet(config.samples)
    import torch

    torch.set_num_threads(config.threads)
    trainer = GroundingTrainer(config, samples, load_start_model(config))
    store = CheckpointStore(config.checkpoints, KEPT_STATES)
    latest = store.latest()
    first, before_s = 0, 0.0
    if latest is not None:
        trainer.restore(latest)
        first, before_s = latest.updates, latest.trained_s
    began_s = clock.monotonic()
    for update in range(first, config.updates):
        losses = trainer.update(update)
        done, trained_s = update + 1, before_s + clock.monotonic() - began_s
        if done % config.report_every == 0 or done == config.updates:
            line = {"kind": "grounding", "update": done, **losses, "trained_s": round(trained_s, 1)}
            append_metrics(config.metrics, line)
            if on_progress is not None:
                on_progress(line)
        if done % config.checkpoint_every == 0 and done < config.updates:
            store.save(
                TrainerState(
                    version=0,
                    updates=done,
                    last_batch=None,
                    steps=[],
                    metrics=losses,
                    trained_s=trained_s,
                    tensors=trainer.tensors(),
                )
            )
    write_directory_atomically(config.out_dir, trainer.save)
    trainer.model.backbone.eval()
    trainer.model.head.eval()
    return trainer.model


def load_start_model(config: GroundingConfig) -> GroundingModel:
    """Load what the training starts from; a model without a head gets a new one.

    Args:
        config: The configuration.

    Returns:
        The model.

    Raises:
        ModelNotFoundError: It cannot be loaded.
    """
    device = ComputeDevice.resolve(config.device, "float32").device
    try:
        path = resolve_checkpoint(config.start_model) / "config.json"
    except ConfigError as error:
        raise ModelNotFoundError(str(error)) from None
    if "pointer_pad_token_id" in json.loads(path.read_text(encoding="utf-8")):
        return load_grounding_model(config.start_model, device)
    loaded = load_model(config.start_model, device)
    return attach_head(
        loaded.model, loaded.processor, offset_parts=config.offset_parts, system=config.system, seed=config.seed
    )


class GroundingTrainer:
    """A model with its optimiser.

    Args:
        config: The configuration.
        samples: What is learnt.
        model: The model; it is set up for training in place.
    """

    def __init__(self, config: GroundingConfig, samples: SampleSet, model: GroundingModel) -> None:
        import torch

        self.config, self.samples, self.model = config, samples, model
        self._adapted: AdaptedModel | None = None
        self._masked: Any = None
        self._choose_trained()
        if str(model.device) == "cpu":
            optimize_vision_for_cpu(model.backbone)
        model.backbone.train()
        for module in model.head.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = config.dropout
        model.head.self_attention.dropout = config.dropout
        model.head.train()
        settings = config.optimizer
        masked: list[Any] = [self._masked] if self._masked is not None else []
        plain = [parameter for parameter in self.trained().values() if parameter is not self._masked]
        self.optimizer = torch.optim.AdamW(
            [{"params": plain, "weight_decay": settings.weight_decay}, {"params": masked, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
        )

    def trained(self) -> dict[str, Any]:
        """The parameters that are trained, by name."""
        parts = {"backbone": self.model.backbone, "head": self.model.head}
        return {
            f"{part}.{name}": parameter
            for part, module in parts.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def update(self, number: int) -> dict[str, float]:
        """Do one update.

        Args:
            number: Its number, from 0.

        Returns:
            The losses, in nats, by name.
        """
        import torch

        config = self.config
        rate = learning_rate(config.optimizer, number, config.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.random.fork_rng(devices=[] if str(self.model.device) == "cpu" else None):
            torch.manual_seed(config.seed * 1_000_003 + number)
            losses = self.losses(number)
            total = (
                config.pointer_weight * losses["pointer_loss"]
                + config.offset_weight * losses["offset_loss"]
                + config.lm_weight * losses["language_loss"]
            )
            self.optimizer.zero_grad(set_to_none=True)
            total.backward()  # type: ignore[no-untyped-call]
        for parameter in self.trained().values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        torch.nn.utils.clip_grad_norm_(self.trained().values(), config.optimizer.grad_clip)
        self.optimizer.step()
        return {name: float(value.detach()) for name, value in losses.items()}

    def losses(self, number: int) -> dict[str, Tensor]:
        """Compute the losses of an update's batch.

        Args:
            number: Number of the update.

        Returns:
            Scalars by name.
        """
        import torch

        from dart_agent.grounding.forward import run_forward
        from dart_agent.grounding.packing import Question, pack
        from dart_train.grounding.losses import attention_loss, language_loss, mean_loss, offset_loss

        config, head = self.config, self.model.head
        batch = self.samples.batch(number, config.images_per_update, config.questions_per_image, config.seed)
        asked = [
            [Question.point(sample.instruction, len(sample.targets)) for sample in samples] for _, samples in batch
        ]
        packed = pack(self.model, [read_image(path) for path, _ in batch], asked)
        output = run_forward(self.model, packed)
        attention, offsets = [], []
        for row, (_, samples) in zip(output.questions, batch, strict=True):
            for found, sample in zip(row, samples, strict=True):
                if sample.is_refusal:
                    continue
                labels = token_targets(found.grid, sample.targets, soft=config.soft_labels)
                targets_KM = torch.from_numpy(labels).to(found.logits_KM)
                attention.append(attention_loss(found.logits_KM, targets_KM))
                if head.offset is not None:
                    parts = torch.from_numpy(offset_targets(found.grid, sample.targets, head.offset_parts))
                    offsets.append(offset_loss(head, found, targets_KM, parts.to(found.logits_KM)))
        language = (
            language_loss(self.model.backbone, output, packed) if config.lm_weight else mean_loss([], output.hidden_BTD)
        )
        return {
            "pointer_loss": mean_loss(attention, output.hidden_BTD),
            "offset_loss": mean_loss(offsets, output.hidden_BTD),
            "language_loss": language,
        }

    def tensors(self) -> dict[str, Tensor]:
        """Trained parameters and the optimiser's state of each, by name."""
        found: dict[str, Tensor] = {}
        for name, parameter in self.trained().items():
            found[f"model.{name}"] = parameter.detach()
            found |= {f"optimizer.{name}.{key}": value for key, value in self.optimizer.state[parameter].items()}
        return found

    def restore(self, state: TrainerState) -> None:
        """Take over a state from disk.

        Args:
            state: The state.

        Raises:
            ModelNotFoundError: The state is one of another model or of other settings.
        """
        import torch

        for parameter in self.trained().values():
            parameter.grad = torch.zeros_like(parameter)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.optimizer.step()  # makes the optimiser's tensors; no parameter changes
        self.optimizer.zero_grad(set_to_none=True)
        wanted = self.tensors()
        lacking = sorted(set(wanted) - state.load(wanted))
        if lacking:
            raise ModelNotFoundError(
                f"checkpoint {state.directory} lacks {lacking[0]} and {len(lacking) - 1} more tensors: continue with the settings that it "
                "was made with, or choose another folder of checkpoints"
            )

    def save(self, directory: Path) -> None:
        """Write the model, adapters merged.

        Args:
            directory: An empty directory.
        """
        self.model.save(directory, None if self._adapted is None else self._adapted.merged_state())

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
            self._train_new_rows()

    def _train_new_rows(self) -> None:
        """Train the embeddings of the added tokens alone: the gradient of every other row is 0, and weight decay is not for them."""
        import torch

        weight = self.model.backbone.get_input_embeddings().weight
        weight.requires_grad_(True)
        added = torch.tensor(self.model.tokenizer.convert_tokens_to_ids(list(ADDED_TOKENS)), device=weight.device)
        mask_V1 = torch.zeros(weight.shape[0], 1, device=weight.device, dtype=weight.dtype)
        mask_V1[added] = 1.0
        weight.register_hook(lambda gradient: gradient * mask_V1)
        self._masked = weight
