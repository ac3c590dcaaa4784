"""Which stages of a run are done, and how long they took: what makes the same command resume.

Role: a small JSON file, written atomically. Rule: a stage is marked done only after everything it promises is on disk; a run directory
made from another recipe is refused with the ways out. Non-goals: no trajectories, no weights (the store and the checkpoints keep those).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dart_train.config import Recipe, RecipeError, load_resolved_recipe
from dart_train.run.paths import RunPaths


@dataclass(slots=True)
class RunState:
    """Progress of a run directory. `stages_s`: seconds per finished stage, in order. `incidents`: restarts and the like."""

    stages_s: dict[str, float] = field(default_factory=dict)
    incidents: list[str] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write atomically."""
        _replace(path, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> RunState:
        """Read; a missing file is a run that has not begun. Raises RecipeError for a file that is none of ours."""
        if not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise RecipeError(
                f"{path} is not what this version of DART keeps there ({error}): use the version that made the run"
            ) from None


def open_run_directory(recipe: Recipe, paths: RunPaths) -> RunState:
    """Create the run directory, or continue the one made from the same recipe.

    Raises:
        RecipeError: the directory belongs to a run with another recipe, or of another version of DART.
    """
    known = paths.resolved_recipe.exists()
    if known and load_resolved_recipe(paths.resolved_recipe) != recipe:
        raise RecipeError(
            f"{paths.root} holds a run with other settings: continue it with its own recipe, choose another run.name, "
            "or remove the directory"
        )
    paths.make()
    if not known:
        _replace(paths.resolved_recipe, recipe.model_dump_json(indent=2) + "\n")
    return RunState.load(paths.state)


@contextmanager
def run_lock(paths: RunPaths) -> Iterator[None]:
    """Refuse a second launcher in the same run directory.

    Raises:
        RecipeError: another launcher runs there.
    """
    paths.root.mkdir(parents=True, exist_ok=True)
    with paths.lock.open("w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecipeError(f"another dart-train is running in {paths.root}: wait for it or stop it first") from None
        yield


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
