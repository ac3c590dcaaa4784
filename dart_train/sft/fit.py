"""The training loop of supervised fine-tuning: the mean negative log-likelihood of imitated answers.

Role: `fine_tune(config)` gathers episodes, trains, measures on held-out tasks, and writes a model. Rule: the policy, its optimiser, its
sharding, its passes and its checkpoints are those of the reinforcement-learning trainer; an optimiser step depends on weights, optimiser,
seed and its number alone, so that a killed training that is started again ends with the same bits. Every rank draws the same rows. A
gradient that is not finite or too large is not applied; several in a row end the training, so that no broken model is written. Images that
cannot be read now are waited for shortly. The result appears under its final name only when it is complete. Non-goals: which episodes
(`dart_train.imitation`).
"""

from __future__ import annotations

import hashlib
import logging
import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dart_agent.data_client.image_store import BlobError, ImageReader, ImageStore
from dart_agent.errors import ConfigError, StoreUnavailableError
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.metrics_file import append_metrics
from dart_envs.clock import SYSTEM_CLOCK, block
from dart_server.wire import Clock
from dart_train.imitation.demonstrations import DemonstrationsUnusableError
from dart_train.imitation.images import ImagesInOrder
from dart_train.imitation.stored import read_successes
from dart_train.imitation.tokens import ImitatedEpisode, write_demonstrations
from dart_train.model.model_card import write_model_card
from dart_train.model.weights import write_directory_atomically
from dart_train.sft.config import SftConfig
from dart_train.trainer.batches.imitated_rows import ImitatedRows
from dart_train.trainer.batches.rows import TrainRow
from dart_train.trainer.batches.tensors import BatchError
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.gradients import (
    MAX_REFUSED_UPDATES,
    GradientExploded,
    GradientRefused,
    clip_checked,
    find_culprits,
)
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.schedule import learning_rate
from dart_train.trainer.settings_stamp import changed_settings
from dart_train.trainer.trained_policy import TrainedPolicy

