"""Throughput and utilisation against hand-computed numbers; incomplete metric lines are left out."""

from __future__ import annotations

from typing import Any

import pytest

from dart_train.report.throughput import (
    episode_lines,
    stage_throughput,
    throughput_charts,
    update_lines,
    workers_lines,
)
from dart_train.report.utilisation_rows import training_utilisation
from dart_train.utilisation import active_intervals

STAGES = {"demo": "demos"}


def episode(phase: str, end_s: float, duration_s: float = 10.0, **values: Any) -> dict[str, Any]:
    line = {"kind": "episode", "phase": phase, "time_s": end_s, "duration_s": duration_s, "steps": 2, "tokens": 30}
    return line | {"reset_s": 1.0, "model_s": 4.0, "env_s": 2.0} | values


def update(end_s: float, **values: Any) -> dict[str, Any]:
    line = {"kind": "update", "time_s": end_s, "rows_trained": 12.0, "tokens": 120.0}
    return line | {"step_s": 6.0, "publish_s": 2.0, "wait_s": 12.0} | values


def test_rates_of_every_stage() -> None:
    metrics = [episode("demo", 1010.0, tokens=0), episode("train", 2010.0), episode("train", 2020.0), update(2060.0)]
    rows = stage_throughput(episode_lines(metrics), update_lines(metrics), STAGES)
    demos, train = rows
    assert (demos.stage, demos.minutes, demos.episodes_per_min, demos.actions_per_min) == ("demos", 10 / 60, 6.0, 12.0)
    assert (demos.sampled_tokens_per_s, demos.trained_rows_per_min, demos.trained_tokens_per_s) == (None, None, None)
    assert (train.stage, train.minutes) == ("train", 1.0)  # from 2000 to 2060
    assert (train.episodes_per_min, train.actions_per_min, train.sampled_tokens_per_s) == (2.0, 4.0, 1.0)
    assert (train.trained_rows_per_min, train.trained_tokens_per_s) == (12.0, 2.0)


def test_a_pause_of_an_interrupted_run_does_not_count() -> None:
    assert active_intervals([(0, 10), (5, 20), (300, 310), (1000, 1010)]) == [(0, 310), (1000, 1010)]
    metrics = [episode("train", 1010.0), episode("train", 90_010.0)]
    (row,) = stage_throughput(episode_lines(metrics), [], STAGES)
    assert row.episodes_per_min == 6.0


def test_utilisation_during_training() -> None:
    # Two train steps from 1000 to 1040; two desktops; one episode all the time, one half before the window.
    metrics = [
        update(1020.0),
        update(1040.0),
        episode("train", 1040.0, 40.0, reset_s=4.0, model_s=20.0, env_s=8.0, queue_s=6.0),
        episode("train", 1010.0, 20.0, reset_s=2.0, model_s=10.0, env_s=4.0),
        episode("eval-after", 1010.0),
    ]
    rows = training_utilisation(episode_lines(metrics), update_lines(metrics), workers_lines(metrics), 2, "train")
    assert {row.what: row.percent for row in rows} == pytest.approx(
        {
            "desktops in use": 100 * (40 + 10) / 80,
            "environments: utilisation": 100 * (10 + 25 - 6) / 80,
            "environments: resetting": 100 * (4 + 1) / 80,
            "environments: executing": 100 * (8 + 2) / 80,
            "environments: waiting for a running request": 100 * (20 + 5 - 6) / 80,
            "environments: waiting for a queued request": 100 * 6 / 80,
            "environments: idle": 100 * (80 - 5 - 10 - 25) / 80,
            "trainer: training": 30.0,
            "trainer: saving and publishing": 10.0,
            "trainer: waiting": 60.0,
        }
    )
    assert all(row.definition.endswith(".") for row in rows)


def test_a_run_continued_with_fewer_desktops_has_shares_of_at_most_all() -> None:
    metrics = [update(1020.0), *(episode("train", 1020.0, 20.0, reset_s=0.0, model_s=15.0, env_s=5.0),) * 3]
    rows = training_utilisation(episode_lines(metrics), update_lines(metrics), workers_lines(metrics), 2, "train")
    percent = {row.what: row.percent for row in rows}
    assert percent["environments: utilisation"] == pytest.approx(100.0)
    assert percent["environments: idle"] == pytest.approx(0.0)


