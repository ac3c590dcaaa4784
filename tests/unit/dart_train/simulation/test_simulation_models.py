"""Latency models: files, fits on recorded lines, prompts; and what a simulation says about a system."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest

from dart_train.config import Recipe
from dart_train.run.paths import RunPaths
from dart_train.run.state import save_resolved_recipe
from dart_train.simulation.episodes import TaskBook, prompt_of
from dart_train.simulation.fitting import fit_models
from dart_train.simulation.gantt import gantt_svg
from dart_train.simulation.models import (
    DesktopModel,
    EpisodeModel,
    FaultModel,
    Latency,
    ModelFileError,
    SystemModels,
    load_models,
    save_models,
)
from dart_train.simulation.outcome import SimulationOutcome, simulate
from dart_train.simulation.planning import bottleneck, recommend_split, usd_per_1000_rollouts, usd_per_hour
from dart_train.simulation.scenario import Scenario
from dart_train.utilisation import SlotShares, TrainerShares, WorkerShares


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_models_are_the_same_after_writing_and_reading(tmp_path: Path, suffix: str) -> None:
    models = SystemModels(faults=FaultModel(desktops_per_hour=0.05, worker_lost_at_s=60.0))
    path = tmp_path / f"models{suffix}"
    save_models(models, path)
    assert load_models(path) == models


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none.json", None, "do not exist"),
        ("models.yaml", "", "must be a .json or a .toml file"),
        ("models.toml", "[engine]\nspeed = 3\n", "unknown key `engine.speed`"),
        ("models.json", '{"desktop": {"step_s": {"mean_s": -1}}}', "`desktop.step_s.mean_s`"),
        ("broken.json", "{", "cannot be used"),
    ],
)
def test_a_file_of_models_that_cannot_be_used_is_named_in_one_sentence(
    tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ModelFileError) as caught:
        load_models(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_latency_has_the_mean_that_it_says() -> None:
    draw = random.Random(1)
    latency = Latency(mean_s=2.0, sigma=0.7)
    assert sum(latency.draw(draw) for _ in range(20_000)) / 20_000 == pytest.approx(2.0, rel=0.03)
    assert Latency(mean_s=2.0).draw(draw) == 2.0


def test_an_append_only_prompt_reuses_all_but_the_newest_screenshot() -> None:
    model = EpisodeModel(
        response_tokens=100, max_response_tokens=200, system_tokens=500, image_tokens=1000, context_tokens=4_900
    )
    shapes = [prompt_of(model, step) for step in range(5)]
    assert [shape.tokens for shape in shapes[:4]] == [1500, 2600, 3700, 1800]  # 4800 + 200 would not fit: a new segment
    assert [shape.reusable for shape in shapes] == [0, 1600, 2700, 500, 1900]
    assert [shape.images for shape in shapes] == [1, 2, 3, 1, 2]


def test_a_window_of_screenshots_reuses_only_the_system_prompt_once_it_moves() -> None:
    model = EpisodeModel(response_tokens=100, system_tokens=500, image_tokens=1000, history_images=2)
    shapes = [prompt_of(model, step) for step in range(4)]
    assert [shape.tokens for shape in shapes] == [1500, 2600, 2700, 2800]
    assert [shape.reusable for shape in shapes] == [0, 1600, 500, 500]


def test_an_episode_that_reaches_the_limit_fails() -> None:
    book = TaskBook(EpisodeModel(median_steps=30.0, sigma=0.3, success_alpha=1e6, success_beta=1.0), 0)
    draws = [book.draw("simulated/a/1", 30) for _ in range(200)]
    assert all(draw.steps <= 30 for draw in draws)
    assert any(draw.succeeds for draw in draws)
    assert any(draw.steps == 30 and not draw.succeeds for draw in draws)


def recorded(seed: int, episodes: int = 300, request_s: float = 0.5, step_s: float = 0.02) -> list[dict[str, Any]]:
    """What a run of four desktops on one worker writes, with known latencies."""
    draw = random.Random(seed)
    lines: list[dict[str, Any]] = []
    clocks = [0.0] * 4
    for index in range(episodes):
        desktop = index % 4
        steps = draw.randint(2, 12)
        tokens = [draw.randint(20, 80) for _ in range(steps)]
        model_s = sum(request_s + step_s * count for count in tokens)
        prepares = index % 40 < 4  # the first episode of a task
        env_s, reset_s = 0.3 * steps, draw.uniform(0.9, 1.1) + 2.0 * prepares
        duration_s = model_s + env_s + reset_s
        clocks[desktop] += duration_s
        lines.append(
            {
                "kind": "episode", "phase": "train", "task": f"{desktop}-{index // 40}",
                "time_s": clocks[desktop], "duration_s": duration_s, "steps": steps,
                "tokens": sum(tokens), "model_s": model_s, "env_s": env_s, "reset_s": reset_s,
                "reward": float(draw.random() < 0.25),
            }
        )  # fmt: skip
    lines.append({"kind": "weights", "time_s": 1.0, "version": 1, "staged_s": [0.2, 0.4], "paused_s": [0.04, 0.06]})
    for index in range(10):
        tokens_trained = 1000 + 500 * index
        lines.append(
            {
                "kind": "update", "time_s": 100.0 * index, "rows_trained": 20, "tokens": tokens_trained,
                "step_s": 3.0 + tokens_trained / 500, "publish_s": 0.7, "wait_s": 1.0,
            }
        )  # fmt: skip
    return lines


def test_a_fit_finds_the_latencies_of_a_recorded_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in recorded(5)) + "not json\n")
    fitted = fit_models([path], SystemModels())
    assert fitted.desktop.reset_s.mean_s == pytest.approx(2.0, rel=0.05), "preparing a task, without the copy after it"
    assert fitted.desktop.fork_s.mean_s == pytest.approx(1.0, rel=0.02)
    assert (fitted.desktop.step_s.mean_s, fitted.desktop.step_s.sigma) == pytest.approx((0.3, 0.0), abs=1e-6)
    assert fitted.trainer.update_s == pytest.approx(3.0, rel=0.01)
    assert fitted.trainer.tokens_per_s == pytest.approx(500.0, rel=0.01)
    assert fitted.publish.publish_s == pytest.approx(0.7)
    stage_s = fitted.publish.stage_s_per_gib * fitted.publish.weights_gib
    assert (stage_s, fitted.publish.swap_s) == pytest.approx((0.3, 0.05))
    engine, tokens = fitted.engine, fitted.episode.response_tokens
    assert tokens == pytest.approx(50.0, rel=0.03)
    # Whatever is attributed to which coefficient: a response at the load of the run takes what it took.
    share = 4 * 1.5 / (1.5 + 0.3 + 1 / 7)
    seconds = engine.request_s + tokens * (engine.step_s + engine.step_s_per_request * share)
    assert seconds == pytest.approx(0.5 + 0.02 * 50, rel=0.05)


def lines_of(steps: int, tokens: int, model_s: float, begin_s: float, task: str = "t") -> dict[str, Any]:
    """One episode of a second per step."""
    duration_s = 1.0 + steps + model_s
    return {
        "kind": "episode", "phase": "train", "task": task, "time_s": begin_s + duration_s, "duration_s": duration_s,
        "steps": steps, "tokens": tokens * steps, "model_s": model_s, "env_s": float(steps), "reset_s": 1.0, "reward": 1.0,
    }  # fmt: skip


def fitted(tmp_path: Path, lines: list[dict[str, Any]]) -> SystemModels:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return fit_models([path], SystemModels())


def test_a_fit_on_drawn_episodes_draws_episodes_of_the_same_length(tmp_path: Path) -> None:
    model = EpisodeModel(median_steps=5.0, sigma=0.5)
    drawn = [TaskBook(model, 0).draw(f"t{index}", 30).steps for index in range(2000)]
    found = fitted(tmp_path, [lines_of(steps, 24, 0.2 * steps, 100.0 * at) for at, steps in enumerate(drawn)]).episode
    again = [TaskBook(found, 1).draw(f"t{index}", 30).steps for index in range(2000)]
    assert fmean(again) == pytest.approx(fmean(drawn), rel=0.03)
    assert (found.median_steps, found.sigma) == pytest.approx((5.0, 0.5), rel=0.06)


def test_where_all_responses_are_equally_long_requests_do_not_queue_for_their_fixed_part(tmp_path: Path) -> None:
    """In the formula of the fit requests share the engine; a simulated engine computes `request_s` for one request after the other."""
    lines = [lines_of(6, 24 - (index % 20 == 0), 1.2, 100.0 * index) for index in range(100)]
    engine = fitted(tmp_path, lines).engine
    assert engine.request_s == 0.0
    assert 24 * (engine.step_s + engine.step_s_per_request) == pytest.approx(0.2, rel=0.05)


def test_the_mean_of_an_action_is_over_all_executed_ones(tmp_path: Path) -> None:
    """`DONE` executes nothing: half of a short episode's steps. At the step limit the last action is executed."""
    lines = [
        lines_of(steps, 24, 1.0, 100.0 * at) | {"env_s": 2.0 * (steps - (end == "done")), "end": end}
        for at, (steps, end) in enumerate([(2, "done"), (10, "done"), (12, "max_steps"), (1, "done")] * 10)
    ]
    assert fitted(tmp_path, lines).desktop.step_s == Latency(mean_s=2.0)


