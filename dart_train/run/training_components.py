"""How the components that train are started: warm start, supervised fine-tuning and trainer.

Role: from a recipe to `ComponentSpec`s. Rule: as in `dart_train.run.components`; each process sees the GPUs that `train.devices` names, and
several processes are started by torchrun. Non-goals: starting them (`dart_train.run.launcher`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dart_agent.inference.decisions.devices import VISIBLE_DEVICES, visible_devices
from dart_agent.prompts.settings import PromptSettings
from dart_train.config import Recipe
from dart_train.imitation.settings import DemonstrationSettings, ImitationSettings
from dart_train.presets import PRESETS
from dart_train.run.components import (
    data_manager_address,
    image_location,
    python_module,
    start_model,
    thread_env,
)
from dart_train.run.launcher import ComponentSpec
from dart_train.run.paths import RunPaths
from dart_train.run.recipe_policy import initial_policy, recipe_prompt
from dart_train.sft.config import SftConfig
from dart_train.trainer.config import OptimizerSettings, TrainerConfig
from dart_train.warmup.config import WarmupConfig

TORCHRUN_STOP_GRACE_S = 40.0
"""Between SIGTERM and SIGKILL of torchrun, which itself gives its ranks 30 s to end."""


def trainer(recipe: Recipe, paths: RunPaths) -> ComponentSpec:
    """Specify the trainer.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        The component; its configuration file is written.
    """
    train = recipe.train
    config = TrainerConfig(
        **data_manager_address(recipe, paths),
        images=image_location(recipe, paths),
        weights=paths.weights,
        checkpoints=paths.checkpoints,
        metrics=paths.metrics,
        start_model=str(start_model(recipe, paths)),
        reference_model=train.reference_model,
        device=train.device,
        dtype=train.dtype,
        lora=train.lora,
        pointer=recipe.model.pointer,
        publish=recipe.inference.publish,
        publish_dtype=recipe.inference.transfer_dtype,
        micro_batch_tokens=train.micro_batch_tokens,
        image_cache_gib=train.image_cache_gib,
        gradient_checkpointing=train.gradient_checkpointing,
        freeze_vision=train.freeze_vision,
        seed=recipe.run.seed,
        threads=train.threads,
        max_updates=train.updates,
        max_minutes=train.max_minutes,
        epochs=train.epochs,
        minibatches=train.minibatches,
        advantage=train.advantage,
        advantage_over=train.advantage_over,
        high_entropy_step_fraction=recipe.curation.high_entropy_step_fraction,
        high_entropy_token_fraction=recipe.curation.high_entropy_token_fraction,
        imitation=imitation(recipe, paths),
        optimizer=OptimizerSettings(
            learning_rate=train.learning_rate,
            lr_warmup_updates=train.lr_warmup_updates,
            lr_schedule=train.lr_schedule,
            beta1=train.beta1,
            beta2=train.beta2,
            weight_decay=train.weight_decay,
            grad_clip=train.grad_clip,
            max_grad_norm=train.max_grad_norm,
        ),
        loss=train.loss_settings(),
        checkpoint_every=train.checkpoint_every,
        keep_checkpoints=train.keep_checkpoints,
        keep_weights=train.keep_versions,
        max_failed_batches=train.max_failed_batches,
        share_prefixes=train.share_prefixes,
    )
    spec = python_module("trainer", "dart_train.trainer", config, paths, restarts=3, threads=train.threads)
    return _on_devices(spec, train.devices, train.processes)


def sft(recipe: Recipe, paths: RunPaths, successes_of: tuple[Path, ...]) -> ComponentSpec:
    """Specify the supervised fine-tuning of the policy that the recipe starts from.

    Args:
        recipe: The recipe.
        paths: The folder of the fine-tuning, laid out as a run folder.
        successes_of: Folders of runs whose solved rollouts are imitated.

    Returns:
        The component; its configuration file is written.
    """
    section, train = recipe.sft, recipe.train
    own = () if recipe.demos.path is None else (recipe.demos.path.expanduser().resolve(),)
    config = SftConfig(
        checkpoints=paths.checkpoints,
        metrics=paths.metrics,
        start_model=str(initial_policy(recipe, paths)),
        device=train.device,
        dtype=train.dtype,
        pointer=recipe.model.pointer,
        seed=recipe.run.seed,
        threads=train.threads,
        micro_batch_tokens=train.micro_batch_tokens,
        image_cache_gib=train.image_cache_gib,
        gradient_checkpointing=train.gradient_checkpointing,
        freeze_vision=train.freeze_vision,
        lora=train.lora,
        publish_dtype=recipe.inference.transfer_dtype,
        optimizer=OptimizerSettings(
            learning_rate=section.learning_rate,
            lr_warmup_updates=section.lr_warmup_updates,
            lr_schedule=section.lr_schedule,
            beta1=train.beta1,
            beta2=train.beta2,
            weight_decay=train.weight_decay,
            grad_clip=train.grad_clip,
            max_grad_norm=train.max_grad_norm,
        ),
        checkpoint_every=max(10, train.checkpoint_every),
        out_dir=paths.fine_tuned_model,
        images=paths.imitated_images,
        demonstrations=demonstration_settings(recipe, own),
        successes_of=successes_of,
        successes_per_task=section.successes_per_task,
        epochs=section.epochs,
        steps_per_update=section.steps_per_update,
        held_out_fraction=section.held_out_fraction,
    )
    spec = python_module("sft", "dart_train.sft", config, paths, threads=train.threads)
    return _on_devices(spec, train.devices, train.processes)


def _on_devices(spec: ComponentSpec, devices: Sequence[int] | None, processes: int) -> ComponentSpec:
    """The component on the GPUs that train, in so many processes. Raises ConfigError where this process does not see them."""
    if devices is not None:
        visible = visible_devices(",".join(map(str, devices)), os.environ.get(VISIBLE_DEVICES))
        spec = replace(spec, env={**spec.env, VISIBLE_DEVICES: visible})
    return _in_processes(spec, processes)


def _in_processes(spec: ComponentSpec, processes: int) -> ComponentSpec:
    """The component in so many processes that torchrun starts."""
    if processes == 1:
        return spec
    torchrun = ("-m", "dart_train.trainer.torchrun", "--standalone", "--nproc-per-node", str(processes))
    return replace(spec, argv=(sys.executable, *torchrun, *spec.argv[1:]), stop_grace_s=TORCHRUN_STOP_GRACE_S)


def demonstrations(recipe: Recipe, paths: RunPaths) -> tuple[Path, ...]:
    """List the folders of demonstrations that a run has.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        The recipe's own, and those that the run collects for its warm start.
    """
    own = () if recipe.demos.path is None else (recipe.demos.path.expanduser().resolve(),)
    return (*own, paths.screens) if recipe.collects_demonstrations else own


def prompt_settings(recipe: Recipe) -> PromptSettings:
    """Derive how the policy is asked.

    Args:
        recipe: The recipe.

    Returns:
        The settings.
    """
    model = recipe.model
    return PromptSettings(
        prompt=recipe_prompt(recipe),
        history_images=model.history_images,
        history=model.history,
        min_pixels=model.min_pixels,
        max_pixels=model.max_pixels,
    )


def coordinate_step_px(recipe: Recipe) -> int:
    """Derive the grid of click coordinates that the policy learns from its warm start and from demonstrations.

    Args:
        recipe: The recipe.

    Returns:
        Side of a cell in the numbers that the policy writes; 1: there is no grid.
    """
    model = recipe.model
    if model.coordinate_step_px is not None:
        return model.coordinate_step_px
    return 1 if model.preset is None else PRESETS[model.preset].coordinate_step_px


def demonstration_settings(recipe: Recipe, folders: tuple[Path, ...]) -> DemonstrationSettings:
    """Derive in which words demonstrations are imitated.

    Args:
        recipe: The recipe.
        folders: Folders of the demonstrations. Without any, `described` is off, and `thoughts = "none"` is allowed with an action head.

    Returns:
        The settings.
    """
    return DemonstrationSettings(
        folders=folders,
        asked=prompt_settings(recipe),
        task_folder=recipe.tasks.task_folder,
        thoughts=recipe.demos.thoughts,
        coordinate_step_px=coordinate_step_px(recipe),
        described=recipe.model.pointer and bool(folders),
    )


def imitation(recipe: Recipe, paths: RunPaths) -> ImitationSettings | None:
    """Derive what the imitation term imitates.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        The settings, None where the term has no weight.
    """
    if not recipe.train.sft_coefficient:
        return None
    return ImitationSettings(
        **dict(demonstration_settings(recipe, demonstrations(recipe, paths))),
        images=paths.imitated_images,
        steps_per_update=recipe.train.sft_steps_per_update,
    )


def warm_start(recipe: Recipe, paths: RunPaths) -> ComponentSpec:
    """Specify the warm start, which makes version 0.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        The component; its configuration file is written.
    """
    section = recipe.warmup
    config = WarmupConfig(
        start_model=str(initial_policy(recipe, paths)),
        screens=paths.screens,
        out_dir=paths.warm_start_model,
        metrics=paths.metrics,
        prompt=recipe_prompt(recipe),
        min_pixels=recipe.model.min_pixels,
        max_pixels=recipe.model.max_pixels,
        pointer=recipe.model.pointer,
        device=recipe.train.device,
        dtype=recipe.train.dtype,
        seed=recipe.run.seed,
        threads=section.threads,
        imitated_families=section.imitated_families,
        imitated_demos_per_family=section.imitated_demos_per_family,
        imitate_order=section.imitate_order,
        imitation_fraction=section.imitation_fraction,
        coordinate_step_px=coordinate_step_px(recipe),
        pages=section.pages,
        pages_max_minutes=section.pages_max_minutes,
        images=section.images,
        queries_per_image=section.queries_per_image,
        batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        max_minutes=section.max_minutes,
    )
    spec = python_module("warm-start", "dart_train.warmup", config, paths, restarts=2, threads=section.threads)
    return _on_devices(spec, recipe.train.devices, section.processes)


def init_model_component(recipe: Recipe, paths: RunPaths) -> ComponentSpec:
    """Specify the process that makes the random model of the preset.

    Args:
        recipe: The recipe; it has a preset.
        paths: The run folder.

    Returns:
        The component.
    """
    assert recipe.model.preset is not None
    argv = (
        *(sys.executable, "-m", "dart_train.cli", "init-model", str(paths.initial_model)),
        *("--preset", recipe.model.preset, "--seed", str(recipe.run.seed)),
    )
    return ComponentSpec(
        "init-model", argv, paths.logs / "init-model.log", env=thread_env(1), restarts=2, lock=paths.lock
    )
