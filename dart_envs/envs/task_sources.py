"""The tasks that an environment plays: names or a sampler in, tasks out.

This module turns the options `task` and `split` of `gym.make` into something to draw from. A wrong name fails at once,
before a desktop is leased. The same random numbers draw the same tasks. It does not define splits or load files
(`dart_envs.tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from dart_envs.errors import DartEnvError, TaskError
from dart_envs.types import TaskLike
from dart_server.wire import DesktopShape

if TYPE_CHECKING:
    from dart_envs.tasks import Task

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
    """Where episodes draw their tasks from."""

    def shape(self, image: str | None = None) -> DesktopShape:
        """Return the desktop that the tasks are made for, as far as it is known beforehand.

        Args:
            image: Name of the desktop image to use; None takes the image that the tasks are made for.

        Returns:
            The desktop.

        Raises:
            TaskError: If no image is named and the tasks are made for several.
        """
        ...

    def sample(self, rng: np.random.Generator) -> TaskLike:
        """Draw the task of the next episode.

        Args:
            rng: The generator of the episode.

        Returns:
            The task.

        Raises:
            TaskError: If the task cannot be loaded.
        """
        ...


class TaskPool:
    """A non-empty list of tasks, which are loaded when they are drawn.

    Args:
        entries: Task names or tasks.

    Raises:
        TaskError: If there are none.
    """

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

    def shape(self, image: str | None = None) -> DesktopShape:
        """Return the desktop that the tasks are made for, with the largest of their screens.

        Args:
            image: Name of the desktop image to use; None takes the image that the tasks are made for.

        Returns:
            The desktop.

        Raises:
            TaskError: If no image is named and the tasks are made for several.
        """
        one_of_each = {_family_of(entry): entry for entry in self._entries}
        return common_shape([load_task(entry) for entry in one_of_each.values()], image)

    def sample(self, rng: np.random.Generator) -> TaskLike:
        """Draw one task uniformly.

        Args:
            rng: The generator of the episode.

        Returns:
            The task.

        Raises:
            TaskError: If the task cannot be loaded.
        """
        return load_task(self._entries[int(rng.integers(len(self._entries)))])


class SampledTasks:
    """Tasks that a sampler picks, one for each episode.

    Args:
        sampler: Takes the episode's generator and returns a task.
    """

    def __init__(self, sampler: EpisodeTaskSampler) -> None:
        self._sampler = sampler

    def shape(self, image: str | None = None) -> DesktopShape:
        """Return the desktop that suites of an image are made for.

        Args:
            image: Name of the image; None takes the sampler's attribute `image`, or `basic` without one.

        Returns:
            The desktop.
        """
        from dart_envs.tasks import image_shape

        return image_shape(image or str(getattr(self._sampler, "image", DEFAULT_IMAGE)))

    def sample(self, rng: np.random.Generator) -> TaskLike:
        """Return the sampler's next task.

        Args:
            rng: The generator of the episode.

        Returns:
            The task.

        Raises:
            TaskError: If the sampler failed or returned no task.
        """
        try:
            return load_task(self._sampler(rng))
        except DartEnvError:
            raise
        except Exception as error:
            raise TaskError(f"The sampler of tasks failed: {type(error).__name__}: {error}") from error


def common_image(tasks: Sequence[TaskLike]) -> str:
    """Return the desktop image that all tasks are made for.

    Args:
        tasks: At least one task.

    Returns:
        Name of the image.

    Raises:
        TaskError: If there are several images; the message names them.
    """
    images = sorted({str(getattr(task, "image", DEFAULT_IMAGE)) for task in tasks})
    if len(images) > 1:
        raise TaskError(
            f"The tasks are made for different images ({', '.join(images)}); play them apart, or name one image for all "
            "(`image=`, `--image`)."
        )
    return images[0]


def common_shape(tasks: Sequence[TaskLike], image: str | None = None) -> DesktopShape:
    """Return the desktop for several tasks: their image, and the largest of their screens.

    Args:
        tasks: At least one task.
        image: Name of the image; None takes that of the tasks.

    Returns:
        The desktop. The size of the font is the image's own where the tasks differ.

    Raises:
        TaskError: If no image is named and there are several; the message names them.
    """
    from dart_envs import tasks as task_package

    image = image or common_image(tasks)
    shapes = {
        task_package.task_shape(task)
        if isinstance(task, task_package.Task)
        else task_package.image_shape(str(getattr(task, "image", DEFAULT_IMAGE)))
        for task in tasks
    }
    if len(shapes) == 1 and (only := next(iter(shapes))).image == image:
        return only
    return DesktopShape(image=image, resolution=max(shape.resolution for shape in shapes))


def _family_of(entry: str | TaskLike) -> str | int:
    """Return the same value for variations of one family, which are all made for one image."""
    if not isinstance(entry, str):
        return id(entry)
    return entry if entry.endswith(".json") else entry.rsplit("/", 1)[0]


def load_task(entry: TaskReference) -> TaskLike:
    """Load one task.

    Args:
        entry: A task id, the path of a task file, the content of one, or a task, which is returned as it is.

    Returns:
        The task.

    Raises:
        TaskError: If there is no such task, `entry` is not a task, or a task file names no evaluator, which the environment needs.
    """
    from dart_envs import tasks

    if isinstance(entry, str):
        return _judged(tasks.load(entry))
    if isinstance(entry, Mapping):
        return _judged(tasks.load_data(entry, name=f"task {entry.get('id', 'without an id')}"))
    if missing := [name for name in _TASK_ATTRIBUTES if not hasattr(entry, name)]:
        raise TaskError(
            f"{entry!r} is no task: it has no {missing[0]}. Give a task id, a path, a task, or a task file's content."
        )
    return entry


def _judged(task: Task) -> Task:
    """The same task. Raises TaskError where nothing would judge it."""
    if not task.has_evaluator:
        raise TaskError(
            f"task {task.id}: it has no evaluator, so that the environment cannot give a reward: add the field `evaluator`. "
            "Only training can judge such a task by a program or a model (section [reward] of a recipe)."
        )
    return task


@overload
def select_tasks(choice: str | None, split: str | None) -> TaskPool: ...


@overload
def select_tasks(choice: TaskSelection, split: str | None) -> TaskPool | SampledTasks: ...


def select_tasks(choice: TaskSelection, split: str | None) -> TaskPool | SampledTasks:
    """Find the tasks that `choice` names.

    Args:
        choice: As `EnvConfig.task`: a suite, `suite/family`, a family of the suite `basics`, a task id, the path of a
            task file (`.json`) or of a folder of them, a task, the content of a task file, a sequence of these, a
            sampler, or None for the suite `basics`.
        split: `train`, `validation` or `test`, for suites and families; None takes all tasks.

    Returns:
        Where episodes draw their tasks from.

    Raises:
        TaskError: If there is no such task.
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
