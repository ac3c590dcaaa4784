"""Demonstrations in a reinforcement-learning update: their loss falls, and nothing else of the update changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from demonstrations import TRAIN_TASKS, write_demonstration
from pydantic import ValidationError
from trainer_harness import batch_of, config_of, tiny_model

from dart_agent.data_client.image_store import ImageStore
from dart_agent.data_client.wire import Batch
from dart_agent.errors import ConfigError
from dart_train.config import Recipe
from dart_train.run import training_components
from dart_train.run.paths import RunPaths
from dart_train.trainer.checkpoint import CheckpointStore
from dart_train.trainer.trainer import Trainer, TrainStep

SFT = {"sft_coefficient": 1.0}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("term")
    for number, task_id in enumerate(TRAIN_TASKS):
        write_demonstration(folder / "demos" / str(number), task_id, seed=number, clicks=1)
    return folder


@pytest.fixture(scope="module")
def batch(root: Path) -> Batch:
    return batch_of(tiny_model(root)[1], ImageStore(root / "images"))


def trainer_on(root: Path, name: str, **changes: Any) -> Trainer:
    imitation = {"folders": [root / "demos"], "images": root / "pictures", "steps_per_update": 4}
    options: dict[str, Any] = {
        "loss": SFT, "imitation": imitation, "optimizer": {"learning_rate": 2e-3}, "micro_batch_tokens": 60
    } | changes  # fmt: skip
    trainer = Trainer(config_of(root / name, tiny_model(root)[0], **options), ImageStore(root / "images"))
    trainer.setup(str(tiny_model(root)[0]), 0, None)
    return trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    state = trainer.state(TrainStep(0, {}, ()), "b", 0.0).tensors
    return {name: value.clone() for name, value in state.items() if name.startswith("model.")}


def test_demonstrations_are_learnt_beside_the_rewards(root: Path, batch: Batch) -> None:
    trainer = trainer_on(root, "learns")
    steps = [trainer.step(batch) for _ in range(12)]
    assert steps[-1].metrics["imitation_nll"] < 0.5 * steps[0].metrics["imitation_nll"]
    rows = {(use.group_id, use.rollout_id, use.index) for use in steps[0].steps}
    assert rows == {(row.group_id, row.rollout_id, row.step.index) for row in batch.rows}, "only rows are reported"


def test_without_a_weight_an_update_is_the_one_without_demonstrations(root: Path, batch: Batch) -> None:
    plain = trainer_on(root, "plain", loss={}, imitation=None)
    mixed = trainer_on(root, "mixed", loss={"sft_coefficient": 1e-30})
    found = [trainer.step(batch).metrics for trainer in (plain, mixed)]
    for name in ("reward_mean", "ratio", "entropy", "tokens", "loss", "grad_norm"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-4, abs=1e-6), name


def test_the_split_into_passes_does_not_matter(root: Path, batch: Batch) -> None:
    found = {}
    for tokens in (40, 100_000):
        trainer = trainer_on(root, f"split-{tokens}", micro_batch_tokens=tokens, minibatches=2, epochs=2)
        trainer.step(batch)
        found[tokens] = trainer.step(batch).metrics
    assert found[40]["imitation_nll"] == pytest.approx(found[100_000]["imitation_nll"], rel=1e-3)


def test_a_resumed_trainer_imitates_what_the_killed_one_would_have(root: Path, batch: Batch) -> None:
    whole = trainer_on(root, "whole")
    for _ in range(3):
        last = whole.step(batch)
    killed = trainer_on(root, "killed")
    CheckpointStore(root / "states", 2).save(killed.state(killed.step(batch), "b", 0.0))
    resumed = trainer_on(root, "resumed")
    resumed.setup(str(tiny_model(root)[0]), 0, CheckpointStore(root / "states", 2).latest())
    for _ in range(2):
        again = resumed.step(batch)
    assert again.metrics["imitation_nll"] == last.metrics["imitation_nll"]
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())


def test_the_weight_and_the_demonstrations_go_together(root: Path) -> None:
    model = tiny_model(root)[0]
    with pytest.raises(ValidationError, match=r"loss.sft_coefficient and `imitation` go together"):
        config_of(root, model, loss=SFT)
    with pytest.raises(ValidationError, match=r"loss.sft_coefficient and `imitation` go together"):
        config_of(root, model, imitation={"images": root / "pictures"})
    with pytest.raises(ConfigError, match=r"the imitation term has no demonstrations: .*holds no demonstration"):
        trainer_on(root, "none", imitation={"folders": [root / "images"], "images": root / "pictures"})


def test_a_recipe_imitates_its_own_demonstrations_and_those_of_the_run(root: Path) -> None:
    given = {
        "run": {"name": "r"}, "tasks": {"families": ["press_nth"]}, "model": {"preset": "tiny"}, "train": SFT,
        "demos": {"path": str(root / "demos"), "thoughts": "none"},
    }  # fmt: skip
    paths = RunPaths(root / "run")
    settings = training_components.imitation(Recipe.model_validate(given), paths)
    assert settings is not None
    assert settings.folders == (root / "demos", paths.screens)
    assert (settings.thoughts, settings.asked.prompt, settings.steps_per_update) == ("none", "tiny", 32)
    assert training_components.imitation(Recipe.model_validate(given | {"train": {}}), paths) is None
    with pytest.raises(
        ValidationError, match=r"there are none, because a run collects its own for a warm start only: set demos\.path"
    ):
        Recipe.model_validate(
            given
            | {
                "demos": {"per_family": 0},
                "warmup": {"enabled": False, "imitated_demos_per_family": 0},
                "model": {"path": str(root)},
            }
        )


@pytest.mark.parametrize(
    ("model", "step_px"),
    [
        ({"preset": "tiny"}, 8),
        ({"preset": "tiny", "coordinate_step_px": 4}, 4),
        ({}, 1),
        ({"coordinate_step_px": 8}, 8),
    ],
)
def test_demonstrations_and_warm_start_have_one_grid_of_clicks(
    root: Path, model: dict[str, object], step_px: int
) -> None:
    if "preset" not in model:
        model = model | {"path": str(tiny_model(root)[0])}
    given = {"run": {"name": "r"}, "tasks": {"families": ["press_nth"]}, "model": model, "train": SFT}
    recipe, paths = Recipe.model_validate(given | {"demos": {"path": str(root)}}), RunPaths(root / f"run-{step_px}")
    paths.make()
    settings = training_components.imitation(recipe, paths)
    assert settings is not None
    assert settings.coordinate_step_px == step_px
    configurations = [training_components.warm_start(recipe, paths), training_components.sft(recipe, paths, ())]
    written = [json.loads(Path(spec.argv[spec.argv.index("--config") + 1]).read_text()) for spec in configurations]
    assert written[0]["coordinate_step_px"] == written[1]["demonstrations"]["coordinate_step_px"] == step_px
