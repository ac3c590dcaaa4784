"""What of a plan does not fit, and what to change.

Role: pure comparisons; one sentence per problem with the keys of the recipe that mend it. Rule: a change is proposed only where the
prediction with it fits. Non-goals: predictions (`memory`, `forecast`).
"""

from __future__ import annotations

import math
from typing import Any

from dart_train.config import Recipe
from dart_train.plan.forecast import DiskForecast, TimeForecast
from dart_train.plan.host import (
    DESKTOP_BYTES,
    HostMemory,
    HostResources,
    host_memory,
    loading_memory,
    rollback_memory,
)
from dart_train.plan.memory import GIB, EngineMemory, trainer_memory
from dart_train.plan.policy_size import PolicySize

LORA_RANK = 64
STALL_SHARE = 0.5
"""Of `limits.stall_minutes`, what a train step may take: the prediction is rough."""


def trainer_room(recipe: Recipe, host: HostResources) -> int:
    """Compute what a process of the trainer may take of its GPU, or of the host's memory.

    Args:
        recipe: The recipe.
        host: The host.

    Returns:
        Bytes: all of a GPU, or what inference workers on the same one leave; on the CPU an equal part for each process.
    """
    if host.gpu_bytes is None or host.trains_on_cpu(recipe):
        return host.memory_bytes // recipe.train.processes
    shared = set(recipe.train.devices or ()) & set(recipe.inference.devices or ())
    return host.gpu_bytes - (int(host.gpu_bytes * recipe.inference.gpu_memory_fraction) if shared else 0)


def memory_of(on_cpu: bool) -> str:
    """Say whose memory a part takes.

    Args:
        on_cpu: Whether the part runs on the CPU.

    Returns:
        The words behind a number of GiB.
    """
    return "of host memory" if on_cpu else "of a GPU"


