"""The loop that grounding models and verifiers are trained in, with checkpoints for exact resuming.

Role: `SupervisedTrainer` owns the optimiser and what it trains, `BackboneTrainer` a whole model with one loss; `run_training` counts
updates, keeps checkpoints and writes the result. Rule: an update depends on trained weights, optimiser, seed and number of the update
alone, with dropout also on how its rows are divided, so that a killed training that is started again ends with the same bits; several
processes divide the rows of an update, and the parameters of a backbone of which all is trained, and add up their gradients; a gradient
that is not finite or too large is not applied, and several in a row end the training; the result appears under its final name only when
it is complete. Non-goals: losses.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dart_agent.errors import ConfigError
from dart_agent.metrics_file import append_metrics
from dart_server.wire import Clock
from dart_train.grounding.batches import SampleSet
from dart_train.grounding.config import SupervisedConfig
from dart_train.grounding.memory import set_up_backbone
from dart_train.model.device import ComputeDevice
from dart_train.model.policy_model import LoadedModel, ModelNotFoundError
from dart_train.model.weights import write_directory_atomically
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.gradients import GradientGate
from dart_train.trainer.optimizer_state import train_state, zero_missing_gradients
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.replicas import share_parameters, sum_gradients
from dart_train.trainer.schedule import learning_rate
from dart_train.trainer.settings_stamp import changed_settings

if TYPE_CHECKING:
    from torch import Tensor

    from dart_train.model.sharding import ShardedModel

FLOAT32 = "float32"
_FREE = (
    *("updates", "out_dir", "checkpoints", "metrics", "checkpoint_every", "report_every", "threads", "device"),
    *("rows_per_pass", "gradient_checkpointing"),
)
"""What may change between two calls of one training."""
Row = TypeVar("Row")
Progress = Callable[[Mapping[str, Any]], None]
KEPT_STATES = 2
ALONE = Ranks()


class SupervisedTrainer(ABC, Generic[Row]):
    """Modules with their optimiser.

    Args:
        config: The configuration.
        modules: What is trained, by a name that its parameters get in checkpoints; what needs no gradient is left out.
        undecayed: Parameters without weight decay.
        ranks: The processes that train together; all of them take the whole parameters of the first one.
        shards: Runs the passes of a backbone that is divided among the processes; None: each has the whole one.
    """

    compute: ComputeDevice

    def __init__(
        self,
        config: SupervisedConfig,
        modules: Mapping[str, Any],
        undecayed: tuple[Any, ...] = (),
        *,
        ranks: Ranks,
        shards: ShardedModel | None,
    ) -> None:
        import torch

        from dart_train.model.sharding import split_shards

        self._settings, self._modules, self._ranks, self._shards = config, modules, ranks, shards
        decayed = [parameter for parameter in self.trained().values() if all(parameter is not one for one in undecayed)]
        settings = config.optimizer
        self._gate = GradientGate(
            "lower optimizer.learning_rate, or leave out the samples that cause it, and train into another folder of checkpoints",
            settings.max_grad_norm,
        )
        self.optimizer = torch.optim.AdamW(
            [
                *({"params": part, "weight_decay": settings.weight_decay} for part in split_shards(decayed)),
                {"params": list(undecayed), "weight_decay": 0.0},
            ],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
        )
        share_parameters(split_shards(self.trained().values())[1], ranks)

    @abstractmethod
    def rows(self, number: int) -> list[Row]:
        """Choose what an update learns from.

        Args:
            number: Number of the update.

        Returns:
            Its rows, the same in every process.
        """

    @abstractmethod
    def losses(self, rows: list[Row], batch: list[Row]) -> dict[str, Tensor]:
        """Compute the losses of a forward pass.

        Args:
            rows: The rows of the pass, at least one.
            batch: All rows of the update.

        Returns:
            Scalars by name; their sums over the passes of all processes are the losses of the batch.
        """

    @abstractmethod
    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """Weigh the losses.

        Args:
            losses: Those of a pass, as `losses` gave them.

        Returns:
            What is minimised; linear in the losses, so that the passes of a batch add up.
        """

    @abstractmethod
    def save(self, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the model.

        Args:
            directory: An empty directory.
            weights: The backbone's weights by name, where this process has shards of them; None: it has them.
        """

    def whole_weights(self) -> Mapping[str, Tensor] | None:
        """Collect the weights that `save` needs in the first process; every process calls this."""
        return None if self._shards is None else self._shards.whole_weights()

    def precision(self) -> AbstractContextManager[object]:
        """The precision of a forward pass; shards have one of their own."""
        found: AbstractContextManager[object] = self.compute.autocast() if self._shards is None else nullcontext()
        return found

    def trained(self) -> dict[str, Any]:
        """The parameters that are trained, by name."""
        return {
            f"{part}.{name}": parameter
            for part, module in self._modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    def passes(self, batch: Sequence[Row]) -> list[tuple[list[Row], float]]:
        """Divide the rows of an update into those of this process's forward passes.

        Args:
            batch: The rows, the same in every process.

        Returns:
            At most `rows_per_pass` of them at a time, in order, or this process's part of all without that number; and what the losses of
            each pass count. Processes that share a backbone have equally many passes, so that the last one may count 0.
        """
        size = self._settings.rows_per_pass or max(1, -(-len(batch) // self._ranks.size))
        step = size * self._ranks.size
        own = [list(batch[start : start + size]) for start in range(size * self._ranks.rank, len(batch), step)]
        counted = [(rows, 1.0) for rows in own]
        if self._shards is not None and len(own) < -(-len(batch) // step):
            counted.append((list(batch[:1]), 0.0))
        return counted

    def update(self, number: int) -> dict[str, float]:
        """Do one update.

        Args:
            number: Its number, from 0.

        Returns:
            The losses, in nats, by name.

        Raises:
            ConfigError: Several updates in a row had a gradient that cannot be applied.
        """
        import torch

        from dart_train.model.sharding import clip_gradients, split_shards

        config, found = self._settings, defaultdict[str, float](float)
        averaged_over = 1 if self._shards is None else self._ranks.size
        trained = list(self.trained().values())
        batch = self.rows(number)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config.optimizer, number, config.updates)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed * 1_000_003 + number + self._ranks.rank * 1_000_000_007)
            self.optimizer.zero_grad(set_to_none=True)
            for rows, counts in self.passes(batch):
                compute = partial(self.losses, rows, batch)
                losses = compute() if self._shards is None else self._shards(compute)
                (self.total(losses) * (counts * averaged_over)).backward()  # type: ignore[no-untyped-call]
                for name, value in losses.items():
                    found[name] += float(value.detach()) * counts
        sum_gradients(split_shards(trained)[1], self._ranks, averaged_over)
        zero_missing_gradients(trained)
        norm = self._ranks.broadcast(float(clip_gradients(trained, config.optimizer.grad_clip)))
        if self._gate.lets_through(norm, number + 1):
            self.optimizer.step()
        return self._ranks.total(found)

    def tensors(self) -> dict[str, Tensor]:
        """Trained parameters and the optimiser's state of each, by name."""
        return train_state(self.trained(), self.optimizer)

    def restore(self, state: TrainerState) -> None:
        """Take over a state from disk.

        Args:
            state: The state.

        Raises:
            ModelNotFoundError: The state is one of another model or of other settings.
        """
        zero_missing_gradients(self.trained().values())
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        self.optimizer.step()  # makes the optimiser's tensors; no parameter changes
        self.optimizer.zero_grad(set_to_none=True)
        wanted = self.tensors()
        lacking = sorted(set(wanted) - state.load(wanted, self._ranks))
        if lacking:
            raise ModelNotFoundError(
                f"checkpoint {state.directory} lacks {lacking[0]} and {len(lacking) - 1} more tensors: continue with the settings that it "
                "was made with, or choose another folder of checkpoints"
            )


class BackboneTrainer(SupervisedTrainer[Row]):
    """A whole model of images and text with its optimiser, which has one loss; several processes share it.

    Args:
        config: The configuration.
        samples: What is learnt.
        loaded: The model; it is set up for training in place, and put on the device of the configuration.
        ranks: The processes that train together.
        freeze_vision: Whether the vision tower stays as it is.
    """

    def __init__(
        self,
        config: SupervisedConfig,
        samples: SampleSet,
        loaded: LoadedModel,
        ranks: Ranks = ALONE,
        *,
        freeze_vision: bool = False,
    ) -> None:
        self.samples, self.loaded = samples, loaded
        self.compute = ComputeDevice.resolve(config.device, config.dtype)
        loaded.model.requires_grad_(True)
        if freeze_vision:
            loaded.model.model.visual.requires_grad_(False)
        shards = set_up_backbone(loaded.model, loaded.processor, config, self.compute, sharded=ranks.size > 1)
        super().__init__(config, {"backbone": loaded.model}, ranks=ranks, shards=shards)

    def total(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The one loss."""
        (loss,) = losses.values()
        return loss

    def save(self, directory: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the model; see `SupervisedTrainer.save`."""
        self.loaded.save(directory, weights)


def _check_settings(config: SupervisedConfig, kind: str, *, resumes: bool) -> None:
    """Note what decides the weights beside the states, or compare it with what made the states that are there.

    Raises ConfigError where a training would go on from the states of another one.
    """
    decides = {"kind": kind, **config.model_dump(mode="json", exclude=set(_FREE))}
    decides["dtype"] = "bfloat16" if ComputeDevice.resolve(config.device, config.dtype).bfloat16 else FLOAT32
    decides["samples"] = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in config.samples}
    if changed := changed_settings(config.checkpoints, decides, resumes=resumes, unwritten={"dtype": FLOAT32}):
        raise ConfigError(
            f"{config.checkpoints} holds states of another training ({', '.join(changed)} differ): "
            "give another folder, or remove this one"
        )


Trainer = TypeVar("Trainer", bound=SupervisedTrainer[Any])


def run_training(
    make_trainer: Callable[[SampleSet, Ranks], Trainer],
    config: SupervisedConfig,
    kind: str,
    on_progress: Progress | None,
    clock: Clock,
    ranks: Ranks | None = None,
) -> Trainer:
    """Train, go on from the newest checkpoint, and write the result.

    Args:
        make_trainer: Loads the model and makes the trainer of the configuration's samples in these processes.
        config: The configuration.
        kind: Kind of the metric lines.
        on_progress: Called with every metric line.
        clock: Measures the duration.
        ranks: The processes that train together; None: this one alone.

    Returns:
        The trainer, after its last update.

    Raises:
        ConfigError: The samples cannot be used, the states are those of another training, or several updates in a row had a gradient that
            cannot be applied.
        FileExistsError: `out_dir` exists already.
    """
    import torch

    ranks = ranks or ALONE
    if config.out_dir.exists():
        raise FileExistsError(f"{config.out_dir} exists already: remove it to train again")
    samples = SampleSet(config.samples)
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)  # adapters begin with random weights
    trainer = make_trainer(samples, ranks)
    store = CheckpointStore(config.checkpoints, KEPT_STATES, ranks)
    latest = store.latest()
    if ranks.first:
        _check_settings(config, kind, resumes=latest is not None)
        store.remove_partial()
    ranks.gather(None)  # nobody writes a state before
    first, before_s = 0, 0.0
    if latest is not None:
        trainer.restore(latest)
        first, before_s = latest.updates, latest.trained_s
    began_s = clock.monotonic()
    for update in range(first, config.updates):
        losses = trainer.update(update)
        done, trained_s = update + 1, before_s + clock.monotonic() - began_s
        if done % config.report_every == 0 or done == config.updates:
            line = {"kind": kind, "update": done, **losses, "trained_s": round(trained_s, 1)}
            if ranks.first:
                append_metrics(config.metrics, line)
            if ranks.first and on_progress is not None:
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
    weights = trainer.whole_weights()
    if ranks.first:
        write_directory_atomically(config.out_dir, lambda directory: trainer.save(directory, weights))
    ranks.gather(None)
    return trainer
