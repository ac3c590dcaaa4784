"""The recipe's section `model`: the policy that a run starts from.

Role: the schema. Non-goals: prompts and their number of screenshots (`dart_train.run.recipe_policy`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dart_agent.prompts.builder import PresetName
from dart_agent.prompts.history import HistorySettings
from dart_agent.strict_model import StrictModel


class ModelSection(StrictModel):
    """The policy to start from; exactly one of `preset` and `path` is given.

    Attributes:
        preset: A model that is initialised here with random weights.
        path: Path of a checkpoint, or its name in the local cache.
        prompt: Prompt preset, or an action format with the words that a checkpoint was trained with, such as `qwen3-vl`; None: our own
            words for the checkpoint's architecture.
        history_images: Screenshots in a prompt, where `history` is None; None: the prompt's own number, 5 for UI-TARS.
        history: Which turns a prompt shows; None: the last `history_images` screenshots, and all answers.
        min_pixels: Least pixels of a screenshot in a prompt; smaller screens are enlarged. None: the prompt's own.
        max_pixels: Most pixels of a screenshot in a prompt; larger screens are shrunk. None: the prompt's own, 2.1 million for UI-TARS.
        coordinate_step_px: Grid of click coordinates, in the numbers that the policy writes, which its warm start and demonstrations have;
            None: that of `preset`, and none for a checkpoint.
        pointer: Whether the policy has an action head: it describes targets in words, its head finds them, and it is trained on its tokens
            and its points. The warm start gives a policy without a head a new one; without a warm start `path` has one.
    """

    preset: Literal["tiny"] | None = None
    path: str | None = None
    prompt: PresetName | None = None
    history_images: int | None = Field(default=None, ge=1, le=16)
    history: HistorySettings | None = None
    min_pixels: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)
    coordinate_step_px: int | None = Field(default=None, ge=1)
    pointer: bool = False

    @model_validator(mode="after")
    def _exactly_one_source(self) -> ModelSection:
        if (self.preset is None) == (self.path is None):
            raise ValueError("give either `preset` or `path`, not both and not neither")
        return self
