"""Exact resuming, published versions and metrics of the trainer on a tiny real model."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from trainer_harness import (
    batch_of,
    config_of,
    same,
    trainer_on,
    weights_of,
)

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch
from dart_agent.errors import ConfigError
from dart_agent.metrics_file import append_metrics
from dart_train.model.policy_model import LoadedModel, load_model
from dart_train.model.weights import PolicyVersionStore
from dart_train.trainer import checkpoint
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.trainer import Trainer


def test_a_schedule_without_an_end_is_refused(root: Path, model_dir: Path) -> None:
    with pytest.raises(ValidationError, match="'cosine' needs max_updates"):
        config_of(root, model_dir, optimizer={"lr_schedule": "cosine"})


def test_a_trainer_that_is_resumed_after_every_step_is_the_one_that_was_never_interrupted(
    root: Path, model_dir: Path, loaded: LoadedModel, images: ImageStore, tmp_path: Path
) -> None:
    recorded = [batch_of(loaded, images, groups=1, steps=steps, batch_id=f"b{steps}") for steps in (2, 1, 3)]
    options = {
        "minibatches": 2,
        "max_updates": 3,
        "optimizer": {"learning_rate": 1e-3, "lr_schedule": "cosine", "weight_decay": 0.01},
        "seed": 5,
        "freeze_vision": True,
    }
    straight = trainer_on(root, model_dir, images, **options)
    store = CheckpointStore(tmp_path, keep=2)
    for batch in recorded:
        wanted = straight.step(batch)
        resumed = Trainer(config_of(root, model_dir, **options), images)
        resumed.setup(str(model_dir), 0, store.latest())
        got = resumed.step(batch)
        assert {**got.metrics, "step_s": 0} == {**wanted.metrics, "step_s": 0}
        kept = straight.state(wanted, batch.batch_id, 12.0).tensors
        state = resumed.state(got, batch.batch_id, 12.0, ["digest"])
        assert kept.keys() == state.tensors.keys()
        assert not any("visual" in name for name in kept), "what is not trained is not saved"
        assert all(torch.equal(value, state.tensors[name]) for name, value in kept.items()), "bit for bit"
        store.save(state)
    saved = store.latest()
    assert saved is not None
    assert (saved.version, saved.updates, saved.last_batch, saved.trained_s) == (3, 3, "b3", 12.0)
    assert (saved.lineage, saved.metrics) == (["digest"], got.metrics)
    everything = Trainer(config_of(root, model_dir), images)
    with pytest.raises(ConfigError, match=r"lacks model.visual.* continue with the settings that it was made with"):
        everything.setup(str(model_dir), 0, saved)


def small_state(updates: int) -> TrainerState:
    return TrainerState(updates, updates, None, [], {}, 0.0, tensors={"model.a": torch.ones(3)})


def test_a_state_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(small_state(1))

    def write(path: Path, text: str) -> None:
        path.write_text(text[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_write_synced", write)
    with pytest.raises(OSError, match="No space left"):
        store.save(small_state(2))
    assert [path.name for path in tmp_path.iterdir()] == ["update00000001"]
    latest = store.latest()
    assert latest is not None
    assert latest.updates == 1


def test_published_versions_load_and_old_ones_go(
    root: Path, model_dir: Path, images: ImageStore, batch: Batch, tmp_path: Path
) -> None:
    trainer = trainer_on(root, model_dir, images, optimizer={"learning_rate": 1e-3})
    store = PolicyVersionStore(tmp_path, keep=2)
    for _ in range(3):
        trainer.step(batch)
        path = store.publish(trainer.version, trainer.save)
    assert store.versions() == [2, 3]
    loaded = load_model(path)
    assert same(weights_of(trainer), loaded.model.state_dict())


def test_metrics_are_lines_of_json(tmp_path: Path) -> None:
    for value in (1, 2):
        append_metrics(tmp_path / "logs" / "metrics.jsonl", {"kind": "update", "value": value})
    lines = (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["value"] for line in lines] == [1, 2]
