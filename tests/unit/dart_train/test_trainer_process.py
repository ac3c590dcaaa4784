"""What a restarted trainer does first, and the order in which a round is made to last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from trainer_harness import batch_of, config_of, tiny_model
from virtual_time import SettableClock

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch, BatchReply, BatchReport, VersionRecord
from dart_train.trainer.__main__ import main
from dart_train.trainer.checkpoint import CheckpointStore
from dart_train.trainer.process import WAIT_FOR_BATCH_S, TrainerProcess


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
        self.done: dict[str, int] = {}

    def _call(self, name: str) -> None:
        if self.die_at == name:
            raise SimulatedKill
        self.calls.append(name)

    async def latest_version(self) -> VersionRecord | None:
        return self.latest

    async def publish_version(self, record: VersionRecord) -> None:
        self._call(f"publish {record.version}")
        if self.latest is None or record.version > self.latest.version:
            self.latest = record

    async def next_batch(self, version: int, wait_s: float) -> BatchReply:
        left = [batch for batch in self.batches if batch.batch_id not in self.done]
        return BatchReply(batch=left[0] if left else None, training_active=bool(left))

    async def batch_done(self, batch_id: str, report: BatchReport) -> None:
        self._call(f"done {report.version}")
        self.done.setdefault(batch_id, report.version)


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

    async def killed(self, at: str) -> None:
        self.client.die_at = at
        with pytest.raises(SimulatedKill):
            await self.run()
        self.client.die_at = None
        self.client.calls.clear()


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

    async def reply_after_ten_minutes(version: int, wait_s: float) -> BatchReply:
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

    async def slow_reply(version: int, wait_s: float) -> BatchReply:
        nonlocal empty
        clock.now_s += wait_s
        if empty:
            empty -= 1
            return BatchReply(batch=None, training_active=True)
        return await reply(version, wait_s)

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
    assert process.trainer.version == 8
    assert process.trainer.updates == 2


async def test_without_a_checkpoint_training_goes_on_from_what_was_published(harness: TrainerHarness) -> None:
    await harness.run(max_updates=2)
    for path in harness.config.checkpoints.iterdir():
        path.unlink()
    process = await harness.run()
    assert process.trainer.version == 3


async def test_rare_checkpoints_still_save_the_last_round(harness: TrainerHarness) -> None:
    await harness.run(checkpoint_every=10)
    assert [path.name for path in harness.config.checkpoints.glob("*.pt")] == ["update00000003.pt"]


async def test_the_time_limit_counts_over_restarts(harness: TrainerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SettableClock()
    reply = harness.client.next_batch

    async def reply_after_a_minute(version: int, wait_s: float) -> BatchReply:
        clock.now_s += 60.0
        return await reply(version, wait_s)

    monkeypatch.setattr(harness.client, "next_batch", reply_after_a_minute)
    updates = []
    for max_minutes in (1.5, 1.5, 2.5, 2.5, 3.5):
        config = harness.config.model_copy(update={"max_minutes": max_minutes})
        process = TrainerProcess(config, cast(DataManagerClient, harness.client), clock)
        await process.run()
        updates.append(process.trainer.updates)
    assert updates == [2, 2, 3, 3, 3], "a batch a minute, and a process that begins after its time trains nothing"


@pytest.mark.parametrize(("content", "message"), [("{}", "start_model: Field required"), ("[", "Invalid JSON")])
def test_configuration_mistakes_end_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    assert main(["--config", str(path)]) == 2
    assert message in capsys.readouterr().err
