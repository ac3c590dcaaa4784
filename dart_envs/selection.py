"""Which tasks an environment plays: names in, tasks out.

Role: turn the `task` and `split` arguments of `gym.make` into a pool to draw from. Rule: a wrong name fails
at once, before any desktop is leased. Non-goals: splits and loading (`dart_envs.tasks`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dart_envs.errors import TaskError
from dart_envs.types import TaskLike

DEFAULT_SUITE = "basics"
TaskChoice = str | TaskLike | Sequence[str | TaskLike] | None


class TaskPool:
    """A non-empty list of tasks, loaded when they are drawn."""

    def __init__(self, entries: Sequence[str | TaskLike]) -> None:
        if not entries:
            raise TaskError("There is no task to play: the selection is empty.")
        self._entries = tuple(entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the tasks, in order."""
        return tuple(entry if isinstance(entry, str) else entry.id for entry in self._entries)

    @property
    def image(self) -> str:
        """The desktop image that the first task is made for."""
        return str(getattr(load(self._entries[0]), "image", "basic"))

    def draw(self, rng: np.random.Generator) -> TaskLike:
        """One task, uniformly."""
        return load(self._entries[int(rng.integers(len(self._entries)))])


def load(entry: str | TaskLike) -> TaskLike:
    """A task by id; a task itself as it is. Raises `TaskError`."""
    if not isinstance(entry, str):
        return entry
    from dart_envs import tasks

    return tasks.load(entry)


def select(choice: TaskChoice, split: str | None) -> TaskPool:
    """The pool that `choice` names: nothing (the bundled suite), a suite, `suite/family`, a family of the
    bundled suite, a task id, the path of a task file (`.json`), a task, or a sequence of ids and tasks.
    `split` applies to suites and families (None: all).
    Raises `TaskError`.
    """
    if choice is None:
        return TaskPool(_from_suite(DEFAULT_SUITE, split, None))
    if isinstance(choice, str):
        return TaskPool(_from_name(choice, split))
    if isinstance(choice, Sequence):
        for entry in choice:
            load(entry)
        return TaskPool(choice)
    return TaskPool([choice])


def _from_name(name: str, split: str | None) -> Sequence[str]:
    from dart_envs import tasks

    if name.endswith(".json"):
        load(name)
        return [name]
    if name.startswith(("/", ".", "~")):
        raise TaskError(f"{name!r} is no task file and no folder of task files, and no name in a suite either.")
    match name.split("/"):
        case [suite, family, _variation]:
            load(name)
            return [name]
        case [suite, family]:
            return _from_suite(suite, split, family)
        case [single]:
            if single in tasks.suite(DEFAULT_SUITE).families:
                return _from_suite(DEFAULT_SUITE, split, single)
            return _from_suite(single, split, None)
        case _:
            raise TaskError(f"{name!r} is not a task; write a suite, suite/family or suite/family/variation.")


def _from_suite(suite: str, split: str | None, family: str | None) -> Sequence[str]:
    from dart_envs import tasks

    return tasks.suite(suite).tasks(split=split, families=None if family is None else [family])
