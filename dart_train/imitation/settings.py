"""Settings of what is imitated, part of the configuration of a training.

Role: the schema. Rule: unknown keys are errors; the module imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from dart_agent.prompts.settings import PromptSettings
from dart_agent.strict_model import StrictModel
from dart_agent.task_suites import TaskFolderSettings

Thoughts = Literal["instruction", "target", "none"]


class AnswerSettings(StrictModel):
    """In which words demonstrated actions become answers.

    Attributes:
        thoughts: `instruction`: the thought of a click is what the instruction calls the element, as the warm start teaches it, and the
            element's own name where the suite names no elements; `target`: always its own name; `none`: answers have no thought.
        coordinate_step_px: Grid of click coordinates in the numbers that the policy writes, that of its warm start; 1: none.
        described: Whether clicks describe the element by these words, for a policy with an action head, and have no thought; a
            demonstration that clicks an element which no words describe is then left out.
    """

    thoughts: Thoughts = "instruction"
    coordinate_step_px: int = Field(default=1, ge=1)
    described: bool = False

    @model_validator(mode="after")
    def _described_in_words(self) -> Self:
        if self.described and self.thoughts == "none":
            raise ValueError(
                'thoughts = "none" leaves no words to describe targets with: set "instruction" or "target" for an action head'
            )
        return self


class DemonstrationSettings(AnswerSettings):
    """Which demonstrations are imitated, and in which words.

    Attributes:
        folders: Folders of demonstrations (`dart-envs demos record`), at any depth, or of annotated screens.
        asked: How the policy is asked.
        task_folder: Folder of task files that is a suite in this run; None: there is none.
    """

    folders: tuple[Path, ...] = ()
    asked: PromptSettings = PromptSettings()
    task_folder: TaskFolderSettings | None = None


class ImitationSettings(DemonstrationSettings):
    """Demonstrations of the imitation term of a reinforcement-learning update.

    Attributes:
        images: Directory in which the pictures of their prompts are kept.
        steps_per_update: Demonstrated steps that each optimiser step imitates.
    """

    images: Path
    steps_per_update: int = Field(default=32, ge=1)
