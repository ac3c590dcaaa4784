"""Tracking: each scalar of the metrics file once and in order, whatever happened to the process that copies it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dart_agent.metrics_file import append_metrics
from dart_train.cli import app
from dart_train.config import Recipe
from dart_train.run.components import tracking
from dart_train.run.lock import run_lock
from dart_train.run.paths import RunPaths
from dart_train.run.state import save_resolved_recipe
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time
from dart_train.tracking.follow import export, follow
from dart_train.tracking.scalars import ScalarFilter, ScalarLine

RECIPE: dict[str, Any] = {"run": {"name": "r"}, "tasks": {"families": ["press_nth"]}, "model": {"preset": "tiny"}}


def update(version: int, reward: float = 0.5) -> dict[str, Any]:
    return {"kind": "update", "time_s": 100.0 + version, "version": version, "reward_mean": reward}


def scalars(lines: Sequence[dict[str, Any]]) -> list[ScalarLine]:
    chosen = ScalarFilter()
    return [found for line in lines if (found := chosen.read(line)) is not None]


class FakeSink:
    """Remembers what it was given, and how much of it readers see."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.seen = 0
        self.closed = False

    def write(self, line: ScalarLine) -> None:
        self.steps.append((line.kind, line.step))

    def flush(self) -> None:
        self.seen = len(self.steps)

    def close(self) -> None:
        self.closed = True


def test_figures_that_are_numbers_over_a_step_are_scalars() -> None:
    lines = [
        {"kind": "reading", "pages": 64, "loss": 5.0, "reading_accuracy": 0.25},
        {"kind": "warmup", "images": 16, "loss": 2.0, "imitation_accuracy": None},
        {"kind": "episode", "time_s": 1.0, "reward": 1.0},
        {**update(1), "loss": float("nan")},
        {"kind": "evaluation", "version": 1, "success": 0.25},
    ]
    reading, warmup, first, evaluation = scalars(lines)
    assert (reading.step, reading.values) == (
        64,
        {"reading/pages": 64.0, "reading/loss": 5.0, "reading/reading_accuracy": 0.25},
    )
    assert (warmup.step, warmup.values) == (16, {"warmup/images": 16.0, "warmup/loss": 2.0})
    assert (first.step, first.values) == (1, {"update/version": 1.0, "update/reward_mean": 0.5})
    assert (evaluation.index, evaluation.time_s, evaluation.values["evaluation/success"]) == (3, 101.0, 0.25)


def test_a_step_that_was_taken_does_not_come_again() -> None:
    assert [line.step for line in scalars([update(1), update(2), update(2), update(1), update(3)])] == [1, 2, 3]


def test_what_is_written_last_is_copied_before_the_end(tmp_path: Path) -> None:
    file, sink, stopping = tmp_path / "metrics.jsonl", FakeSink(), asyncio.Event()

    async def scenario(clock: VirtualClock) -> None:
        following = asyncio.create_task(follow(file, [sink], stopping, clock))
        append_metrics(file, update(1))
        await clock.sleep(5.0)
        assert (sink.steps, sink.seen) == ([("update", 1)], 1)
        append_metrics(file, update(2))
        stopping.set()
        await following
        assert (sink.steps, sink.seen) == ([("update", 1), ("update", 2)], 2)

    run_in_virtual_time(scenario)


def test_an_export_closes_its_sinks(tmp_path: Path) -> None:
    sink = FakeSink()
    append_metrics(tmp_path / "metrics.jsonl", update(1))
    assert export(tmp_path / "metrics.jsonl", [sink]) == 1
    assert sink.closed


