"""Which tasks an environment plays: names or a sampler in, tasks out.

Role: turn the `task` and `split` arguments of `gym.make` into something to draw from. Rule: a wrong name fails
at once, before any desktop is leased; the same random numbers draw the same tasks. Non-goals: splits and loading (`dart_envs.tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np

from dart_envs.errors import DartEnvError, TaskError
from dart_envs.types import TaskLike

DEFAULT_SUITE = "basics"
DEFAULT_IMAGE = "basic"
TaskReference = str | TaskLike | Mapping[str, Any]
"""A task id, the path of a task file, a task, or the content of a task file."""
EpisodeTaskSampler = Callable[[np.random.Generator], TaskReference]
"""Picks the next episode's task. What it draws from the generator follows the seed of `reset`. An attribute `image`
names the desktop image that its tasks are for."""
TaskSelection = TaskReference | EpisodeTaskSampler | Sequence[TaskReference] | None
_TASK_ATTRIBUTES = ("id", "instruction", "max_steps", "publish_setup", "setup_key", "prepare", "evaluate")


class TaskSource(Protocol):
    """What episodes draw their tasks from."""

    @property
    def image(self) -> str:
        """The desktop image that the tasks are made for, as far as it is known beforehand."""
        ...

    def sample(self, rng: np.random.Generator) -> TaskLike:
        """The next episode's task. Raises `TaskError`."""
        ...


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
        """The desktop image that the tasks are made for. Raises `TaskError` where it is not the same for all."""
        one_of_each = {_family_of(entry): entry for entry in self._entries}
        return common_image([load_task(entry) for entry in one_of_each.values()])

    def sample(self, rng: np.random.Generator) -> TaskLike:
        """One task, uniformly."""
        return load_task(self._entries[int(rng.integers(len(self._entries)))])


class SampledTasks:
    """Tasks that a sampler picks, one for each episode."""

    def __init__(self, sampler: EpisodeTaskSampler) -> None:
        self._sampler = sampler

    @property
    def image(self) -> str:
        """What the sampler says of itself; `basic` where it says nothing."""
        return str(getattr(self._sampler, "image", DEFAULT_IMAGE))

    def sample(self, rng: np.random.Generator) -> TaskLike:
        """The sampler's next pick. Raises `TaskError`, also for whatever the sampler raises."""
        try:
            return load_task(self._sampler(rng))
        except DartEnvError:
            raise
        except Exception as error:
            raise TaskError(f"The sampler of tasks failed: {type(error).__name__}: {error}") from error


def common_image(tasks: Sequence[TaskLike]) -> str:
    """The desktop image that all these tasks are made for. Raises `TaskError` naming the images where there are several."""
    images = sorted({str(getattr(task, "image", DEFAULT_IMAGE)) for task in tasks})
    if len(images) > 1:
        raise TaskError(
            f"The tasks are made for different images ({', '.join(images)}); play them apart, or name one image for all "
            "(`image=`, `--image`)."
        )
    return images[0]


def _family_of(entry: str | TaskLike) -> str | int:
    """The same for variations of one family, which are all for one image."""
    if not isinstance(entry, str):
        return id(entry)
    return entry if entry.endswith(".json") else entry.rsplit("/", 1)[0]


def load_task(entry: TaskReference) -> TaskLike:
    """A task by id or path, or from the content of its file; a task itself as it is. Raises `TaskError`."""
    from dart_envs import tasks

    if isinstance(entry, str):
        return tasks.load(entry)
    if isinstance(entry, Mapping):
        return tasks.load_data(entry, name=f"task {entry.get('id', 'without an id')}")
    if missing := [name for name in _TASK_ATTRIBUTES if not hasattr(entry, name)]:
        raise TaskError(
            f"{entry!r} is no task: it has no {missing[0]}. Give a task id, a path, a task, or a task file's content."
        )
    return entry


@overload
def select_tasks(choice: str | None, split: str | None) -> TaskPool: ...


@overload
def select_tasks(choice: TaskSelection, split: str | None) -> TaskPool | SampledTasks: ...


def select_tasks(choice: TaskSelection, split: str | None) -> TaskPool | SampledTasks:
    """What `choice` names: nothing (the bundled suite), a suite, `suite/family`, a family of the
    bundled suite, a task id, the path of a task file (`.json`) or of a folder of them, a task, the content of a task file, a sequence of
    these, or a sampler. `split` applies to suites and families (None: all).
    Raises `TaskError`.
    """
    if choice is None:
        return TaskPool(_from_suite(DEFAULT_SUITE, split, None))
    if isinstance(choice, str):
        return TaskPool(_from_name(choice, split))
    if isinstance(choice, Sequence):
        loaded = [(entry, load_task(entry)) for entry in choice]
        return TaskPool([entry if isinstance(entry, str) else task for entry, task in loaded])
    if callable(choice):
        return SampledTasks(choice)
    return TaskPool([load_task(choice)])


def _from_name(name: str, split: str | None) -> Sequence[str]:
    from dart_envs import tasks

    if name.endswith(".json"):
        load_task(name)
        return [name]
    if name.startswith(("/", ".", "~")):
        return _from_folder(name)
    match name.split("/"):
        case [suite, family, _variation]:
            load_task(name)
            return [name]
        case [suite, family]:
            return _from_suite(suite, split, family)
        case [single]:
            families = tasks.load_suite(DEFAULT_SUITE).families
            if single in families:
                return _from_suite(DEFAULT_SUITE, split, single)
            try:
                return _from_suite(single, split, None)
            except TaskError as error:
                near = get_close_matches(single, [*tasks.BUNDLED_SUITES, *families], n=1)
                raise TaskError(f"{error} Did you mean {near[0]}?" if near else str(error)) from error
        case _:
            raise TaskError(f"{name!r} is not a task; write a suite, suite/family or suite/family/variation.")


def _from_folder(name: str) -> Sequence[str]:
    files = sorted(str(path) for path in Path(name).expanduser().rglob("*.json"))
    if not files:
        raise TaskError(f"{name!r} is no task file and no folder of task files, and no name in a suite either.")
    for path in files:
        load_task(path)
    return files


def _from_suite(suite: str, split: str | None, family: str | None) -> Sequence[str]:
    from dart_envs import tasks

    return tasks.load_suite(suite).tasks(split=split, families=None if family is None else [family])
