"""The state of a run folder: which recipe it belongs to, which stages are done, and how long they took.

Role: `resolved.json` and `state.json`, two small JSON files that let the same command resume a run. Rule: both carry a format number that
is checked before anything else in them; they are written atomically; a stage is marked done only after everything it promises is on disk.
Non-goals: which settings of a run folder may change (`dart_train.run.run_folder`), trajectories and weights (the database and the
checkpoints).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dart_agent.strict_model import format_validation_error
from dart_server.wire import Clock
from dart_train.config import Recipe, RecipeError
from dart_train.run.disk import FULL_DISK
from dart_train.run.paths import RunPaths

RUN_FORMAT = 2
"""Format of `resolved.json` and `state.json`. Raise it when a run folder of before cannot be continued any more."""


@dataclass(slots=True)
class RunState:
    """Progress of a run.

    Attributes:
        stages_s: Seconds per finished stage, in the order in which they finished, over all processes that worked on it.
        incidents: One sentence per restart of a component and the like.
        launcher_pid: Process that works on the run; None after it has ended in order.
        restarts: How often a phase was begun anew, by its first name.
        paused: Why it begins no work now; None: it goes on.
        pool_imported: Whether the successes of `curation.pool_import` are in the experience pool.
        unfinished_s: Seconds that processes which ended in order worked on a stage that is not finished, by stage.
    """

    stages_s: dict[str, float] = field(default_factory=dict)
    incidents: list[str] = field(default_factory=list)
    launcher_pid: int | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    paused: str | None = None
    pool_imported: bool = False
    unfinished_s: dict[str, float] = field(default_factory=dict)

    def phase_name(self, first_name: str) -> str:
        """Return the name of a phase in the database, with a number behind it where it was begun anew.

        Args:
            first_name: Its name without a number.

        Returns:
            The name.
        """
        return self.phase_names(first_name)[-1]

    def phase_names(self, first_name: str) -> list[str]:
        """Return all names that a phase has had, whether it was played under them or not.

        Args:
            first_name: Its name without a number.

        Returns:
            The names, the present one last.
        """
        restarts = self.restarts.get(first_name, 0)
        return [first_name, *(f"{first_name}-{number}" for number in range(2, restarts + 2))]

    def begin_anew(self, first_name: str) -> None:
        """Give a phase a new name, because the one in the database has ended.

        Args:
            first_name: Its name without a number.
        """
        self.restarts[first_name] = self.restarts.get(first_name, 0) + 1

    @contextmanager
    def timed_stage(self, stage: str, clock: Clock) -> Iterator[None]:
        """Add the time of the context to that of a stage, which is finished unless the context fails.

        The time of earlier contexts stays in the state meanwhile: a process that is killed leaves what was saved last.

        Args:
            stage: The stage.
            clock: Clock of durations.

        Yields:
            Nothing; the caller saves the state.
        """
        began_s, before_s = clock.monotonic(), self.unfinished_s.get(stage, 0.0)
        times_s = self.unfinished_s
        try:
            yield
            self.unfinished_s.pop(stage, None)
            times_s = self.stages_s
        finally:
            times_s[stage] = round(before_s + clock.monotonic() - began_s, 1)

    def note_killed_launcher(self) -> None:
        """Record as an incident that the process noted last was killed; the lock of the run folder is held."""
        if self.launcher_pid is not None:
            self.incidents.append(
                f"dart-train (process {self.launcher_pid}) ended without stopping the run: it was killed, or the host stopped"
            )
            self.launcher_pid = None

    @contextmanager
    def held_by_launcher(self, path: Path) -> Iterator[None]:
        """Note the working process in the state, and record as an incident that the last one was killed.

        Args:
            path: `state.json` of the run folder.

        Yields:
            Nothing.
        """
        self.note_killed_launcher()
        self.launcher_pid, self.paused = os.getpid(), None
        self.save(path)
        try:
            yield
        finally:
            self.launcher_pid, self.paused = None, None
            try:
                self.save(path)
            except OSError as error:  # how the run ended must still be told; the next start calls this one killed
                if error.errno not in FULL_DISK:
                    raise

    def save(self, path: Path) -> None:
        """Write the state atomically.

        Args:
            path: `state.json` of a run folder.
        """
        _write(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> RunState:
        """Read the state.

        Args:
            path: `state.json` of a run folder.

        Returns:
            The state; an empty one where the file does not exist, because the run has not begun.

        Raises:
            RecipeError: The file has another format or is damaged.
        """
        if not path.exists():
            return cls()
        content = _read(path)
        try:
            return cls(**content)
        except TypeError as error:
            raise _damaged(path, error) from None


def load_resolved_recipe(paths: RunPaths) -> Recipe:
    """Read the recipe that a run folder belongs to, with every default written out.

    Args:
        paths: The run folder.

    Returns:
        The recipe.

    Raises:
        RecipeError: The folder is no run folder, or its file has another format or is damaged.
    """
    path = paths.resolved_recipe
    if not path.exists():
        raise RecipeError(f"{path.parent} is not a run directory (no {path.name}): give one below runs/")
    content = _read(path)
    try:
        return Recipe.model_validate(content.get("recipe"))
    except ValidationError as error:
        raise _damaged(path, format_validation_error(error)) from None


def check_run_format(paths: RunPaths) -> None:
    """Refuse a run folder of another format; a folder that does not exist yet is accepted.

    Args:
        paths: The run folder.

    Raises:
        RecipeError: A file of the folder has another format or is damaged.
    """
    for path in (paths.resolved_recipe, paths.state):
        if path.exists():
            _read(path)


def save_resolved_recipe(recipe: Recipe, paths: RunPaths) -> None:
    """Note the recipe that a run folder belongs to.

    Args:
        recipe: The recipe.
        paths: The run folder.
    """
    _write(paths.resolved_recipe, {"recipe": recipe.model_dump(mode="json")})


def _read(path: Path) -> dict[str, Any]:
    """The content of a file of the run folder, without its format number, which is checked first."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from None
    if not isinstance(content, dict):
        raise _damaged(path, "it is not a JSON object")
    number = content.pop("format", 0)
    if number != RUN_FORMAT:
        age = "a newer" if isinstance(number, int) and number > RUN_FORMAT else "an older"
        raise RecipeError(
            f"{path.parent}: this run folder was made by {age} version of DART; start a new run with --name, or delete it"
        )
    return content


def _damaged(path: Path, reason: object) -> RecipeError:
    return RecipeError(f"{path} is damaged ({reason}): start a new run with --name, or delete the run folder")


def _write(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"format": RUN_FORMAT} | content, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
