"""Annotated screens of demonstrations: reading and translating them.

Role: `read_screens` reads a directory that `dart_agent.rollouts.annotated_screens` wrote, each screen with the action before it in its
demonstration; `read_screen` reads one file; `shift_windows` translates the windows of a screen (augmentation). Rule: a screen that cannot
be read is an error that names its file. A directory must not hold a screen of a task that is not of the train split. Non-goals: questions
(`dart_train.warmup.queries`), model inputs (`dart_train.warmup.fit`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from dart_agent.errors import StoreError
from dart_envs.actions import action_from_dict
from dart_envs.errors import ActionError, DartEnvError
from dart_envs.observations.annotated_screens import image_of
from dart_envs.tasks import load_suite
from dart_envs.tasks.screen_names import WINDOW_ROLES, NamedElement, ScreenNames
from dart_envs.types import Action, RgbImage
from dart_server.wire import A11yElement
from dart_train.data_manager.catalog import TRAINING_SPLIT, SuiteCatalog, TaskCatalog


class ScreenError(ValueError):
    """A stored screen cannot be used; the message names the file."""


@dataclass(frozen=True, slots=True)
class AnnotatedScreen:
    """One step of a demonstration with its labels.

    Attributes:
        image: File of the full screenshot.
        task_id: The task.
        instruction: The instruction of the task.
        step: Number of the step, from 0.
        elements: The accessibility tree.
        action: The demonstrated action, None where the demonstration did nothing.
        previous: The demonstrated action before this screen, None on the first one.
        previous_elements: The accessibility tree that it was done on.
    """

    image: Path
    task_id: str
    instruction: str
    step: int
    elements: tuple[A11yElement, ...]
    action: Action | None
    previous: Action | None = None
    previous_elements: tuple[A11yElement, ...] = ()

    @property
    def of_step(self) -> tuple[str, int]:
        """Task and step; several steps can have the same image."""
        return self.task_id, self.step


@dataclass(frozen=True, slots=True)
class Shift:
    """A translation, in screen pixels.

    Attributes:
        dx: To the right.
        dy: Downwards.
    """

    dx: int
    dy: int

    def element(self, element: A11yElement) -> A11yElement:
        """Translate an element.

        Args:
            element: The element.

        Returns:
            The element at its new place.
        """
        return element.model_copy(update={"x": element.x + self.dx, "y": element.y + self.dy})

    def action(self, action: Action | None) -> Action | None:
        """Translate the coordinates of an action.

        Args:
            action: The action.

        Returns:
            The action; unchanged where it has no coordinates.
        """
        if action is None or action.x is None or action.y is None:
            return action
        return replace(action, x=action.x + self.dx, y=action.y + self.dy)


Screenshot = tuple[RgbImage, AnnotatedScreen]
"""A full screenshot with its labels."""


def name_elements(screen: AnnotatedScreen) -> Sequence[NamedElement]:
    """Name the elements of a screen as the instructions of its suite do.

    Args:
        screen: The screen.

    Returns:
        The named elements; none where the suite has no names.
    """
    names = load_suite(screen.task_id.split("/", 1)[0]).screen_names
    return () if names is None else names.name_elements(screen.elements)


def name_target(
    names: ScreenNames | None,
    elements: Sequence[A11yElement],
    target: A11yElement,
    instruction: str,
    *,
    by_text: bool = True,
) -> str:
    """Name the element that an answer clicks on, as the thought of the answer does.

    Args:
        names: The names that the suite's instructions use; None: there are none.
        elements: The accessibility tree.
        target: The element.
        instruction: The instruction of the task.
        by_text: Whether a name may be a text that has to be read from the screen.

    Returns:
        The name by which the instruction calls it, else the first of its names; empty where it has none.
    """
    named = () if names is None else names.name_elements(elements)
    own = [part.name for part in named if part.element == target and (by_text or not part.by_text)]
    mentioned = [name for name in own if names is not None and names.is_mentioned(name, instruction)]
    return next(iter(mentioned or own), "")


def covers(element: A11yElement, x: int, y: int) -> bool:
    """Say whether a pixel of the screen is on an element.

    Args:
        element: The element.
        x: Column of the pixel.
        y: Row of the pixel.

    Returns:
        Whether it is.
    """
    return element.x <= x < element.x + element.w and element.y <= y < element.y + element.h


def pointed_at(elements: Sequence[A11yElement], action: Action) -> list[A11yElement]:
    """Find the elements that an action points at.

    Args:
        elements: The accessibility tree.
        action: The action.

    Returns:
        The elements, the smallest first; none where the action has no coordinates.
    """
    if action.x is None or action.y is None:
        return []
    hit = [each for each in elements if covers(each, action.x, action.y)]
    return sorted(hit, key=lambda each: each.w * each.h)


def read_screens(directory: Path) -> list[AnnotatedScreen]:
    """Read the annotated screens of a directory.

    Args:
        directory: The directory.

    Returns:
        The screens, ordered by task id and step.

    Raises:
        ScreenError: A screen cannot be used, or there is none.
    """
    catalog = SuiteCatalog()
    by_task: dict[str, list[AnnotatedScreen]] = defaultdict(list)
    for path in sorted(directory.glob("*.json")):
        screen = read_screen(path)
        _check_split(path, screen.task_id, catalog)
        by_task[screen.task_id].append(screen)
    if not by_task:
        raise ScreenError(f"no annotated screens in {directory}: collect demonstrations first")
    ordered: list[AnnotatedScreen] = []
    for task_id in sorted(by_task):
        steps = {screen.step: screen for screen in by_task[task_id]}
        for index in sorted(steps):
            before = steps.get(index - 1)
            if index == 0 or before is not None:
                if before is None:
                    ordered.append(steps[index])
                else:
                    ordered.append(replace(steps[index], previous=before.action, previous_elements=before.elements))
    return ordered


def read_screen(path: Path) -> AnnotatedScreen:
    """Read an annotated screen of any split, without the action before it.

    Args:
        path: A file that `dart_envs.observations.annotated_screens.write_annotated_screen` wrote.

    Returns:
        The screen.

    Raises:
        ScreenError: It cannot be read.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return AnnotatedScreen(
            image=image_of(path),
            task_id=record["task_id"],
            instruction=record["instruction"],
            step=int(record["step"]),
            elements=tuple(A11yElement.model_validate(element) for element in record["elements"]),
            action=None if record["action"] is None else action_from_dict(record["action"]),
        )
    except (ValueError, KeyError, TypeError, ActionError) as error:
        raise ScreenError(f"{path} is not an annotated screen: {error!r}") from error


