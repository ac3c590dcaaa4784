"""Tasks: definitions, suites, splits, and the bundled suite `basics`.

Role: everything that says what is to be done and how it is judged. Rule: a loaded task is valid; bad ones raise
`TaskError`. Non-goals: running episodes (`dart_envs.envs.core`).
"""

from __future__ import annotations

from dart_envs.tasks.folder import FolderFamily, FolderSuite
from dart_envs.tasks.loader import BUNDLED_SUITES, load, load_data, load_file, load_suite, task_shape
from dart_envs.tasks.model import Checkpoint, Evaluator, Scoring, SetupStep, Split, Task, parse_task
from dart_envs.tasks.script import ActionTemplate, ElementTarget, ScriptAction
from dart_envs.tasks.splits import task_split
from dart_envs.tasks.suite import Family, Suite, TaskDraft, image_shape

__all__ = [
    "BUNDLED_SUITES",
    "ActionTemplate",
    "Checkpoint",
    "ElementTarget",
    "Evaluator",
    "Family",
    "FolderFamily",
    "FolderSuite",
    "Scoring",
    "ScriptAction",
    "SetupStep",
    "Split",
    "Suite",
    "Task",
    "TaskDraft",
    "image_shape",
    "load",
    "load_data",
    "load_file",
    "load_suite",
    "parse_task",
    "task_shape",
    "task_split",
]
