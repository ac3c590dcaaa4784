"""How each component of a run is started: its configuration file and its command line.

Role: from a recipe to `ComponentSpec`s. Rule: every component reads one JSON file below `configs/` and nothing else of the recipe; the
number of threads is set for every process, because two busy thread pools on two cores are ten times slower than one. Non-goals: starting
them (`dart_train.run.launcher`), deciding when (`dart_train.run.orchestrator`).
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dart_agent.grounding.acting.following import read_served_versions
from dart_agent.grounding.acting.settings import WORKERS, PointerSettings
from dart_agent.inference.addresses import read_addresses
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.config import InferenceConfig, UpdateSection
from dart_agent.inference.settings import WorkerSettings
from dart_agent.metrics_file import MetricsReader
from dart_agent.rollouts.limits import EpisodeLimits, FamilyLimits
from dart_agent.rollouts.worker_config import STOP_TIMEOUT_S, PartialSettings, PolicyKind, WorkerConfig
from dart_agent.types import PolicyVersion
from dart_server.wire import SettleSpec
from dart_train.config import Recipe, TrackingSection
from dart_train.data_manager.config import DataManagerConfig
from dart_train.run.launcher import STOP_GRACE_S, ComponentSpec
from dart_train.run.paths import RunPaths
from dart_train.run.recipe_policy import image_limit, initial_policy, prompt_spec, recipe_prompt
from dart_train.scheduling.settings import BatchSettings, SchedulingSettings
from dart_train.tracking.config import TrackingConfig, WandbSettings

READY_GROUPS_PER_BATCH = 2
"""Finished groups that may wait for the trainer, in batches: more would only grow stale."""
TRACKING_STOP_GRACE_S = 60.0
"""Between SIGTERM and SIGKILL of the tracking process, which then sends what is left."""


def start_model(recipe: Recipe, paths: RunPaths) -> Path:
    """Return the directory of policy version 0.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        The directory.
    """
    return paths.warm_start_model if recipe.warmup.enabled else initial_policy(recipe, paths)


def database_location(recipe: Recipe, paths: RunPaths) -> str:
    """Return where the trajectory database is.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        A SQLite file, or a URL.
    """
    return recipe.data.database_url or str(paths.database)


def image_location(recipe: Recipe, paths: RunPaths) -> str:
    """Return where image blobs are.

    Args:
        recipe: The recipe.
        paths: The run folder; it exists.

    Returns:
        A directory, or a URL that is this run's alone: another run of the same name has another id.
    """
    url = recipe.data.images_url
    if url is None:
        return str(paths.images)
    return f"{url.rstrip('/')}/{recipe.run.name}-{paths.run_id.read_text(encoding='ascii').strip()}"


def data_manager_address(recipe: Recipe, paths: RunPaths) -> dict[str, Any]:
    """Return how components reach the data manager (`dart_agent.data_client.address`).

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        Its Unix socket, or its URL with the file of the key.
    """
    data = recipe.data
    if data.client_url is None:
        return {"socket": paths.data_socket}
    address: dict[str, Any] = {"data_url": data.client_url, "data_key_file": paths.data_key}
    return address | ({"insecure_plain_http": True} if data.insecure_plain_http else {})


def batch_settings(recipe: Recipe) -> BatchSettings:
    """Derive when a batch is formed.

    Args:
        recipe: The recipe.

    Returns:
        The settings.
    """
    groups = recipe.train.groups_per_batch
    return BatchSettings(
        min_groups=groups,
        max_groups=groups,
        max_staleness=recipe.curation.max_staleness,
        max_ready_groups=READY_GROUPS_PER_BATCH * groups,
    )


def scheduling_settings(recipe: Recipe) -> SchedulingSettings:
    """Derive how rollouts are scheduled.

    Args:
        recipe: The recipe.

    Returns:
        The settings.
    """
    rollout = recipe.rollout
    return SchedulingSettings(
        mode=rollout.scheduling,
        partial_rollouts=rollout.partial,
        over_provision=rollout.over_provision,
        parallel_groups=rollout.parallel_groups,
        max_kv_cache_usage=rollout.max_kv_cache_usage,
    )


def data_manager(recipe: Recipe, paths: RunPaths) -> ComponentSpec:
    """Specify the data manager, the single writer of the trajectory database.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        The component; its configuration file is written.
    """
    config = DataManagerConfig(
        database=database_location(recipe, paths),
        images=image_location(recipe, paths),
        socket=paths.data_socket,
        listen=recipe.data.listen,
        key_file=None if recipe.data.listen is None else paths.data_key,
        insecure_plain_http=recipe.data.insecure_plain_http,
        seed=recipe.run.seed,
        checkpoint=start_model(recipe, paths),
        scheduling=scheduling_settings(recipe),
        batch=batch_settings(recipe),
        curation=recipe.curation.settings(recipe.reward.success_at),
        task_folder=recipe.tasks.task_folder,
    )
    return python_module("data-manager", "dart_train.data_manager", config, paths, restarts=5, endless=True)


def inference(recipe: Recipe, paths: RunPaths) -> ComponentSpec:
    """Specify the supervisor of the vLLM workers, which keeps them at the newest version.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        The component; its configuration file is written.
    """
    section = recipe.inference
    config = InferenceConfig(
        worker=WorkerSettings(
            model=str(start_model(recipe, paths)),
            dtype=section.dtype,
            quantization=section.quantization,
            max_model_len=section.max_model_len,
            max_num_seqs=section.max_num_seqs,
            max_images=image_limit(recipe),
            image_pixels=math.prod(prompt_spec(recipe).picture_wh(recipe.desktops.resolution)),
            threads=section.threads,
            kv_cache_mib=section.kv_cache_mib,
            tensor_parallel=section.tensor_parallel,
            gpu_memory_fraction=section.gpu_memory_fraction,
            eager=section.eager,
            kv_after_update=section.kv_after_update,
            start_timeout_s=section.start_timeout_s,
            seed=recipe.run.seed,
        ),
        workers=section.workers,
        holding_workers=recipe.eval.during_workers,
        devices=section.devices,
        updates=UpdateSection(mode=recipe.update_mode, max_updating=section.max_updating),
        metrics_port=section.metrics_port,
        directory=paths.inference_dir,
        addresses=paths.addresses,
        logs=paths.logs,
        **data_manager_address(recipe, paths),
        metrics=paths.metrics,
    )
    return python_module("inference", "dart_agent.inference", config, paths, restarts=2, endless=True)


def rollout_workers(recipe: Recipe, paths: RunPaths, policy: PolicyKind) -> list[ComponentSpec]:
    """Specify the rollout workers, which run one episode loop per desktop and share the desktops evenly.

    Args:
        recipe: The recipe.
        paths: The run folder.
        policy: The policy that acts.

    Returns:
        A component for each worker; its configuration file is written. A single worker has the name of its policy, several have numbers.
    """
    workers, desktops = recipe.desktops.workers, recipe.desktops.count
    names = [f"rollout-{policy}"] if workers == 1 else [f"rollout-{policy}-{number}" for number in range(workers)]
    shares = [desktops * (number + 1) // workers - desktops * number // workers for number in range(workers)]
    return [
        _rollout_worker(recipe, paths, policy, name, share, number)
        for number, (name, share) in enumerate(zip(names, shares, strict=True))
    ]


def pointer_settings(
    recipe: Recipe, paths: RunPaths, policy: PolicyKind, name: str, number: int
) -> PointerSettings | None:
    """Derive which head a rollout worker acts with; what an earlier process of its name served is forgotten.

    Args:
        recipe: The recipe.
        paths: The run folder; it exists.
        policy: The policy that acts.
        name: Name of the rollout worker.
        number: Its number, by which the GPUs of `inference.devices` are given in turn.

    Returns:
        The settings of its head; None where the policy has none.
    """
    if policy == "vllm":
        return PointerSettings(model=WORKERS) if recipe.model.pointer else None
    if policy != "transformers":
        return None
    section = recipe.inference
    served = paths.served_versions / f"{name}.json"
    served.parent.mkdir(exist_ok=True)
    served.unlink(missing_ok=True)
    return PointerSettings(
        model=str(start_model(recipe, paths)),
        device=f"cuda:{section.devices[number % len(section.devices)]}" if section.devices else "cpu",
        threads=section.threads,
        max_context=section.max_model_len,
        follow=True,
        served=served,
    )


def _rollout_worker(
    recipe: Recipe, paths: RunPaths, policy: PolicyKind, name: str, count: int, number: int
) -> ComponentSpec:
    desktops, rollout = recipe.desktops, recipe.rollout
    limits = EpisodeLimits()
    if policy != "oracle":
        limits = EpisodeLimits(
            max_tokens=rollout.max_episode_tokens,
            wall_clock_s=rollout.max_episode_s,
            loop_repeats=rollout.loop_repeats,
        )
    config = WorkerConfig(
        name=name,
        policy=policy,
        prompt=recipe_prompt(recipe),
        history_images=recipe.model.history_images,
        min_pixels=recipe.model.min_pixels,
        max_pixels=recipe.model.max_pixels,
        history=recipe.model.history,
        limits=limits,
        reward=recipe.reward,
        family_limits={
            family: FamilyLimits(max_steps=own.max_steps)
            if policy == "oracle"
            else FamilyLimits(
                max_steps=own.max_steps,
                max_tokens=own.max_episode_tokens or limits.max_tokens,
                wall_clock_s=own.max_episode_s or limits.wall_clock_s,
                loop_repeats=own.loop_repeats or limits.loop_repeats,
            )
            for family, own in recipe.tasks.limits.items()
        },
        task_folder=recipe.tasks.task_folder,
        partial=PartialSettings(enabled=rollout.partial),
        desktops=count,
        shape=desktops.shape,
        settle=SettleSpec(quiet_ms=desktops.settle_quiet_ms, cap_ms=desktops.settle_cap_ms),
        **data_manager_address(recipe, paths),
        images=image_location(recipe, paths),
        folder=paths.root,
        addresses=paths.addresses if policy in ("vllm", "blank") else None,
        pointer=pointer_settings(recipe, paths, policy, name, number),
        screens=paths.screens if policy == "oracle" else None,
        metrics=paths.metrics,
        on_parse_error=recipe.rollout.on_parse_error,
        parse_retries=recipe.rollout.parse_retries,
        seed=recipe.run.seed,
    )
    spec = python_module(name, "dart_agent.rollouts.worker", config, paths, restarts=5, endless=True)
    return replace(spec, stop_grace_s=STOP_TIMEOUT_S + STOP_GRACE_S)


async def served_versions(recipe: Recipe, paths: RunPaths) -> list[PolicyVersion]:
    """Ask every inference worker for its policy version, or read those of rollout workers that act with their own model.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        A version per worker.

    Raises:
        WorkerError: A worker does not answer.
        FileNotFoundError: The workers are starting.
    """
    if recipe.acting_policy == "transformers":
        return read_served_versions(paths.served_versions)
    found = []
    for address in read_addresses(paths.addresses):
        async with WorkerClient(address.name, address.directory) as client:
            found.append((await client.health()).version)
    return found


def tracking(recipe: Recipe, paths: RunPaths) -> ComponentSpec | None:
    """Specify the process that copies the metrics to TensorBoard and Weights & Biases.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        The component; its configuration file is written. None where the recipe asks for neither. Without it the run goes on.
    """
    section = recipe.tracking
    if not section.extras:
        return None
    config = TrackingConfig(
        metrics=paths.metrics,
        tensorboard=paths.tensorboard if section.tensorboard else None,
        wandb=wandb_settings(section, recipe.run.name, paths),
    )
    spec = python_module("tracking", "dart_train.tracking", config, paths, restarts=5, endless=True)
    return replace(spec, optional=True, stop_grace_s=TRACKING_STOP_GRACE_S)


def wandb_settings(section: TrackingSection, name: str, paths: RunPaths) -> WandbSettings | None:
    """Derive the run of Weights & Biases, whose id is that of the run folder.

    Args:
        section: The recipe's section.
        name: Name of the run.
        paths: The run folder; it exists.

    Returns:
        Its settings, None where there is none.
    """
    if section.wandb == "off":
        return None
    return WandbSettings(
        folder=paths.wandb,
        run_id=paths.run_id.read_text(encoding="ascii").strip(),
        name=name,
        project=section.wandb_project,
        mode=section.wandb,
    )


def python_module(
    name: str,
    module: str,
    config: BaseModel,
    paths: RunPaths,
    *,
    restarts: int = 0,
    endless: bool = False,
    threads: int = 1,
) -> ComponentSpec:
    """Specify a component that is a module of ours and reads one configuration file.

    Args:
        name: Name of the component.
        module: The module.
        config: Its configuration, which is written.
        paths: The run folder.
        restarts: How often it is started again after an unexpected end.
        endless: It runs until it is stopped.
        threads: CPU threads.

    Returns:
        The component.
    """
    file = paths.configs / f"{name}.json"
    file.write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    argv = (sys.executable, "-m", module, "--config", str(file))
    log, env = paths.logs / f"{name}.log", thread_env(threads)
    return ComponentSpec(name, argv, log, env=env, restarts=restarts, endless=endless, lock=paths.lock)


def thread_env(threads: int) -> dict[str, str]:
    """Limit the threads of a process.

    Args:
        threads: CPU threads.

    Returns:
        Environment variables.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


class MetricsTail:
    """Reads the lines of some kinds that are appended to a metrics file.

    Args:
        path: The file.
        kinds: The kinds of lines.
    """

    def __init__(self, path: Path, *kinds: str) -> None:
        self._reader = MetricsReader(path, from_end=True)
        self._kinds = kinds

    def newest(self) -> str | None:
        """Return the newest line of the kinds since the last call, formatted for display; None where there is none."""
        chosen = [line for line in self._reader.read_new() if line.get("kind") in self._kinds]
        return _format_metrics(chosen[-1]) if chosen else None


def _format_metrics(line: dict[str, Any]) -> str:
    shown = (
        "version",
        "update",
        "updates",
        "pages",
        "images",
        "nll",
        "held_out_nll",
        "rollout_reward",
        "loss",
        "entropy",
        "staleness_mean",
        "reading_accuracy",
        "grounding_accuracy",
        "text_accuracy",
    )
    return ", ".join(
        f"{key} {line[key]:.3g}" if isinstance(line[key], float) else f"{key} {line[key]}"
        for key in shown
        if key in line
    )
