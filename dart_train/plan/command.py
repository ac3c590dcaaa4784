"""The command `dart-train plan`: predictions as tables, and what to change.

Role: gather sizes, predictions and this host's resources, print them, and write them as JSON. Rule: figures that rest on assumptions are
called estimates. Non-goals: predicting (`memory`, `forecast`), comparing (`verdict`).
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dart_train.config import Recipe
from dart_train.config.placement import unplaced_processes
from dart_train.model.device import ComputeDevice, matrix_tflops
from dart_train.plan.forecast import DiskForecast, TimeForecast, forecast_disk, forecast_time
from dart_train.plan.host import HostMemory, HostResources, host_memory, loading_memory
from dart_train.plan.latencies import Assumptions, has_gpus
from dart_train.plan.memory import GIB, EngineMemory, TrainerMemory, engine_memory, trainer_memory
from dart_train.plan.policy_size import PolicySize, read_policy_size
from dart_train.plan.verdict import find_problems, memory_of, time_notes, time_problems, trainer_room
from dart_train.run.preflight import available_memory_bytes

TRAINER_ROWS = {
    "trained_weights": "trained weights (float32)",
    "gradients": "gradients (float32)",
    "optimizer": "AdamW (two moments, float32)",
    "frozen_weights": "frozen weights",
    "reference": "reference model of the KL term",
    "compute_copies": "copies of weights for matrix products",
    "activations": "activations (estimate)",
    "scores": "logits of a chunk (estimate)",
    "reserved": "reserved (estimate)",
}
HOST_ROWS = {
    "trainer": "trainer, while it loads or later",
    "inference": "inference workers and their caches of images",
    "desktops": "desktops (estimate)",
}


def run_plan(
    recipe: Recipe,
    runs_dir: Path,
    *,
    gpu_gib: float | None = None,
    tflops: float | None = None,
    mfu: float = 0.35,
    json_file: Path | None = None,
    console: Console | None = None,
) -> list[str]:
    """Predict, print, and compare with this host.

    Args:
        recipe: The recipe.
        runs_dir: Where run folders live.
        gpu_gib: Memory of a GPU in GiB; None: that of `Assumptions` where the recipe names GPUs or this host has one, else no GPU.
        tflops: TFLOP/s of the trainer's device; None: of a GPU that of `Assumptions`, of this CPU what a matrix product reaches.
        mfu: Fraction of them that train steps reach.
        json_file: File for all figures; None: none is written.
        console: Where tables are printed; None: standard output.

    Returns:
        What does not fit, one sentence each with the fix.

    Raises:
        RecipeError: The size of the policy cannot be read.
    """
    size = read_policy_size(recipe)
    existing = next(folder for folder in (runs_dir, *runs_dir.resolve().parents) if folder.exists())
    if gpu_gib is None and has_gpus(recipe):
        gpu_gib = Assumptions().gpu_gib
    host = HostResources(
        gpu_bytes=None if gpu_gib is None else int(gpu_gib * GIB),
        memory_bytes=available_memory_bytes(),
        disk_bytes=shutil.disk_usage(existing).free,
    )
    unplaced = unplaced_processes(recipe)
    on_cpu = host.trains_on_cpu(recipe)
    recipe = recipe.model_copy(
        update={"train": recipe.train.model_copy(update={"device": "cpu" if on_cpu else "cuda"})}
    )
    if tflops is None:
        tflops = _cpu_tflops(recipe) if on_cpu else Assumptions().tflops
    assumed = Assumptions(gpu_gib=gpu_gib, tflops=tflops, mfu=mfu)
    trainer = trainer_memory(recipe, size)
    engine = engine_memory(recipe, size, host.gpu_bytes or host.memory_bytes, on_cpu=host.gpu_bytes is None)
    time = forecast_time(recipe, size, engine, assumed)
    disk = forecast_disk(recipe, size, time, assumed)
    shared = host_memory(recipe, size, engine, host)
    problems = [*unplaced, *find_problems(recipe, size, engine, disk, host), *time_problems(recipe, time)]
    _print(console or Console(), recipe, size, host, trainer, engine, shared, disk, time, problems)
    if json_file is not None:
        figures = {
            "assumptions": assumed.model_dump(),
            "policy": asdict(size) | {"parameters": {**asdict(size.parameters), "linear": len(size.parameters.linear)}},
            "trainer_bytes": asdict(trainer) | {"total": trainer.total},
            "trainer_loading_host_bytes": loading_memory(recipe, size),
            "engine_bytes": asdict(engine),
            "host_bytes": asdict(shared) | {"total": shared.total},
            "disk": asdict(disk),
            "time": {name: None if value == math.inf else value for name, value in asdict(time).items()},
            "problems": problems,
            "notes": time_notes(recipe, time),
        }
        json_file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return problems


def _print(
    console: Console,
    recipe: Recipe,
    size: PolicySize,
    host: HostResources,
    trainer: TrainerMemory,
    engine: EngineMemory,
    shared: HostMemory,
    disk: DiskForecast,
    time: TimeForecast,
    problems: list[str],
) -> None:
    console.print(
        f"{_parameters(size.parameters.total + size.head)} parameters ({size.source}). A screenshot has {size.image_tokens} tokens, "
        f"the longest prompt has {size.images} screenshots.",
        soft_wrap=True,
    )
    if host.gpu_bytes is None:
        console.print(
            "Everything runs on the CPU: the recipe names no GPU, and this host has none. --gpu-gib plans for GPUs. The inference workers "
            "are simulated as fast as on an H100; dart-train simulate --fit takes a run's own times.",
            soft_wrap=True,
        )
    room, where = trainer_room(recipe, host), memory_of(host.trains_on_cpu(recipe))
    table = _table(
        f"Trainer: {_count(recipe.train.processes, 'process', 'processes')}, {room / GIB:.0f} GiB {where}",
        "what",
        "GiB",
    )
    for name, value in asdict(trainer).items():
        table.add_row(TRAINER_ROWS[name], f"{value / GIB:.1f}")
    table.add_row("all", f"{trainer.total / GIB:.1f}", style="bold")
    console.print(table)
    longest = size.prompt_tokens(recipe.tasks.max_steps - 1) + recipe.rollout.max_tokens
    table = _table(
        f"Inference: {_count(recipe.inference.workers, 'worker', 'workers')}, {engine.share / GIB:.0f} GiB "
        + memory_of(host.gpu_bytes is None),
        "what",
        "",
    )
    table.add_row("weights", f"{engine.weights / GIB:.1f} GiB")
    table.add_row("reserved (estimate)", f"{engine.reserved / GIB:.1f} GiB")
    table.add_row("key-value cache", f"{max(0, engine.kv_cache) / GIB:.1f} GiB, {engine.kv_tokens:,} tokens")
    table.add_row("longest prompts that fit at once", f"{engine.kv_tokens // longest} (of {longest:,} tokens)")
    console.print(table)
    table = _table(f"Memory of this host: {host.memory_bytes / GIB:.0f} GiB available", "what", "GiB")
    for name, value in asdict(shared).items():
        table.add_row(HOST_ROWS[name], f"{value / GIB:.1f}")
    table.add_row("all", f"{shared.total / GIB:.1f}", style="bold")
    console.print(table)
    table = _table(f"Disk after {recipe.train.updates} updates", "what", "GiB")
    table.add_row("checkpoints of the trainer", f"{disk.checkpoints / GIB:.1f}")
    table.add_row("published versions", f"{disk.versions / GIB:.1f}")
    table.add_row("a checkpoint or a version while it is written", f"{disk.being_written / GIB:.1f}")
    table.add_row("free, below which a run pauses (has room for the row above)", f"{recipe.limits.pause_disk_gib:.1f}")
    table.add_row(f"screenshots of {disk.steps:,.0f} steps (estimate)", f"{disk.images / GIB:.1f}")
    console.print(table)
    table = _table("Time of training (estimate, simulated)", "what", "")
    table.add_row("train step", f"{time.update_s:.0f} s")
    table.add_row("updates per hour", f"{time.updates_per_hour:.1f}")
    table.add_row(f"hours for {recipe.train.updates} updates", f"{time.hours:.1f}")
    table.add_row("actions per minute", f"{time.actions_per_min:.0f}")
    for name, share in (
        ("desktops", time.desktop_utilisation),
        ("inference workers", time.worker_utilisation),
        ("trainer", time.trainer_utilisation),
    ):
        table.add_row(f"utilisation of {name}", f"{share:.0%}")
    console.print(table)
    console.print(f"Bottleneck: {time.bottleneck}. {time.reason[0].upper()}{time.reason[1:]}.", soft_wrap=True)
    console.print(
        "Demonstrations, warm start and evaluations are not in the time. dart-train bench measures the speeds that are assumed here.",
        soft_wrap=True,
    )
    for note in time_notes(recipe, time):
        console.print(f"Note: {note}.", style="yellow", soft_wrap=True)
    for problem in problems:
        console.print(f"Does not fit: {problem}.", style="bold red", soft_wrap=True)
    if not problems:
        console.print("Everything fits.", style="bold green")


def _cpu_tflops(recipe: Recipe) -> float:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(recipe.train.threads)
    try:
        return matrix_tflops(ComputeDevice.resolve("cpu", recipe.train.dtype))
    finally:
        torch.set_num_threads(before)


def _parameters(number: int) -> str:
    return f"{number / 1e9:.2f} billion" if number >= 1e8 else f"{number / 1e6:.2f} million"


def _count(number: int, one: str, many: str) -> str:
    return f"one {one}" if number == 1 else f"each of {number} {many}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left")
    return table
