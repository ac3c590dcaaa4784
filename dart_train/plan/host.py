"""What a host has, and how much of its memory the parts of a run take together.

Role: `HostResources`; `host_memory` for trainer, inference workers and desktops; `loading_memory` and `rollback_memory` for the moments in
which processes of the trainer on GPUs take the host's memory. Rule: each part counts with what it may take at most, but for desktops, most
of which use less than they may. Non-goals: memory of GPUs (`dart_train.plan.memory`); processes themselves, beside weights, images and
caches.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dart_agent.inference.engine.arguments import IMAGE_BYTES_PER_PIXEL, image_cache_gib
from dart_train.config import Recipe
from dart_train.plan.latencies import trains_on_cpu
from dart_train.plan.memory import (
    BFLOAT16,
    FLOAT32,
    GIB,
    EngineMemory,
    compute_bytes,
    has_second_model,
    trainer_memory,
)
from dart_train.plan.policy_size import PolicySize

DESKTOP_BYTES = 2 * GIB
"""What a desktop may use at most (`DART_DESKTOP_MEMORY_MIB`)."""
USUAL_DESKTOP_BYTES = GIB // 2
"""Assumed: what most use. An idle one of the image `basic` takes 127 MiB (log: providers-docker)."""
IMAGE_CACHES = 2
"""vLLM keeps the images in its front end and in its engine process, each as large."""


@dataclass(frozen=True, slots=True)
class HostResources:
    """What a host has.

    Attributes:
        gpu_bytes: Memory of a GPU; None: there is none, and everything runs on the CPU.
        memory_bytes: Available memory of the host.
        disk_bytes: Free space of the file system of the run folder.
    """

    gpu_bytes: int | None
    memory_bytes: int
    disk_bytes: int

    def trains_on_cpu(self, recipe: Recipe) -> bool:
        """Say whether the trainer runs on the CPU.

        Args:
            recipe: The recipe.
        """
        return trains_on_cpu(recipe, gpus=self.gpu_bytes is not None)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of the host's memory.

    Attributes:
        trainer: All of its processes on the CPU; on GPUs what they take of the host's memory, while they load or later.
        inference: All workers: caches of images, and on the CPU weights and key-value caches.
        desktops: Those on this host.
    """

    trainer: int
    inference: int
    desktops: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(asdict(self).values())


def host_memory(recipe: Recipe, size: PolicySize, engine: EngineMemory, host: HostResources) -> HostMemory:
    """Predict what a run takes of a host's memory.

    Args:
        recipe: The recipe.
        size: The policy.
        engine: Memory of an inference worker.
        host: The host.

    Returns:
        The bytes.
    """
    copied = rollback_memory(recipe, size)
    if host.trains_on_cpu(recipe):
        trainer = (
            recipe.train.processes * (trainer_memory(recipe, size).total + _converted_images(recipe, size)) + copied
        )
    else:
        trainer = max(loading_memory(recipe, size), recipe.train.processes * _converted_images(recipe, size) + copied)
    cache_gib = image_cache_gib(recipe.inference.max_num_seqs, size.images, size.pixels)
    worker = int(IMAGE_CACHES * cache_gib * GIB) + (engine.share if host.gpu_bytes is None else 0)
    here = recipe.desktops.count if recipe.desktops.farm is None else 0
    return HostMemory(trainer, recipe.inference.workers * worker, here * USUAL_DESKTOP_BYTES)


def loading_memory(recipe: Recipe, size: PolicySize) -> int:
    """Predict the host memory of all processes of the trainer while they load, before each keeps its part on its GPU.

    Args:
        recipe: The recipe.
        size: The policy.

    Returns:
        The bytes: in each process the whole policy as it is stored, of which one layer at a time becomes float32, and after it a second
        model for the KL term in the data type of matrix products, which one is larger; and what is there afterwards, the cache of
        screenshots. A process that has no shard loads onto its GPU.
    """
    train = recipe.train
    cache = _converted_images(recipe, size)
    if recipe.trainer_shards == 1:
        return train.processes * cache
    second = compute_bytes(recipe) if has_second_model(recipe) else 0
    stored = BFLOAT16 if size.in_bfloat16 else FLOAT32
    widened = FLOAT32 * max(size.parameters.largest_layer, size.parameters.embeddings) if size.in_bfloat16 else 0
    whole = size.parameters.total * max(stored, second) + widened
    return train.processes * (whole + FLOAT32 * size.head + cache)


def rollback_memory(recipe: Recipe, size: PolicySize) -> int:
    """Predict the host memory of the copies that undo a train step whose later optimiser steps fail; 0 where it has one.

    Args:
        recipe: The recipe.
        size: The policy.

    Returns:
        The bytes of all processes: trained weights and the two moments of each.
    """
    train = recipe.train
    if train.epochs * train.minibatches == 1:
        return 0
    memory = trainer_memory(recipe, size)
    return train.processes * (memory.trained_weights + memory.optimizer)


def _converted_images(recipe: Recipe, size: PolicySize) -> int:
    """Bytes of converted screenshots that a process of the trainer keeps: those of a batch, as far as there is room for them."""
    rollouts = recipe.train.groups_per_batch * recipe.rollout.group_size
    image = size.pixels * IMAGE_BYTES_PER_PIXEL * compute_bytes(recipe) // FLOAT32
    needed = rollouts * recipe.tasks.max_steps * image
    return min(int(recipe.train.image_cache_gib * GIB), needed)
