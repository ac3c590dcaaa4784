"""The size of a recipe's policy and of its prompts.

Role: `read_policy_size(recipe)` from the files of the checkpoint, from the layout of a published name that is not on this host, or from the
preset that the run makes a model of. Rule: no weight is read. Non-goals: memory (`dart_train.plan.memory`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dart_agent.errors import ConfigError
from dart_agent.grounding.model import SETTINGS_KEY
from dart_agent.inference.checkpoint_files import PROMPTS, read_checkpoint_info, resolve_checkpoint
from dart_agent.prompts.builder import preset
from dart_train.config import Recipe, RecipeError
from dart_train.grounding.config import OFFSET_PARTS
from dart_train.model.layouts import PUBLISHED, ParameterCounts, count_parameters, layout_config
from dart_train.run.recipe_policy import recipe_prompt
from dart_train.trainer.policy import is_stored_in_bfloat16

TEXT_TOKENS, TINY_TEXT_TOKENS = 800, 64
"""Assumed tokens of instructions beside the screenshots, and those of the prompt `tiny`, which has no rules."""
ANSWER_TOKENS = 100
"""Assumed tokens of an answer, unless `rollout.max_tokens` is lower."""


@dataclass(frozen=True, slots=True)
class PolicySize:
    """A policy, and what its prompts are made of.

    Attributes:
        source: Where the sizes come from.
        parameters: Numbers of parameters, without an action head.
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
        text_tokens: Assumed tokens of the instructions of a prompt.
        answer_tokens: Assumed tokens of an answer.
        past_answers: Earlier answers that a prompt repeats; None: all.
        head: Parameters of the action head; 0 without one.
        in_bfloat16: Whether its files hold bfloat16, as published checkpoints do.
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
    text_tokens: int = TEXT_TOKENS
    answer_tokens: int = ANSWER_TOKENS
    past_answers: int | None = None
    head: int = 0
    in_bfloat16: bool = False

    @property
    def pixels(self) -> int:
        """Pixels of a screenshot as the model sees it."""
        return self.patches * self.patch_px**2

    @property
    def kv_bytes_per_token(self) -> int:
        """Key-value cache of a token in bfloat16."""
        return 2 * self.layers * self.kv_values

    def prompt_tokens(self, step: int) -> int:
        """Tokens of the prompt of a step (from 0) with its history."""
        answers = step if self.past_answers is None else min(step, self.past_answers)
        return self.text_tokens + min(step + 1, self.images) * self.image_tokens + answers * self.answer_tokens


def read_policy_size(recipe: Recipe) -> PolicySize:
    """Read the size of a recipe's policy.

    Args:
        recipe: The recipe.

    Returns:
        The size.

    Raises:
        RecipeError: The checkpoint is not on this host and its layout is not known, or no picture has so few or so many pixels.
    """
    config, prompt, source = _read_config(recipe)
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
        text_tokens=TINY_TEXT_TOKENS if spec.preset == "tiny" else TEXT_TOKENS,
        answer_tokens=min(ANSWER_TOKENS, recipe.rollout.max_tokens),
        past_answers=spec.past_actions,
        head=_head_parameters(config) if recipe.model.pointer else 0,
        in_bfloat16=recipe.model.path is not None
        and (recipe.model.path in PUBLISHED or is_stored_in_bfloat16(recipe.model.path)),
    )


def _head_parameters(config: Any) -> int:
    """Parameters of the head of a model, or of the new head that a training gives it."""
    import torch

    from dart_agent.grounding.head import ActionHead

    settings = getattr(config, SETTINGS_KEY, None) or {}
    with torch.device("meta"):
        head = ActionHead(config.text_config.hidden_size, int(settings.get("offset_parts", OFFSET_PARTS)))
    return sum(parameter.numel() for parameter in head.parameters())


def _read_config(recipe: Recipe) -> tuple[Any, str, str]:
    """The transformers configuration of the policy, the name of its prompt preset, and where they come from."""
    from transformers import AutoConfig

    from dart_train.model.init_model import model_config

    if recipe.model.preset is not None:
        return model_config(recipe.model.preset), recipe_prompt(recipe), f"the preset {recipe.model.preset}"
    path = str(recipe.model.path)
    try:
        directory = resolve_checkpoint(path)
        prompt = recipe.model.prompt or read_checkpoint_info(directory).prompt
        return AutoConfig.from_pretrained(directory), prompt, str(directory)
    except ConfigError as error:
        layout = PUBLISHED.get(path)
        if layout is None:
            raise RecipeError(
                f"model.path: {error}; layouts that are known without files: {', '.join(PUBLISHED)}"
            ) from None
        prompt = recipe.model.prompt or PROMPTS[layout_config(layout).model_type]
        return layout_config(layout), prompt, f"the layout of {path}, which is not on this host"
