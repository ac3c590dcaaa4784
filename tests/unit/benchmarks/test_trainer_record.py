"""The comparison with TRL keeps what is measured and goes on behind it; the figures of a run come from its metrics."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.training import bench_trainer
from benchmarks.training.recorded_run import run_figures
from dart_agent.metrics_file import append_metrics
from dart_envs.errors import UnsupportedCapabilityError


class FakeRuns:
    """In place of processes: a figure per call, and a busy host at one of them."""

    def __init__(self, fails_at: int) -> None:
        self.fails_at = fails_at
        self.calls: list[tuple[str, Any]] = []

    def __call__(self, python: str, module: str, directory: Path, settings: dict[str, Any], *_: int) -> dict[str, Any]:
        self.calls.append((module, settings))
        assert (directory / "batch.json").exists()
        if len(self.calls) == self.fails_at:
            raise RuntimeError("the host was too busy")
        rate = 2.0 if settings.get("share_prefixes", True) else 1.0
        return {**settings, "tokens_per_cpu_s": rate, "peak_above_idle_mib": 10.0}


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_trainer.add_arguments(parser)
    return parser.parse_args(["--rollouts", "2", "--steps", "2", *given])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model of the real vocabulary, and a TRL that says its version."""

    def write_model(folder: Path, *_: object) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"image_token_id": 5}))
        return folder

    monkeypatch.setattr(bench_trainer, "write_model", write_model)
    monkeypatch.setattr(bench_trainer, "commit", lambda: "abc")
    monkeypatch.setattr(bench_trainer, "_trl_version", lambda python: "1.0")


@pytest.mark.usefixtures("quick")
def test_what_is_measured_is_kept_and_the_same_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments("--work", str(tmp_path / "work"), "--trl-settings", "2")
    first, second, third = FakeRuns(fails_at=4), FakeRuns(fails_at=0), FakeRuns(fails_at=0)
    monkeypatch.setattr(bench_trainer, "_run", first)
    with pytest.raises(RuntimeError, match="busy"):
        bench_trainer.measure(args)
    monkeypatch.setattr(bench_trainer, "_run", second)
    figures = bench_trainer.measure(args)
    assert [module for module, _ in second.calls] == ["trl_step", "own_step"], "the three settings before are kept"
    assert second.calls[0] == first.calls[3]
    assert (figures["vs_trl"], figures["prefix_sharing_speedup"], len(figures["trl"])) == (1.0, 2.0, 2)
    monkeypatch.setattr(bench_trainer, "_run", third)
    assert bench_trainer.measure(args) == figures
    assert third.calls == []
    with pytest.raises(UnsupportedCapabilityError, match="other settings"):
        bench_trainer.measure(arguments("--work", str(tmp_path / "work"), "--repeats", "7"))


def test_without_trl_it_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCapabilityError, match="make ecosystem"):
        bench_trainer.measure(arguments("--trl-python", str(tmp_path / "no-python")))
    with pytest.raises(UnsupportedCapabilityError, match="give 0, or 2"):
        bench_trainer.measure(arguments("--trl-settings", "1"))


def test_a_run_tells_of_its_trainer(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for version, published_s in ((1, 110.0), (2, 120.0), (3, 130.0)):
        append_metrics(
            file,
            {"kind": "update", "version": version, "time_s": published_s, "step_s": 6.0, "publish_s": 3.0, "wait_s": 1.0,
             "published_bytes": 2e9},
        )  # fmt: skip
    for version, serving_s in ((1, 114.0), (3, 131.0)):
        append_metrics(file, {"kind": "weights", "version": version, "time_s": serving_s, "workers": ["a", "b"]})
    found = run_figures(tmp_path)
    assert (found["trainer_idle_share"], found["train_steps"], found["workers"]) == (0.1, 3, 2)
    assert found["publish_to_serving_s_per_gb_range"] == [0.5, 2.0], "version 2 was never served by all"
    assert found["publish_to_serving_s_per_gb"] == 1.25
    with pytest.raises(UnsupportedCapabilityError, match="no train step"):
        run_figures(tmp_path / "other")
