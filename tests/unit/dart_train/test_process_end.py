"""How a process that trains ends where another start would end in the same way: one sentence, exit code 2, through torchrun as well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_harness import config_of

from dart_agent.errors import ConfigError
from dart_train.trainer import __main__ as trainer_command
from dart_train.trainer import process
from dart_train.trainer.process_start import ERROR_FILE, EXIT_REFUSED, out_of_memory_refused, refuse
from dart_train.trainer.ranks import Ranks

GPU_SAID = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB"


def test_a_full_gpu_is_one_sentence_with_the_settings_to_lower() -> None:
    with (
        pytest.raises(ConfigError, match=r"GPU \(CUDA out of memory\): lower train\.micro_batch_tokens"),
        out_of_memory_refused(),
    ):
        raise torch.OutOfMemoryError(GPU_SAID)
    with pytest.raises(KeyError), out_of_memory_refused():
        raise KeyError


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (torch.OutOfMemoryError(GPU_SAID), "trainer: the training does not fit into the memory of the GPU"),
        (ConfigError("train.lora_targets names qkv"), "trainer: train.lora_targets names qkv"),
        (process.TrainingStopped("the advantage 'own:nan' gave [nan]"), "trainer: the advantage 'own:nan' gave [nan]"),
    ],
)
def test_the_trainer_refuses_what_would_fail_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: Exception,
    told: str,
) -> None:
    async def fail(*_: Any) -> bool:
        raise failure

    config = tmp_path / "config.json"
    config.write_text(config_of(tmp_path, tmp_path / "model").model_dump_json(), encoding="utf-8")
    monkeypatch.setattr(process, "run_trainer", fail)
    monkeypatch.setattr(trainer_command, "join_ranks", lambda _: Ranks())
    monkeypatch.delenv(ERROR_FILE, raising=False)
    assert trainer_command.main(["--config", str(config)]) == EXIT_REFUSED
    assert capsys.readouterr().err.startswith(told)


def test_torchrun_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv(ERROR_FILE, str(file))
    assert refuse("trainer: no") == EXIT_REFUSED
    assert json.loads(file.read_text(encoding="utf-8"))["message"] == "trainer: no"


def test_a_refusal_of_a_rank_is_that_of_the_component(tmp_path: Path) -> None:
    command = ["-m", "dart_train.trainer.torchrun", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [sys.executable, *command, "-m", "dart_train.trainer", "--config", str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == EXIT_REFUSED, ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("trainer: ")
    assert "none.json" in last
