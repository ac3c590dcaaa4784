"""Settings of what is imitated, part of the configuration of a training.

Role: the schema. Rule: unknown keys are errors; the module imports no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dart_agent.prompts.settings import PromptSettings
from dart_agent.strict_model import StrictModel
from dart_agent.task_suites import TaskFolderSettings

Thoughts = Literal["target", "none"]


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
