"""Two processes of a warm start (gloo) make the same updates, from the mean of their gradients."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from rank_processes import in_two_processes
from test_warmup_pages import config as pages_config
from test_warmup_pages import store

import dart_train
from dart_train.config import RecipeError, load_recipe
from dart_train.model.init_model import init_model
from dart_train.run import training_components
from dart_train.run.paths import RunPaths
from dart_train.trainer.ranks import Ranks
from dart_train.trainer.replicas import share_parameters
from dart_train.warmup.config import WarmupConfig
from dart_train.warmup.fit import warm_start
from dart_train.warmup.optimisation import make_optimizer, make_update, of_rank

DEMO = Path(dart_train.__file__).parent / "recipes" / "demo.toml"
BATCHES = (((1.0, 2.0), (0.5, -1.0)), ((3.0, -1.0), (2.0, 2.0)), ((0.0, 1.0), (-1.0, 4.0)))
"""An example for each process, by update."""


def config(root: Path) -> WarmupConfig:
    return WarmupConfig(start_model="none", screens=root, out_dir=root / "warm", metrics=root / "metrics.jsonl")


def start(seed: int) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    torch.manual_seed(seed)
    return torch.nn.Parameter(torch.randn(2, 2)), torch.nn.Parameter(torch.randn(2))


def loss_of(parameters: tuple[torch.nn.Parameter, torch.nn.Parameter], example: tuple[float, float]) -> torch.Tensor:
    matrix, vector = parameters
    return (matrix @ torch.tensor(example)).square().sum() + (vector.sum() if example[0] > 0 else 0)


def learn(root: Path, ranks: Ranks, seed: int) -> list[torch.Tensor]:
    parameters = start(seed)
    share_parameters(parameters, ranks)
    optimizer = make_optimizer(parameters, 0.1, config(root))
    for examples in BATCHES:
        if ranks.size > 1:
            loss = loss_of(parameters, examples[ranks.rank])
        else:
            loss = (loss_of(parameters, examples[0]) + loss_of(parameters, examples[1])) / 2
        make_update(optimizer, loss, ranks, grad_clip=0.5)
    return [parameter.detach() for parameter in parameters]


def learn_and_keep(root: Path, ranks: Ranks) -> None:
    torch.save(learn(root, ranks, 1 + ranks.rank), root / f"{ranks.rank}.pt")


def warm_start_of_rank(settings: WarmupConfig, ranks: Ranks) -> None:
    warm_start(settings, ranks=ranks)


def test_two_processes_learn_what_one_learns_from_both_parts(tmp_path: Path) -> None:
    in_two_processes(partial(learn_and_keep, tmp_path))
    alone = learn(tmp_path, Ranks(), 1)
    for rank in (0, 1):
        for found, wanted in zip(torch.load(tmp_path / f"{rank}.pt"), alone, strict=True):
            assert torch.allclose(found, wanted, atol=1e-6)
    assert not torch.allclose(alone[0], start(1)[0], atol=1e-2)


def test_two_processes_read_learn_and_write_one_model(tmp_path: Path) -> None:
    start_model = init_model("tiny", tmp_path / "start", seed=1)
    store(tmp_path / "screens", 14)
    settings = pages_config(tmp_path, start_model, pointer=True, imitated_demos_per_family=14)
    in_two_processes(partial(warm_start_of_rank, settings))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["kind"], line.get("pages", line.get("images"))) for line in lines] == [
        ("reading", 12),
        ("reading", 24),
        ("warmup", 8),
    ], "only the first process measures"
    assert (settings.out_dir / "model.safetensors").exists()


def test_a_recipe_starts_the_processes_with_torchrun(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    recipe = load_recipe(DEMO, ("run.name='r'", "warmup.processes=2", "warmup.threads=1"))
    argv = training_components.warm_start(recipe, paths).argv
    assert argv[1:6] == ("-m", "dart_train.trainer.torchrun", "--standalone", "--nproc-per-node", "2")
    assert argv[6:8] == ("-m", "dart_train.warmup")
    alone = training_components.warm_start(load_recipe(DEMO, ("run.name='r'",)), paths).argv
    assert alone[1:3] == ("-m", "dart_train.warmup")


def test_processes_have_equal_parts_of_a_batch() -> None:
    with pytest.raises(RecipeError, match="batch_size 32 is no multiple of processes 3"):
        load_recipe(DEMO, ("run.name='r'", "warmup.processes=3"))


def test_each_process_draws_by_a_seed_of_its_own() -> None:
    assert of_rank("1/pages", Ranks()) == "1/pages"
    assert of_rank("1/pages", Ranks(rank=1, size=2)) not in {"1/pages", of_rank("1/pages", Ranks(rank=2, size=3))}
