"""The loop around the trainer: wait for a batch, do a train step, save, publish, report.

Role: the order in which a kill at any moment loses nothing that was stored: checkpoint, then weights, then the registration of the version,
then the end of the batch. What was not reached is done first after a restart, and each of these may be repeated. Rule: the current train
step is finished on SIGTERM. Non-goals: the train step itself (`dart_train.trainer.trainer`).
"""

from __future__ import annotations

import asyncio
import logging
import signal

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.wire import Batch, BatchReport, UnusedStep, VersionRecord
from dart_agent.metrics_file import append_metrics
from dart_envs.clock import SYSTEM_CLOCK, wait_first
from dart_server.wire import Clock
from dart_train.model.weights import PolicyVersionStore
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.config import TrainerConfig
from dart_train.trainer.trainer import Trainer, TrainStep

WAIT_FOR_BATCH_S = 20.0
log = logging.getLogger(__name__)


class TrainerProcess:
    """Owns the trainer, its checkpoints and its published versions.

    Args:
        config: The configuration of the process.
        client: The data manager.
        clock: Clock of durations, limits and metric lines.
    """

    def __init__(self, config: TrainerConfig, client: DataManagerClient, clock: Clock = SYSTEM_CLOCK) -> None:
        self.trainer = Trainer(config, client.images, clock)
        self.stopping = asyncio.Event()
        self._config = config
        self._client = client
        self._weights = PolicyVersionStore(config.weights, config.keep_weights)
        self._checkpoints = CheckpointStore(config.checkpoints, config.keep_checkpoints)
        self._clock = clock
        self._began_s = 0.0
        self._trained_before_s = 0.0
        self._unsaved: TrainerState | None = None

    async def run(self) -> None:
        """Train until the limits are reached, no training work is left, or `stopping` is set."""
        await self.resume()
        waiting = asyncio.create_task(self.stopping.wait())
        try:
            waiting_since_s: float | None = None
            while not self._finished():
                waiting_since_s = self._clock.monotonic() if waiting_since_s is None else waiting_since_s
                asking = asyncio.create_task(self._client.next_batch(self.trainer.version, WAIT_FOR_BATCH_S))
                await wait_first(self._clock, None, [asking, waiting])
                if self.stopping.is_set():
                    asking.cancel()
                    break
                reply = asking.result()
                self._checkpoints.save_trained_s(self._trained_s())
                if reply.batch is not None:
                    await self.train_step(reply.batch, waited_s=self._clock.monotonic() - waiting_since_s)
                    waiting_since_s = None
                elif not reply.training_active:
                    break
        finally:
            waiting.cancel()
        self._save_now()
        self._checkpoints.save_trained_s(self._trained_s())

    async def resume(self) -> None:
        """Load the policy and finish what an earlier process began."""
        self._weights.remove_partial()
        state = self._checkpoints.latest()
        latest = await self._client.latest_version()
        newest = latest or VersionRecord(version=0, path=self._config.start_model)
        start = newest.path if state is None else self._config.start_model
        await asyncio.to_thread(self.trainer.setup, start, newest.version, state)
        if state is None:
            if latest is None:
                await self._client.publish_version(newest)
        elif state.version >= newest.version:
            await self._publish()
            await self._report_batch(state)
        else:
            log.warning(
                "checkpoint has version %d, published is %d: continuing above it", state.version, newest.version
            )
            self.trainer.version = newest.version
        self._began_s = self._clock.monotonic()
        self._trained_before_s = max(self._checkpoints.trained_s(), 0.0 if state is None else state.trained_s)

    async def train_step(self, batch: Batch, waited_s: float) -> TrainStep:
        """Do one train step, and store and report its result.

        Args:
            batch: The batch.
            waited_s: Seconds in which the trainer waited for it.

        Returns:
            What the train step did.
        """
        done = await asyncio.to_thread(self.trainer.step, batch)
        save_began_s = self._clock.monotonic()
        state = self._unsaved = self.trainer.state(done, batch.batch_id, self._trained_s())
        if self.trainer.updates % self._config.checkpoint_every == 0:
            await asyncio.to_thread(self._save_now)
        await self._publish()
        times = {"wait_s": waited_s, "publish_s": self._clock.monotonic() - save_began_s}
        append_metrics(
            self._config.metrics,
            {"kind": "update", "time_s": self._clock.time(), "version": done.version, "update": self.trainer.updates}
            | done.metrics
            | times,
        )
        await self._report_batch(state)
        return done

    async def _publish(self) -> None:
        version = self.trainer.version
        path = await asyncio.to_thread(self._weights.publish, version, self.trainer.save)
        await self._client.publish_version(VersionRecord(version=version, path=str(path)))

    async def _report_batch(self, state: TrainerState) -> None:
        if state.last_batch is None:
            return
        unused = [UnusedStep(rollout_id=rollout, index=index, reason=reason) for rollout, index, reason in state.unused]
        report = BatchReport(version=state.version, metrics=state.metrics, unused=unused)
        await self._client.batch_done(state.last_batch, report)

    def _finished(self) -> bool:
        config = self._config
        if config.max_updates is not None and self.trainer.updates >= config.max_updates:
            return True
        return config.max_minutes is not None and self._trained_s() >= 60 * config.max_minutes

    def _trained_s(self) -> float:
        return self._trained_before_s + self._clock.monotonic() - self._began_s

    def _save_now(self) -> None:
        if self._unsaved is not None:
            self._checkpoints.save(self._unsaved)
            self._unsaved = None


async def run_trainer(config: TrainerConfig) -> None:
    """Run the process until its end, SIGTERM or SIGINT.

    Args:
        config: The configuration of the process.
    """
    async with DataManagerClient(config.socket, config.images) as client:
        process = TrainerProcess(config, client)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stopping.set)
        await process.run()
