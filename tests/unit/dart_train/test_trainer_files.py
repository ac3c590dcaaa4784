"""What the trainer writes: checkpoints that survive damage, and published versions."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_harness import config_of, tiny_model

from dart_agent.inference.weights.digest import weights_digest
from dart_agent.inference.weights.leases import hold
from dart_train.model.policy_model import load_model
from dart_train.model.weights import PolicyVersionStore
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.policy import PolicyWriter
from dart_train.trainer.settings_stamp import changed_settings


def state_of(updates: int) -> TrainerState:
    return TrainerState(
        updates, updates, "b", [{"rollout_id": "r"}], {}, 0.0, [], {"model.w": torch.full((3,), updates)}
    )


@pytest.mark.parametrize("damage", ["truncated", "missing", "state", "code"])
def test_a_damaged_checkpoint_falls_back_and_old_ones_go(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    for updates in (1, 2, 3):
        last = store.save(state_of(updates))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update00000002", "update00000003"]
    if damage == "truncated":
        (data,) = last.glob("*.distcp")
        data.write_bytes(data.read_bytes()[:10])
    elif damage == "missing":
        (last / ".metadata").unlink()
    elif damage == "state":
        (last / "state.json").write_text("{")
    else:
        code = pickle.dumps(PickledCall(tmp_path / "was_run"))
        size = (last / ".metadata").stat().st_size
        (last / ".metadata").write_bytes(code.ljust(size))
    state = store.latest()
    assert state is not None
    assert (state.updates, state.steps) == (2, [{"rollout_id": "r"}])
    into = {"model.w": torch.zeros(3), "model.new": torch.zeros(1)}
    assert state.load(into) == {"model.w"}
    assert into["model.w"].tolist() == [2, 2, 2]
    assert not (tmp_path / "was_run").exists()
    store.save(state_of(3))
    again = store.latest()
    assert again is not None
    assert again.updates == 3
    assert CheckpointStore(tmp_path / "none", keep=1).latest() is None


@pytest.mark.parametrize("content", ["", "12", "\0\0\0\0"])
def test_a_note_of_the_time_that_a_power_cut_damaged_is_none(tmp_path: Path, content: str) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    assert store.trained_s() == 0.0
    store.save_trained_s(75.26)
    assert store.trained_s() == 75.3
    assert [path.name for path in tmp_path.iterdir()] == ["trained_s"]
    (tmp_path / "trained_s").write_text(content)
    assert store.trained_s() == (12.0 if content == "12" else 0.0)


def test_notes_beside_checkpoints_are_synced_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(handle: int) -> None:
        sync(handle)
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")

    def noted_replace(source: Path, target: Path) -> None:
        replace(source, target)
        done.append(f"replace {target.name}")

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    folder = tmp_path / "states"
    CheckpointStore(folder, keep=1).save_trained_s(1.0)
    assert changed_settings(folder, {"seed": 0}, resumes=False) == []
    assert done == [
        step
        for name in ("trained_s", "settings.json")
        for step in (f"sync {name}.tmp", f"replace {name}", "sync states")
    ]


def test_settings_that_cannot_be_read_agree_with_everything_and_are_written_anew(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("")
    assert changed_settings(tmp_path, {"seed": 0}, resumes=True) == []
    assert changed_settings(tmp_path, {"seed": 1}, resumes=True) == ["seed"]


class PickledCall:
    """What a file could make `pickle` do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_checkpoint_that_is_not_finished_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    store.save(state_of(1))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            store.save(state_of(2))
    state = store.latest()
    assert state is not None
    assert (state.updates, store.updates()) == (1, 1)
    store.save(state_of(2))
    assert store.updates() == 2


def test_versions_are_written_in_bfloat16_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir, _ = tiny_model(tmp_path)
    policy = load_model(model_dir)

    def publish(**options: Any) -> Path:
        writer = PolicyWriter(config_of(tmp_path, model_dir, **options))
        store = PolicyVersionStore(tmp_path / f"versions-{len(options)}", keep=2)
        return store.publish(1, lambda directory: writer.save(policy, directory))

    whole = publish()
    written: list[int] = []
    save_pretrained = type(policy.model).save_pretrained

    def noted(model: Any, directory: Path, **given: Any) -> None:
        save_pretrained(model, directory, **given)
        written.append((directory / "model.safetensors").stat().st_size)

    monkeypatch.setattr(type(policy.model), "save_pretrained", noted)
    half = publish(publish_dtype="bfloat16")
    before, after = (load_file(path / "model.safetensors") for path in (whole, half))
    assert before.keys() == after.keys()
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}
    assert all(torch.equal(before[name].to(torch.bfloat16), after[name]) for name in before)
    sizes = [(path / "model.safetensors").stat().st_size for path in (whole, half)]
    assert written == [sizes[1]], "no file of float32 was written before"
    assert sizes[1] < 0.51 * sizes[0]
    assert weights_digest(whole) != weights_digest(half)
    loaded = load_model(half)
    assert loaded.model.config.model_type == load_model(whole).model.config.model_type


def test_a_version_that_a_worker_still_reads_is_kept_until_it_is_released(tmp_path: Path) -> None:
    store = PolicyVersionStore(tmp_path, keep=2)

    def publish(version: int) -> None:
        store.publish(version, lambda directory: (directory / "w").write_text("written") and None)

    publish(1)
    with hold(store.path(1)):
        for version in (2, 3, 4):
            publish(version)
        assert (store.path(1) / "w").read_text() == "written"
        assert store.versions() == [1, 3, 4]
    publish(5)
    assert store.versions() == [4, 5]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["v4", "v5"]


def test_a_failed_publication_leaves_nothing_and_a_version_is_written_once(tmp_path: Path) -> None:
    store = PolicyVersionStore(tmp_path, keep=2)

    def fail(directory: Path) -> None:
        (directory / "half").write_text("written")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        store.publish(1, fail)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".v1-leftover").mkdir()
    store.remove_partial()
    assert list(tmp_path.iterdir()) == []
    store.publish(1, lambda directory: (directory / "w").write_text("first") and None)
    store.publish(1, fail)
    assert (store.path(1) / "w").read_text() == "first"
