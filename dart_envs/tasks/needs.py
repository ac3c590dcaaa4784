"""What a task needs before a desktop is worth taking: its files, its applications, a screen that is large enough.

Role: `check_needs`. Rule: only what is known for certain refuses a task; an application that is not in the table, or an image that lies on
another machine, is left to the set-up, which fails with its own sentence. Non-goals: reading a farm's images over the network.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dart_envs import assets
from dart_envs.errors import TaskError
from dart_server.wire import DesktopShape

if TYPE_CHECKING:
    from dart_envs.tasks.model import Task

APPLICATIONS: Mapping[str, tuple[str, ...]] = {
    "chrome": ("google-chrome", "google-chrome-stable", "chromium"),
    "browser": ("google-chrome", "google-chrome-stable", "chromium"),
    "gimp": ("gimp",),
    "vlc": ("vlc",),
    "thunderbird": ("thunderbird",),
    "vscode": ("code",),
    "libreoffice": ("soffice", "libreoffice"),
    "calc": ("localc", "libreoffice-calc"),
    "writer": ("lowriter", "libreoffice-writer"),
    "impress": ("loimpress", "libreoffice-impress"),
    "mousepad": ("mousepad",),
    "thunar": ("thunar",),
    "lxterminal": ("lxterminal",),
    "galculator": ("galculator",),
    "zenity": ("zenity",),
}
"""Programs or packages of which an image needs one, by the application's name as OSWorld's tasks and ours write it, normalised."""
PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "usr/games", "usr/sbin", "bin")


def normalised(app: str) -> str:
    """`libreoffice_calc`, `libreoffice calc`, `Calc` are one application, and so are `vs_code`, `VS Code` and `vscode`."""
    word = app.lower().replace("_", "").replace(" ", "").replace("-", "")
    return word.removeprefix("libreoffice") or word


def image_folder(image: str) -> Path:
    """Where an image of this machine lies, installed or not."""
    if home := os.environ.get("DART_HOME"):
        return Path(home) / "images" / image / "current"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "dart" / "images" / image / "current"


def local_digest(image: str) -> str | None:
    """The digest of an image of this machine, as leases tell it; None where there is none that can be read."""
    try:
        return f"sha256:{json.loads((image_folder(image) / 'manifest.json').read_text(encoding='utf-8'))['digest']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def lacking_apps(apps: Iterable[str], folder: Path) -> tuple[str, ...]:
    """Those applications that the image in `folder` certainly has not; empty where the image cannot be looked into."""
    try:
        packages = set(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["packages"])
        programs = {name for place in PROGRAM_FOLDERS for name in _listed(folder / "rootfs" / place)}
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    known = {app: APPLICATIONS[normalised(app)] for app in apps if normalised(app) in APPLICATIONS}
    return tuple(app for app, any_of in known.items() if not (programs | packages) & set(any_of))


def _listed(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


async def check_needs(task: Task, shape: DesktopShape, *, local_images: bool) -> None:
    """Raise TaskError, or AssetError, where a desktop would be taken in vain; fetches files that are missing.

    local_images: the farm's desktops are made of this machine's images, so that their applications can be known.
    """
    task.check_runnable(shape.resolution)
    lacking = lacking_apps(task.related_apps, image_folder(shape.image)) if local_images else ()
    if lacking:
        raise TaskError(
            f"Task {task.id} needs {', '.join(lacking)}, which the image {shape.image} has not; choose another image "
            "(`dart-farm images`), or build one that has it."
        )
    if assets.missing(task):
        await asyncio.to_thread(assets.fetch_all, task)
