"""Tasks: definitions, suites, splits, and the bundled suite `basics`.

Role: everything that says what is to be done and how it is judged. Rule: a loaded task is valid; bad ones raise
`TaskError`. Non-goals: running episodes (`dart_envs.envs.core`).
"""

from __future__ import annotations

from dart_envs.tasks.loader import BUNDLED, load, load_data, load_file, shape_of, suite
from dart_envs.tasks.model import Evaluator, SetupStep, Split, Task, parse_task
from dart_envs.tasks.script import ElementTarget, Move, ScriptAction
from dart_envs.tasks.splits import split_of
from dart_envs.tasks.suite import Draft, Family, Suite

__all__ = [
    "BUNDLED",
    "Draft",
    "ElementTarget",
    "Evaluator",
    "Family",
    "Move",
    "ScriptAction",
    "SetupStep",
    "Split",
    "Suite",
    "Task",
    "load",
    "load_data",
    "load_file",
    "parse_task",
    "shape_of",
    "split_of",
    "suite",
]
