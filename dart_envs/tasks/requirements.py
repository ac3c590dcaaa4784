"""What a task needs before a desktop is worth taking: its files, its applications, a screen that is large enough.

Role: `check_requirements` before a desktop is leased, `check_desktop_apps` before the setup on one whose image may lie on another machine.
Rule: only what is known for certain refuses a task; an application that is not in the table is left to the setup, which fails with its own
sentence. Non-goals: reading a farm's images over the network.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx

from dart_envs import assets
from dart_envs.errors import TaskError
from dart_envs.setup.applications import APPLICATION_PROGRAMS
from dart_envs.types import Desktop
from dart_server.wire import DesktopShape
from dart_server.wire.paths import data_dir


class TaskWithRequirements(assets.TaskWithAssets, Protocol):
    """The parts of a task that say what it needs; implemented by `dart_envs.tasks.Task`."""

    @property
    def image(self) -> str: ...

    @property
    def related_apps(self) -> Sequence[str]: ...

    @property
    def config(self) -> Sequence[Any]:
        """The setup steps."""
        ...

    def check_runnable(self, resolution: tuple[int, int]) -> None:
        """Raise TaskError where the task cannot run on such a screen (width, height in pixels)."""
        ...


PROGRAM_FOLDERS = ("usr/bin", "usr/local/bin", "usr/games", "usr/sbin", "bin")
LIBREOFFICE_PROGRAMS = ("soffice", "libreoffice")
"""Programs that may open the windows of any part of LibreOffice, wherever it was installed from."""
WEB_GETTERS = frozenset(
    {
        "active_tab_html_parse",
        "active_tab_info",
        "active_tab_url_parse",
        "active_url_from_accessTree",
        "gotoRecreationPage_and_get_html_content",
        "info_from_website",
        "page_info",
        "pdf_from_url",
        "url_dashPart",
        "url_path_parse",
    }
)
"""Getters of OSWorld that read pages of the live web."""
MISSING_APPS_SCRIPT = """PATH="$PATH:/usr/local/bin:/usr/games:/snap/bin"
for one; do
  for program in $(echo "${one#*=}" | tr , ' '); do command -v "$program" >/dev/null && continue 2; done
  echo "${one%%=*}"
done"""
"""Says which of its arguments, application=program,program, are not there."""
_FOUND_APPS: set[tuple[str, str]] = set()
"""Digests of images and applications that were seen in desktops of them: asked for once in a process."""


def normalize_app_name(app: str) -> str:
    """`libreoffice_calc`, `libreoffice calc`, `Calc` are one application, and so are `vs_code`, `VS Code` and `vscode`."""
    word = app.lower().replace("_", "").replace(" ", "").replace("-", "")
    return word.removeprefix("libreoffice") or word


def image_folder(image: str) -> Path:
    """Where an image of this machine lies, installed or not."""
    return data_dir() / "images" / image / "current"


def local_image_digest(image: str) -> str | None:
    """The digest of an image of this machine, as leases tell it; None where there is none that can be read."""
    try:
        return f"sha256:{json.loads((image_folder(image) / 'manifest.json').read_text(encoding='utf-8'))['digest']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def missing_apps(apps: Iterable[str], folder: Path) -> tuple[str, ...]:
    """Those applications that the image in `folder` certainly has not; empty where the image cannot be looked into."""
    try:
        packages = set(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["packages"])
        programs = {name for place in PROGRAM_FOLDERS for name in _file_names(folder / "rootfs" / place)}
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    known = {
        app: APPLICATION_PROGRAMS[normalize_app_name(app)]
        for app in apps
        if normalize_app_name(app) in APPLICATION_PROGRAMS
    }
    return tuple(app for app, any_of in known.items() if not (programs | packages) & set(any_of))


def _file_names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def refusal_reason(
    task: TaskWithRequirements, shape: DesktopShape, *, local_images: bool, web: bool = False
) -> str | None:
    """Return why a task certainly cannot run, without taking a desktop or fetching a file.

    Args:
        task: The task.
        shape: The desktop that it would run on.
        local_images: Whether the farm's desktops are made of this machine's images, so that their applications are known.
        web: Whether desktops reach the live web.

    Returns:
        One clause; None where nothing is known against it.
    """
    try:
        task.check_runnable(shape.resolution)
    except TaskError as error:
        return str(error).removeprefix(f"Task {task.id} ").rstrip(".")
    missing = missing_apps(task.related_apps, image_folder(shape.image)) if local_images else ()
    if missing:
        return f"needs {', '.join(map(normalize_app_name, missing))}, which the image {shape.image} does not have"
    if not web and (addresses := web_addresses(task)):
        return f"needs the live web ({addresses[0]})"
    if assets.is_offline() and (absent := assets.missing_assets(task)):
        return f"needs files that are not in the asset cache ({len(absent)}, the first is {absent[0].url})"
    return None


def unreachable_files(tasks: Iterable[TaskWithRequirements], *, client: httpx.Client | None = None) -> dict[str, str]:
    """Return which tasks need files that are neither in the asset cache nor to be had now; each server is asked once.

    Args:
        tasks: The tasks.
        client: HTTP client to use; None makes one.

    Returns:
        One clause by task id.
    """
    absent = {task.id: missing for task in tasks if (missing := assets.missing_assets(task))}
    lost = assets.unreachable_origins((asset.url for missing in absent.values() for asset in missing), client=client)
    found: dict[str, str] = {}
    for task_id, missing in absent.items():
        asset = next((one for one in missing if assets.asset_origin(one.url) in lost), None)
        if asset is not None:
            origin = assets.asset_origin(asset.url)
            found[task_id] = (
                f"needs files that are not in the asset cache, and {origin} cannot be reached ({lost[origin]}; the first is {asset.url})"
            )
    return found


def format_refusals(refused: Mapping[str, str], total: int) -> str:
    """Write the tasks that cannot run here as a table by reason, the most frequent first.

    Args:
        refused: Reasons of `refusal_reason` by task id.
        total: How many tasks there are in all.

    Returns:
        The table, for a terminal.
    """
    lines = [f"{len(refused)} of {total} tasks cannot run here and are left out:"]
    lines += [
        f"  {len(ids):>4}  {reason}  ({ids[0]}{', ...' if len(ids) > 1 else ''})"
        for reason, ids in group_refusals(refused)
    ]
    return "\n".join(lines)


def group_refusals(refused: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return reasons without their details, each with its task ids, the most frequent first.

    Args:
        refused: Reasons by task id.
    """
    by_reason: dict[str, list[str]] = {}
    for task_id, reason in refused.items():
        by_reason.setdefault(reason.partition(" (")[0], []).append(task_id)
    return sorted(by_reason.items(), key=lambda row: (-len(row[1]), row[0]))


