"""Which tasks exist and which split they belong to, as the data manager sees it.

Role: the `TaskCatalog` protocol and its one real implementation over `dart_envs.tasks`. Rule: the split of a task is looked up, never taken
from a client. Non-goals: task contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Protocol

from dart_agent.data_client.wire import TaskSelection
from dart_agent.errors import StoreError
from dart_agent.task_suites import TaskFolderSettings, open_suite
from dart_agent.types import Purpose
from dart_envs.errors import TaskError
from dart_envs.tasks import FolderSuite, Split

SplitOf = Callable[[str], str]
"""From a task id to `train`, `validation` or `test`; raises for an unknown task."""

TRAINING_SPLIT = "train"
TRAINING_PURPOSES = frozenset({Purpose.TRAIN, Purpose.DEMO})
"""Purposes whose trajectories are training data."""


def task_family(task_id: str) -> str:
    """Extract the family from a task id.

    Args:
        task_id: An id of the form `suite/family/variation`.

    Returns:
        The family.

    Raises:
        StoreError: The id has another form.
    """
    parts = task_id.split("/")
    if len(parts) != 3 or not all(parts):
        raise StoreError(f"task id {task_id!r} is not of the form suite/family/variation")
    return parts[1]


class TaskCatalog(Protocol):
    """Tasks by id."""

    def split_of(self, task_id: str) -> str:
        """`train`, `validation` or `test`; raises for an unknown task."""
        ...

    def select(self, selection: TaskSelection) -> list[str]:
        """Task ids of a selection; raises StoreError when there are not enough."""
        ...


class SuiteCatalog:
    """The tasks that `dart_envs.tasks` knows, and those of a run's own folder.

    Args:
        folder: The run's folder of task files; None: it has none.
    """

    def __init__(self, folder: TaskFolderSettings | None = None) -> None:
        self._folder = folder
        self._own_suite: FolderSuite | None = None
        self._splits: dict[str, dict[str, str]] = {}

    def split_of(self, task_id: str) -> str:
        """Look up the split of a task.

        Args:
            task_id: The task.

        Returns:
            `train`, `validation` or `test`.

        Raises:
            TaskError: The suite is not known.
            StoreError: The suite has no such task.
        """
        task_id = self._id_in_suite(task_id)
        name = task_id.split("/", 1)[0]
        if name not in self._splits:
            suite = open_suite(name, self._folder)
            self._splits[name] = {each: split.value for split in Split for each in suite.tasks(split=split)}
        if task_id not in self._splits[name]:
            raise StoreError(f"suite {name} has no task {task_id}")
        return self._splits[name][task_id]

    def _id_in_suite(self, task_id: str) -> str:
        """The id in the folder's suite where a task file has its own: `dart-envs demos record FILE` notes that one."""
        if self._folder is None or "/" in task_id:
            return task_id
        if self._own_suite is None:
            self._own_suite = FolderSuite(self._folder.name, self._folder.folder, self._folder.index)
        return self._own_suite.id_of(task_id) or task_id

    def select(self, selection: TaskSelection) -> list[str]:
        """Select tasks, spread evenly over the families.

        Args:
            selection: Suite, split, families and count.

        Returns:
            Task ids.

        Raises:
            StoreError: The suite or a family is not known, or there are fewer tasks.
        """
        try:
            suite = open_suite(selection.suite, self._folder)
            families = list(selection.families or suite.families)
            ids = [
                list(suite.tasks(split=selection.split, families=[family]))[: selection.per_family]
                for family in families
            ]
        except (TaskError, KeyError) as error:
            raise StoreError(f"cannot select tasks: {error}") from error
        return interleave_families(ids, selection.count)


def interleave_families(ids_by_family: Sequence[Sequence[str]], count: int | None) -> list[str]:
    """Take ids in turn from each family.

    Args:
        ids_by_family: Task ids of each family.
        count: How many to take; None: all.

    Returns:
        The ids.

    Raises:
        StoreError: There are fewer than `count`.
    """
    turns = [task_id for task_id in chain.from_iterable(zip_longest(*ids_by_family)) if task_id is not None]
    if count is not None and len(turns) < count:
        raise StoreError(f"only {len(turns)} tasks match, {count} are asked for: add families or lower the count")
    return turns[:count]
