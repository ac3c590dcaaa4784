"""Peak memory, tokens per second and MFU of train steps of real layouts on one GPU.

Role: `python -m benchmarks gpu_trainer --json FILE` trains Qwen2.5-VL-3B in full and Qwen2.5-VL-7B and Qwen3-VL-8B with LoRA, with random
weights, on trajectories whose last step shows five screenshots. Rule: each layout has a process of its own, with bfloat16 products,
gradient checkpointing and packed streams; the whole of `Trainer.step` is measured after one step of warm-up, and a layout that fails is
reported with its cause. Model FLOPs are those of forward and backward passes without recomputation: 6 per token and trained parameter, 4
per token and frozen parameter behind a trained one, and those of attention; MFU divides them by the dense bfloat16 peak of the GPU.
`--device cpu --tiny` checks the program without a GPU and is no measurement. Non-goals: several GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dart_envs.errors import UnsupportedCapabilityError
from dart_train.model.layouts import LAYOUTS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join([str(ROOT), str(ROOT / "server")])
MEASURED = ("qwen2.5-vl-3b", "qwen2.5-vl-7b", "qwen3-vl-8b")
"""Unless `--only` names one."""
LIMIT_S = 180.0
"""For one layout: three fit into ten minutes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="shrink the layouts: checks the program, measures nothing")
    parser.add_argument("--only", choices=tuple(LAYOUTS), help="measure one layout")
    parser.add_argument("--trajectories", type=int, default=8, help="trajectories of the batch, of five steps each")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the layouts one after the other.

    Args:
        args: See `add_arguments`.

    Returns:
        Figures by layout.
    """
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        raise UnsupportedCapabilityError(
            "torch finds no GPU: run this on a host with one, or check it with --device cpu --tiny"
        )
    figures = {}
    for name in [args.only] if args.only else MEASURED:
        options = json.dumps(
            {"name": name, "device": args.device, "tiny": args.tiny, "trajectories": args.trajectories}
        )
        command = [sys.executable, "-m", "benchmarks.training.gpu_step", options]
        environment = os.environ | {"PYTHONPATH": SOURCES}
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            figures[name] = {"failed": f"took more than {LIMIT_S:.0f} s"}
            continue
        failed = {"failed": done.stderr.strip()[-500:]}
        figures[name] = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else failed
    return {"measured": args.device == "cuda" and not args.tiny, "layouts": figures}
