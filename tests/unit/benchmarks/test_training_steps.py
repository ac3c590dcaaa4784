"""The programs that measure train steps, run as they are on a CPU with small models. What they measure means nothing here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.training import gpu_step, own_step
from benchmarks.training.compared_model import ModelSize, write_model
from dart_train.bench.recorded_batch import BatchSize, write_batch
from dart_train.model.layouts import LAYOUTS

SIZE = BatchSize(image_wh=(64, 64), rollouts=2, steps=3, text_tokens=4, response_tokens=4)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a vocabulary as large as it is measured with, and a batch."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("recorded")
    model = write_model(folder / "model", ModelSize(hidden=64, layers=1, vision_hidden=64, vision_layers=1), SIZE)
    write_batch(folder, SIZE, json.loads((model / "config.json").read_text())["image_token_id"])
    return folder


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_own_step_shares_prefixes_only_where_it_is_to(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_step.main(recorded, {}, 1)
    shared = printed(capsys)
    own_step.main(recorded, {"share_prefixes": False}, 1)
    apart = printed(capsys)
    assert (shared["streams"], apart["streams"]) == (2, 6)
    assert apart["stream_tokens"] > shared["stream_tokens"] > 0
    assert len(shared["cpu_s"]) == 1


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_gpu_step_trains_every_layout(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_step.main({"name": name, "device": "cpu", "tiny": True, "trajectories": 2})
    found = printed(capsys)
    assert found["trained"] == ("full" if name.endswith("3b") else "lora")
    assert found["tokens_per_s"] > 0


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: make ecosystem")
def test_trl_step_runs(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.training import trl_step

    trl_step.main(recorded, {"rows": 1, "gradient_checkpointing": False, "whole_trajectories": True}, 1)
    assert len(printed(capsys)["cpu_s"]) == 1