def test_the_action_that_ends_an_episode_takes_no_time_of_a_desktop() -> None:
    one_step = EpisodeModel(median_steps=0.5, sigma=0.0, response_sigma=0.0)
    desktop = DesktopModel(step_s=Latency(mean_s=10.0))
    base = Scenario(
        desktops=4, workers=1, rollouts_per_task=2, hours=0.2, warm_up_hours=0.0, models=SystemModels(episode=one_step)
    )
    ours, osworld = (
        simulate(replace(base, models=base.models.model_copy(update={"desktop": each})))
        for each in (desktop, desktop.model_copy(update={"performs_done": True}))
    )
    assert ours.slots.executing == 0.0
    assert osworld.slots.executing > 0.5


def test_a_fit_leaves_out_the_wait_for_workers_that_start(tmp_path: Path) -> None:
    first_update = {"kind": "update", "time_s": 90.0, "step_s": 1.0, "tokens": 100.0, "publish_s": 0.0, "wait_s": 0.0}
    lines = [lines_of(6, 24, 60.0, 0.0), first_update]
    lines += [lines_of(6, 24, 1.2, 100.0 + 100.0 * index) for index in range(30)]
    engine = fitted(tmp_path, lines).engine
    assert 24 * (engine.step_s + engine.step_s_per_request) == pytest.approx(0.2, rel=0.01)


