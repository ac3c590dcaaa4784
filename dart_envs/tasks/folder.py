"""A folder of task files as a suite: OSWorld's examples, or your own files.

    FOLDER/<family>/<name>.json        a task of family <family>; its id in the suite is NAME/<family>/<name>
    FOLDER/<name>.json                 family `tasks`
    INDEX.json                         {"<family>": ["<name>", ...]}: these tasks only, as OSWorld's test_all.json names them

Role: `FolderSuite`, with the interface of `Suite` that training and evaluation use. Rule: the id decides the split, as it does for every
suite, so that adding a file moves none; a file is read when its task is asked for. Non-goals: which tasks can run on this host
(`dart_envs.tasks.requirements`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from dart_envs.errors import TaskError
from dart_envs.tasks.loader import load_file
from dart_envs.tasks.model import Split, Task
from dart_envs.tasks.screen_names import ScreenNames
from dart_envs.tasks.splits import task_split
from dart_envs.tasks.suite import image_shape
from dart_server.wire import DesktopShape

TOP_FAMILY = "tasks"
"""Family of the files that are in no folder of their own."""


@dataclass(frozen=True, slots=True)
class FolderFamily:
    """The tasks of one folder. held_out: always False, because files are split one by one."""

    name: str
    files: tuple[Path, ...] = field(repr=False)
    held_out: bool = False


class FolderSuite:
    """Task files under one name.

    Args:
        name: Name of the suite, the first part of its task ids.
        folder: The folder.
        index: A JSON file that names the tasks of each family; None: all files of the folder.

    Raises:
        TaskError: There is no task, or the index is damaged or names a file that is not there.
    """

    screen_names: ScreenNames | None = None

    def __init__(self, name: str, folder: Path, index: Path | None = None) -> None:
        self.name = name
        self.folder = folder
        found = _all_files(folder) if index is None else _indexed_files(folder, index)
        self.families: Mapping[str, FolderFamily] = {
            family: FolderFamily(family, tuple(files)) for family, files in sorted(found.items()) if files
        }
        if not self.families:
            raise TaskError(f"{folder} has no task file (*.json).")
        self._files = {
            self._task_id(family.name, file): file for family in self.families.values() for file in family.files
        }

    @cached_property
    def image(self) -> str:
        """The image that its tasks are for. Raises TaskError for tasks of several images, and for a file that is no task."""
        images = {load_file(file).image: file for file in self._files.values()}
        if len(images) > 1:
            told = ", ".join(f"{image} ({file.name})" for image, file in sorted(images.items()))
            raise TaskError(
                f"The tasks of {self.folder} are for several images, {told}: name those of one in an index."
            )
        return next(iter(images))

    @property
    def shape(self) -> DesktopShape:
        """The desktop that its tasks are made for."""
        return image_shape(self.image)

    def tasks(self, split: Split | str | None = None, families: Iterable[str] | None = None) -> tuple[str, ...]:
        """Task ids of a split (None: all) and of some families (None: all), family by family. Raises TaskError."""
        try:
            wanted = None if split is None else Split(split)
        except ValueError:
            raise TaskError(f"There is no split {split!r}; splits are {', '.join(Split)}.") from None
        chosen = self.families.values() if families is None else [self._family(name) for name in families]
        ids = (self._task_id(family.name, file) for family in chosen for file in family.files)
        return tuple(task_id for task_id in ids if wanted in (None, task_split(task_id)))

    def load(self, task_id: str) -> Task:
        """The task of an id of this suite. Raises TaskError."""
        if task_id not in self._files:
            raise TaskError(f"{task_id!r} is not a task of suite {self.name}, the files of {self.folder}.")
        return load_file(self._files[task_id])

    def id_of(self, own_id: str) -> str | None:
        """The id in the suite of the task that a file gives the id `own_id`; None where there is none. Raises TaskError."""
        return self._own_ids.get(own_id)

    @cached_property
    def _own_ids(self) -> Mapping[str, str]:
        return {load_file(file).id: task_id for task_id, file in self._files.items()}

    def _family(self, name: str) -> FolderFamily:
        if name not in self.families:
            raise TaskError(f"Suite {self.name} has no family {name!r}; it has {', '.join(self.families)}.")
        return self.families[name]

    def _task_id(self, family: str, file: Path) -> str:
        return f"{self.name}/{family}/{file.stem}"


def _all_files(folder: Path) -> dict[str, list[Path]]:
    if not folder.is_dir():
        raise TaskError(f"{folder} is no folder of task files.")
    found = {TOP_FAMILY: sorted(folder.glob("*.json"))}
    return found | {each.name: sorted(each.glob("*.json")) for each in sorted(folder.iterdir()) if each.is_dir()}


def _indexed_files(folder: Path, index: Path) -> dict[str, list[Path]]:
    try:
        named = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(f"The index {index} cannot be read: {error}.") from error
    if not isinstance(named, dict) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in named.values()
    ):
        raise TaskError(f'The index {index} is not of the form {{"family": ["name of a task file", ...]}}.')
    found = {
        family: [(folder if family == TOP_FAMILY else folder / family) / f"{name}.json" for name in sorted({*names})]
        for family, names in named.items()
    }
    for file in (file for files in found.values() for file in files):
        if not file.is_file():
            raise TaskError(f"The index {index} names {file}, which is not there.")
    return found