def _check_split(path: Path, task_id: str, catalog: TaskCatalog) -> None:
    try:
        split = catalog.split_of(task_id)
    except (DartEnvError, StoreError) as error:
        raise ScreenError(f"{path} is refused: the split of its task is not known ({error})") from error
    if split != TRAINING_SPLIT:
        raise ScreenError(
            f"{path} shows task {task_id} of the {split} split, which must not be trained on: remove the file"
        )


def load_pixels(screen: AnnotatedScreen) -> RgbImage:
    """Load the screenshot of a screen.

    Args:
        screen: The screen.

    Returns:
        The full screenshot, uint8 [H, W, 3].
    """
    from PIL import Image

    with Image.open(screen.image) as image:
        return np.asarray(image.convert("RGB"))


def shift_windows(pixels: RgbImage, screen: AnnotatedScreen, random: Random) -> tuple[RgbImage, AnnotatedScreen]:
    """Translate all windows of a screen by one random shift that keeps them visible.

    Args:
        pixels: The screenshot, uint8 [H, W, 3].
        screen: Its labels.
        random: Source of randomness.

    Returns:
        The new screenshot and labels; the same ones where the screen has no windows.
    """
    windows = [
        element for element in screen.elements if element.role in WINDOW_ROLES and element.w > 0 and element.h > 0
    ]
    height, width = pixels.shape[:2]
    if not windows:
        return pixels, screen
    left, top = max(0, min(w.x for w in windows)), max(0, min(w.y for w in windows))
    right, bottom = min(width, max(w.x + w.w for w in windows)), min(height, max(w.y + w.h for w in windows))
    if left >= right or top >= bottom:
        return pixels, screen
    shift = Shift(random.randint(0, width - (right - left)) - left, random.randint(0, height - (bottom - top)) - top)
    moved = np.empty_like(pixels)
    moved[:] = _background(pixels, windows)
    for window in windows:
        x0, y0 = max(0, window.x), max(0, window.y)
        x1, y1 = min(width, window.x + window.w), min(height, window.y + window.h)
        moved[y0 + shift.dy : y1 + shift.dy, x0 + shift.dx : x1 + shift.dx] = pixels[y0:y1, x0:x1]
    return moved, replace(
        screen,
        elements=tuple(shift.element(element) for element in screen.elements),
        action=shift.action(screen.action),
        previous=shift.action(screen.previous),
        previous_elements=tuple(shift.element(element) for element in screen.previous_elements),
    )


def _background(pixels: RgbImage, windows: Sequence[A11yElement]) -> RgbImage:
    """The colour of a corner that no window covers, uint8 [3]; that of the top left corner where all are covered."""
    height, width = pixels.shape[:2]
    for x, y in ((0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)):
        if not any(covers(window, x, y) for window in windows):
            return np.asarray(pixels[y, x], np.uint8)
    return np.asarray(pixels[0, 0], np.uint8)