def fit_recipe(tmp_path: Path, **sections: Any) -> Path:
    """A run folder with this recipe; its metrics are still to be written."""
    paths = RunPaths(tmp_path / "run")
    paths.make()
    base = {"run": {"name": "run"}, "tasks": {"families": ["press_nth"]}, "model": {"preset": "tiny"}}
    save_resolved_recipe(Recipe.model_validate(base | sections), paths)
    return paths.root


def test_a_fit_divides_the_requests_of_a_run_among_the_workers_of_its_recipe(tmp_path: Path) -> None:
    """Where four episodes are open at once, one worker has four times as many other requests as four have."""
    run = fit_recipe(tmp_path, inference={"workers": 4})
    alone = [lines_of(6, 24, 6.0, 100.0 * index) for index in range(30)]
    together = [lines_of(6, 24, 6.6, 5000.0 + 100.0 * index) for index in range(30) for _ in range(4)]
    metrics = RunPaths(run).metrics
    metrics.write_text("".join(json.dumps(line) + "\n" for line in [*alone, *together]))
    of_four, of_one = (fit_models([each], SystemModels()).engine.step_s_per_request for each in (run, metrics))
    assert of_one > 0
    assert of_four == pytest.approx(4 * of_one)


@pytest.mark.parametrize("other", ["demo", "eval-random", "eval-before", "test"])
def test_only_episodes_of_training_tell_how_often_tasks_are_solved(tmp_path: Path, other: str) -> None:
    trained = [
        lines_of(6, 24, 1.2, 100.0 * index) | {"phase": "train-2", "reward": float(index % 4 == 0)}
        for index in range(100)
    ]
    others = [each | {"phase": other, "reward": 1.0} for each in trained]
    episode = fitted(tmp_path, [*trained, *others]).episode
    assert episode.success_alpha / (episode.success_alpha + episode.success_beta) == pytest.approx(0.25)


def test_a_recipe_that_cannot_be_read_is_no_recipe_with_one_worker(tmp_path: Path) -> None:
    run = fit_recipe(tmp_path)
    RunPaths(run).metrics.write_text("".join(json.dumps(line) + "\n" for line in recorded(5)))
    RunPaths(run).resolved_recipe.write_text('{"format": 2, "recipe": {}}')
    with pytest.raises(ModelFileError, match="is damaged"):
        fit_models([run], SystemModels())


def test_a_run_without_episodes_cannot_be_fitted(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no metrics.jsonl"):
        fit_models([tmp_path], SystemModels())
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ModelFileError, match="0 usable training episodes"):
        fit_models([tmp_path], SystemModels())