METRICS_KIND = "sft"
REFUSED_KIND = "sft_refused"
NAMED_ROWS = 5
IMAGE_TRIES, IMAGE_RETRY_S = 12, 5.0
"""How often images are asked for that cannot be read now, and the time between two tries."""
FREE_SETTINGS = {
    *("checkpoints", "metrics", "out_dir", "images", "checkpoint_every", "keep_checkpoints", "report_every"),
    *("device", "threads", "micro_batch_tokens", "share_prefixes", "image_cache_gib", "gradient_checkpointing"),
    "publish_dtype",
}
"""What may change between two calls of one fine-tuning."""
CARD_SETTINGS = {"epochs", "steps_per_update", "optimizer", "freeze_vision", "lora"}
Report = Callable[[Mapping[str, Any]], None]
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a fine-tuning did.

    Attributes:
        updates: Optimiser steps.
        episodes: Episodes that were imitated.
        steps: Demonstrated steps that were imitated.
        nll: Mean negative log-likelihood of the last optimiser step, in nats per token.
        held_out_nll: That of the held-out tasks, None where there are none.
        left_out: By reason, how many demonstrations were not imitated.
        refused_updates: Optimiser steps since the last start whose gradient was not applied.
    """

    updates: int
    episodes: int
    steps: int
    nll: float
    held_out_nll: float | None
    left_out: Mapping[str, int]
    refused_updates: int = 0


def fine_tune(
    config: SftConfig,
    ranks: Ranks | None = None,
    report: Report = lambda line: None,
    clock: Clock = SYSTEM_CLOCK,
    pause: Callable[[float], None] = block,
) -> SftResult:
    """Fine-tune a policy and write it to `config.out_dir`.

    Args:
        config: The configuration.
        ranks: The processes that train together; None: this one alone.
        report: Called with every metric line, on the first rank.
        clock: Clock of durations.
        pause: Waits so many seconds between two tries to read images.

    Returns:
        What it did.

    Raises:
        DemonstrationsUnusableError: There is nothing to imitate, or some of it must not be imitated or does not fit the model, or
            gives no gradient that can be applied; or its images cannot be read now.
        ConfigError: The checkpoints are those of another fine-tuning.
        ModelNotFoundError: The start model cannot be loaded.
        FileExistsError: `out_dir` exists already.
    """
    import torch

    if config.out_dir.exists():
        raise FileExistsError(f"{config.out_dir} exists already: remove it to fine-tune again")
    if not config.demonstrations.folders and not config.successes_of:
        raise DemonstrationsUnusableError("there is nothing to imitate: give demos.path, or --from-run with a run")
    torch.manual_seed(config.seed)
    ranks = ranks or Ranks()
    with read_successes(config.successes_of, config.successes_per_task) as (successes, places):
        policy = TrainedPolicy(config, ranks, config.start_model)
        pictures, demonstrated, left_out = ImageStore(config.images), list[ImitatedEpisode](), Counter[str]()
        if config.demonstrations.folders:
            loaded = policy.loaded
            demonstrated, left_out = write_demonstrations(
                config.demonstrations, loaded.processor, int(loaded.model.config.image_token_id), pictures
            )
        _check_settings(config, ranks, policy, demonstrated, successes)
        learnt, held_out = split_tasks([*demonstrated, *successes], config.held_out_fraction)
        images = ImagesInOrder((pictures, *places))
        training = _FineTuning(config, ranks, policy, learnt, held_out, images, pause)
        try:
            nll, held_out_nll = training.run(report, clock)
        except StoreUnavailableError as error:  # some of these are a BlobError, too
            raise DemonstrationsUnusableError(
                f"{error}; run the same command again when it can be read: it goes on from its last checkpoint"
            ) from error
        except (BatchError, BlobError) as error:
            raise DemonstrationsUnusableError(f"{error}: it does not fit the model {config.start_model}") from error
    return SftResult(
        updates=training.updates,
        episodes=len(learnt),
        steps=len(training.rows.rows),
        nll=nll,
        held_out_nll=held_out_nll,
        left_out=left_out,
        refused_updates=training.refused,
    )


def split_tasks(
    episodes: Sequence[ImitatedEpisode], fraction: float
) -> tuple[list[ImitatedEpisode], list[ImitatedEpisode]]:
    """Hold out the tasks with the smallest hashes, so that all episodes of a task are on one side.

    Args:
        episodes: All episodes.
        fraction: Fraction of the tasks that is held out; one task at least is learnt.

    Returns:
        The episodes that are learnt, and those that are held out.
    """
    by_hash = sorted(
        {episode.task_id for episode in episodes}, key=lambda task_id: hashlib.sha256(task_id.encode()).digest()
    )
    held_out = set(by_hash[: min(math.ceil(fraction * len(by_hash)), len(by_hash) - 1)])
    return (
        [episode for episode in episodes if episode.task_id not in held_out],
        [episode for episode in episodes if episode.task_id in held_out],
    )


def _check_settings(
    config: SftConfig,
    ranks: Ranks,
    policy: TrainedPolicy,
    demonstrated: Sequence[ImitatedEpisode],
    successes: Sequence[ImitatedEpisode],
) -> None:
    """Note what decides the result beside the checkpoints, or compare it with what made those that are there.

    Raises ConfigError on every rank where the fine-tuning would go on from the checkpoints of another one.
    """
    changed: list[str] | None = None
    if ranks.first:
        store = CheckpointStore(config.checkpoints, config.keep_checkpoints)
        contents = {"start_model", "demonstrations", "successes_of"}
        settings = config.model_dump(mode="json", exclude=FREE_SETTINGS | contents | {"optimizer"})
        optimizer = config.optimizer.model_dump(mode="json")
        decides = settings | {f"optimizer.{key}": value for key, value in optimizer.items()}
        decides["dtype"] = "bfloat16" if policy.compute.bfloat16 else "float32"
        decides["start_model"] = weights_digest(resolve_checkpoint(config.start_model))
        decides["demonstrations"] = _digest(demonstrated)
        decides["successes_of"] = _digest(successes)
        differing = changed_settings(config.checkpoints, decides, resumes=store.latest() is not None)
        changed = [name for name in differing if name not in FREE_SETTINGS]  # a note may have settings that are free
    if changed := ranks.broadcast(changed):
        raise ConfigError(
            f"{config.checkpoints} holds checkpoints of another fine-tuning ({', '.join(changed)} differ): continue it with the settings "
            "that it was begun with, choose another --name, or remove this folder to begin anew"
        )


def _digest(episodes: Sequence[ImitatedEpisode]) -> str:
    """The same for the same tasks, prompts, pictures and answers, wherever they are stored."""
    digest = hashlib.sha256()
    for episode in episodes:
        digest.update(f"{episode.task_id}\n".encode())
        for step in episode.steps:
            digest.update(repr((step.prompt_ids_P, step.image_sha256, step.token_ids_T, step.pointers)).encode())
    return digest.hexdigest()


class _FineTuning:
    """The loop over one policy and its rows."""

    def __init__(
        self,
        config: SftConfig,
        ranks: Ranks,
        policy: TrainedPolicy,
        learnt: Sequence[ImitatedEpisode],
        held_out: Sequence[ImitatedEpisode],
        images: ImageReader,
        pause: Callable[[float], None],
    ) -> None:
        self._config = config
        self._pause = pause
        self._ranks = ranks
        self._policy = policy
        self.rows = ImitatedRows(learnt, config.seed)
        self._held_out = ImitatedRows(held_out, config.seed).rows
        self._per_update = min(config.steps_per_update, len(self.rows.rows))
        self.updates = config.epochs * (len(self.rows.rows) // self._per_update)
        self._micro_batches = policy.micro_batches(images)
        self._checkpoints = CheckpointStore(config.checkpoints, config.keep_checkpoints, ranks)
        self.refused = 0
        self._refused_in_a_row = 0

    def run(self, report: Report, clock: Clock) -> tuple[float, float | None]:
        """Train to the end and write the model; the loss of the last optimiser step, and that of held-out tasks."""
        config, began_s = self._config, clock.monotonic()
        first, before_s, nll, held_out_nll = 0, 0.0, math.nan, None
        norm, rate = math.nan, 0.0
        if self._ranks.first:
            self._checkpoints.remove_partial()
        state = self._checkpoints.latest()
        if state is not None:
            self._policy.restore(state)
            first, before_s, nll = state.updates, state.trained_s, state.metrics["nll"]
        for update in range(first, self.updates):
            try:
                nll, norm, rate = self._once_images_are_there(partial(self._update, update))
                self._refused_in_a_row = 0
            except GradientRefused as error:
                self._once_images_are_there(partial(self._refuse, update, error))
            done, trained_s = update + 1, before_s + clock.monotonic() - began_s
            if done % config.report_every == 0 or done == self.updates:
                held_out_nll = self._once_images_are_there(self._measure)
                line = {
                    "kind": METRICS_KIND,
                    "update": done,
                    "updates": self.updates,
                    "nll": nll,
                    "held_out_nll": held_out_nll,
                    "grad_norm": norm,
                    "learning_rate": rate,
                    "trained_s": round(trained_s, 1),
                }
                if self._ranks.first:
                    append_metrics(config.metrics, line)
                    report(line)
            if done % config.checkpoint_every == 0 and done < self.updates:
                self._checkpoints.save(
                    TrainerState(
                        version=0,
                        updates=done,
                        last_batch=None,
                        steps=[],
                        metrics={"nll": nll},
                        trained_s=trained_s,
                        tensors=self._policy.tensors(),
                    )
                )
        if self._ranks.first:
            write_directory_atomically(config.out_dir, self._write)
            shutil.rmtree(config.checkpoints, ignore_errors=True)  # the model is all that is left to start from
        else:
            self._policy.save(config.out_dir)
        return nll, held_out_nll

    def _once_images_are_there(self, work: Callable[[], T]) -> T:
        """Do something that changes nothing where images cannot be read; every rank meets the same failures."""
        for _ in range(IMAGE_TRIES - 1):
            try:
                return work()
            except StoreUnavailableError as error:
                log.warning("the fine-tuning waits for its images: %s", error)
            self._pause(IMAGE_RETRY_S)
        return work()

    def _update(self, number: int) -> tuple[float, float, float]:
        """One optimiser step. Returns the loss, the gradient norm before clipping, and the learning rate. Raises GradientRefused."""
        total = self._accumulate_gradients(self.rows.draw(number, self._per_update))
        norm = clip_checked(self._policy, number + 1)
        rate = learning_rate(self._config.optimizer, number, self.updates)
        self._policy.step(rate)
        return self._ranks.total({"nll": total})["nll"], norm, rate

    def _refuse(self, number: int, error: GradientRefused) -> None:
        """Leave out an optimiser step and tell which rows are to blame. Raises DemonstrationsUnusableError after too many in a row."""
        rows = culprits = self.rows.draw(number, self._per_update)
        if not isinstance(error, GradientExploded):
            found = find_culprits(self._policy, self._micro_batches.passes(rows), self._accumulate_gradients)
            culprits = found or rows
        self._policy.optimizer.zero_grad(set_to_none=True)
        self.refused += 1
        self._refused_in_a_row += 1
        names = [row.name for row in culprits]
        told = ", ".join(names[:NAMED_ROWS]) + (
            f" and {len(names) - NAMED_ROWS} more" if len(names) > NAMED_ROWS else ""
        )
        if self._ranks.first:
            log.warning("update %d is left out because of %s: %s", number + 1, told, error)
            line = {"kind": REFUSED_KIND, "update": number + 1, "cause": str(error), "rows": names}
            append_metrics(self._config.metrics, line)
        if self._refused_in_a_row >= min(MAX_REFUSED_UPDATES, self.updates):
            raise DemonstrationsUnusableError(
                f"{self._refused_in_a_row} updates in a row could not be applied, the last because of {told}: {error}; leave these "
                "demonstrations out, or lower sft.learning_rate, and begin anew under another --name"
            )

    def _accumulate_gradients(self, rows: Sequence[TrainRow]) -> float:
        """Gradients of rows over their micro-batches. Returns this rank's part of the loss."""
        from dart_train.objectives.imitation import imitation_loss

        tokens = _tokens(rows)
        self._policy.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for members, batch in self._micro_batches.of(rows):
            logprobs_BR, _ = self._policy.score(batch)
            mask_BR = batch.response_mask_BR if members else batch.response_mask_BR & False
            loss = imitation_loss(logprobs_BR, mask_BR.to(logprobs_BR.device), tokens)
            self._policy.backward(loss)
            total += float(loss.detach())
        return total

    def _measure(self) -> float | None:
        """The loss of held-out tasks, None where there are none."""
        import torch

        from dart_train.objectives.imitation import imitation_loss

        if not self._held_out:
            return None
        total, tokens = 0.0, _tokens(self._held_out)
        with torch.no_grad():
            for members, batch in self._micro_batches.of(self._held_out):
                logprobs_BR, _ = self._policy.score(batch)
                if members:
                    mask_BR = batch.response_mask_BR.to(logprobs_BR.device)
                    total += float(imitation_loss(logprobs_BR, mask_BR, tokens))
        return self._ranks.total({"nll": total})["nll"]

    def _write(self, directory: Path) -> None:
        self._policy.save(directory)
        settings = self._config.model_dump(mode="json", include=CARD_SETTINGS)
        write_model_card(directory, self._config.start_model, 0, self.updates, settings, "imitation")


def _tokens(rows: Sequence[TrainRow]) -> int:
    return sum(len(row.step.token_ids_T) for row in rows)
