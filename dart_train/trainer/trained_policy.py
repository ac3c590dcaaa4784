"""The policy that is trained: parameters, optimiser, forward passes, and what of them is saved.

Role: `TrainedPolicy` owns the model on this process's device, sharded where several processes train all of its weights. Rule: what is not
trained is never saved in a checkpoint and never copied; nothing here knows batches, advantages or losses. Non-goals: the train step
(`dart_train.trainer.trainer`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dart_agent.data_client.image_store import ImageReader
from dart_agent.errors import ConfigError
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

if TYPE_CHECKING:
    from torch import Tensor

    from dart_train.types import TrainBatch


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
        from dart_train.model.sharding import shard
        from dart_train.model.training_mode import cast_frozen, set_up_training

        self.config, self.ranks = config, ranks
        # Of an adapter little is trained, and a head sees what the backbone computes: each process has the whole of such a policy.
        self._sharded = ranks.size > 1 and config.lora is None and not config.pointer
        self.compute = ComputeDevice.resolve(config.device, config.dtype)
        bfloat16 = self.compute.bfloat16
        # Shards go to their device layer by layer: no GPU ever holds a whole model of several ranks.
        loads_on = "cpu" if self._sharded else self.compute.device
        self.loaded = load_policy(config, start_model, loads_on, bfloat16=bfloat16, load=load)
        set_up_training(self.loaded.model, config.gradient_checkpointing, config.freeze_vision)
        if isinstance(self.loaded, PointingModel):
            set_up_training(self.loaded.head)
        if bfloat16:
            cast_frozen(self.loaded.model, torch.bfloat16)
        self.scorer = PolicyScorer(self.loaded.model)
        self._writer = PolicyWriter(config)
        self._open_reference: Reference | None = None
        self._reference = self.scorer
        if config.loss.kl_coefficient:
            self._open_reference = open_reference(config, self.loaded, loads_on, bfloat16=bfloat16, load=load)
            with self._open_reference() as model:
                self._reference = self.scorer if model is self.loaded.model else PolicyScorer(model)
        for scorer in {id(each): each for each in (self.scorer, self._reference)}.values():
            optimize_vision(scorer.model)
            if self._sharded:
                shard(scorer, self.compute.device, bfloat16)
        if not self._sharded:
            share_parameters(list(self.trained().values()), ranks)
        optimizer = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.trained().values(),
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
        with ExitStack() as stack:
            if not self._sharded:  # shards have a precision of their own
                stack.enter_context(self.compute.autocast())
            if reference:
                assert self._open_reference is not None
                stack.enter_context(self._open_reference())
                stack.enter_context(torch.no_grad())
            logprobs_M, entropy_M = (self._reference if reference else self.scorer)(tokens)
        mask_BR = batch.response_mask_BR.to(logprobs_M.device)
        empty_BR = torch.zeros(mask_BR.shape, dtype=logprobs_M.dtype, device=mask_BR.device)
        logprobs_BR, entropy_BR = (
            empty_BR.masked_scatter(mask_BR, logprobs_M),
            empty_BR.masked_scatter(mask_BR, entropy_M),
        )
        return self._with_targets(batch, logprobs_BR, entropy_BR) if batch.pointed else (logprobs_BR, entropy_BR)

    def _with_targets(self, batch: TrainBatch, logprobs_BR: Tensor, entropy_BR: Tensor) -> tuple[Tensor, Tensor]:
        """Put what the head says of its targets behind the tokens of their rows."""
        import torch

        from dart_train.model.point_scores import point_logprobs

        assert isinstance(self.loaded, PointingModel), "rows have targets only where the policy has a head"
        images = [image for _, image in batch.pointed]
        found_NT, entropies_NT, mask_NT = point_logprobs(
            self.loaded.grounding,
            images,
            self.compute.autocast,
            entropy_gradient=self.config.loss.entropy_coefficient > 0,
        )
        rows_N = torch.tensor([row for row, _ in batch.pointed], device=mask_NT.device)
        begins_N = batch.response_mask_BR.to(mask_NT.device)[rows_N].sum(-1)
        places, targets = mask_NT.nonzero(as_tuple=True)
        indices = (rows_N[places], begins_N[places] + targets)
        return (
            logprobs_BR.index_put(indices, found_NT[mask_NT].to(logprobs_BR)),
            entropy_BR.index_put(indices, entropies_NT[mask_NT].to(entropy_BR)),
        )

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of this process's part of a loss; the parts of all processes add up in `clip_gradient`."""
        averaged_over = self.ranks.size if self._sharded else 1
        (loss * averaged_over).backward()  # type: ignore[no-untyped-call]

    def clip_gradient(self) -> Tensor:
        """Clip the gradient of all processes to `grad_clip` and return its norm before that; once for each gradient."""
        import torch

        if not self._sharded:
            sum_gradients(list(self.trained().values()), self.ranks)
        norm = torch.nn.utils.clip_grad_norm_(self.trained().values(), self.config.optimizer.grad_clip)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole

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
        if not self._sharded:
            if self.ranks.first:
                self._writer.save(self.loaded, directory)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights: Mapping[str, Any] = get_model_state_dict(self.loaded.model, options=options)
        if self.ranks.first:
            self.loaded.model.save_pretrained(directory, state_dict=weights)
            self.loaded.processor.save_pretrained(directory)
