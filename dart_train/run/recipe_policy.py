"""The policy that a recipe starts from: its checkpoint, its prompts, and whether the recipe suits it.

Role: `initial_policy` and `recipe_prompt` for the configurations of the components; `problems` for the checks before a run. Rule: it reads
only the files of the checkpoint. Non-goals: loading it (`dart_train.model.policy_model`), making one (`dart_train.model.init_model`).
"""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from pathlib import Path

from dart_agent.errors import ConfigError, WeightUpdateError
from dart_agent.grounding.acting.settings import tell_of_targets
from dart_agent.grounding.model import check_head
from dart_agent.inference.checkpoint_files import CheckpointInfo, read_checkpoint_info, resolve_checkpoint
from dart_agent.inference.decisions.devices import VISIBLE_DEVICES
from dart_agent.inference.weights.files import tensor_shapes
from dart_agent.prompts.builder import PromptSpec, preset
from dart_agent.rollouts.episode import OnParseError
from dart_train.config import Recipe
from dart_train.config.placement import unplaced_processes
from dart_train.run.paths import RunPaths

LARGE_PARAMETERS = 300_000_000
"""From so many parameters on, nothing of the policy is like that of the demo."""
DEFAULTS_OF_THE_DEMO = (
    ("warmup", "enabled"),
    ("rollout", "max_tokens"),
    ("train", "learning_rate"),
    ("train", "gradient_checkpointing"),
    ("inference", "dtype"),
    ("inference", "kv_cache_mib"),
    ("inference", "max_model_len"),
)
"""Sections and keys whose default would fail with a large policy, or ruin it."""
WARMUP_PROMPTS = ("tiny", "qwen")
"""The prompts that the warm start can pack: one image, before everything that differs, and answers in UI-TARS' language."""


def initial_policy(recipe: Recipe, paths: RunPaths) -> Path:
    """Find the policy before the warm start.

    Args:
        recipe: The recipe.
        paths: The run folder.

    Returns:
        Its directory.

    Raises:
        ConfigError: `model.path` does not exist.
    """
    return paths.initial_model if recipe.model.path is None else resolve_checkpoint(recipe.model.path)


def recipe_prompt(recipe: Recipe) -> str:
    """Choose the prompt preset: the recipe's, else the one that the policy was made for.

    Args:
        recipe: The recipe.

    Returns:
        Name of the preset.

    Raises:
        ConfigError: `model.path` does not exist.
    """
    if recipe.model.prompt is not None:
        return recipe.model.prompt
    return "tiny" if recipe.model.path is None else read_checkpoint_info(resolve_checkpoint(recipe.model.path)).prompt


def prompt_spec(recipe: Recipe) -> PromptSpec:
    """Return the prompts of a recipe's policy.

    Args:
        recipe: The recipe.

    Returns:
        The prompts.

    Raises:
        ConfigError: `model.path` does not exist.
        ValueError: No picture has so few or so many pixels.
    """
    model = recipe.model
    return preset(
        recipe_prompt(recipe),
        images=model.history_images,
        history=model.history,
        min_pixels=model.min_pixels,
        max_pixels=model.max_pixels,
    )


def images_per_prompt(recipe: Recipe) -> int:
    """Count the screenshots of a prompt.

    Args:
        recipe: The recipe.

    Returns:
        The most that the prompts of an episode without malformed responses have.

    Raises:
        ConfigError: `model.path` does not exist.
    """
    return _most_images(recipe, turns=recipe.tasks.max_steps)


def image_limit(recipe: Recipe) -> int:
    """Count the images that an inference worker must take in a prompt.

    Args:
        recipe: The recipe.

    Returns:
        The most that an episode's prompts have; each retry after a malformed response is a turn with a screenshot, too.

    Raises:
        ConfigError: `model.path` does not exist.
    """
    retries = recipe.rollout.parse_retries if recipe.rollout.on_parse_error is OnParseError.RETRY else 0
    return _most_images(recipe, turns=recipe.tasks.max_steps * (1 + retries))


def _most_images(recipe: Recipe, *, turns: int) -> int:
    if recipe.model.history is not None:
        return recipe.model.history.most_images(turns)
    return recipe.model.history_images or preset(recipe_prompt(recipe)).images


def problems(recipe: Recipe) -> list[str]:
    """Check whether the recipe suits its policy and this host.

    Args:
        recipe: The recipe.

    Returns:
        One sentence per problem.
    """
    found = [*_device_problems(recipe), *unplaced_processes(recipe)]
    found += _reference_problems(recipe)
    if recipe.model.path is None:
        return [*found, *_head_problems(recipe)]
    try:
        checkpoint = resolve_checkpoint(recipe.model.path)
        facts = read_checkpoint_info(checkpoint)
    except ConfigError as error:
        return [*found, f"model.path: {error}"]
    found += _head_problems(recipe)
    found += _default_problems(recipe, checkpoint)
    return [*found, *_prompt_problems(recipe, facts), *_adapter_problems(recipe, checkpoint)]