def test_charts_spread_an_amount_over_its_time() -> None:
    metrics = [episode("train", 1060.0, 60.0, steps=8), update(1060.0, wait_s=52.0)]
    charts = throughput_charts(episode_lines(metrics), update_lines(metrics), 2, "train")
    curves = {(chart.title, curve.label): list(curve.y) for chart in charts for curve in chart.curves}
    assert curves["Throughput", "episodes"] == pytest.approx([1.0] * 4)  # four bins of 15 s
    assert curves["Throughput", "actions"] == pytest.approx([8.0] * 4)
    assert curves["Throughput", "trained rows"] == pytest.approx([12.0] * 4)
    assert curves["Tokens", "sampled"] == pytest.approx([0.5] * 4)
    assert curves["Utilisation", "desktops in use"] == pytest.approx([50.0] * 4)
    assert curves["Utilisation", "trainer training"] == pytest.approx([0.0, 0.0, 0.0, 40.0])


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"kind": "episode", "phase": "train"},
        {"kind": "episode", "phase": "train", "time_s": "soon", "duration_s": 1},
        {"kind": "episode", "phase": "train", "time_s": float("nan"), "duration_s": 1},
        {"kind": "update", "version": 1},
        {"kind": "update", "time_s": None},
    ],
)
def test_lines_that_say_too_little_are_left_out(line: dict[str, Any]) -> None:
    assert episode_lines([line]) == []
    assert update_lines([line]) == []


def test_a_run_without_lines_has_no_figures() -> None:
    assert stage_throughput([], [], STAGES) == []
    assert training_utilisation([], [], [], 4, "train") == []
    assert throughput_charts([], [], 4, "train") == []


def test_an_old_line_without_tokens_has_no_token_rate() -> None:
    line = episode("train", 1010.0)
    del line["tokens"]
    (row,) = stage_throughput(episode_lines([line]), [], STAGES)
    assert row.sampled_tokens_per_s is None
    assert row.episodes_per_min == 6.0


def test_steps_of_an_abandoned_episode_were_performed_and_its_desktop_was_used() -> None:
    given_back = episode("train", 2030.0, kind="abandoned", steps=6, reset_s=1.0, model_s=3.0, env_s=6.0)
    metrics = [episode("train", 2010.0), given_back, update(2060.0)]
    (row,) = stage_throughput(episode_lines(metrics), update_lines(metrics), STAGES)
    assert (row.episodes_per_min, row.actions_per_min) == (1.0, 8.0)
    shares = training_utilisation(episode_lines([given_back]), update_lines([update(2040.0)]), [], 1, "train")
    percent = {each.what: each.percent for each in shares}
    assert percent["environments: executing"] == pytest.approx(100 * 6 / 20)


def test_the_evaluation_of_an_episode_is_no_action() -> None:
    metrics = [update(1020.0), episode("train", 1020.0, 20.0, reset_s=2.0, model_s=0.0, env_s=8.0, evaluate_s=5.0)]
    rows = training_utilisation(episode_lines(metrics), update_lines(metrics), workers_lines(metrics), 1, "train")
    percent = {row.what: row.percent for row in rows}
    assert percent["environments: resetting"] == pytest.approx(100 * 7 / 20)
    assert percent["environments: executing"] == pytest.approx(100 * 8 / 20)


def test_shares_of_inference_workers_and_the_lag_are_reported() -> None:
    workers = {
        "policy-0": {"serving": 6.0, "updating": 1.0, "down": 0.0},
        "policy-1": {"serving": 0.0, "updating": 0.0, "down": 10.0},
    }
    line = {"kind": "workers", "time_s": 1010.0, "window_s": 10.0, "workers": workers}
    before = line | {"time_s": 1005.0}  # half of it is before the first train step
    metrics = [update(1020.0, lag_mean_s=30.0), update(1040.0, lag_mean_s=50.0), before, line, {"kind": "workers"}]
    rows = training_utilisation(episode_lines(metrics), update_lines(metrics), workers_lines(metrics), 2, "train")
    assert {row.what: row.percent for row in rows if row.what.startswith("inference")} == pytest.approx(
        {
            "inference workers: serving": 30.0,
            "inference workers: new weights": 5.0,
            "inference workers: idle": 15.0,
            "inference workers: down": 50.0,
        }
    )
    (train,) = stage_throughput([], update_lines(metrics), STAGES)
    assert train.lag_s == 40.0
