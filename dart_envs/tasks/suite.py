"""Suites and families: where seeded variations of tasks come from.

Role: a family draws each variation from its number alone; a suite names its families and splits. Rule: the same id is
the same task on every machine and every day. Non-goals: what the bundled tasks are (`dart_envs.tasks.basics`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dart_envs.errors import TaskError
from dart_envs.evaluators.scorer_choice import WHERE_NAMES_ARE, unsupported_parts
from dart_envs.tasks.model import Split, Task, parse_task
from dart_envs.tasks.screen_names import ScreenNames
from dart_envs.tasks.splits import task_split
from dart_envs.tasks.suite_code import suite_code_errors
from dart_server.wire import DesktopShape


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """What a family draws for one variation, as JSON-like data in OSWorld's form.

    near_miss: a plausible wrong play. exploits: plays that leave something like the result without doing the task, such as a
    shortcut through the shell, or the artefact with nothing right in it. checkpoints: parts that earn partial credit.
    """

    instruction: str
    config: Sequence[Mapping[str, Any]]
    evaluator: Mapping[str, Any]
    oracle: Sequence[Mapping[str, Any]]
    near_miss: Sequence[Mapping[str, Any]]
    exploits: Sequence[Sequence[Mapping[str, Any]]] = ()
    checkpoints: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of task. `generate` gets a random source that is seeded by the task's id.

    app: the application it is about. held_out: all of it is test. demo: small enough for a policy that learns in
    minutes.
    """

    name: str
    app: str
    description: str
    max_steps: int
    generate: Callable[[Random], TaskDraft] = field(repr=False)
    publish_setup: bool = True
    held_out: bool = False
    demo: bool = False
    variations: int = 1000

    def task(self, suite: str, variation: int, *, image: str = "basic") -> Task:
        """One variation on the suite's image.

        Raises TaskError for a number that the family has not, for an error in its code, and for a task that is wrong.
        """
        task_id = self.task_id(suite, variation)
        if not 0 <= variation < self.variations:
            raise TaskError(f"Task {task_id} does not exist: {self.name} has variations 0 to {self.variations - 1}.")
        seed = int.from_bytes(hashlib.sha256(task_id.encode("utf-8")).digest()[8:16], "big")
        draft = self._draft(task_id, Random(seed))
        data = {
            "id": task_id,
            "instruction": draft.instruction,
            "config": draft.config,
            "evaluator": draft.evaluator,
            "oracle": draft.oracle,
            "near_miss": draft.near_miss,
            "exploits": draft.exploits,
            "checkpoints": draft.checkpoints,
            "image": image,
            "snapshot": "base",
            "related_apps": [self.app],
            "suite": suite,
            "family": self.name,
            "variation": variation,
            "split": task_split(task_id, held_out=self.held_out),
            "max_steps": self.max_steps,
            "publish_setup": self.publish_setup,
        }
        made = parse_task(data, name=task_id)
        for evaluator in (made.evaluator, *(part.evaluator for part in made.checkpoints)):
            if made.has_evaluator and (unknown := unsupported_parts(evaluator)):
                raise TaskError(f"{task_id}: field 'evaluator': there is no {', no '.join(unknown)}. {WHERE_NAMES_ARE}")
        return made

    def _draft(self, task_id: str, random: Random) -> TaskDraft:
        function = getattr(self.generate, "func", self.generate)
        code = getattr(function, "__code__", None)
        defined_at = "" if code is None else f"{code.co_filename}, line {code.co_firstlineno}"
        name = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"
        with suite_code_errors(f"The generation of task {task_id} ({name})", defined_at=defined_at):
            draft = self.generate(random)
        if not isinstance(draft, TaskDraft):
            raise TaskError(f"{task_id}: {name} gives {type(draft).__name__}, not a TaskDraft.")
        return draft

    def task_id(self, suite: str, variation: int) -> str:
        """`suite/family/variation`."""
        return f"{suite}/{self.name}/{variation:04d}"


OSWORLD_RESOLUTION = (1920, 1080)
"""Width and height in pixels that OSWorld's task files take for granted."""
SUITE_SHAPES = {"basic": DesktopShape(image="basic", resolution=(640, 400), font_size=16)}
"""What suites of an image are proved on; of the others, OSWorld's screen with the image's own font."""


def image_shape(image: str) -> DesktopShape:
    """Return the desktop that suites of an image are proved on.

    Args:
        image: Name of the desktop image.

    Returns:
        The desktop.
    """
    return SUITE_SHAPES.get(image, DesktopShape(image=image, resolution=OSWORLD_RESOLUTION))


@dataclass(frozen=True, slots=True)
class Suite:
    """Families under one name, made for one image. screen_names: how its instructions call the elements of a screen."""

    name: str
    families: Mapping[str, Family]
    image: str = "basic"
    screen_names: ScreenNames | None = None

    @property
    def shape(self) -> DesktopShape:
        """The desktop that its tasks are proved on."""
        return image_shape(self.image)

    @classmethod
    def from_families(
        cls, name: str, families: Iterable[Family], *, image: str = "basic", screen_names: ScreenNames | None = None
    ) -> Suite:
        """A suite of families with different names."""
        by_name: dict[str, Family] = {}
        for family in families:
            if family.name in by_name:
                raise TaskError(f"Suite {name} has two families named {family.name}.")
            by_name[family.name] = family
        return cls(name, by_name, image, screen_names)

    def family(self, name: str) -> Family:
        """One family. Raises TaskError naming those that exist."""
        if name not in self.families:
            raise TaskError(f"Suite {self.name} has no family {name!r}; it has {', '.join(sorted(self.families))}.")
        return self.families[name]

    def tasks(self, split: Split | str | None = None, families: Iterable[str] | None = None) -> tuple[str, ...]:
        """Task ids of a split (None: all) and of some families (None: all), family by family, variations in order."""
        wanted = None if split is None else self._split(split)
        chosen = self.families.values() if families is None else [self.family(name) for name in families]
        ids = (
            (family.task_id(self.name, variation), family.held_out)
            for family in chosen
            for variation in range(family.variations)
        )
        return tuple(task_id for task_id, held_out in ids if wanted in (None, task_split(task_id, held_out=held_out)))

    def load(self, task_id: str) -> Task:
        """The task of an id of this suite. Raises TaskError."""
        parts = task_id.split("/")
        if len(parts) != 3 or parts[0] != self.name or not (len(parts[2]) >= 4 and parts[2].isdecimal()):
            raise TaskError(f"{task_id!r} is not a task of suite {self.name}; ids look like {self.name}/family/0007.")
        return self.family(parts[1]).task(self.name, int(parts[2]), image=self.image)

    @staticmethod
    def _split(split: Split | str) -> Split:
        try:
            return Split(split)
        except ValueError:
            raise TaskError(f"There is no split {split!r}; splits are {', '.join(Split)}.") from None
