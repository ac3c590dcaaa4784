"""Settings of what is imitated, part of the configuration of a training.

Role: the schema. Rule: unknown keys are errors; the module imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dart_agent.prompts.builder import PresetName, PromptSpec, preset
from dart_agent.prompts.history import HistorySettings
from dart_agent.strict_model import StrictModel
from dart_agent.task_suites import TaskFolderSettings

Thoughts = Literal["target", "none"]


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
    history_images: int | None = Field(default=None, ge=1)
    history: HistorySettings | None = None
    min_pixels: int | None = Field(default=None, ge=1)
    max_pixels: int | None = Field(default=None, ge=1)

    def spec(self) -> PromptSpec:
        """Return the prompt with these settings."""
        return preset(
            self.prompt,
            images=self.history_images,
            history=self.history,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
        )


class DemonstrationSettings(StrictModel):
    """Which demonstrations are imitated, and in which words.

    Attributes:
        folders: Folders of demonstrations (`dart-envs demos record`), at any depth, or of annotated screens.
        asked: How the policy is asked.
        task_folder: Folder of task files that is a suite in this run; None: there is none.
        thoughts: `target`: the thought of an answer is the name of the element that it clicks, as the demonstrations of the oracle have it;
            `none`: answers have no thought.
    """

    folders: tuple[Path, ...] = ()
    asked: PromptSettings = PromptSettings()
    task_folder: TaskFolderSettings | None = None
    thoughts: Thoughts = "target"


class ImitationSettings(DemonstrationSettings):
    """Demonstrations of the imitation term of a reinforcement-learning update.

    Attributes:
        images: Directory in which the pictures of their prompts are kept.
        steps_per_update: Demonstrated steps that each optimiser step imitates.
    """

    images: Path
    steps_per_update: int = Field(default=32, ge=1)