def web_addresses(task: TaskWithRequirements) -> tuple[str, ...]:
    """Return what a task reaches in the live web: addresses that its setup opens, and getters that read pages.

    Args:
        task: The task.

    Returns:
        Addresses and names of getters, in the order of the task file; empty where it needs no web.
    """
    found: list[str] = []
    for step in (*task.config, *(step for evaluator in task.active_evaluators for step in evaluator.postconfig)):
        if step.type == "chrome_open_tabs":
            found += [address for address in step.parameters["urls_to_open"] if _is_in_the_web(str(address))]
    for evaluator in task.active_evaluators:
        getters = (*evaluator.result_configs, *evaluator.expected_configs)
        found += [f"the getter {one['type']}" for one in getters if one and one.get("type") in WEB_GETTERS]
    return tuple(found)


def _is_in_the_web(address: str) -> bool:
    if address.startswith(("file:", "chrome:", "about:", "/")):
        return False
    host = address.partition("://")[2] or address
    return host.split("/")[0].split(":")[0] not in ("localhost", "127.0.0.1")


async def check_requirements(task: TaskWithRequirements, shape: DesktopShape, *, local_images: bool) -> None:
    """Raise TaskError, or AssetError, where a desktop would be taken in vain; fetches files that are missing.

    local_images: the farm's desktops are made of this machine's images, so that their applications can be known.
    """
    task.check_runnable(shape.resolution)
    missing = missing_apps(task.related_apps, image_folder(shape.image)) if local_images else ()
    if missing:
        raise _missing_apps_error(task, missing, shape.image)
    if assets.missing_assets(task):
        await asyncio.to_thread(assets.fetch_task_assets, task)


async def check_desktop_apps(task: TaskWithRequirements, desktop: Desktop) -> None:
    """Raise TaskError where a program that the task works with is certainly not in this desktop."""
    digest = str(getattr(desktop, "image_digest", ""))
    known = {
        app: APPLICATION_PROGRAMS[normalize_app_name(app)]
        for app in task.related_apps
        if normalize_app_name(app) in APPLICATION_PROGRAMS
    }
    asked = {app: programs for app, programs in known.items() if (digest, app) not in _FOUND_APPS}
    if not asked:
        return
    words = [f"{app}={','.join((*programs, *_libreoffice_programs(app)))}" for app, programs in asked.items()]
    reply = await desktop.exec(["sh", "-c", MISSING_APPS_SCRIPT, "sh", *words])
    missing = tuple(reply.stdout.splitlines()) if reply.returncode == 0 else ()
    if missing:
        raise _missing_apps_error(task, missing, getattr(getattr(desktop, "shape", None), "image", ""))
    if digest and reply.returncode == 0:
        _FOUND_APPS.update((digest, app) for app in asked)


def _libreoffice_programs(app: str) -> tuple[str, ...]:
    return LIBREOFFICE_PROGRAMS if normalize_app_name(app) in ("calc", "writer", "impress") else ()


def _missing_apps_error(task: TaskWithRequirements, apps: tuple[str, ...], image: str) -> TaskError:
    choice = "another image (`dart-farm images list`)" if task.image == image else f"the image {task.image}"
    place = f"the image {image}" if image else "this desktop"
    return TaskError(
        f"Task {task.id} needs {', '.join(apps)}, which {place} has not; choose {choice}, or build one that has it."
    )