def find_problems(
    recipe: Recipe, size: PolicySize, engine: EngineMemory, disk: DiskForecast, host: HostResources
) -> list[str]:
    """Compare a plan with a host.

    Args:
        recipe: The recipe.
        size: The policy.
        engine: Memory of an inference worker.
        disk: Forecast of the disk.
        host: The host.

    Returns:
        One sentence per problem, with the fix.
    """
    found = [
        *_context_problems(recipe, size),
        *_engine_problems(recipe, engine, host),
        *_trainer_problems(recipe, size, host),
    ]
    loading = loading_memory(recipe, size)
    if host.gpu_bytes is not None and loading > host.memory_bytes:
        found.append(
            f"host memory: the {recipe.train.processes} processes of the trainer take about {loading / GIB:.0f} GiB while they load, and "
            f"this host has {host.memory_bytes / GIB:.0f} GiB available: lower train.processes or train.image_cache_gib"
        )
    copied = rollback_memory(recipe, size)
    if host.gpu_bytes is not None and copied > host.memory_bytes:
        found.append(
            f"host memory: several optimiser steps per batch keep a copy to go back to, about {copied / GIB:.0f} GiB, and "
            f"this host has {host.memory_bytes / GIB:.0f} GiB available: set train.epochs = 1 and train.minibatches = 1"
        )
    on_disk = disk.needed(recipe.limits.pause_disk_gib * GIB)
    if on_disk > host.disk_bytes:
        found.append(
            f"disk: a run needs up to {on_disk / GIB:.0f} GiB, with the {recipe.limits.pause_disk_gib:g} GiB below which it pauses, and "
            f"{host.disk_bytes / GIB:.0f} GiB are free: choose another --runs-dir, keep images elsewhere (data.images_url), or lower "
            "train.updates"
        )
    needed = recipe.desktops.count * DESKTOP_BYTES
    if recipe.desktops.farm is None and needed > host.memory_bytes:
        fits = max(1, host.memory_bytes // DESKTOP_BYTES)
        found.append(
            f"desktops: {recipe.desktops.count} of them may take {needed / GIB:.0f} GiB, and this host has "
            f"{host.memory_bytes / GIB:.0f} GiB available: set desktops.count = {fits}, or desktops.farm to a farm on another host"
        )
    together = host_memory(recipe, size, engine, host)
    if not found and together.total > host.memory_bytes:
        found.append(_together(recipe, together, host))
    return found


def _together(recipe: Recipe, memory: HostMemory, host: HostResources) -> str:
    """Say that parts which fit alone do not fit together."""
    changes = ["inference.workers"] if recipe.inference.workers > 1 else []
    changes += ["train.micro_batch_tokens"] if host.trains_on_cpu(recipe) else ["train.image_cache_gib"]
    changes += ["desktops.count"] if memory.desktops else []
    elsewhere = "or set desktops.farm to a farm on another host" if memory.desktops else "or use a larger host"
    return (
        f"host memory: trainer ({memory.trainer / GIB:.1f} GiB), inference workers ({memory.inference / GIB:.1f}) and desktops "
        f"({memory.desktops / GIB:.1f}) take about {memory.total / GIB:.0f} GiB together, and this host has "
        f"{host.memory_bytes / GIB:.0f} GiB available: lower {' or '.join(changes)}, {elsewhere}"
    )


def time_problems(recipe: Recipe, time: TimeForecast) -> list[str]:
    """Compare the time of a train step with how long a run waits for one.

    Args:
        recipe: The recipe.
        time: The forecast of time.

    Returns:
        A sentence with the fix where a run would end while it trains, or nearly so.
    """
    limit = recipe.limits.stall_minutes
    if time.update_s <= STALL_SHARE * 60 * limit:
        return []
    needed = 10 * math.ceil(time.update_s / (STALL_SHARE * 600))
    return [
        f"time: a train step takes about {time.update_s:.0f} s, more than half of limits.stall_minutes = {limit:g}, after which a run "
        f"without progress ends: set limits.stall_minutes = {needed}, or lower train.groups_per_batch"
    ]


def time_notes(recipe: Recipe, time: TimeForecast) -> list[str]:
    """Tell whether training ends before all of its updates are made.

    Args:
        recipe: The recipe.
        time: The forecast of time.

    Returns:
        A sentence where `train.max_minutes` ends it.
    """
    train = recipe.train
    update_s = max(time.update_s, 3600 / time.updates_per_hour if time.updates_per_hour else 0.0)
    minutes = train.updates * update_s / 60
    if minutes <= train.max_minutes:
        return []
    made = int(train.max_minutes * 60 / update_s)
    return [
        f"time: {train.updates} updates take about {minutes:.0f} minutes, and train.max_minutes = {train.max_minutes:g} ends training "
        f"after about {made}: raise train.max_minutes, or lower train.updates"
    ]


def _context_problems(recipe: Recipe, size: PolicySize) -> list[str]:
    longest = size.prompt_tokens(recipe.tasks.max_steps - 1) + recipe.rollout.max_tokens
    if longest <= recipe.inference.max_model_len:
        return []
    return [
        f"context: the last step of {recipe.tasks.max_steps} has about {longest} tokens with its answer, and inference.max_model_len is "
        f"{recipe.inference.max_model_len}: raise it to {-(-longest // 1024) * 1024}, or lower model.max_pixels or model.history_images"
    ]


def _engine_problems(recipe: Recipe, engine: EngineMemory, host: HostResources) -> list[str]:
    if engine.kv_tokens >= recipe.inference.max_model_len:
        return []
    if host.gpu_bytes is None:
        return [
            f"inference: {engine.weights / GIB:.1f} GiB of weights leave a key-value cache of {engine.kv_tokens} tokens, less than "
            f"inference.max_model_len = {recipe.inference.max_model_len}: raise inference.kv_cache_mib, or lower max_model_len"
        ]
    return [
        f"inference: {engine.share / GIB:.0f} GiB of a GPU hold {engine.weights / GIB:.1f} GiB of weights and a key-value cache of "
        f"{engine.kv_tokens} tokens, less than inference.max_model_len = {recipe.inference.max_model_len}: raise "
        f"inference.gpu_memory_fraction, set inference.tensor_parallel = {2 * recipe.inference.tensor_parallel}"
        + (', set inference.quantization = "fp8_per_channel"' if _may_quantize(recipe) else "")
        + ", or lower max_model_len"
    ]


def _may_quantize(recipe: Recipe) -> bool:
    """Whether a recipe with weights of 8 bits would be accepted."""
    section = recipe.inference
    is_possible = section.quantization is None and section.dtype != "float32" and section.engine == "vllm"
    return is_possible and recipe.train.corrects


def _trainer_problems(recipe: Recipe, size: PolicySize, host: HostResources) -> list[str]:
    room = trainer_room(recipe, host)
    memory = trainer_memory(recipe, size)
    if memory.total <= room:
        return []
    on_cpu = host.trains_on_cpu(recipe)
    changes: list[dict[str, Any]] = (
        [{"gradient_checkpointing": True}] if not recipe.train.gradient_checkpointing else []
    )
    least = recipe.inference.max_model_len
    if recipe.train.micro_batch_tokens > least:
        changes += [{**each, "micro_batch_tokens": least} for each in ({}, *changes)]
    if recipe.train.lora_rank is None:
        ranks = recipe.train.processes
        if not on_cpu:  # more processes share the same memory there
            changes += [
                {"processes": 2 * ranks, "gradient_checkpointing": True},
                {"processes": 4 * ranks, "gradient_checkpointing": True},
            ]
        if ranks == 1:
            changes.append({"lora_rank": LORA_RANK, "gradient_checkpointing": True})
    fitting = [each for each in changes if _with(recipe, size, each) <= room]
    told = "; or ".join(
        ", ".join(f"train.{key} = {str(value).lower()}" for key, value in each.items()) for each in fitting
    )
    return [
        f"trainer: a process takes about {memory.total / GIB:.0f} GiB {memory_of(on_cpu)}, and {room / GIB:.0f} GiB are there for it: "
        + (f"set {told}" if told else f"use {'a host' if on_cpu else 'GPUs'} with more memory, or a smaller policy")
    ]


def _with(recipe: Recipe, size: PolicySize, changes: dict[str, Any]) -> int:
    changed = recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
    return trainer_memory(changed, size).total
