"""The policy that is trained: parameters, optimiser, forward passes, and what of them is saved.

Role: `TrainedPolicy` owns the model on this process's device, sharded where several processes train all of its weights; an action head is
whole in each of them. Rule: what is not trained is never saved in a checkpoint and never copied; nothing here knows batches, advantages or
losses. Non-goals: the train step (`dart_train.trainer.trainer`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dart_agent.data_client.image_store import ImageReader
from dart_agent.errors import ConfigError
from dart_agent.types import PointedTarget
from dart_train.model.device import ComputeDevice
from dart_train.model.pointing_model import PointingModel
from dart_train.model.policy_model import ModelLoader, load_model
from dart_train.trainer.batches.micro_batches import MicroBatches
from dart_train.trainer.batches.tensors import to_device
from dart_train.trainer.checkpoint import TrainerState
from dart_train.trainer.config import PolicyTrainingSettings
from dart_train.trainer.optimizer_state import train_state, zero_missing_gradients
from dart_train.trainer.policy import PolicyWriter, Reference, load_policy, open_reference
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.replicas import share_parameters, sum_gradients
from dart_train.types import PointedImage

if TYPE_CHECKING:
    from torch import Tensor

    from dart_train.types import TrainBatch

_BLANK_POINT = PointedImage(np.zeros((64, 64, 3), np.uint8), (PointedTarget("", 0, 0, 0.0, (0.0, 0.0)),), 1.0)


class TrainedPolicy:
    """A loaded policy with its optimiser.

    Args:
        config: Settings of the training.
        ranks: The processes that train together.
        start_model: The model to start from.
        load: Loads it, and the reference model.
    """

    def __init__(
        self, config: PolicyTrainingSettings, ranks: Ranks, start_model: str, load: ModelLoader = load_model
    ) -> None:
        import torch

        from dart_train.model.fast_vision import optimize_vision
        from dart_train.model.policy_scorer import PolicyScorer
        from dart_train.model.sharding import ShardedModel, split_shards
        from dart_train.model.training_mode import cast_frozen, set_up_training

        self.config, self.ranks = config, ranks
        # Of an adapter little is trained: each process has the whole model.
        self._sharded = ranks.size > 1 and config.lora is None
        self.compute = ComputeDevice.resolve(config.device, config.dtype)
        bfloat16 = self.compute.bfloat16
        # Shards go to their device layer by layer: no GPU ever holds a whole model of several ranks.
        loads_on = "cpu" if self._sharded else self.compute.device
        self.loaded = load_policy(config, start_model, loads_on, bfloat16=bfloat16, sharded=self._sharded, load=load)
        set_up_training(self.loaded.model, config.gradient_checkpointing, config.freeze_vision)
        if isinstance(self.loaded, PointingModel):
            set_up_training(self.loaded.head)
            self.loaded.head.to(self.compute.device)
        if bfloat16:
            cast_frozen(self.loaded.model, torch.bfloat16)
        self._shards: dict[PolicyScorer, ShardedModel] = {}

        def make_scorer(model: Any) -> PolicyScorer:
            scorer = PolicyScorer(model)
            optimize_vision(model)
            if self._sharded:
                self._shards[scorer] = ShardedModel(model, self.compute.device, bfloat16)
                scorer.always_vision = True
            return scorer

        self.scorer = make_scorer(self.loaded.model)
        self._writer = PolicyWriter(config)
        self._open_reference: Reference | None = None
        self._reference = self.scorer
        if config.loss.kl_coefficient:  # loaded when the policy is in shards already, and its memory is free again
            self._open_reference = open_reference(config, self.loaded, loads_on, bfloat16=bfloat16, load=load)
            with self._open_reference() as model:
                self._reference = self.scorer if model is self.loaded.model else make_scorer(model)
        shards, whole = split_shards(self.trained().values())
        share_parameters(whole, ranks)
        optimizer = config.optimizer
        self.optimizer = torch.optim.AdamW(
            [{"params": part} for part in (shards, whole) if part],
            lr=optimizer.learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
        )

    def micro_batches(self, images: ImageReader) -> MicroBatches:
        """Make what turns rows into the passes of this policy.

        Args:
            images: Where the images of rows are stored.

        Returns:
            It.
        """
        return MicroBatches(
            self.loaded,
            images,
            self.config.micro_batch_tokens,
            self.ranks,
            image_cache_bytes=int(self.config.image_cache_gib * 2**30),
            share_prefixes=self.config.share_prefixes,
            bfloat16=self.compute.bfloat16,
        )

    @property
    def has_reference(self) -> bool:
        """Whether there is a reference model for a KL term."""
        return self._open_reference is not None

    def trained(self) -> dict[str, Any]:
        """The parameters that are trained, by name."""
        return {name: parameter for name, parameter in self.loaded.named_parameters() if parameter.requires_grad}

    def score(self, batch: TrainBatch, reference: bool = False) -> tuple[Tensor, Tensor]:
        """Score the responses of a batch.

        Args:
            batch: The batch, on the CPU.
            reference: With the reference model, without gradient.

        Returns:
            Log-probs and entropies [B, R] of tokens and targets, 0 outside the responses.
        """
        import torch

        tokens = to_device(batch.tokens, self.compute.device)
        scorer = self._reference if reference else self.scorer

        def compute() -> tuple[Tensor, Tensor]:
            with self._precision():
                logprobs_M, entropy_M = scorer(tokens)
            mask_BR = batch.response_mask_BR.to(logprobs_M.device)
            empty_BR = torch.zeros(mask_BR.shape, dtype=logprobs_M.dtype, device=mask_BR.device)
            found = empty_BR.masked_scatter(mask_BR, logprobs_M), empty_BR.masked_scatter(mask_BR, entropy_M)
            if batch.pointed:
                return self._with_targets(batch, *found)
            if self._sharded and self.config.pointer:
                return found[0] + 0.0 * self._blank_point(), found[1]
            return found

        with ExitStack() as stack:
            if reference:
                assert self._open_reference is not None
                stack.enter_context(self._open_reference())
                stack.enter_context(torch.no_grad())
            scores: tuple[Tensor, Tensor] = self._shards[scorer](compute) if self._sharded else compute()
        return scores

    def _precision(self) -> AbstractContextManager[object]:
        """The precision of a forward pass; shards have one of their own."""
        precision: AbstractContextManager[object] = nullcontext() if self._sharded else self.compute.autocast()
        return precision

    def _with_targets(self, batch: TrainBatch, logprobs_BR: Tensor, entropy_BR: Tensor) -> tuple[Tensor, Tensor]:
        """Put what the head says of its targets behind the tokens of their rows."""
        import torch

        found_NT, entropies_NT, mask_NT = self._point([image for _, image in batch.pointed])
        rows_N = torch.tensor([row for row, _ in batch.pointed], device=mask_NT.device)
        begins_N = batch.response_mask_BR.to(mask_NT.device)[rows_N].sum(-1)
        places, targets = mask_NT.nonzero(as_tuple=True)
        indices = (rows_N[places], begins_N[places] + targets)
        return (
            logprobs_BR.index_put(indices, found_NT[mask_NT].to(logprobs_BR)),
            entropy_BR.index_put(indices, entropies_NT[mask_NT].to(entropy_BR)),
        )

    def _point(self, images: Sequence[PointedImage]) -> tuple[Tensor, Tensor, Tensor]:
        from dart_train.model.point_scores import point_logprobs

        assert isinstance(self.loaded, PointingModel), "rows have targets only where the policy has a head"
        entropy_gradient = self.config.loss.entropy_coefficient > 0
        return point_logprobs(self.loaded.grounding, images, self._precision, entropy_gradient=entropy_gradient)

    def _blank_point(self) -> Tensor:
        """Log-prob of a point on a blank image: processes that share a backbone run its layers equally often."""
        logprobs_BT, _, _ = self._point([_BLANK_POINT])
        return logprobs_BT.sum()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this process's part of a loss; the parts of all processes add up in `clip_gradient`."""
        (loss * self._averaged_over).backward()  # type: ignore[no-untyped-call]

    @property
    def _averaged_over(self) -> int:
        """Over how many processes the gradients of shards are averaged."""
        return self.ranks.size if self._sharded else 1

    def clip_gradient(self) -> Tensor:
        """Clip the gradient of all processes to `grad_clip` and return its norm before that; once for each gradient."""
        from dart_train.model.sharding import clip_gradients, split_shards

        trained = list(self.trained().values())
        _, whole = split_shards(trained)
        sum_gradients(whole, self.ranks, self._averaged_over)
        return clip_gradients(trained, self.config.optimizer.grad_clip)

    def step(self, learning_rate: float) -> None:
        """Do one step of the optimiser; a parameter that no image and no token reached has the gradient 0, as it has in a shard."""
        zero_missing_gradients(self.trained().values())
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the next train step depends on, by name: trained parameters and the optimiser's state of each."""
        return train_state(self.trained(), self.optimizer)

    def restore(self, state: TrainerState) -> None:
        """Take over a state from disk.

        Args:
            state: The state.

        Raises:
            ConfigError: The state has not all parameters that are trained.
        """
        self.step(0.0)  # makes the optimiser's tensors; no parameter changes
        self.optimizer.zero_grad(set_to_none=True)
        read = state.load(self.tensors(), self.ranks)
        lacking = [name for name in self.trained() if f"model.{name}" not in read]
        if lacking:
            raise ConfigError(
                f"checkpoint {state.directory} lacks {lacking[0]} and {len(lacking) - 1} more parameters that are to be trained: "
                "continue with the settings that it was made with, or begin another run"
            )
        self._forget_optimizer(read)

    def copy_to_host(self) -> dict[str, Tensor]:
        """Copy what a train step changes into the memory of the host."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.tensors().items()}

    def copy_back(self, saved: Mapping[str, Tensor]) -> None:
        """Undo train steps.

        Args:
            saved: What `copy_to_host` returned before them.
        """
        for name, tensor in self.tensors().items():
            if name in saved:
                tensor.copy_(saved[name])
        self._forget_optimizer(saved)

    def _forget_optimizer(self, kept: Container[str]) -> None:
        """Drop the optimiser's state of parameters that had none."""
        for name, parameter in self.trained().items():
            if any(f"optimizer.{name}.{key}" not in kept for key in self.optimizer.state[parameter]):
                del self.optimizer.state[parameter]

    def save(self, directory: Path) -> None:
        """Write what is published (`PolicyWriter`); every rank calls this, and rank 0 writes.

        Args:
            directory: An empty directory.
        """
        import torch

        if not self._sharded:
            if self.ranks.first:
                self._writer.save(self.loaded, directory)
            return
        dtype = torch.bfloat16 if self.config.publish_dtype == "bfloat16" else None
        weights = self._shards[self.scorer].whole_weights(dtype)
        if self.ranks.first:
            self._writer.save(self.loaded, directory, weights)
