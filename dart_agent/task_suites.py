"""Which tasks a component knows: the suites that are installed, and a folder of task files where the run has one.

Role: `TaskFolderSettings` in configuration files, `open_suite` and `load_task` for whoever resolves ids. Rule: a name that a folder has
hides an installed suite of that name in this run only. Non-goals: files and splits (`dart_envs.tasks`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from dart_agent.strict_model import StrictModel

if TYPE_CHECKING:
    from dart_envs.tasks import FolderSuite, Suite, Task

SUITE_NAME = r"^[a-z0-9][a-z0-9_.-]{0,63}$"


class TaskFolderSettings(StrictModel):
    """A folder of task files that is a suite in this run.

    Attributes:
        name: Name of the suite.
        folder: The folder.
        index: JSON file that names the tasks of each family; None: all files.
    """

    name: str = Field(pattern=SUITE_NAME)
    folder: Path
    index: Path | None = None


def open_suite(name: str, folder: TaskFolderSettings | None = None) -> Suite | FolderSuite:
    """Open a suite.

    Args:
        name: Its name.
        folder: The run's folder of task files; None: it has none.

    Returns:
        The folder's suite where the name is its, else the installed one.

    Raises:
        TaskError: There is no such suite, or the folder has no tasks.
    """
    from dart_envs import tasks

    if folder is not None and name == folder.name:
        return tasks.FolderSuite(folder.name, folder.folder, folder.index)
    return tasks.load_suite(name)


def load_task(task_id: str, folder: TaskFolderSettings | None = None) -> Task:
    """Load a task by its id in a suite.

    Args:
        task_id: The id.
        folder: The run's folder of task files; None: it has none.

    Returns:
        The task.

    Raises:
        TaskError: There is no such task.
    """
    from dart_envs import tasks

    if folder is not None and task_id.split("/", 1)[0] == folder.name:
        return tasks.FolderSuite(folder.name, folder.folder, folder.index).load(task_id)
    return tasks.load(task_id)
