"""The loop around the trainer: wait for a batch, do a train step, save, publish, report.

Role: the order in which a kill at any moment loses nothing that was stored: checkpoint, then weights, then the registration of the version,
then the end of the batch. What was not reached is done first after a restart, and each of these may be repeated. Rule: a version number is
used once: after a restart from weights that are older than the newest version they are published again under a new number, so that the
rollouts follow them. A batch that cannot be trained on is reported with its cause; after several in a row training ends, and what was
trained is saved. The current train step is finished and saved on SIGTERM; an answer of the data manager, which may be gone, is then waited
for only shortly, and images not at all. Non-goals: the train step itself (`dart_train.trainer.trainer`).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.image_location import open_images
from dart_agent.data_client.wire import Batch, BatchFailure, BatchReport, StepUse, VersionRecord
from dart_agent.errors import StoreUnavailableError
from dart_agent.inference.checkpoint_files import resolve_checkpoint
from dart_agent.inference.weights.adapters import is_adapter
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.weights.files import weight_files
from dart_agent.metrics_file import append_metrics
from dart_envs.clock import SYSTEM_CLOCK, wait_first
from dart_server.wire import Clock
from dart_train.model.model_card import write_model_card
from dart_train.model.policy_model import ModelLoader, load_model
from dart_train.model.weights import PolicyVersionStore, TrainingOrigin
from dart_train.objectives.advantages import AdvantageError
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.follower import announce, follow
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.trainer import BatchFailed, Trainer, TrainStep
from dart_train.utilisation import summarize

WAIT_FOR_BATCH_S = 20.0
LAST_ANSWER_S = 5.0
"""How long a process that is to stop waits for the data manager. What was not reached is done after the next start."""
IMAGES_RETRY_S = 5.0
"""Between train steps that find no storage of images; each of them has waited for it itself."""
CARD_SETTINGS = {"advantage", "advantage_over", "epochs", "minibatches", "loss", "optimizer", "freeze_vision"}
"""Settings that a model card tells."""
T = TypeVar("T")
log = logging.getLogger(__name__)


class _StopRequested(Exception):
    """A signal stopped the process while it waited for the data manager, or for images."""


class TrainingStopped(Exception):
    """Training cannot go on; one sentence with the cause and the fix."""


class TrainerProcess:
    """Owns the trainer, its checkpoints and its published versions.

    Args:
        config: The configuration of the process.
        client: The data manager.
        clock: Clock of durations, limits and metric lines.
        ranks: The processes that train together, of which this is the first; None: this one alone.
        load: Loads models that have no action head.
    """

    def __init__(
        self,
        config: TrainerConfig,
        client: DataManagerClient,
        clock: Clock = SYSTEM_CLOCK,
        ranks: Ranks | None = None,
        load: ModelLoader = load_model,
    ) -> None:
        self._ranks = ranks or Ranks()
        self.trainer = Trainer(config, client.images, clock, self._ranks, load)
        self.stopping = asyncio.Event()
        self._config = config
        self._client = client
        self._weights = PolicyVersionStore(config.weights, config.keep_weights)
        self._checkpoints = CheckpointStore(config.checkpoints, config.keep_checkpoints, self._ranks)
        self._clock = clock
        self._began_s: float | None = None
        self._trained_before_s = 0.0
        self._unsaved: TrainerState | None = None
        self._has_state = False
        self._digest: str | None = None
        self._published_bytes = 0
        self._lineage: list[str] = []

    async def run(self) -> bool:
        """Train until the limits are reached, no training work is left, or `stopping` is set.

        Returns:
            False where it was stopped before.

        Raises:
            TrainingStopped: Too many batches in a row cannot be trained on, or a formula of one's own gives no advantages.
        """
        stopped = False
        try:
            await self.resume()
            waiting_since_s: float | None = None
            while not self._finished():
                asked_s = self._clock.monotonic()
                waiting_since_s = asked_s if waiting_since_s is None else waiting_since_s
                reply = await self._ask(
                    self._client.next_batch(self.trainer.version, WAIT_FOR_BATCH_S, self._digest), last_s=0.0
                )
                if self.stopping.is_set():
                    raise _StopRequested
                if reply.held is not None and self._began_s is not None:  # a pause of the run is no training
                    self._began_s += self._clock.monotonic() - asked_s
                    waiting_since_s = None
                    continue
                self._checkpoints.save_trained_s(self._trained_s())
                if reply.batch is not None:
                    await self.train_step(reply.batch, waited_s=self._clock.monotonic() - waiting_since_s)
                    waiting_since_s = None
                elif not reply.training_active:
                    break
        except _StopRequested:
            stopped = True
        except TrainingStopped:
            self._save_end()
            raise
        self._save_end()
        return not stopped

    async def _ask(self, call: Coroutine[Any, Any, T], last_s: float = LAST_ANSWER_S) -> T:
        """The data manager's answer; raises _StopRequested where there is none `last_s` after the process was to stop."""
        asking, waiting = asyncio.create_task(call), asyncio.create_task(self.stopping.wait())
        try:
            await wait_first(self._clock, None, [asking, waiting])
            if not asking.done():
                await wait_first(self._clock, last_s, [asking])
            if not asking.done():
                raise _StopRequested
            return asking.result()
        finally:
            asking.cancel()
            waiting.cancel()
            await asyncio.gather(asking, waiting, return_exceptions=True)

    async def resume(self) -> None:
        """Load the policy and finish what an earlier process began."""
        latest = await self._ask(self._client.latest_version())
        newest = latest or VersionRecord(version=0, path=self._config.start_model)
        self._weights.remove_partial()
        self._checkpoints.remove_partial()
        self._weights.remove_above(newest.version)
        state = self._checkpoints.latest()
        self._has_state = state is not None
        if state is None:
            # Version 0 may be a published version of another run.
            origin = TrainingOrigin.read(Path(newest.path)) if newest.version else TrainingOrigin()
            self._lineage = list(origin.lineage)
            await asyncio.to_thread(self._setup, newest.path, newest.version, None, origin.updates)
            await self._identify(newest)
        else:
            self._lineage = state.lineage
            await asyncio.to_thread(self._setup, self._config.start_model, newest.version, state)
            if state.version < newest.version:
                log.warning(
                    "the weights of version %d are used again as version %d: those of version %d were not saved",
                    state.version,
                    newest.version + 1,
                    newest.version,
                )
                self.trainer.version = newest.version + 1
            if self.trainer.version == newest.version:
                await self._identify(newest)
            else:
                await self._publish()
            await self._report_batch(state)
        self._began_s = self._clock.monotonic()
        self._trained_before_s = max(self._checkpoints.trained_s(), 0.0 if state is None else state.trained_s)

    async def train_step(self, batch: Batch, waited_s: float) -> TrainStep | None:
        """Do one train step, and store and report its result.

        Args:
            batch: The batch.
            waited_s: Seconds in which the trainer waited for it.

        Returns:
            What the train step did; None where the batch cannot be trained on.

        Raises:
            TrainingStopped: Too many batches in a row cannot be trained on, or a formula of one's own gives no advantages.
        """
        try:
            done = await self._step_when_images_are_there(batch)
        except BatchFailed as failure:
            await self._report_failure(batch, failure)
            return None
        except AdvantageError as error:  # another start would meet the same batch
            raise TrainingStopped(f"{error}; start the run again then: it goes on with this batch") from error
        lag = _lag(batch, self._clock.time())
        if self._digest is not None and self._lineage[-1:] != [self._digest]:
            self._lineage = [*self._lineage, self._digest]
        save_began_s = self._clock.monotonic()
        state = self._unsaved = self.trainer.state(done, batch.batch_id, self._trained_s(), self._lineage)
        # Without any state nobody would report this batch after a kill, and it would be trained on again, on top of itself.
        if not self._has_state or self.trainer.updates % self._config.checkpoint_every == 0:
            await asyncio.to_thread(self._save_now)
        await self._publish()
        published_s = self._clock.monotonic() - save_began_s
        costs = {"wait_s": waited_s, "publish_s": published_s, "published_bytes": self._published_bytes}
        append_metrics(
            self._config.metrics,
            {"kind": "update", "time_s": self._clock.time(), "version": done.version, "update": self.trainer.updates}
            | done.metrics
            | lag
            | costs,
        )
        await self._report_batch(state)
        return done

    def _setup(self, start_model: str, version: int, state: TrainerState | None, updates: int = 0) -> None:
        announce(self._ranks, "setup", start_model, version, state, updates)
        self.trainer.setup(start_model, version, state, updates)

    async def _step_when_images_are_there(self, batch: Batch) -> TrainStep:
        """Do a train step, again and again while the storage of images does not answer; raises _StopRequested where it is to stop."""
        while True:
            try:
                return await asyncio.to_thread(self._step, batch)
            except StoreUnavailableError as error:
                log.warning("batch %s waits for its images: %s", batch.batch_id, error)
            await asyncio.to_thread(self._save_now)  # the step changed nothing, and the wait may be long
            if await self._stops_within(IMAGES_RETRY_S):
                raise _StopRequested

    async def _stops_within(self, delay_s: float) -> bool:
        """Wait, and end at once where the process is to stop. Returns whether it is."""
        waiting = asyncio.create_task(self.stopping.wait())
        try:
            await wait_first(self._clock, delay_s, [waiting])
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        return self.stopping.is_set()

    def _step(self, batch: Batch) -> TrainStep:
        announce(self._ranks, "step", batch)
        return self.trainer.step(batch)

    async def _publish(self) -> None:
        def save(directory: Path) -> None:
            announce(self._ranks, "save", directory)
            self.trainer.save(directory)
            TrainingOrigin(self.trainer.updates, tuple(self._lineage)).write(directory)
            settings = self._config.model_dump(mode="json", include=CARD_SETTINGS)
            write_model_card(directory, self._config.start_model, version, self.trainer.updates, settings)

        version = self.trainer.version
        path = await asyncio.to_thread(self._weights.publish, version, save)
        self._published_bytes = sum(file.stat().st_size for file in weight_files(path))
        await self._identify(VersionRecord(version=version, path=str(path)))

    async def _identify(self, record: VersionRecord) -> None:
        """Register the version of the present weights with its digest and its parent."""
        self._digest = record.digest
        if self._digest is None:
            given = Path(record.path)
            directory = given if is_adapter(given) else resolve_checkpoint(record.path)
            self._digest = await asyncio.to_thread(weights_digest, directory)
        parent = self._lineage[-1] if self._lineage else None
        await self._ask(
            self._client.publish_version(
                record.model_copy(update={"digest": self._digest, "parent": record.parent or parent})
            )
        )

    async def _report_failure(self, batch: Batch, failure: BatchFailed) -> None:
        log.warning("batch %s cannot be trained on: %s", batch.batch_id, failure.cause)
        report = BatchFailure(cause=failure.cause[:1000], culprits=list(failure.culprits))
        count = await self._ask(self._client.batch_failed(batch.batch_id, report))
        append_metrics(
            self._config.metrics,
            {
                "kind": "failed_batch",
                "time_s": self._clock.time(),
                "version": self.trainer.version,
                "cause": failure.cause,
                "culprits": len(failure.culprits),
                **_quarantined(batch, failure),
            },
        )
        if count >= self._config.max_failed_batches:
            raise TrainingStopped(
                f"{count} batches in a row could not be trained on, the last because {failure.cause}: fix the cause (an image or a "
                "row that is damaged; for a gradient that is not finite or too large lower train.learning_rate or train.tis_cap) and "
                "start the run again"
            )

    async def _report_batch(self, state: TrainerState) -> None:
        if state.last_batch is None:
            return
        steps = [StepUse.model_validate(step) for step in state.steps]
        report = BatchReport(version=state.version, metrics=state.metrics, steps=steps)
        await self._ask(self._client.batch_done(state.last_batch, report))

    def _finished(self) -> bool:
        config = self._config
        if config.max_updates is not None and self.trainer.updates >= config.max_updates:
            return True
        return config.max_minutes is not None and self._trained_s() >= 60 * config.max_minutes

    def _trained_s(self) -> float:
        began_s = self._clock.monotonic() if self._began_s is None else self._began_s
        return self._trained_before_s + self._clock.monotonic() - began_s

    def _save_end(self) -> None:
        """Save what the next start goes on from."""
        self._save_now()
        if self._began_s is not None:
            self._checkpoints.save_trained_s(self._trained_s())

    def _save_now(self) -> None:
        if self._unsaved is not None:
            announce(self._ranks, "checkpoint")
            self._checkpoints.save(self._unsaved)
            self._unsaved, self._has_state = None, True


