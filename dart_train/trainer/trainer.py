"""The trainer: from batches to policy versions.

Role: `Trainer.step` turns one batch into the next version: advantages, old log-probs, clipped surrogate, AdamW. Rule: one batch is one
train step, which raises the version by one, also with learning rate 0. A train step depends only on the batch and on `state()`, so that a
resumed trainer does what the killed one would have done. A batch that fails changes nothing; one that fails because of
an imitated row is trained on without that row. Storage of images that is away blames no row; an image that alone cannot be read for
`UNREADABLE_WAIT_S` does. Non-goals: waiting for batches and publishing (`dart_train.trainer.process`), formulas (`dart_train.objectives`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dart_agent.data_client.image_store import BlobError, BlobStorage, BlobUnreadableError, ImageReader
from dart_agent.data_client.wire import Batch, StepReference, StepUse
from dart_agent.errors import StoreUnavailableError
from dart_envs.clock import SYSTEM_CLOCK
from dart_server.wire import Clock
from dart_train.metrics import summarize_step
from dart_train.model.policy_model import ModelLoader, load_model
from dart_train.objectives.advantages import AdvantageError
from dart_train.trainer.batches.imitated_rows import ImitatedRows, load_imitated_rows
from dart_train.trainer.batches.rows import (
    StepKey,
    TrainRow,
    build_rows,
    mean_token_entropy,
    select_steps,
    select_tokens,
    split_minibatches,
)
from dart_train.trainer.batches.tensors import BatchError
from dart_train.trainer.checkpoint import TrainerState
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.gradients import GradientExploded, GradientRefused, clip_checked, find_culprits
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.schedule import learning_rate
from dart_train.trainer.trained_policy import TrainedPolicy

if TYPE_CHECKING:
    from torch import Tensor

    from dart_train.types import TrainBatch

LOW_ENTROPY_REASON = "low_entropy"
LOW_ENTROPY_TOKENS_REASON = "low_entropy_tokens"
UNREADABLE_WAIT_S = 300.0
"""So long after a first read error of an image that is there, the rows that show it are to blame, where other images can be read."""


class BatchFailed(Exception):
    """A batch cannot be trained on; weights and optimiser are those before it.

    Attributes:
        cause: Why.
        culprits: The steps that are to blame; empty where that is not known.
    """

    def __init__(self, cause: str, culprits: Sequence[StepReference]) -> None:
        super().__init__(cause)
        self.cause = cause
        self.culprits = tuple(culprits)


@dataclass(frozen=True, slots=True)
class TrainStep:
    """What one train step did.

    Attributes:
        version: The policy version that it made.
        metrics: Metrics by name.
        steps: What became of every row of the batch.
    """

    version: int
    metrics: dict[str, float]
    steps: tuple[StepUse, ...]


class Trainer:
    """The policy, its optimiser and its version; `version` and `updates` grow by one per train step.

    Args:
        config: The configuration of the trainer.
        images: Where the images of rows are stored.
        clock: Clock of durations.
        ranks: The processes that train together; None: this one alone.
        load: Loads the policy, and the reference model.
    """

    def __init__(
        self,
        config: TrainerConfig,
        images: BlobStorage,
        clock: Clock = SYSTEM_CLOCK,
        ranks: Ranks | None = None,
        load: ModelLoader = load_model,
    ) -> None:
        self.config = config
        self.images = images
        self.version = 0
        self.updates = 0
        self._clock = clock
        self._ranks = ranks or Ranks()
        self._load = load
        self._imitated_rows: ImitatedRows | None = None
        self._unreadable_since: tuple[str, float] | None = None

    def setup(self, start_model: str, version: int, state: TrainerState | None, updates: int = 0) -> None:
        """Load the policy.

        Args:
            start_model: The model to start from where there is no state.
            version: Policy version of the start model.
            state: A saved state, None where there is none.
            updates: Train steps that made the start model.

        Raises:
            ConfigError: The state is that of other trained parameters, or what is imitated cannot be used.
        """
        import torch

        torch.manual_seed(self.config.seed)
        self._policy = TrainedPolicy(self.config, self._ranks, start_model, self._load)
        images: ImageReader = self.images
        if self.config.imitation is not None:
            self._imitated_rows, images = load_imitated_rows(
                self.config.imitation, self._policy.loaded, self.config.seed, self.images
            )
        self._images = images
        self._micro_batches = self._policy.micro_batches(images)
        self.version, self.updates = version, updates
        if state is not None:
            self._policy.restore(state)
            self.version, self.updates = state.version, state.updates

    def step(self, batch: Batch) -> TrainStep:
        """Do one train step.

        Args:
            batch: The batch.

        Returns:
            What the train step did.

        Raises:
            BatchFailed: A row cannot be trained on as it was sampled, or the gradient is not finite or above `max_grad_norm`; nothing has
                changed.
            StoreUnavailableError: The storage of images does not answer; nothing has changed.
            AdvantageError: A formula of one's own gives no advantages for a group; on every rank.
        """
        rows = self._rows(batch)
        several_steps = self.config.epochs * self.config.minibatches > 1
        before = self._policy.copy_to_host() if several_steps else None
        while True:  # each time without more of the imitated rows
            try:
                return self._train(batch, list(rows))
            except (BatchError, BlobError, GradientRefused, StoreUnavailableError) as error:
                self._undo(before)
                culprits = self._culprits(batch.batch_id, rows, error)
                references = [
                    StepReference(rollout_id=row.rollout_id, index=row.step.index)
                    for row in culprits
                    if not row.imitated
                ]
                imitated = [row for row in culprits if row.imitated]
                if imitated and self._imitated_rows is not None:
                    self._imitated_rows.leave_out(imitated, str(error))
                if references or not imitated:
                    raise BatchFailed(str(error), references) from error

    def _rows(self, batch: Batch) -> list[TrainRow]:
        """The rows of a batch with their advantages."""
        rows, failure = list[TrainRow](), None
        try:
            rows = build_rows(batch, self.config.advantage, self.config.advantage_over, self.config.pointer)
        except AdvantageError as error:
            failure = error
        for found in self._ranks.gather(failure):
            if found is not None:
                raise found
        return rows

    def _undo(self, before: Mapping[str, Tensor] | None) -> None:
        """Forget the gradient, and the optimiser steps since `before` was copied."""
        self._policy.optimizer.zero_grad(set_to_none=True)
        if before is not None:
            self._policy.copy_back(before)

    def _culprits(self, batch_id: str, rows: Sequence[TrainRow], error: Exception) -> list[TrainRow]:
        """The rows that made a train step fail, in the order in which they are given. Raises StoreUnavailableError where storage did."""
        if isinstance(error, GradientExploded):
            return []
        passes = self.config.epochs * self.config.minibatches
        tried = {row.key: row for row in rows}
        for number in range(passes):
            tried |= {row.key: row for row in self._imitated(passes, number)}
        away = error
        if not isinstance(error, StoreUnavailableError):
            try:
                return self._find_culprits(list(tried.values()))
            except StoreUnavailableError as found:
                away = found
        bad = self._rows_of_bad_images(batch_id, tried.values()) if isinstance(away, BlobUnreadableError) else []
        if not bad:
            raise away
        return bad

    def _find_culprits(self, rows: list[TrainRow]) -> list[TrainRow]:
        """The rows that fail alone."""
        found = find_culprits(
            self._policy, self._micro_batches.passes(rows), lambda some: self._accumulate_gradients(some, {})
        )
        order = [row.key for row in rows]
        return sorted(found, key=lambda row: order.index(row.key))

    def _rows_of_bad_images(self, batch_id: str, rows: Collection[TrainRow]) -> list[TrainRow]:
        """The rows with an image that has not been readable for long while others are; the same on every rank."""
        now_s = self._clock.monotonic()
        if self._unreadable_since is None or self._unreadable_since[0] != batch_id:
            self._unreadable_since = (batch_id, now_s)
        late = now_s - self._unreadable_since[1] >= UNREADABLE_WAIT_S
        bad = self._ranks.broadcast(self._bad_images(rows) if late and self._ranks.first else set[str]())
        return [row for row in rows if not bad.isdisjoint(row.step.image_sha256)]

    def _bad_images(self, rows: Iterable[TrainRow]) -> set[str]:
        """Hashes of the images that are there and cannot be read; none where that is so of all, because the storage is away then."""
        shown, bad = {sha256 for row in rows for sha256 in row.step.image_sha256}, set[str]()
        for sha256 in shown:
            try:
                self._images.get(sha256)
            except BlobUnreadableError:
                bad.add(sha256)
            except BlobError:
                continue  # missing or damaged, which the next train step finds
            except StoreUnavailableError:
                return set()
        return set() if bad == shown else bad

    def _train(self, batch: Batch, rows: list[TrainRow]) -> TrainStep:
        began_s = self._clock.monotonic()
        random = Random(f"{self.config.seed}/{self.updates}")
        passes = self.config.epochs * self.config.minibatches
        step_fraction, token_fraction = (
            self.config.high_entropy_step_fraction,
            self.config.high_entropy_token_fraction,
        )
        decided: list[TrainRow] = []
        without_tokens: list[TrainRow] = []
        entropies: dict[StepKey, float] = {}
        if step_fraction < 1 or token_fraction < 1:
            _, entropies_T = self._score_rows(rows)
            entropies = {row.key: mean_token_entropy(row, entropies_T[row.key]) for row in rows}
            rows, decided = select_steps(rows, entropies, step_fraction)
            if token_fraction < 1:
                rows, without_tokens = select_tokens(rows, entropies_T, token_fraction)
        minibatches = [
            [*minibatch, *self._imitated(passes, number)]
            for number, minibatch in enumerate(
                part
                for _ in range(self.config.epochs)
                for part in split_minibatches(rows, self.config.minibatches, random)
            )
        ]
        # Rounding depends on which rows are packed together: each pass is scored as it is trained. The ratio of an only step is 1.
        old: list[dict[StepKey, Tensor]] = [{} for _ in minibatches]
        if passes > 1:
            for number, minibatch in enumerate(minibatches):
                old[number], entropies_T = self._score_rows(minibatch)
                own = [row for row in minibatch if not row.imitated and row.key not in entropies]
                entropies |= {row.key: mean_token_entropy(row, entropies_T[row.key]) for row in own}
        totals: Counter[str] = Counter()
        norms: list[float] = []
        for minibatch, before in zip(minibatches, old, strict=True):
            sums, norm = self._minibatch_step(minibatch, before)
            totals.update(sums)
            norms.append(norm)
        self.version += 1
        self.updates += 1
        seconds = self._clock.monotonic() - began_s
        return TrainStep(
            version=self.version,
            metrics=summarize_step(batch, totals, norms)
            | {
                "step_s": seconds,
                "rows_trained": float(len(rows)),
                "learning_rate": self._learning_rate(self.updates - 1),
            },
            steps=(
                *(_use_of(row, entropies.get(row.key)) for row in rows),
                *(_use_of(row, entropies.get(row.key), LOW_ENTROPY_REASON) for row in decided),
                *(_use_of(row, entropies.get(row.key), LOW_ENTROPY_TOKENS_REASON) for row in without_tokens),
            ),
        )

    def save(self, directory: Path) -> None:
        """Write the policy as a complete model directory, or as an adapter alone (`publish`); of several ranks the first writes.

        Args:
            directory: An empty directory.
        """
        self._policy.save(directory)

    def state(self, last: TrainStep, batch_id: str, trained_s: float, lineage: Sequence[str] = ()) -> TrainerState:
        """Collect everything that the next train step depends on.

        Args:
            last: The last train step, whose end is still to be reported.
            batch_id: Its batch.
            trained_s: Seconds since training began.
            lineage: Digests of the weights that the present ones were trained from.

        Returns:
            The state.
        """
        return TrainerState(
            version=self.version,
            updates=self.updates,
            last_batch=batch_id,
            steps=[step.model_dump() for step in last.steps],
            metrics=last.metrics,
            trained_s=trained_s,
            lineage=list(lineage),
            tensors=self._policy.tensors(),
        )

    def _imitated(self, passes: int, number: int) -> list[TrainRow]:
        """What the optimiser step `number` of this train step imitates."""
        if self._imitated_rows is None or self.config.imitation is None:
            return []
        return self._imitated_rows.draw(self.updates * passes + number, self.config.imitation.steps_per_update)

    def _minibatch_step(self, rows: Sequence[TrainRow], old: dict[StepKey, Tensor]) -> tuple[dict[str, float], float]:
        """Gradients over micro-batches, then one AdamW step. Returns metric sums and the gradient norm before clipping."""
        sums = self._accumulate_gradients(rows, old)
        norm = clip_checked(self._policy, self.updates + 1)
        self._policy.step(self._learning_rate(self.updates))
        return sums, norm

    def _accumulate_gradients(self, rows: Sequence[TrainRow], old: dict[StepKey, Tensor]) -> dict[str, float]:
        """Gradients of a mini-batch over its micro-batches. Returns metric sums."""
        from dart_train.objectives.aggregation import Denominators
        from dart_train.objectives.policy_loss import MicroBatch, policy_loss

        tokens = sum(row.trained_tokens for row in rows)
        denominators = Denominators(  # rows that are only imitated have a sum of 0, which is divided by 1
            tokens=tokens or 1,
            rows=sum(not row.imitated for row in rows) or 1,
            trajectories=sum(row.trajectory_share for row in rows) or 1.0,
            imitated=sum(len(row.step.token_ids_T) for row in rows if row.imitated),
        )
        sums: Counter[str] = Counter()
        self._policy.optimizer.zero_grad(set_to_none=True)
        for micro, batch in self._micro_batches.of(rows):
            new_BR, entropy_BR = self._policy.score(batch)
            with_reference = self._policy.has_reference
            device = new_BR.device
            seen = MicroBatch(
                new_BT=new_BR,
                old_BT=old_logprobs(micro, old, new_BR),
                rollout_BT=batch.rollout_logprobs_BR.to(device),
                entropy_BT=entropy_BR,
                advantages_B=batch.advantages_B.to(device),
                mask_BT=batch.trainable_BR.to(device),
                shares_B=batch.trajectory_shares_B.to(device),
                reference_BT=self._policy.score(batch, reference=True)[0] if with_reference else None,
                imitated_BT=imitated_tokens(micro, batch).to(device) if denominators.imitated else None,
                targets_BT=~batch.response_mask_BR.to(device) if self.config.pointer else None,
            )
            terms = policy_loss(seen, self.config.loss, denominators)
            self._policy.backward(terms.loss)
            sums.update(terms.sums | {"loss": float(terms.loss.detach()) * denominators.tokens})
        counts = {"tokens": float(tokens), "imitated_tokens": float(denominators.imitated)}
        return self._ranks.total(sums) | counts

    def _score_rows(self, rows: Sequence[TrainRow]) -> tuple[dict[StepKey, Tensor], dict[StepKey, NDArray[np.float64]]]:
        """Log-probs [T] and entropies [T] of the positions of every row's response, under the policy before the update.

        The passes are those in which the same rows are trained.
        """
        import torch

        old: dict[StepKey, Tensor] = {}
        entropies: dict[StepKey, NDArray[np.float64]] = {}
        with torch.no_grad():
            for micro, batch in self._micro_batches.of(rows):
                logprobs_BR, entropy_BR = self._policy.score(batch)
                for index, row in enumerate(micro):
                    length = row.positions
                    old[row.key] = logprobs_BR[index, :length].cpu()
                    entropies[row.key] = entropy_BR[index, :length].double().cpu().numpy()
        for others_old, others_entropies in self._ranks.gather((old, entropies)):
            old |= others_old
            entropies |= others_entropies
        return old, entropies

    def _learning_rate(self, update: int) -> float:
        return learning_rate(self.config.optimizer, update, self.config.max_updates)


def _use_of(row: TrainRow, entropy: float | None, reason: str | None = None) -> StepUse:
    """What became of a row."""
    return StepUse(
        group_id=row.group_id,
        rollout_id=row.rollout_id,
        index=row.step.index,
        advantage=row.advantage,
        entropy=entropy,
        reason=reason,
        trained=None if reason is not None else list(row.trainable),
    )


def old_logprobs(rows: Sequence[TrainRow], old: dict[StepKey, Tensor], new_BR: Tensor) -> Tensor:
    """Collect the log-probs before the update.

    Args:
        rows: Rows of a micro-batch; those that are imitated have no old log-probs.
        old: Log-probs of the response per row; empty where nothing has been updated yet.
        new_BR: Log-probs of the present policy, [B, R].

    Returns:
        Log-probs [B, R]; `new_BR` without gradient where `old` is empty.
    """
    import torch

    if not old:
        return new_BR.detach()
    old_BR = torch.zeros_like(new_BR)
    for index, row in enumerate(rows):
        if not row.imitated:
            values_T = old[row.key]
            old_BR[index, : len(values_T)] = values_T.to(new_BR.device)
    return old_BR


def imitated_tokens(rows: Sequence[TrainRow], batch: TrainBatch) -> Tensor:
    """Mark the tokens of a micro-batch that are imitated.

    Args:
        rows: Its rows in their order; empty where the pass trains nothing.
        batch: Its tensors.

    Returns:
        The mask, bool [B, R].
    """
    mask_BR = batch.response_mask_BR & False
    for index, row in enumerate(rows):
        if row.imitated:
            mask_BR[index] = batch.response_mask_BR[index]
    return mask_BR