def test_a_run_that_is_not_tracked_has_no_such_component(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    assert tracking(Recipe.model_validate(RECIPE), paths) is None
    spec = tracking(Recipe.model_validate(RECIPE | {"tracking": {"wandb": "offline"}}), paths)
    assert spec is not None
    assert spec.optional
    settings = json.loads(Path(spec.argv[-1]).read_text())
    assert settings["wandb"]["run_id"] == paths.run_id.read_text().strip()
    assert settings["tensorboard"] is None


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    paths = RunPaths(tmp_path / "r")
    paths.make()
    save_resolved_recipe(Recipe.model_validate(RECIPE), paths)
    for version in (1, 2, 3):
        append_metrics(paths.metrics, update(version, version / 4))
    return paths.root


def test_an_export_that_cannot_work_says_so_before_it_begins(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["export-metrics", *arguments])
        assert result.exit_code == 2, result.output
        (sentence,) = result.stderr.strip().splitlines()
        return sentence

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    out = tmp_path / "events"
    told = refusal(str(run_folder), "--tensorboard", str(out))
    assert "the Python package tensorboard is not installed: pip install" in told
    assert "[tensorboard]" in told
    assert not out.exists()
    assert "give --tensorboard" in refusal(str(run_folder))
    assert "is not a run directory" in refusal(str(tmp_path), "--wandb", "offline")
    assert "is not an empty folder" in refusal(str(run_folder), "--tensorboard", str(run_folder))


@pytest.mark.parametrize("target", ["offline", "online"])
def test_files_of_a_tracked_run_that_goes_on_are_kept(run_folder: Path, target: str) -> None:
    paths = RunPaths(run_folder)
    save_resolved_recipe(Recipe.model_validate(RECIPE | {"tracking": {"wandb": "offline"}}), paths)
    written = paths.wandb / f"offline-run-x-{paths.run_id.read_text(encoding='ascii').strip()}"
    written.mkdir(parents=True)
    with run_lock(paths):
        result = CliRunner().invoke(app, ["export-metrics", str(run_folder), "--wandb", target])
    assert result.exit_code == 2, result.output
    (sentence,) = result.stderr.strip().splitlines()
    assert "goes on and logs to Weights & Biases itself" in sentence
    assert written.is_dir()


def read_events(folder: Path, tag: str) -> list[tuple[int, float, float]]:
    """Step, time and value, as TensorBoard's own reader finds them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return [(each.step, each.wall_time, each.value) for each in reader.Scalars(tag)]


def test_tensorboard_reads_what_is_exported(run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    result = CliRunner().invoke(app, ["export-metrics", str(run_folder), "--tensorboard", str(tmp_path / "events")])
    assert (result.exit_code, result.output) == (0, "3 lines with scalars exported\n")
    found = read_events(tmp_path / "events", "update/reward_mean")
    assert found == [(1, 101.0, 0.25), (2, 102.0, 0.5), (3, 103.0, 0.75)]


def test_event_files_of_a_killed_process_are_begun_anew(run_folder: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from dart_train.tracking.sinks import TensorBoardSink

    folder, metrics = run_folder / "tensorboard", run_folder / "metrics.jsonl"
    killed = TensorBoardSink(folder)
    killed.write(scalars([update(1)])[0])
    killed.flush()
    assert len(read_events(folder, "update/reward_mean")) == 1
    append_metrics(metrics, update(4))
    export(metrics, [TensorBoardSink(folder)])
    assert [step for step, *_ in read_events(folder, "update/reward_mean")] == [1, 2, 3, 4]
    killed.close()


def test_a_run_of_wandb_that_is_exported_again_holds_each_line_once(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setitem(sys.modules, "openai", sys)  # a library for which the client would advertise its call tracing
    monkeypatch.delenv("WANDB_DISABLE_WEAVE", raising=False)
    for _ in range(2):
        result = CliRunner().invoke(app, ["export-metrics", str(run_folder), "--wandb", "offline"])
        assert (result.exit_code, result.output) == (0, "3 lines with scalars exported\n")
    (file,) = (run_folder / "wandb").glob("offline-run-*/*.wandb")
    assert file.stat().st_size > 0
