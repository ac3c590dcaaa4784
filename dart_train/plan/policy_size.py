"""The size of a recipe's policy and of its prompts.

Role: `read_policy_size(recipe)` from the files of the checkpoint, or from the layout of a published name that is not on this host. Rule:
no weight is read. Non-goals: memory (`dart_train.plan.memory`).
"""

from __future__ import annotations

from dataclasses import dataclass

from dart_agent.errors import ConfigError
from dart_agent.inference.checkpoint_files import read_checkpoint_info, resolve_checkpoint
from dart_agent.prompts.builder import preset
from dart_train.config import Recipe, RecipeError
from dart_train.model.layouts import PUBLISHED, ParameterCounts, count_parameters, layout_config

SYSTEM_TOKENS = 800
"""Assumed tokens of instructions before the first screenshot."""
ANSWER_TOKENS = 100
"""Assumed tokens of an answer."""


@dataclass(frozen=True, slots=True)
class PolicySize:
    """A policy, and what its prompts are made of.

    Attributes:
        source: Where the sizes come from.
        parameters: Numbers of parameters.
        hidden: Width of the language model.
        intermediate: Width inside its MLPs.
        layers: Number of its layers.
        kv_values: Values of the key-value cache per token and layer.
        vision_hidden: Width of the vision tower.
        vision_layers: Number of its layers.
        patch_px: Side of a patch in pixels.
        patches: Patches of a screenshot.
        image_tokens: Tokens of a screenshot.
        images: Screenshots of the longest prompt.
    """

    source: str
    parameters: ParameterCounts
    hidden: int
    intermediate: int
    layers: int
    kv_values: int
    vision_hidden: int
    vision_layers: int
    patch_px: int
    patches: int
    image_tokens: int
    images: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Key-value cache of a token in bfloat16."""
        return 2 * self.layers * self.kv_values

    def prompt_tokens(self, step: int) -> int:
        """Tokens of the prompt of a step (from 0) with its history."""
        return SYSTEM_TOKENS + min(step + 1, self.images) * self.image_tokens + step * ANSWER_TOKENS


def read_policy_size(recipe: Recipe) -> PolicySize:
    """Read the size of a recipe's policy.

    Args:
        recipe: The recipe.

    Returns:
        The size.

    Raises:
        RecipeError: The checkpoint is not on this host and its layout is not known, the recipe has a model that is made at random, or no
            picture has so few or so many pixels.
    """
    from transformers import AutoConfig

    if recipe.model.path is None:
        raise RecipeError(
            "a plan is for a published checkpoint: the recipe makes a small random model (model.preset), which fits any host"
        )
    try:
        directory = resolve_checkpoint(recipe.model.path)
        prompt = recipe.model.prompt or read_checkpoint_info(directory).prompt
        config, source = AutoConfig.from_pretrained(directory), str(directory)
    except ConfigError as error:
        layout = PUBLISHED.get(recipe.model.path)
        if layout is None:
            raise RecipeError(
                f"model.path: {error}; layouts that are known without files: {', '.join(PUBLISHED)}"
            ) from None
        prompt = recipe.model.prompt or ("qwen" if layout.startswith("qwen3") else "uitars")
        config, source = layout_config(layout), f"the layout of {recipe.model.path}, which is not on this host"
    try:
        spec = preset(
            prompt,
            images=recipe.model.history_images,
            history=recipe.model.history,
            min_pixels=recipe.model.min_pixels,
            max_pixels=recipe.model.max_pixels,
        )
    except ValueError as error:
        raise RecipeError(f"model.min_pixels, model.max_pixels: {error}") from None
    text, vision = config.text_config, config.vision_config
    width, height = spec.picture_wh(recipe.desktops.resolution)
    patches = width * height // vision.patch_size**2
    history = recipe.model.history
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return PolicySize(
        source=source,
        parameters=count_parameters(config),
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        layers=text.num_hidden_layers,
        kv_values=2 * text.num_key_value_heads * head,
        vision_hidden=vision.hidden_size,
        vision_layers=vision.depth,
        patch_px=vision.patch_size,
        patches=patches,
        image_tokens=patches // vision.spatial_merge_size**2,
        images=spec.images if history is None else history.most_images(recipe.tasks.max_steps),
    )