def _lag(batch: Batch, now_s: float) -> dict[str, float]:
    """Seconds from the end of each trajectory to the end of the train step that used it; not of successes that the pool lent."""
    members = (member for group in batch.groups for member in group.members)
    summary = summarize(
        now_s - member.ended_s for member in members if member.ended_s is not None and member.source == "fresh"
    )
    if not summary.count:
        return {}
    return {"lag_mean_s": summary.mean, "lag_p50_s": summary.p50, "lag_p95_s": summary.p95, "lag_max_s": summary.max}


def _quarantined(batch: Batch, failure: BatchFailed) -> dict[str, Any]:
    """How much of a failed batch is quarantined: its culprits, or all of it where they are not known."""
    steps = {(each.rollout_id, each.index) for each in failure.culprits}
    steps = steps or {(row.rollout_id, row.step.index) for row in batch.rows}
    return {
        "batch": batch.batch_id,
        "quarantined_steps": len(steps),
        "quarantined_trajectories": len({rollout_id for rollout_id, _ in steps}),
    }


async def run_trainer(config: TrainerConfig, ranks: Ranks) -> bool:
    """Run the first process until its end, SIGTERM or SIGINT, and end the other ones.

    Args:
        config: The configuration of the process.
        ranks: The processes that train together.

    Returns:
        False where a signal stopped it before its end.

    Raises:
        TrainingStopped: Training cannot go on.
    """
    async with DataManagerClient(config.known_data_address, config.images, key=config.read_data_key()) as client:
        process = TrainerProcess(config, client, ranks=ranks)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stopping.set)
        try:
            ended = await process.run()
        except TrainingStopped:
            announce(ranks, "end")
            raise
        announce(ranks, "end")
        return ended


def run_follower(config: TrainerConfig, ranks: Ranks, load: ModelLoader = load_model) -> None:
    """Run another process than the first, which alone decides when training ends.

    Args:
        config: The configuration of the processes.
        ranks: The processes that train together.
        load: Loads models that have no action head.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    checkpoints = CheckpointStore(config.checkpoints, config.keep_checkpoints, ranks)
    follow(Trainer(config, open_images(config.images), ranks=ranks, load=load), checkpoints, ranks)
