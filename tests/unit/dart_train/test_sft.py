"""Supervised fine-tuning: it learns demonstrations and stored successes, resumes exactly, and refuses what it must not learn."""

from __future__ import annotations

import errno
import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from demonstrations import TEST_TASK, TRAIN_TASKS, write_demonstration
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainer_harness import tiny_model
from typer.testing import CliRunner

from dart_agent.errors import ConfigError
from dart_agent.metrics_file import MetricsReader
from dart_agent.strict_model import read_config_file
from dart_train.cli import app
from dart_train.config import load_recipe
from dart_train.imitation.demonstrations import DemonstrationsUnusableError
from dart_train.imitation.tokens import ImitatedEpisode
from dart_train.model.policy_model import load_model
from dart_train.run.paths import RunPaths
from dart_train.run.training_components import sft
from dart_train.sft.config import SftConfig
from dart_train.sft.fit import IMAGE_TRIES, fine_tune, split_tasks
from dart_train.trainer import checkpoint
from dart_train.trainer.checkpoint import CheckpointStore, TrainerState
from dart_train.trainer.policy import is_stored_in_bfloat16
from dart_train.trainer.trained_policy import TrainedPolicy
from dart_train.types import TrainBatch


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("sft")
    for number, task_id in enumerate(TRAIN_TASKS):
        write_demonstration(folder / "demos" / str(number), task_id, seed=number, clicks=1)
    return folder


def config_of(root: Path, name: str, **changes: Any) -> SftConfig:
    given: dict[str, Any] = {
        "checkpoints": root / name / "states", "metrics": root / name / "metrics.jsonl", "start_model": str(tiny_model(root)[0]),
        "out_dir": root / name / "model", "images": root / "pictures", "demonstrations": {"folders": [root / "demos"]},
        "epochs": 10, "steps_per_update": 3, "held_out_fraction": 0.25, "report_every": 5, "checkpoint_every": 4, "device": "cpu",
        "optimizer": {"learning_rate": 3e-3, "lr_schedule": "cosine", "lr_warmup_updates": 3}, "micro_batch_tokens": 60,
    }  # fmt: skip
    return SftConfig.model_validate(given | changes)


def test_demonstrated_answers_become_likely_and_one_task_is_held_out(root: Path) -> None:
    lines: list[Mapping[str, Any]] = []
    result = fine_tune(config_of(root, "learns"), report=lines.append)
    assert (result.episodes, result.steps, result.updates) == (3, 6, 20)
    assert result.nll < 0.6 * lines[0]["nll"]
    assert result.held_out_nll is not None
    assert lines[-1]["update"] == lines[-1]["updates"] == 20
    load_model(root / "learns" / "model")  # a complete model
    card = (root / "learns" / "model" / "README.md").read_text()
    assert "20 train steps of imitation" in card
    with pytest.raises(FileExistsError, match="exists already: remove it to fine-tune again"):
        fine_tune(config_of(root, "learns"))


class Killed(Exception):
    """In place of a signal."""


def kill_after_the_first_checkpoint(config: SftConfig) -> None:
    """Run a fine-tuning until it has a checkpoint."""
    save = CheckpointStore.save

    def save_and_die(store: CheckpointStore, state: TrainerState) -> Path:
        save(store, state)
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(checkpoint.CheckpointStore, "save", save_and_die)
        with pytest.raises(Killed):
            fine_tune(config)
    assert not config.out_dir.exists()


