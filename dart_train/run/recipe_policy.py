"""The policy that a recipe starts from: which checkpoint, asked in which prompts, and whether the recipe suits it.

Role: `initial_policy` and `recipe_prompt` for those who write the components' configurations; `problems` for the checks before a run. Rule: reads
the checkpoint's files only. Non-goals: loading it (`dart_train.model.policy_model`), making one (`dart_train.model.init_model`).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dart_agent.errors import ConfigError
from dart_agent.inference.checkpoint_files import CheckpointInfo, read_checkpoint_info, resolve_checkpoint
from dart_agent.prompts.builder import PresetName, preset
from dart_train.config import Recipe
from dart_train.run.paths import RunPaths


def initial_policy(recipe: Recipe, paths: RunPaths) -> Path:
    """Directory of the policy before the warm start. Raises ConfigError when `model.path` is not there."""
    return paths.initial_model if recipe.model.path is None else resolve_checkpoint(recipe.model.path)


def recipe_prompt(recipe: Recipe) -> PresetName:
    """The recipe's prompt, else the one that the policy is made for. Raises ConfigError when `model.path` is not there."""
    if recipe.model.prompt is not None:
        return recipe.model.prompt
    return "tiny" if recipe.model.path is None else read_checkpoint_info(resolve_checkpoint(recipe.model.path)).prompt


def problems(recipe: Recipe) -> list[str]:
    """What in the recipe does not suit its policy or this host, one sentence each."""
    found = _device_problems(recipe)
    if recipe.model.path is None:
        return found
    try:
        facts = read_checkpoint_info(resolve_checkpoint(recipe.model.path))
    except ConfigError as error:
        return [*found, f"model.path: {error}"]
    return [*found, *_prompt_problems(recipe, facts)]


def _prompt_problems(recipe: Recipe, facts: CheckpointInfo) -> list[str]:
    found = []
    spec = preset(recipe.model.prompt or facts.prompt, images=recipe.model.history_images)
    try:
        needed = spec.images * facts.count_image_tokens(spec, recipe.desktops.resolution) + recipe.rollout.max_tokens
    except ConfigError as error:
        found.append(f"desktops.resolution: {error}")
    else:
        if needed >= recipe.inference.max_model_len:
            found.append(
                f"inference.max_model_len: the pictures of a prompt and the answer take {needed} tokens, "
                f"{recipe.inference.max_model_len} are allowed: raise it above that with room for the text, lower "
                "model.history_images, or choose a smaller desktops.resolution"
            )
    if spec.preset == "uitars" and recipe.warmup.enabled:
        found.append(
            "warmup.enabled: the prompt uitars names the task before the picture, which the warm start cannot teach: "
            "set it to false, or choose another model.prompt"
        )
    return found


def _device_problems(recipe: Recipe) -> list[str]:
    if recipe.train.device != "cuda" or find_spec("torch") is None:
        return []
    import torch

    if torch.cuda.is_available():
        return []
    return ["train.device: torch finds no CUDA device on this host: set it to auto or cpu"]