def outcome(**changes: Any) -> SimulationOutcome:
    base = simulate(Scenario(desktops=4, workers=1, rollouts_per_task=2, hours=0.05, warm_up_hours=0.0))
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("slots", "workers", "trainer", "name"),
    [
        (SlotShares(0.01, 0.2, 0.3, 0.1, 0.39), WorkerShares(0.8, 0.0, 0.2, 0.0), TrainerShares(0.9, 0.05, 0.05), "trainer"),
        (SlotShares(0.01, 0.1, 0.5, 0.39, 0.0), WorkerShares(0.99, 0.01, 0.0, 0.0), TrainerShares(0.4, 0.1, 0.5), "inference"),
        (SlotShares(0.02, 0.6, 0.36, 0.02, 0.0), WorkerShares(0.7, 0.01, 0.29, 0.0), TrainerShares(0.4, 0.1, 0.5), "desktops"),
        (SlotShares(0.08, 0.08, 0.05, 0.01, 0.78), WorkerShares(0.3, 0.1, 0.6, 0.0), TrainerShares(0.3, 0.05, 0.65), "coupling"),
    ],
)  # fmt: skip
def test_the_bottleneck_is_named(slots: SlotShares, workers: WorkerShares, trainer: TrainerShares, name: str) -> None:
    found = bottleneck(outcome(slots=slots, workers=workers, trainer=trainer))
    assert found.name == name
    assert "%" in found.reason


def test_costs_are_prices_times_time_over_trained_trajectories() -> None:
    scenario = Scenario(desktops=100, workers=4)
    assert usd_per_hour(scenario) == pytest.approx((4 + 8) * 2.5 + 100 * 0.0096)
    figures = outcome(trained_rollouts=500, window_s=1800.0)
    assert usd_per_1000_rollouts(scenario, figures) == pytest.approx(usd_per_hour(scenario))
    assert usd_per_1000_rollouts(scenario, outcome(trained_rollouts=0)) == float("inf")


def test_the_cheapest_split_is_recommended() -> None:
    figures = outcome(window_s=3600.0)
    asked: list[tuple[int, int]] = []

    def run(other: Scenario) -> SimulationOutcome:
        asked.append((other.desktops, other.workers))
        return replace(figures, trained_rollouts=min(10 * other.desktops, 150 * other.workers))

    best, options = recommend_split(Scenario(desktops=40, workers=4), replace(figures, trained_rollouts=400), run)
    assert (best.desktops, best.workers) == (80, 8)
    assert len(options) == 12, "nine with the same trainer, and a trainer with 1, 2 and 4 of the twelve GPUs"
    assert (40, 4) not in asked


def test_of_splits_that_cost_the_same_the_fastest_is_recommended() -> None:
    figures = outcome(trained_rollouts=100)

    def run(scenario: Scenario) -> SimulationOutcome:
        return replace(figures, trained_rollouts=round(25 * scenario.desktops * (0.98 if scenario.desktops > 2 else 1)))

    prices = SystemModels().prices.model_copy(update={"trainer_gpus": 0, "gpus_per_worker": 0})
    models = SystemModels().model_copy(update={"prices": prices})
    best, options = recommend_split(
        Scenario(desktops=4, workers=1, models=models), replace(figures, trained_rollouts=98), run
    )
    assert min(options, key=lambda each: each.usd_per_1000_rollouts).desktops == 2
    assert best.desktops == 8


def test_the_reason_names_what_takes_most_of_the_time_of_desktops() -> None:
    slots = SlotShares(executing=0.08, running=0.1, queued=0.03, resetting=0.77, idle=0.02)
    found = bottleneck(
        outcome(slots=slots, workers=WorkerShares(0.3, 0.0, 0.7, 0.0), trainer=TrainerShares(0.1, 0.0, 0.9))
    )
    assert (found.name, "(77%) is preparing and evaluating tasks" in found.reason) == ("desktops", True)


def test_a_chart_has_a_row_per_resource_and_is_valid_xml() -> None:
    intervals = {
        "desktops": [(f"desktop-{index}", "executing", 100.0, 160.0) for index in range(60)],
        "trainer": [("trainer", "training", 120.0, 140.0), ("trainer", "waiting", 140.0, 160.0)],
    }
    document = ElementTree.fromstring(gantt_svg(intervals, "a < b"))
    texts = [element.text for element in document.iter() if element.tag.endswith("text")]
    assert "a < b" in texts
    assert sum(text.startswith("desktop-") for text in texts if text) == 20  # every third of 60
    assert "trainer" in texts
    assert ElementTree.fromstring(gantt_svg({}, "empty")) is not None