def test_a_killed_fine_tuning_ends_with_the_same_bits(root: Path) -> None:
    fine_tune(config_of(root, "whole", epochs=5))
    kill_after_the_first_checkpoint(config_of(root, "killed", epochs=5))
    fine_tune(config_of(root, "killed", epochs=5))
    whole, killed = (load_file(root / name / "model" / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(value, killed[name]) for name, value in whole.items())


def changed_model(root: Path, directory: Path) -> Path:
    """The start model with one other tensor."""
    shutil.copytree(tiny_model(root)[0], directory)
    weights = load_file(directory / "model.safetensors")
    save_file(
        weights | {"lm_head.weight": -weights["lm_head.weight"]}, directory / "model.safetensors", {"format": "pt"}
    )
    return directory


def test_checkpoints_of_another_fine_tuning_are_not_gone_on_from(root: Path, tmp_path: Path) -> None:
    config = config_of(root, "other", epochs=5)
    kill_after_the_first_checkpoint(config)
    others = tmp_path / "demos"
    write_demonstration(others, TRAIN_TASKS[0], seed=7, clicks=1)
    optimizer = config.optimizer.model_copy(update={"learning_rate": 1e-4})
    for changes, named in (
        ({"optimizer": optimizer.model_dump()}, "optimizer.learning_rate"),
        ({"epochs": 6, "seed": 1}, "epochs, seed"),
        ({"demonstrations": {"folders": [others]}}, "demonstrations"),
        ({"lora": {"rank": 4}}, "lora"),
        ({"start_model": str(changed_model(root, tmp_path / "model"))}, "start_model"),
    ):
        with pytest.raises(ConfigError, match=rf"of another fine-tuning \({re.escape(named)} differ\): continue it"):
            fine_tune(config_of(root, "other", **({"epochs": 5} | changes)))
    moved = tmp_path / "moved"
    shutil.copytree(root / "demos", moved)
    free = {
        "demonstrations": {"folders": [moved]},
        "micro_batch_tokens": 90,
        "threads": 2,
        "report_every": 3,
        "publish_dtype": "bfloat16",
    }
    note = config.checkpoints / "settings.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"publish_dtype": "as_trained"}))
    lines: list[Mapping[str, Any]] = []
    fine_tune(config_of(root, "other", epochs=5, **free), report=lines.append)
    assert lines[0]["update"] > config.checkpoint_every, "it went on"
    assert not config.checkpoints.exists(), "the model is in place"
    assert is_stored_in_bfloat16(str(config.out_dir)), "processes that train it on load half of it"


def poison(monkeypatch: pytest.MonkeyPatch, applies: Callable[[TrainBatch], bool]) -> None:
    """Micro-batches for which `applies` is true have no finite loss."""
    score = TrainedPolicy.score

    def poisoned(
        policy: TrainedPolicy, batch: TrainBatch, reference: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_BR, entropy_BR = score(policy, batch, reference)
        bad = torch.is_grad_enabled() and applies(batch)
        return (logprobs_BR * float("nan") if bad else logprobs_BR), entropy_BR

    monkeypatch.setattr(TrainedPolicy, "score", poisoned)


def test_a_gradient_that_is_not_finite_is_left_out_and_its_row_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def first_stream(batch: TrainBatch) -> bool:
        seen.append(str(batch.tokens.input_ids_1L.tolist()))
        return seen[0] == seen[-1]

    poison(monkeypatch, first_stream)
    result = fine_tune(config_of(root, "poisoned", epochs=2, micro_batch_tokens=1))
    assert result.refused_updates == 2, "once in each epoch"
    lines = [
        line for line in MetricsReader(root / "poisoned" / "metrics.jsonl").read_new() if line["kind"] == "sft_refused"
    ]
    assert [len(line["rows"]) for line in lines] == [1, 1]
    assert lines[0]["rows"] == lines[1]["rows"]
    weights = load_file(root / "poisoned" / "model" / "model.safetensors")
    assert all(bool(value.isfinite().all()) for value in weights.values())


@pytest.mark.parametrize("failures", [2, 1000])
def test_images_that_cannot_be_read_now_are_waited_for_shortly(
    root: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    config, waits, left = config_of(root, f"unreadable-{failures}", epochs=1), list[float](), failures
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        nonlocal left
        if path.is_relative_to(config.images) and left:
            left -= 1
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    if failures > IMAGE_TRIES:
        with pytest.raises(DemonstrationsUnusableError, match="error; run the same command again when it can be read"):
            fine_tune(config, pause=waits.append)
        assert len(waits) == IMAGE_TRIES - 1
        return
    result = fine_tune(config, pause=waits.append)
    assert (result.refused_updates, len(waits)) == (0, failures)


def test_updates_that_are_never_finite_end_the_training_without_a_model(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, lambda batch: True)
    with pytest.raises(
        DemonstrationsUnusableError,
        match=r"4 updates in a row.*step \d of rollout .* is not finite; leave.*another --name",
    ):
        fine_tune(config_of(root, "broken", epochs=2))
    assert not (root / "broken" / "model").exists()


def test_the_recipes_bound_of_the_gradient_holds_for_fine_tuning(root: Path, tmp_path: Path) -> None:
    bound = {"learning_rate": 3e-3, "max_grad_norm": 1e-6}
    with pytest.raises(DemonstrationsUnusableError, match=r"above train.max_grad_norm = 1e-06"):
        fine_tune(config_of(root, "bounded", optimizer=bound, epochs=2))
    config = written_config(root, tmp_path, RECIPE + "max_grad_norm = 50\n")
    assert config.optimizer.max_grad_norm == 50


def written_config(root: Path, folder: Path, recipe: str) -> SftConfig:
    """What a fine-tuning by a recipe is started with."""
    (folder / "recipe.toml").write_text(recipe)
    paths = RunPaths(folder / "run")
    paths.make()
    component = sft(load_recipe(folder / "recipe.toml"), paths, (root,))
    return read_config_file(Path(component.argv[component.argv.index("--config") + 1]), SftConfig)


def test_a_fine_tuned_model_has_the_data_type_of_the_recipes_versions(root: Path, tmp_path: Path) -> None:
    assert written_config(root, tmp_path, RECIPE).publish_dtype == "as_trained"
    rounded = written_config(root, tmp_path, RECIPE + '[inference]\ntransfer_dtype = "bfloat16"\n')
    assert rounded.publish_dtype == "bfloat16"


def test_an_adapter_is_trained_and_merged(root: Path) -> None:
    fine_tune(config_of(root, "adapter", lora={"rank": 4}, epochs=2))
    before, after = (
        load_file(folder / "model.safetensors") for folder in (tiny_model(root)[0], root / "adapter" / "model")
    )
    assert before.keys() == after.keys()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed
    assert all("language_model" in name or "layers" in name for name in changed)


def test_every_episode_of_a_task_is_on_one_side() -> None:
    episodes = [ImitatedEpisode(f"{task}/{repeat}", task, ()) for task in "abcdefgh" for repeat in range(3)]
    learnt, held_out = split_tasks(episodes, 0.25)
    assert len({each.task_id for each in held_out}) == 2
    assert not {each.task_id for each in learnt} & {each.task_id for each in held_out}
    assert split_tasks(episodes[:3], 0.9) == (episodes[:3], []), "one task at least is learnt"
    assert split_tasks(episodes, 0.0) == (episodes, [])


RECIPE = """
[run]
name = "r"
[tasks]
families = ["press_nth"]
[model]
preset = "tiny"
[sft]
epochs = 2
steps_per_update = 3
[train]
device = "cpu"
"""


def command(root: Path, *arguments: str) -> tuple[int, str]:
    (root / "recipe.toml").write_text(RECIPE)
    result = CliRunner().invoke(app, ["sft", str(root / "recipe.toml"), "--runs-dir", str(root / "runs"), *arguments])
    return result.exit_code, result.output


def test_the_command_refuses_wrong_input_in_one_sentence(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    write_demonstration(tmp_path / "test", TEST_TASK)
    write_demonstration(tmp_path / "failed", reward=0.0)
    for arguments, sentence in (
        ((), "there is nothing to imitate: set demos.path (or --demos), or give --from-run with a run folder"),
        (("--demos", str(tmp_path / "nowhere")), "holds no demonstration"),
        (("--demos", str(tmp_path / "test")), "must not be trained on"),
        (("--demos", str(tmp_path / "failed")), "can be imitated (1 not solved)"),
        (("--from-run", str(tmp_path / "nowhere")), "has no stored rollouts"),
        (
            ("--demos", str(root / "demos"), "--set", "tracking.wandb=offline"),
            "the Python package wandb is not installed: ",
        ),
    ):
        code, output = command(root, *arguments)
        assert code == 2, output
        assert sentence in " ".join(output.split())


def test_the_command_writes_a_model_that_a_run_starts_from(root: Path) -> None:
    code, output = command(root, "--demos", str(root / "demos"), "--set", "tracking.tensorboard=true")
    assert code == 0, output
    updates = [line["update"] for line in MetricsReader(root / "runs" / "r" / "sft" / "metrics.jsonl").read_new()]
    shown = EventAccumulator(str(root / "runs" / "r" / "sft" / "tensorboard"))
    shown.Reload()
    assert [event.step for event in shown.Scalars("sft/nll")] == updates
    model = root / "runs" / "r" / "sft" / "fine-tuned"
    assert f"--set model.path={model}" in " ".join(output.split())
    load_model(model)
    code, output = command(root, "--demos", str(root / "demos"))
    assert code == 2
    assert "exists already" in output
