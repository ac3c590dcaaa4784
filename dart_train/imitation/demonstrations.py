"""Demonstrations from disk as episodes of screens and actions.

Role: `read_demonstrations` reads folders that `dart-envs demos record` wrote and folders of annotated screens that a run's own
demonstrations left. Rule: only solved tasks of the train split are imitated; a task of another split is an error, whatever else cannot be
imitated is left out and counted by its reason. Non-goals: words and tokens (`dart_train.imitation.tokens`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from pydantic import ValidationError

from dart_agent.errors import StoreError
from dart_agent.task_suites import TaskFolderSettings, open_suite
from dart_envs.demos.store import DEMONSTRATION_FILE, SCREENS_FOLDER, Demonstration, read_demonstration
from dart_envs.errors import DartEnvError
from dart_envs.observations.annotated_screens import annotations_of
from dart_envs.success import is_success
from dart_envs.tasks.screen_names import ScreenNames
from dart_envs.types import Action, ActionType, EndReason
from dart_server.wire import A11yElement
from dart_train.data_manager.catalog import TRAINING_SPLIT, SuiteCatalog, TaskCatalog
from dart_train.warmup.screens import name_target, pointed_at, read_screens

ENDS = (ActionType.DONE, ActionType.FAIL)


class DemonstrationsUnusableError(ValueError):
    """Demonstrations cannot be imitated; the message names the folder and the fix."""


@dataclass(frozen=True, slots=True)
class DemonstratedTurn:
    """One step.

    Attributes:
        screen: Picture of the screen before it.
        action: What was done.
        target: Name of the smallest element with a name that it points at; empty where there is none.
        called: What the instruction calls the smallest element that it points at; empty where the suite has no name for it.
        suite_names: Whether the suite has names for elements at all.
        element: The smallest element that it points at; None where that is not known.
    """

    screen: Path
    action: Action
    target: str = ""
    called: str = ""
    suite_names: bool = False
    element: A11yElement | None = None


@dataclass(frozen=True, slots=True)
class DemonstratedEpisode:
    """One solved task.

    Attributes:
        name: What messages call it.
        task_id: The task.
        instruction: Its instruction.
        turns: The steps; the last one says that the task is done.
    """

    name: str
    task_id: str
    instruction: str
    turns: tuple[DemonstratedTurn, ...]


@dataclass(slots=True)
class Demonstrations:
    """What was read.

    Attributes:
        episodes: What can be imitated, ordered by folder and task.
        left_out: By reason, how many demonstrations cannot.
    """

    episodes: list[DemonstratedEpisode] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


class SuiteNames:
    """How the suites of demonstrated tasks call the elements of a screen, each looked up once.

    Args:
        task_folder: Folder of task files that is a suite in this run; None: there is none.
    """

    def __init__(self, task_folder: TaskFolderSettings | None) -> None:
        self._task_folder = task_folder
        self._names: dict[str, ScreenNames | None] = {}

    def of(self, task_id: str) -> ScreenNames | None:
        """Look up the names of a task's suite.

        Args:
            task_id: The task; a task file's own id belongs to no suite with names.

        Returns:
            The names, None where the suite has none.
        """
        suite, of_suite, _ = task_id.partition("/")
        if not of_suite:
            return None
        if suite not in self._names:
            self._names[suite] = open_suite(suite, self._task_folder).screen_names
        return self._names[suite]


def read_demonstrations(folders: Sequence[Path], task_folder: TaskFolderSettings | None = None) -> Demonstrations:
    """Read all demonstrations of some folders.

    Args:
        folders: Each holds demonstrations at any depth, or annotated screens.
        task_folder: Folder of task files that is a suite in this run; None: there is none.

    Returns:
        What can be imitated.

    Raises:
        DemonstrationsUnusableError: A folder has no demonstration, cannot be read, or has one of a task that must not be trained on.
    """
    catalog, names, found = SuiteCatalog(task_folder), SuiteNames(task_folder), Demonstrations()
    for folder in folders:
        heads = sorted(folder.rglob(DEMONSTRATION_FILE))
        if heads:
            for head in heads:
                _add_recorded(found, head.parent, catalog, names)
        elif any(folder.glob("*.json")):
            found.episodes += _annotated(folder, names)
        else:
            raise DemonstrationsUnusableError(
                f"{folder} holds no demonstration: record some with dart-envs demos record, or give another folder"
            )
    return found


def _add_recorded(found: Demonstrations, folder: Path, catalog: TaskCatalog, names: SuiteNames) -> None:
    try:
        demonstration = read_demonstration(folder)
        split = catalog.split_of(demonstration.task_id)
    except (DartEnvError, StoreError) as error:
        raise DemonstrationsUnusableError(f"{folder} cannot be imitated: {error}") from error
    if split != TRAINING_SPLIT:
        raise DemonstrationsUnusableError(
            f"{folder} shows task {demonstration.task_id} of the {split} split, which must not be trained on: remove the folder"
        )
    if demonstration.end is None:
        found.left_out["broken off"] += 1
    elif not is_success(demonstration.reward):
        found.left_out["not solved"] += 1
    elif not demonstration.steps or any(step.action is None for step in demonstration.steps):
        found.left_out["has a step that no action can say"] += 1
    else:
        turns = list(_recorded_turns(folder, demonstration, names.of(demonstration.task_id)))
        if turns[-1].action.type not in ENDS and demonstration.end == EndReason.DONE:
            last = demonstration.steps[-1].after
            turns.append(DemonstratedTurn(_screen(folder, last), Action(ActionType.DONE)))
        found.episodes.append(
            DemonstratedEpisode(str(folder), demonstration.task_id, demonstration.instruction, tuple(turns))
        )


def _recorded_turns(
    folder: Path, demonstration: Demonstration, names: ScreenNames | None
) -> Iterator[DemonstratedTurn]:
    for step in demonstration.steps:
        assert step.action is not None, "steps without an action are left out"
        screen = _screen(folder, step.before)
        yield _turn(screen, step.action, _elements_beside(screen), demonstration.instruction, names)


def _screen(folder: Path, sha256: str) -> Path:
    return folder / SCREENS_FOLDER / f"{sha256}.png"


def _elements_beside(screen: Path) -> list[A11yElement]:
    """The accessibility tree of a screen, empty where it was not read."""
    paths = annotations_of(screen)
    if not paths:
        return []
    path = paths[0]
    try:
        elements = json.loads(path.read_text(encoding="utf-8"))["elements"]
        return [A11yElement.model_validate(element) for element in elements]
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise DemonstrationsUnusableError(f"{path} is no annotated screen: {error!r}") from error


def _annotated(folder: Path, names: SuiteNames) -> Iterator[DemonstratedEpisode]:
    """Demonstrations of a run's oracle; all of them are solved (`dart_agent.rollouts.annotated_screens`)."""
    try:
        screens = read_screens(folder)
    except ValueError as error:
        raise DemonstrationsUnusableError(str(error)) from error
    for task_id, members in groupby(screens, key=lambda screen: screen.task_id):
        steps = [screen for screen in members if screen.action is not None]
        if steps:
            turns = [
                _turn(step.image, step.action, step.elements, step.instruction, names.of(task_id))
                for step in steps
                if step.action is not None
            ]
            yield DemonstratedEpisode(f"{folder}: {task_id}", task_id, steps[0].instruction, tuple(turns))


def _turn(
    screen: Path, action: Action, elements: Sequence[A11yElement], instruction: str, names: ScreenNames | None
) -> DemonstratedTurn:
    hit = pointed_at(elements, action)
    if not hit:
        return DemonstratedTurn(screen, action)
    target = next((each.name for each in hit if each.name), "")
    called = name_target(names, elements, hit[0], instruction)
    return DemonstratedTurn(screen, action, target, called, names is not None, hit[0])
