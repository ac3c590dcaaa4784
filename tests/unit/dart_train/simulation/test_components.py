"""The components of a run in virtual time: the same for one seed, and the simulator of the decisions alone says what they say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dart_train.config import Recipe
from dart_train.evaluation.during_training import METRICS_KIND
from dart_train.report.build import read_metrics
from dart_train.run.paths import RunPaths
from dart_train.simulation.command import scenario_of
from dart_train.simulation.components.activity import simulated_figures
from dart_train.simulation.components.system import (
    ComponentsOutcome,
    ComponentSystem,
    for_minutes,
    simulate_components,
)
from dart_train.simulation.components.trainer import save_noise
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time
from dart_train.simulation.models import DesktopModel, EpisodeModel, Latency, SystemModels, TrainerModel
from dart_train.simulation.outcome import simulate

RECIPE: dict[str, Any] = {
    "run": {"name": "simulated"},
    "tasks": {"families": ["press_nth", "press_two", "choose_nth", "tick_nth"], "max_steps": 12},
    "model": {"preset": "tiny"},
    "rollout": {"group_size": 4, "max_tokens": 500},
    "train": {"groups_per_batch": 2},
}


def recipe(desktops: int, **sections: Any) -> Recipe:
    return Recipe.model_validate(RECIPE | {"desktops": {"count": desktops}} | sections)


def components(given: Recipe, models: SystemModels, hours: float, seed: int = 0) -> ComponentsOutcome:
    return simulate_components(given, models, hours=hours, warm_up_hours=hours / 2, seed=seed)


def test_one_seed_gives_one_run() -> None:
    slow = SystemModels(
        desktop=DesktopModel(step_s=Latency(mean_s=5.0, sigma=0.5)),
        episode=EpisodeModel(median_steps=3.0, sigma=0.5),
        trainer=TrainerModel(update_s=10.0, tokens_per_s=1e6),
    )
    first, again = (components(recipe(4), slow, 0.025, 3) for _ in range(2))
    assert asdict(first.figures) == asdict(again.figures)
    assert (first.updates, first.trajectories) == (again.updates, again.trajectories)
    figures = first.figures
    assert first.trajectories > 2
    assert figures.env_util is not None
    assert figures.worker_util is not None
    assert 0 < figures.worker_util <= figures.worker_in_use < 1
    assert 0 < figures.env_util <= figures.env_in_use
    assert figures.env_in_use + figures.resetting <= 1.001, "the states of a desktop exclude each other"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["batch", "rollout-per-worker"])
def test_the_simulator_of_the_decisions_says_what_the_components_say(mode: str) -> None:
    """For the same episodes. The simulator is faster by what it leaves out: versions and free places that are heard of later."""
    given = recipe(24, inference={"workers": 4}, rollout=RECIPE["rollout"] | {"scheduling": mode})
    models = SystemModels(episode=EpisodeModel(median_steps=6.0, sigma=0.3))
    real = components(given, models, 0.5).figures
    fast = simulated_figures(simulate(scenario_of(given, models, hours=0.5, seed=0)))
    for name in ("actions_per_min", "env_util", "worker_in_use", "worker_util", "trainer_util"):
        assert getattr(fast, name) == pytest.approx(getattr(real, name), rel=0.05), name
    assert fast.env_in_use == pytest.approx(real.env_in_use, rel=0.15), (
        "with requests that wait for an engine, of which it has more"
    )


def test_each_published_version_has_weights_of_its_own(tmp_path: Path) -> None:
    start, first, second = (tmp_path / name for name in ("start", "first", "second"))
    for folder in (start, first, second):
        folder.mkdir()
    save_file({"w": torch.ones(4, 4), "n": torch.tensor([3])}, start / "model.safetensors")
    (start / "config.json").write_text("{}")
    save = save_noise(start)
    save(first, 1)
    save(second, 2)
    weights = [load_file(folder / "model.safetensors") for folder in (start, first, second)]
    assert not torch.equal(weights[1]["w"], weights[2]["w"])
    assert all(torch.allclose(each["w"], weights[0]["w"], atol=0.02) for each in weights)
    assert all(int(each["n"]) == 3 for each in weights)
    assert (second / "config.json").exists()


@pytest.mark.parametrize("during_workers", [0, 1])
def test_one_version_plays_an_evaluation_where_a_worker_holds_it(tmp_path: Path, during_workers: int) -> None:
    models = SystemModels(
        desktop=DesktopModel(step_s=Latency(mean_s=5.0, sigma=0.5)),
        episode=EpisodeModel(median_steps=3.0, sigma=0.5),
        trainer=TrainerModel(update_s=2.0, tokens_per_s=1e6),
    )
    during = {"every_updates": 2, "during_episodes": 6, "during_workers": during_workers}
    given = for_minutes(recipe(4, inference={"workers": 2}, eval=during), 8.0, 0)
    paths = RunPaths(tmp_path / "run")

    async def body(clock: VirtualClock) -> None:
        await ComponentSystem(given, paths, models, 0, clock).run()

    run_in_virtual_time(body)
    lines = [line for line in read_metrics(paths) if line["kind"] == METRICS_KIND]
    assert lines
    of_one = [line["first_version"] == line["last_version"] == line["version"] for line in lines]
    assert all(of_one) if during_workers else not all(of_one)
    assert not during_workers or not any(line["mixed_episodes"] for line in lines)
