"""Settings of how a policy is asked, part of every configuration that makes prompts.

Role: the schema, and the prompt that it describes. Non-goals: wording (`dart_agent.prompts.builder`).
"""

from __future__ import annotations

from pydantic import Field

from dart_agent.prompts.builder import PresetName, PromptSpec, preset
from dart_agent.prompts.history import HistorySettings
from dart_agent.strict_model import StrictModel


class PromptSettings(StrictModel):
    """How a policy is asked, as in its rollouts.

    Attributes:
        prompt: Prompt preset.
        history_images: Screenshots in a prompt, where `history` is None; None: the prompt's own number.
        history: Which turns a prompt shows.
        min_pixels: Least pixels of a screenshot; None: the prompt's own.
        max_pixels: Most pixels of a screenshot; None: the prompt's own.
    """

    prompt: PresetName = "tiny"
    history_images: int | None = Field(default=None, ge=1, le=16)
    history: HistorySettings | None = None
    min_pixels: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)

    @property
    def prompt_spec(self) -> PromptSpec:
        """How its prompts look."""
        return preset(
            self.prompt,
            images=self.history_images,
            history=self.history,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
        )
