"""`dart-train bench`: what it measures with the tiny model, what it compares it with, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path
from typing import IO, Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dart_agent.errors import WorkerError
from dart_train.bench import command
from dart_train.bench.comparison import Row, engine_rows, training_rows
from dart_train.bench.engine_rate import EngineFigures
from dart_train.bench.scratch import scratch_folder
from dart_train.bench.train_step import TrainFigures
from dart_train.cli import app
from dart_train.config import Recipe, RecipeError
from dart_train.plan.latencies import Assumptions, train_tokens_per_s
from dart_train.plan.policy_size import read_policy_size
from dart_train.run.paths import RunPaths

RECIPE: dict[str, Any] = {
    "run": {"name": "bench"},
    "tasks": {"families": ["press_nth"]},
    "model": {"preset": "tiny", "prompt": "tiny"},
    "train": {"processes": 2, "device": "cpu"},
}


def _values(rows: list[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows}


def test_one_trainer_and_one_worker_of_a_made_model_are_measured_and_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_engine(*_: object, **__: object) -> EngineFigures:
        raise WorkerError("bench ended with code 1 while starting")

    monkeypatch.setattr(command, "measure_engine", no_engine)
    shown, file = StringIO(), tmp_path / "bench.json"
    complete = command.run_bench(
        Recipe.model_validate(RECIPE), repeats=1, json_file=file, console=Console(file=shown, width=200)
    )
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert not complete
    assert figures["failed"] == {"engine": "bench ended with code 1 while starting"}
    assert "Not measured: engine" in shown.getvalue()
    rows = {row["name"]: row for row in figures["rows"]}
    # What a version holds is known exactly: its file has the weights and a header.
    assert rows["published version"]["ratio"] == pytest.approx(1.0, abs=0.02)
    assert rows["train step"]["measured"] == pytest.approx(
        figures["training"]["stream_tokens"] / figures["training"]["step_s"][0]
    )
    assert figures["training"]["memory_bytes"] > 0
    assert not list(tmp_path.glob("run*"))


def test_a_prediction_is_the_plans_formula_for_this_batch_and_this_version(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run")
    paths.make()
    recipe = command.measured_recipe(Recipe.model_validate(RECIPE), paths)
    assert (recipe.train.processes, recipe.inference.workers) == (1, 1)
    size, assumed = read_policy_size(recipe), Assumptions(tflops=0.1, mfu=0.5)
    found = TrainFigures(
        device="cpu",
        device_tflops=0.1,
        stream_tokens=1000,
        step_s=(3.0, 2.0, 10.0),
        memory_bytes=2**30,
        published_bytes=2_000_000_000,
        publish_s=4.0,
    )
    rows = _values(training_rows(recipe, size, assumed, found))
    step = rows["train step of 1,000 tokens"]
    assert step.predicted == pytest.approx(1000 / train_tokens_per_s(recipe, size, assumed))
    assert step.measured == 3.0
    assert rows["publishing"].measured == 2.0
    assert rows["memory of the trainer, without what is reserved"].measured == 1.0


def test_the_rate_of_an_engine_is_that_of_sampled_tokens() -> None:
    figures = EngineFigures(30.0, 4, prompt_tokens=400, response_tokens=80, seconds=2.0, stage_s=0.5, swap_s=0.1)
    rows = _values(engine_rows(figures, 2**30))
    assert rows["engine, 4 requests at once"].measured == 40.0
    assert rows["engine, prompts included"].measured == 240.0
    assert rows["engine reads a version"].ratio == pytest.approx(0.5 / 0.25)
    assert "engine reads a version" not in _values(engine_rows(figures, None))


def test_a_policy_that_is_not_here_and_a_bench_of_nothing_are_refused() -> None:
    plain = {**RECIPE, "model": {"path": "ByteDance-Seed/UI-TARS-1.5-7B"}, "warmup": {"enabled": False}}
    with pytest.raises(RecipeError, match=r"model\.path.*dart-train plan"):
        command.run_bench(Recipe.model_validate(plain))
    with pytest.raises(RecipeError, match="nothing to measure"):
        command.run_bench(Recipe.model_validate(RECIPE), skip=("train", "publish", "engine"))


def test_what_a_killed_bench_left_is_removed_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = (
        "import os, signal\nfrom dart_train.bench.scratch import scratch_folder\n"
        "with scratch_folder() as place:\n    (place / 'weights').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    (other := tmp_path / "dart-bench-of-another-command").mkdir()
    with scratch_folder() as first, scratch_folder() as second:
        assert not left.exists(), "it belongs to nobody"
        assert first.is_dir(), "it is in use"
        assert first != second
    assert list(tmp_path.iterdir()) == [other]


def test_a_killed_bench_ends_the_process_that_measures() -> None:
    code = (
        "import sys\nfrom dart_train.bench import command\n"
        "command.run_measurement([sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(5); print(1)'], "
        "sys.stdout)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert int(bench.stdout.readline()) != bench.pid
        bench.kill()
        assert bench.stdout.read() == "", "the process that measures went on"


def test_parts_that_failed_are_named_as_they_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(argv: list[str], output: IO[str]) -> tuple[int, str]:
        return -9, "a warning of some library"

    monkeypatch.setattr(command, "run_measurement", killed)
    for skip, parts in ((("engine",), {"train", "publish"}), (("engine", "train"), {"publish"})):
        file = tmp_path / "bench.json"
        console = Console(file=StringIO())
        assert not command.run_bench(Recipe.model_validate(RECIPE), skip=skip, json_file=file, console=console)
        failed = json.loads(file.read_text(encoding="utf-8"))["failed"]
        assert set(failed) == parts
        assert all("exit code -9" in reason and "a warning" in reason for reason in failed.values())


@pytest.mark.parametrize("name", ["plan", "bench"])
def test_a_file_of_figures_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, name: str
) -> None:
    recipe = Path(command.__file__).parents[1] / "recipes" / "demo.toml"
    run = CliRunner().invoke(app, [name, str(recipe), "--json", str(tmp_path / "none" / "figures.json")])
    assert run.exit_code == 2, run.output
    assert "--json" in run.output