def fine_tuning_problems(recipe: Recipe) -> list[str]:
    """Check whether the recipe's policy can be fine-tuned on this host.

    Args:
        recipe: The recipe.

    Returns:
        One sentence per problem.
    """
    found = _device_problems(recipe)
    try:
        recipe_prompt(recipe)
    except ConfigError as error:
        found.append(f"model.path: {error}")
    return found


def _prompt_problems(recipe: Recipe, facts: CheckpointInfo) -> list[str]:
    found = []
    history = recipe.model.history
    images = 1 if history is not None and history.shrinks else images_per_prompt(recipe)
    try:
        spec = preset(
            recipe.model.prompt or facts.prompt,
            images=images,
            history=history,
            min_pixels=recipe.model.min_pixels,
            max_pixels=recipe.model.max_pixels,
        )
    except ValueError as error:
        return [f"model.min_pixels, model.max_pixels: {error}"]
    try:
        needed = spec.images * facts.count_image_tokens(spec, recipe.desktops.resolution) + recipe.rollout.max_tokens
    except ConfigError as error:
        found.append(f"desktops.resolution: {error}")
    else:
        if needed >= recipe.inference.max_model_len:
            found.append(
                f"inference.max_model_len: the images of a prompt and the response take {needed} tokens, "
                f"{recipe.inference.max_model_len} are allowed: raise it above that and leave space for the text, lower "
                "model.history_images (or the policy of model.history) or model.max_pixels, or choose a smaller desktops.resolution"
            )
    if spec.preset not in WARMUP_PROMPTS and recipe.warmup.enabled:
        found.append(
            f"warmup.enabled: the warm start packs the prompts {' and '.join(WARMUP_PROMPTS)} only, not {spec.preset}: set it to false, or "
            "choose another model.prompt"
        )
    return found


def _head_problems(recipe: Recipe) -> list[str]:
    if not recipe.model.pointer:
        return []
    try:
        if not recipe.warmup.enabled:
            check_head(resolve_checkpoint(recipe.model.path or ""))
        tell_of_targets(preset(recipe_prompt(recipe)))
    except ConfigError as error:
        return [f"model.pointer: {error}"]
    except ValueError as error:
        return [f"model.prompt: {error}"]
    return []


def _reference_problems(recipe: Recipe) -> list[str]:
    if recipe.train.reference_model is None:
        return []
    try:
        resolve_checkpoint(recipe.train.reference_model)
    except ConfigError as error:
        return [f"train.reference_model: {error}"]
    return []


def _default_problems(recipe: Recipe, checkpoint: Path) -> list[str]:
    """Settings of a large policy that the recipe leaves at values for the small model of the demo."""
    try:
        count = sum(math.prod(shape) for shape in tensor_shapes(checkpoint).values())
    except WeightUpdateError as error:
        return [f"model.path: {error}"]
    if count < LARGE_PARAMETERS:
        return []
    unset = [
        f"{section}.{key}"
        for section, key in DEFAULTS_OF_THE_DEMO
        if key not in getattr(recipe, section).model_fields_set
        and not (section == "inference" and recipe.inference.engine != "vllm" and key != "max_model_len")
        and not (key == "learning_rate" and recipe.train.lora_rank is not None)
    ]
    if not unset:
        return []
    return [
        f"{', '.join(unset)}: these have defaults for the small model of the demo, and {recipe.model.path} has {count / 1e9:.1f} billion "
        'parameters: give them, or begin the recipe with extends = "bases/large-policy.toml"'
    ]


def _adapter_problems(recipe: Recipe, checkpoint: Path) -> list[str]:
    """Layers that shall get an adapter and that no block of the checkpoint's language model has."""
    if recipe.train.lora_targets is None:
        return []
    try:
        shapes = tensor_shapes(checkpoint)
    except WeightUpdateError as error:
        return [f"model.path: {error}"]
    known = {
        name.split(".")[-2]
        for name, shape in shapes.items()
        if ".layers." in name and "visual" not in name and name.endswith(".weight") and len(shape) == 2
    }
    unknown = sorted(set(recipe.train.lora_targets) - known)
    if not unknown:
        return []
    return [
        f"train.lora_targets names {', '.join(unknown)}, but the linear layers of this language model are {', '.join(sorted(known))}"
    ]


def _device_problems(recipe: Recipe) -> list[str]:
    if find_spec("torch") is None:
        return []
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if recipe.train.device == "cuda" and not found:
        return ["train.device: torch finds no CUDA device on this host: set it to auto or cpu"]
    named = {"train.devices": recipe.train.devices or (), "inference.devices": recipe.inference.devices or ()}
    shown = os.environ.get(VISIBLE_DEVICES)
    host = f"on this host, which has {found}" if shown is None else f"among the {found} of {VISIBLE_DEVICES}={shown}"
    problems = [
        f"{key}: there is no GPU {max(numbers)} {host} (numbers begin at 0): name others"
        for key, numbers in named.items()
        if numbers and max(numbers) >= found
    ]
    if recipe.train.device == "cuda" and recipe.train.devices is None and recipe.train.processes > found:
        problems.append(
            f"train.processes: each of the {recipe.train.processes} processes needs a GPU of its own, and this host has {found}: lower it"
        )
    return problems
