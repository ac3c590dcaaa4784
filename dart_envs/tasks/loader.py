"""Finding tasks: bundled suites, users' suites, task files.

Role: `load` and `suite` by name, `load_file` by path. Rule: users' suites come in by the entry point group
`dart_envs.suites`, each a `Suite` or a function that returns one. Non-goals: downloading anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from dart_envs.errors import TaskError
from dart_envs.tasks.model import Task, parse_task
from dart_envs.tasks.suite import OSWORLD_RESOLUTION, Suite
from dart_envs.tasks.suite_code import suite_code_errors
from dart_server.wire import DesktopShape

ENTRY_POINT_GROUP = "dart_envs.suites"
OSWORLD_IMAGE = "desktop"
"""Has the programs, places and credentials that OSWorld's task files take for granted."""
BUNDLED_SUITES = {
    "basics": "dart_envs.tasks.basics:BASICS",
    "media": "dart_envs.tasks.media:MEDIA",
    "system": "dart_envs.tasks.system:SYSTEM",
    "office": "dart_envs.tasks.office:OFFICE",
    "web": "dart_envs.tasks.web:WEB",
}
"""Where each bundled suite is; imported when it is asked for."""


def task_shape(task: Task) -> DesktopShape:
    """The desktop that a task is for: the one its suite is proved on; for a file, one with OSWorld's screen. Raises TaskError."""
    if task.origin is None and not task.is_osworld_task:
        return load_suite(task.suite).shape
    return DesktopShape(image=task.image, resolution=OSWORLD_RESOLUTION)


@cache
def load_suite(name: str) -> Suite:
    """A suite by name. Raises TaskError naming those that exist, or the line of a user's suite that raised an error."""
    if name in BUNDLED_SUITES:
        module, _, attribute = BUNDLED_SUITES[name].partition(":")
        bundled = getattr(import_module(module), attribute)
        assert isinstance(bundled, Suite)
        return bundled
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in found:
        known = ", ".join(sorted({*BUNDLED_SUITES, *found}))
        raise TaskError(f"There is no suite {name!r}; suites are {known}.")
    with suite_code_errors(f"The import of suite {name!r} (entry point {found[name].value})"):
        loaded = found[name].load()
        made = loaded if isinstance(loaded, Suite) else loaded()
    if not isinstance(made, Suite):
        raise TaskError(f"Entry point {name!r} of {ENTRY_POINT_GROUP} gives {type(made).__name__}, not a Suite.")
    return made


def load(task_id: str) -> Task:
    """A task by its id (`suite/family/0007`) or by the path of its JSON file. Raises TaskError."""
    if task_id.endswith(".json"):
        return load_file(Path(task_id))
    return load_suite(task_id.split("/", 1)[0]).load(task_id)


def load_file(path: Path) -> Task:
    """A task from a JSON file in OSWorld's form; where it names neither image nor suite, it is for the image `desktop`.

    Raises TaskError naming file and field.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: is not UTF-8 text.") from error
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}: is not JSON: {error.msg} in line {error.lineno}.") from error
    return load_data(data, name=str(path), origin=path)


def load_data(data: Any, *, name: str, origin: Path | None = None) -> Task:
    """A task from the content of a file in OSWorld's form; where it names neither image nor suite, it is for the image `desktop`.

    name: what an error calls it. origin: where the file lies, for what it brings along. Raises TaskError naming the field.
    """
    if isinstance(data, Mapping) and "suite" not in data:
        data = {"image": OSWORLD_IMAGE, **data}
    return parse_task(data, name=name, origin=origin)
