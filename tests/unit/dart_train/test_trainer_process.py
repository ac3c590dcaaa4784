"""What a restarted trainer does first, and the order in which a round is made to last."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from settable_clock import SettableClock
from trainer_harness import batch_of, config_of, tiny_model

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.fake_trajectories import fake_image
from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch, BatchFailure, BatchReply, BatchReport, StepReference, VersionRecord
from dart_agent.errors import StoreUnavailableError
from dart_agent.inference.weights.adapters import read_adapter
from dart_agent.inference.weights.digest import weights_digest
from dart_agent.metrics_file import MetricsReader
from dart_train.model.adapters import LoraSettings
from dart_train.model.weights import TrainingOrigin
from dart_train.trainer import process
from dart_train.trainer.__main__ import main
from dart_train.trainer.checkpoint import CheckpointStore
from dart_train.trainer.process import WAIT_FOR_BATCH_S, TrainerProcess, TrainingStopped
from dart_train.trainer.trained_policy import TrainedPolicy
from dart_train.trainer.trainer import BatchFailed, Trainer, TrainStep


class SimulatedKill(BaseException):
    """Stands for a SIGKILL at this very call."""


class RecordingClient:
    """Remembers what the trainer tells; `die_at` kills it at the first call of that name."""

    def __init__(self, images: ImageStore, batches: list[Batch], die_at: str | None = None) -> None:
        self.images = images
        self.batches = batches
        self.die_at = die_at
        self.calls: list[str] = []
        self.latest: VersionRecord | None = None
        self.versions: dict[int, VersionRecord] = {}
        self.done: dict[str, int] = {}
        self.failures: list[tuple[str, BatchFailure]] = []
        self.asked: list[tuple[int, str | None]] = []

    def _call(self, name: str) -> None:
        if self.die_at == name:
            raise SimulatedKill
        self.calls.append(name)

    async def latest_version(self) -> VersionRecord | None:
        return self.latest

    async def publish_version(self, record: VersionRecord) -> None:
        self._call(f"publish {record.version}")
        assert record.digest is not None
        known = self.versions.setdefault(record.version, record)
        assert known.digest == record.digest, "a number stands for one digest"
        if self.latest is None or record.version > self.latest.version:
            self.latest = record

    async def next_batch(self, version: int, wait_s: float, digest: str | None) -> BatchReply:
        self.asked.append((version, digest))
        left = [batch for batch in self.batches if batch.batch_id not in self.done]
        return BatchReply(batch=left[0] if left else None, training_active=bool(left))

    async def batch_done(self, batch_id: str, report: BatchReport) -> None:
        self._call(f"done {report.version}")
        self.done.setdefault(batch_id, report.version)

    async def batch_failed(self, batch_id: str, failure: BatchFailure) -> int:
        self.failures.append((batch_id, failure))
        (batch,) = (batch for batch in self.batches if batch.batch_id == batch_id)
        if self.die_at == "failed":
            raise SimulatedKill
        culprits = {(culprit.rollout_id, culprit.index) for culprit in failure.culprits}
        if not culprits:
            self.batches.remove(batch)
            return len(self.failures)
        left = [row for row in batch.rows if (row.rollout_id, row.step.index) not in culprits]
        again = batch.model_copy(update={"rows": left, "batch_id": f"{batch_id}-again"})
        self.batches[self.batches.index(batch)] = again
        return len(self.failures)


class TrainerHarness:
    """One run directory in which trainers come and go."""

    def __init__(self, root: Path, model_root: Path) -> None:
        self.model, self.loaded = tiny_model(model_root)
        self.images = ImageStore(model_root / "images")
        self.config = config_of(root, self.model, optimizer={"learning_rate": 1e-3})
        batches = [batch_of(self.loaded, self.images, groups=1, members=2, steps=1, batch_id=f"b{i}") for i in range(3)]
        self.client = RecordingClient(self.images, batches)

    async def run(self, **changes: Any) -> TrainerProcess:
        process = TrainerProcess(self.config.model_copy(update=changes), cast(DataManagerClient, self.client))
        await process.run()
        return process

    def spoil_image(self) -> StepReference:
        """Damage an image that only the second batch has; returns the step that shows it."""
        spoiled = fake_image(7, 64, 64)
        row = self.client.batches[1].rows[0]
        sha256 = self.images.put(spoiled)
        row.step.image_sha256[:] = [sha256]
        self.images.path(sha256).write_bytes(b"no picture")
        return StepReference(rollout_id=row.rollout_id, index=row.step.index)

    async def killed(self, at: str, **changes: Any) -> None:
        self.client.die_at = at
        with pytest.raises(SimulatedKill):
            await self.run(**changes)
        self.client.die_at = None
        self.client.calls.clear()


def size_of(directory: Path) -> int:
    """Bytes of the weights in a directory."""
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


@pytest.fixture
def harness(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainerHarness:
    return TrainerHarness(tmp_path, tmp_path_factory.getbasetemp())


async def test_a_round_is_saved_then_published_then_told(harness: TrainerHarness) -> None:
    process = await harness.run()
    assert harness.client.calls == ["publish 0", *(f"{what} {n}" for n in (1, 2, 3) for what in ("publish", "done"))]
    assert harness.client.done == {"b0": 1, "b1": 2, "b2": 3}
    assert process.trainer.version == 3
    lines = [json.loads(line) for line in harness.config.metrics.read_text().splitlines()]
    assert [(line["kind"], line["version"], line["update"]) for line in lines] == [("update", n, n) for n in (1, 2, 3)]


async def test_a_batch_waits_while_the_storage_of_images_is_away(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, tries = Trainer.step, 0

    def away_twice(trainer: Trainer, batch: Batch) -> TrainStep:
        nonlocal tries
        tries += 1
        if tries in (2, 3):
            raise StoreUnavailableError("the bucket does not answer")
        return step(trainer, batch)

    monkeypatch.setattr(Trainer, "step", away_twice)
    monkeypatch.setattr(process, "IMAGES_RETRY_S", 0.0)
    await harness.run()
    assert harness.client.done == {"b0": 1, "b1": 2, "b2": 3}
    assert harness.client.failures == []


async def test_a_trainer_that_waits_for_images_saves_first_and_stops_at_once(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = TrainerProcess(
        harness.config.model_copy(update={"checkpoint_every": 10}), cast(DataManagerClient, harness.client)
    )
    step, saved = Trainer.step, list[bool]()

    def away_after_the_second(trainer: Trainer, batch: Batch) -> TrainStep:
        if trainer.updates < 2:
            return step(trainer, batch)
        saved.append((harness.config.checkpoints / "update00000002").exists())
        if len(saved) == 2:
            running.stopping.set()
        raise StoreUnavailableError("the bucket does not answer")

    monkeypatch.setattr(Trainer, "step", away_after_the_second)
    monkeypatch.setattr(process, "IMAGES_RETRY_S", 0.0)
    assert await asyncio.wait_for(running.run(), 600) is False
    assert saved == [False, True], "no signal is needed to save what was done"


async def test_a_signal_ends_the_wait_for_images(harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    running = TrainerProcess(harness.config, cast(DataManagerClient, harness.client))

    def away(trainer: Trainer, batch: Batch) -> TrainStep:
        asyncio.run_coroutine_threadsafe(stop(), loop)
        raise StoreUnavailableError("the bucket does not answer")

    async def stop() -> None:
        running.stopping.set()

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Trainer, "step", away)
    monkeypatch.setattr(process, "IMAGES_RETRY_S", 3600.0)
    assert await asyncio.wait_for(running.run(), 600) is False


async def test_a_published_version_has_a_model_card_without_paths_of_the_host(harness: TrainerHarness) -> None:
    await harness.run(max_updates=1)
    card = (harness.config.weights / "v1" / "README.md").read_text()
    head, body = card.removeprefix("---\n").split("\n---\n")
    assert "library_name: transformers" in head
    assert "base_model" not in head, "a folder has no name on the Hub"
    assert "by 1 train steps" in body
    assert '"learning_rate": 0.001' in body
    assert str(harness.model.parent) not in card


async def test_a_trainer_that_is_stopped_before_its_end_says_so(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = TrainerProcess(harness.config, cast(DataManagerClient, harness.client))
    reply = harness.client.next_batch

    async def reply_and_stop(version: int, wait_s: float, digest: str | None) -> BatchReply:
        found = await reply(version, wait_s, digest)
        if version == 1:
            process.stopping.set()
        return found

    monkeypatch.setattr(harness.client, "next_batch", reply_and_stop)
    assert await process.run() is False
    assert process.trainer.updates < 3
    monkeypatch.undo()
    assert await TrainerProcess(harness.config, cast(DataManagerClient, harness.client)).run() is True


async def test_a_run_that_starts_from_a_version_of_another_run_makes_all_of_its_updates(
    harness: TrainerHarness,
) -> None:
    """The version tells where its own run would go on; both where the data manager knows it as version 0, and before."""
    TrainingOrigin(updates=40, lineage=("sha256:other",)).write(harness.model)
    trained = await harness.run()
    assert (trained.trainer.updates, trained.trainer.version) == (3, 3)
    assert harness.client.versions[1].parent == harness.client.versions[0].digest
    assert harness.client.versions[0].parent is None
    origin = TrainingOrigin.read(Path(harness.client.versions[3].path))
    assert (origin.updates, "sha256:other" in origin.lineage) == (3, False)


async def test_what_a_killed_trainer_left_partially_written_is_removed(harness: TrainerHarness) -> None:
    for number in (6, 7):
        (harness.config.checkpoints / f".update{number:08d}.tmp").mkdir(parents=True)
    await harness.run(max_updates=0)
    assert not list(harness.config.checkpoints.glob(".update*"))


@pytest.mark.parametrize("answer", ["publish_version", "batch_done", "latest_version"])
async def test_a_trainer_that_is_to_stop_does_not_wait_for_a_data_manager_that_is_gone(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    clock = SettableClock(0.0)
    process = TrainerProcess(harness.config, cast(DataManagerClient, harness.client), clock)

    async def never(*_: object) -> None:
        process.stopping.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as gone:
        gone.setattr(harness.client, answer, never)
        assert await asyncio.wait_for(process.run(), 60) is False
    finished = await harness.run()
    assert finished.trainer.version == 3
    assert harness.client.done == {"b0": 1, "b1": 2, "b2": 3}


async def test_more_updates_train_on_where_the_first_limit_ended(harness: TrainerHarness) -> None:
    await harness.run(max_updates=2)
    store = CheckpointStore(harness.config.checkpoints, keep=1)
    saved = store.latest()
    assert saved is not None
    assert store.updates() == 2
    assert store.trained_s() >= round(saved.trained_s, 1), "the last train step counts"
    process = await harness.run(max_updates=3)
    assert (process.trainer.updates, process.trainer.version) == (3, 3)
    assert harness.client.done == {"b0": 1, "b1": 2, "b2": 3}


async def test_the_limit_of_minutes_counts_the_whole_run_and_not_each_process(harness: TrainerHarness) -> None:
    clock = SettableClock()

    async def reply_after_ten_minutes(version: int, wait_s: float, digest: str | None) -> BatchReply:
        clock.now_s += 600.0
        if clock.now_s > 1_800.0:
            raise SimulatedKill
        return BatchReply(batch=None, training_active=True)

    ask = harness.client.next_batch
    harness.client.next_batch = reply_after_ten_minutes  # type: ignore[method-assign]
    client = cast(DataManagerClient, harness.client)
    with pytest.raises(SimulatedKill):
        await TrainerProcess(harness.config, client, clock).run()
    harness.client.next_batch = ask  # type: ignore[method-assign]
    process = TrainerProcess(harness.config.model_copy(update={"max_minutes": 25.0}), client, clock)
    await process.run()
    assert process.trainer.updates == 0, "30 minutes were over before the process was killed"


async def test_the_wait_for_a_batch_counts_every_empty_reply(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SettableClock()
    empty = 2
    reply = harness.client.next_batch

    async def slow_reply(version: int, wait_s: float, digest: str | None) -> BatchReply:
        nonlocal empty
        clock.now_s += wait_s
        if empty:
            empty -= 1
            return BatchReply(batch=None, training_active=True)
        return await reply(version, wait_s, digest)

    monkeypatch.setattr(harness.client, "next_batch", slow_reply)
    process = TrainerProcess(harness.config, cast(DataManagerClient, harness.client), clock)
    await process.run()
    lines = [json.loads(line) for line in harness.config.metrics.read_text().splitlines()]
    assert [line["wait_s"] for line in lines] == [3 * WAIT_FOR_BATCH_S, WAIT_FOR_BATCH_S, WAIT_FOR_BATCH_S]


@pytest.mark.parametrize("moment", ["publish 2", "done 2"])
async def test_what_was_not_reached_is_done_first_after_a_kill(harness: TrainerHarness, moment: str) -> None:
    await harness.killed(at=moment)
    await harness.run()
    assert harness.client.calls[:2] == ["publish 2", "done 2"]
    assert harness.client.done == {"b0": 1, "b1": 2, "b2": 3}


async def test_the_first_batch_is_trained_on_once_also_with_rare_checkpoints(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, stepped = Trainer.step, list[str]()

    def noted_step(trainer: Trainer, batch: Batch) -> TrainStep:
        stepped.append(batch.batch_id)
        return step(trainer, batch)

    monkeypatch.setattr(Trainer, "step", noted_step)
    await harness.killed(at="done 1", checkpoint_every=2)
    await harness.run(checkpoint_every=2)
    assert stepped == ["b0", "b1", "b2"]
    assert harness.client.done == {"b0": 1, "b1": 2, "b2": 3}


async def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(
    harness: TrainerHarness, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = TrainerHarness(tmp_path / "other", tmp_path_factory.getbasetemp())
    await other.run()
    await harness.killed(at="done 1")
    await harness.run()
    weights = [each.config.weights / "v3" / "model.safetensors" for each in (harness, other)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


async def test_versions_above_an_older_checkpoint_are_never_used_again(harness: TrainerHarness) -> None:
    await harness.run(max_updates=1)
    harness.client.latest = VersionRecord(version=7, path=str(harness.config.weights / "v7"))
    process = await harness.run(max_updates=2)
    assert process.trainer.version == 9, (
        "the weights of version 1 are version 8 again, and the train step makes version 9"
    )
    assert process.trainer.updates == 2


async def test_after_a_lost_future_the_old_weights_are_a_new_version_that_rollouts_follow(
    harness: TrainerHarness,
) -> None:
    await harness.killed(at="done 3", checkpoint_every=2)
    versions = harness.client.versions
    saved, lost = versions[2], versions[3]
    harness.client.done.clear()
    harness.client.asked.clear()
    process = await harness.run(max_updates=3, checkpoint_every=2)
    assert harness.client.calls == ["publish 4", "done 2", "publish 5", "done 5"]
    assert versions[4].digest == saved.digest == harness.client.asked[0][1]
    assert versions[4].parent == saved.parent
    assert versions[5].parent == saved.digest
    assert lost.digest not in {versions[4].digest, versions[5].parent}
    assert (process.trainer.updates, process.trainer.version) == (3, 5)


async def test_every_version_names_its_weights_and_its_parent(harness: TrainerHarness) -> None:
    await harness.run()
    versions = harness.client.versions
    assert sorted(versions) == [0, 1, 2, 3]
    for number, record in versions.items():
        assert record.digest == weights_digest(Path(record.path))
        assert record.parent == (versions[number - 1].digest if number else None)
    state = CheckpointStore(harness.config.checkpoints, keep=1).latest()
    assert state is not None
    assert state.lineage == [versions[number].digest for number in (0, 1, 2)]


async def test_a_version_of_a_run_folder_from_before_digests_gets_one(harness: TrainerHarness) -> None:
    harness.client.latest = VersionRecord(version=0, path=str(harness.model))
    await harness.run(max_updates=1)
    assert harness.client.versions[0].digest == harness.client.versions[1].parent == weights_digest(harness.model)


async def test_weights_that_were_written_and_not_registered_are_not_taken_for_others(harness: TrainerHarness) -> None:
    await harness.run(max_updates=1)
    unregistered = harness.config.weights / "v2"
    shutil.copytree(harness.config.weights / "v1", unregistered)
    await harness.run(max_updates=2)
    assert harness.client.versions[2].digest == weights_digest(unregistered) != harness.client.versions[1].digest


async def test_a_batch_with_a_damaged_image_fails_alone_and_training_goes_on(harness: TrainerHarness) -> None:
    culprit = harness.spoil_image()
    process = await harness.run()
    assert process.trainer.updates == 3
    ((batch_id, failure),) = harness.client.failures
    assert batch_id == "b1"
    assert "cannot be read" in failure.cause
    assert failure.culprits == [culprit]
    assert harness.client.done == {"b0": 1, "b1-again": 2, "b2": 3}


def explode(monkeypatch: pytest.MonkeyPatch, batch_id: str) -> None:
    """Let the gradient of one batch have an enormous norm."""
    step, clip, now = Trainer.step, TrainedPolicy.clip_gradient, ""

    def noted_step(trainer: Trainer, batch: Batch) -> TrainStep:
        nonlocal now
        now = batch.batch_id
        return step(trainer, batch)

    def exploding_clip(trained: TrainedPolicy) -> torch.Tensor:
        return clip(trained) * (1e9 if now == batch_id else 1)

    monkeypatch.setattr(Trainer, "step", noted_step)
    monkeypatch.setattr(TrainedPolicy, "clip_gradient", exploding_clip)


async def test_an_exploding_batch_is_left_out_as_if_it_had_never_been_also_after_a_kill(
    harness: TrainerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = {"optimizer": harness.config.optimizer.model_copy(update={"max_grad_norm": 1e6})}
    explode(monkeypatch, "b1")
    await harness.killed("failed", **bounded)
    await harness.run(**bounded)
    ids = [batch_id for batch_id, _ in harness.client.failures]
    assert ids == ["b1", "b1"], "the killed report is made again"
    assert all(
        not failure.culprits and "above train.max_grad_norm" in failure.cause for _, failure in harness.client.failures
    )
    assert harness.client.done == {"b0": 1, "b2": 2}
    (line,) = [line for line in MetricsReader(harness.config.metrics).read_new() if line["kind"] == "failed_batch"]
    assert (line["batch"], line["quarantined_trajectories"], line["quarantined_steps"]) == ("b1", 2, 2)
    without = TrainerHarness(tmp_path / "without", harness.model.parent)
    without.client.batches = [batch for batch in without.client.batches if batch.batch_id != "b1"]
    await without.run(**bounded)
    assert weights_digest(without.config.weights / "v2") == weights_digest(harness.config.weights / "v2")


async def test_training_ends_with_one_sentence_after_several_failed_batches_in_a_row(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trainer: Trainer, batch: Batch) -> TrainStep:
        raise BatchFailed("the gradient of update 1 is not finite", [])

    monkeypatch.setattr(Trainer, "step", fail)
    with pytest.raises(
        TrainingStopped, match=r"^3 batches in a row could not be trained on, the last because the gradient"
    ):
        await harness.run(max_failed_batches=3)
    assert len(harness.client.failures) == 3
    assert harness.client.calls == ["publish 0"]


async def test_training_that_cannot_go_on_saves_what_it_did(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, clock = Trainer.step, SettableClock()

    def fail_after_the_second(trainer: Trainer, batch: Batch) -> TrainStep:
        clock.now_s += 60.0
        if trainer.updates < 2:
            return step(trainer, batch)
        raise BatchFailed("the gradient of update 3 is not finite", [])

    monkeypatch.setattr(Trainer, "step", fail_after_the_second)
    config = harness.config.model_copy(update={"max_failed_batches": 1, "checkpoint_every": 10})
    with pytest.raises(TrainingStopped):
        await TrainerProcess(config, cast(DataManagerClient, harness.client), clock).run()
    store = CheckpointStore(harness.config.checkpoints, keep=1)
    assert (store.updates(), store.trained_s()) == (2, 180.0)
    harness.client.calls.clear()
    process = await harness.run(checkpoint_every=10)
    assert harness.client.calls == ["publish 2", "done 2"], "no version is lost"
    assert process.trainer.updates == 2


async def test_a_formula_of_ones_own_that_fails_ends_training_in_one_sentence(
    harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ModuleType("own_advantages")
    calls: list[int] = []

    def nan_for_the_second(rewards_G: NDArray[np.float64], steps_G: object) -> NDArray[np.float64]:
        calls.append(len(calls))
        return rewards_G - (np.nan if len(calls) == 2 else 0.0)

    monkeypatch.setattr(own, "formula", nan_for_the_second, raising=False)
    monkeypatch.setitem(sys.modules, "own_advantages", own)
    sentence = r"^the advantage 'own_advantages:formula' gave \[nan, nan\] for the rewards .*; start the run again then: it goes on"
    with pytest.raises(TrainingStopped, match=sentence):
        await harness.run(advantage="own_advantages:formula", checkpoint_every=10)
    assert harness.client.failures == [], "the batch is not to blame"
    assert CheckpointStore(harness.config.checkpoints, keep=1).updates() == 1
    await harness.run(advantage="own_advantages:formula", checkpoint_every=10)
    assert harness.client.done == {"b0": 1, "b1": 2, "b2": 3}


async def test_without_a_checkpoint_training_goes_on_from_what_was_published(harness: TrainerHarness) -> None:
    await harness.run(max_updates=2)
    shutil.rmtree(harness.config.checkpoints)
    process = await harness.run()
    assert (process.trainer.version, process.trainer.updates) == (3, 3)
    assert harness.client.versions[3].parent == harness.client.versions[2].digest


async def test_adapters_are_versions_of_the_start_model(harness: TrainerHarness) -> None:
    """Published alone, each has a digest and a parent, and training goes on from one where no checkpoint is left."""
    changes: dict[str, Any] = {"lora": LoraSettings(rank=2), "publish": "adapter"}
    await harness.run(max_updates=2, **changes)
    shutil.rmtree(harness.config.checkpoints)
    process = await harness.run(**changes)
    assert (process.trainer.version, process.trainer.updates) == (3, 3)
    versions = harness.client.versions
    for number in (1, 2, 3):
        record = versions[number]
        assert record.digest == weights_digest(Path(record.path))
        assert record.parent == versions[number - 1].digest
        assert read_adapter(Path(record.path)).base_digest == versions[0].digest
    lines = [json.loads(line) for line in harness.config.metrics.read_text().splitlines()]
    published = {line["published_bytes"] for line in lines}
    assert published == {size_of(Path(versions[3].path))}
    assert max(published) < size_of(harness.model) / 5


async def test_rare_checkpoints_still_save_the_last_round(harness: TrainerHarness) -> None:
    await harness.run(checkpoint_every=10)
    saved = sorted(path.name for path in harness.config.checkpoints.glob("update*"))
    assert saved == ["update00000001", "update00000003"], "the first one, so that every later kill finds a state"


async def test_the_time_limit_counts_over_restarts(harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SettableClock()
    reply = harness.client.next_batch

    async def reply_after_a_minute(version: int, wait_s: float, digest: str | None) -> BatchReply:
        clock.now_s += 60.0
        return await reply(version, wait_s, digest)

    monkeypatch.setattr(harness.client, "next_batch", reply_after_a_minute)
    updates = []
    for max_minutes in (1.5, 1.5, 2.5, 2.5, 3.5):
        config = harness.config.model_copy(update={"max_minutes": max_minutes})
        process = TrainerProcess(config, cast(DataManagerClient, harness.client), clock)
        await process.run()
        updates.append(process.trainer.updates)
    assert updates == [2, 2, 3, 3, 3], "a batch a minute, and a process that begins after its time trains nothing"


@pytest.mark.parametrize(("content", "message"), [("{}", "`start_model`: field required"), ("[", "invalid JSON")])
def test_configuration_mistakes_end_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    assert main(["--config", str(path)]) == 2
    assert message in capsys.readouterr().err


async def test_an_update_tells_the_lag_of_its_trajectories(harness: TrainerHarness) -> None:
    for number, batch in enumerate(harness.client.batches):
        first, second = batch.groups[0].members
        batch.groups[0].members[:] = [
            first.model_copy(update={"ended_s": time.time() - 60.0}),
            second.model_copy(update={"ended_s": time.time() - 100.0, "source": "pool" if number == 1 else "fresh"}),
        ]
    await harness.run()
    lines = [json.loads(line) for line in harness.config.metrics.read_text().splitlines()]
    assert lines[0]["lag_mean_s"] == pytest.approx(80.0, abs=20.0)
    assert lines[0]["lag_max_s"] - lines[0]["lag_p50_s"] == pytest.approx(40.0, abs=0.1)
    assert lines[1]["lag_max_s"] == lines[1]["lag_mean_s"], "a success that the pool lent has no lag"
