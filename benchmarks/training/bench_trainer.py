"""Tokens per second and memory of a train step against TRL's, and what shared prefixes save.

Role: `python -m benchmarks trainer --json FILE --trl-python PYTHON` writes one model (Qwen3-VL family, random weights, vocabulary 151,936)
and one batch of trajectories, and measures this project's step and TRL's GRPO step on them, each in a process of its own, in turns. Rule:
TRL is measured with every combination of settings in `TRL_SETTINGS`, the whole table is recorded, and the fastest is compared. Both count
the same sampled tokens. Rates are per CPU second of the process, wall times are recorded beside them. Non-goals: generation, GPUs
(`gpu_trainer`). `make ecosystem` makes an environment with TRL in `.ecosystem`.

    vs_trl         rate of this project / TRL's with one row per step, the form of sample that DART's objective is defined on
    vs_trl_whole   the same against TRL with one row per trajectory, which computes each prefix once, too
    mem_vs_trl     peak above idle of this project / that of the TRL setting of `vs_trl`

With `--work FOLDER` each setting's figures are kept as soon as they are there, and the same command goes on behind them; `--run RUN` adds
what a finished run tells of its trainer (`recorded_run`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import commit
from benchmarks.training.compared_model import VOCABULARY, ModelSize, write_model
from benchmarks.training.recorded_run import run_figures
from benchmarks.work_folder import kept_or_temporary, write_json
from dart_envs.errors import UnsupportedCapabilityError
from dart_train.bench.recorded_batch import BatchSize, write_batch

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join([str(ROOT), str(ROOT / "server")])
OWN_SETTINGS: dict[str, Any] = {"micro_batch_tokens": 2048}
TRL_SETTINGS = [
    {"rows": rows, "gradient_checkpointing": checkpointing, "whole_trajectories": whole}
    for rows, checkpointing in ((1, False), (4, False), (1, True))
    for whole in (False, True)
]
"""Those that are expected to be fastest first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    parser.add_argument(
        "--trl-python", type=Path, default=ROOT / ".ecosystem" / "bin" / "python", help="a Python with TRL"
    )
    parser.add_argument("--repeats", type=int, default=3, help="measured steps of each setting")
    parser.add_argument(
        "--trl-settings",
        type=int,
        default=len(TRL_SETTINGS),
        help="TRL settings that are tried: at least 2, or 0 for none",
    )
    parser.add_argument("--rollouts", type=int, default=BatchSize().rollouts)
    parser.add_argument("--steps", type=int, default=BatchSize().steps)
    parser.add_argument("--work", type=Path, help="folder that keeps each setting's figures; default: temporary")
    parser.add_argument("--run", type=Path, help="folder of a run whose trainer is told of, too")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all settings.

    Args:
        args: See `add_arguments`.

    Returns:
        The ratios, and the figures of each setting.

    Raises:
        UnsupportedCapabilityError: There is no TRL, or the work folder is another process's or of other settings.
    """
    import torch

    torch.set_num_threads(1)
    if args.trl_settings == 1:
        raise UnsupportedCapabilityError("--trl-settings 1 measures one form of TRL's rows only: give 0, or 2 and more")
    version = _trl_version(str(args.trl_python)) if args.trl_settings else None
    model, size = ModelSize(), BatchSize(rollouts=args.rollouts, steps=args.steps)
    tokens = size.rollouts * size.steps * size.response_tokens
    of_run = {} if args.run is None else {"run": run_figures(args.run)}
    noted = asdict(model) | asdict(size) | {"repeats": args.repeats, "trl": version, "commit": commit()}
    with kept_or_temporary(args.work, noted, "dart-b") as folder:
        recorded = _recorded(folder, model, size)

        def measured(name: str, python: str, module: str, settings: dict[str, Any]) -> dict[str, Any]:
            file = folder / f"{name}.json"
            if not file.exists():
                write_json(file, _run(python, module, recorded, settings, args.repeats, tokens))
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return found

        own = measured("own", sys.executable, "own_step", OWN_SETTINGS)
        unshared = measured("own-unshared", sys.executable, "own_step", OWN_SETTINGS | {"share_prefixes": False})
        trl = [
            measured(f"trl-{number}", str(args.trl_python), "trl_step", each)
            for number, each in enumerate(TRL_SETTINGS[: args.trl_settings])
        ]
        own_again = measured("own-again", sys.executable, "own_step", OWN_SETTINGS)
    rate = statistics.mean([own["tokens_per_cpu_s"], own_again["tokens_per_cpu_s"]])
    return {
        **_against_trl(rate, own, trl),
        "prefix_sharing_speedup": round(rate / unshared["tokens_per_cpu_s"], 2),
        "sampled_tokens": tokens,
        "vocabulary": VOCABULARY,
        "size": asdict(model) | asdict(size),
        "trl_version": version,
        "own": own,
        "own_again": own_again,
        "own_without_shared_prefixes": unshared,
        "trl": trl,
        **of_run,
    }


def _against_trl(rate: float, own: dict[str, Any], trl: list[dict[str, Any]]) -> dict[str, float]:
    """The ratios, none where TRL was not measured."""
    if not trl:
        return {}
    best, best_whole = (
        max((each for each in trl if each["whole_trajectories"] is whole), key=lambda each: each["tokens_per_cpu_s"])
        for whole in (False, True)
    )
    return {
        "vs_trl": round(rate / best["tokens_per_cpu_s"], 2),
        "vs_trl_whole": round(rate / best_whole["tokens_per_cpu_s"], 2),
        "mem_vs_trl": round(own["peak_above_idle_mib"] / best["peak_above_idle_mib"], 2),
        "mem_vs_trl_whole": round(own["peak_above_idle_mib"] / best_whole["peak_above_idle_mib"], 2),
    }


def _trl_version(python: str) -> str:
    """The version of TRL that a Python has. Raises UnsupportedCapabilityError where it has none."""
    try:
        done = subprocess.run(
            [python, "-c", "import importlib.metadata as m; print(m.version('trl'))"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        raise UnsupportedCapabilityError(
            f"{python} has no TRL: run make ecosystem, give --trl-python, or leave TRL out with --trl-settings 0"
        ) from None
    return done.stdout.strip()


def _recorded(folder: Path, model: ModelSize, size: BatchSize) -> Path:
    """The folder of the model and the batch, which are the same whenever they are written."""
    recorded = folder / "recorded"
    if not recorded.exists():
        partial = folder / "recorded.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        config = json.loads((write_model(partial / "model", model, size) / "config.json").read_text(encoding="utf-8"))
        write_batch(partial, size, config["image_token_id"])
        partial.rename(recorded)
    return recorded


def _run(
    python: str, module: str, directory: Path, settings: dict[str, Any], repeats: int, tokens: int
) -> dict[str, Any]:
    """Measure one setting in a process of its own."""
    command = [python, "-m", f"benchmarks.training.{module}", str(directory), json.dumps(settings), str(repeats)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} {command[-2]} failed:\n{done.stderr[-3000:]}")
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    rate = tokens / statistics.median(figures["cpu_s"])
    found = {**settings, "tokens_per_cpu_s": round(rate, 2), **figures}
    print(f"{module}: {found}", file=sys.stderr, flush=True)
    return found
