"""`dart-envs assets`: have the files that tasks bring along before they are needed.

Role: arguments, output and exit codes: 0 every file is there, 1 one is missing, 2 wrong input. Non-goals: the cache (`dart_envs.assets`).
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from dart_envs import assets
from dart_envs.errors import AssetError, TaskError
from dart_envs.tasks import Task

app = typer.Typer(no_args_is_help=True, help="Files that tasks bring along: fetch, import, check.")

Targets = Annotated[
    list[str], typer.Argument(help="task files, folders of task files (OSWorld's examples/), task ids, suites")
]
CacheOption = Annotated[
    Path | None,
    typer.Option("--cache", help=f"the cache's folder; default: {assets.CACHE_DIR_VARIABLE} or the data folder"),
]


@app.command()
def fetch(
    targets: Targets,
    cache: CacheOption = None,
    parallel: Annotated[int, typer.Option("--parallel", "-p", min=1, max=32, help="tasks at a time")] = 4,
) -> None:
    """Fetch what the cache has not; a broken download goes on where it broke."""
    tasks = _tasks(targets)
    missing = [task for task in tasks if assets.missing_assets(task, cache)]

    def one(task: Task) -> str | None:
        try:
            assets.fetch_task_assets(task, cache_dir=cache)
        except AssetError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(parallel) as pool:
        for task, failure in zip(missing, pool.map(one, missing), strict=True):
            if failure is None:
                print(f"{task.id}: fetched", flush=True)
            else:
                print(f"dart-envs: {failure}", file=sys.stderr)
    _print_summary(tasks, cache)


@app.command(name="import")
def import_(
    folder: Annotated[Path, typer.Argument(help="OSWorld's cache folder, or a copy of its dataset of files")],
    targets: Targets,
    cache: CacheOption = None,
) -> None:
    """Copy what the cache has not from a folder of your own."""
    if not folder.is_dir():
        raise _usage_error(f"{folder} is not a folder.")
    tasks = _tasks(targets)
    taken = 0
    for task in tasks:
        try:
            taken += len(assets.import_assets(folder, task, cache_dir=cache))
        except AssetError as error:
            print(f"dart-envs: {error}", file=sys.stderr)
    print(f"{taken} files were taken from {folder}.")
    _print_summary(tasks, cache)


@app.command()
def check(
    targets: Targets,
    cache: CacheOption = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write every file and whether it is there")] = None,
) -> None:
    """Say which files are missing; asks nothing of the network."""
    tasks = _tasks(targets)
    for task in tasks:
        for asset in assets.missing_assets(task, cache):
            print(f"missing {asset.cache_name}  {asset.url}")
    if json_file is not None:
        listed = [_listed(asset, cache) for task in tasks for asset in assets.task_assets(task)]
        json_file.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    _print_summary(tasks, cache)


def _listed(asset: assets.Asset, cache: Path | None) -> dict[str, str | bool | None]:
    """One file of a task; `sha256` is what the cache has, for a task to declare, `declared` what the task does."""
    path = assets.cache_path(asset.cache_name, cache)
    return {
        "task": asset.task_id,
        "kind": asset.kind,
        "url": asset.url,
        "cache_name": asset.cache_name,
        "cached": path.is_file(),
        "sha256": assets.file_sha256(path) if path.is_file() else None,
        "declared": asset.sha256,
    }


def _tasks(targets: list[str]) -> list[Task]:
    from dart_envs.cli.evaluate import tasks_from_arguments

    try:
        tasks = tasks_from_arguments(targets, None)
        for task in tasks:
            for asset in assets.task_assets(task):
                assets.cache_path(asset.cache_name)
    except TaskError as error:
        raise _usage_error(str(error)) from None
    return tasks


def _print_summary(tasks: list[Task], cache: Path | None) -> None:
    needed = sum(len(assets.task_assets(task)) for task in tasks)
    missing = sum(len(assets.missing_assets(task, cache)) for task in tasks)
    print(f"{needed - missing} of {needed} files of {len(tasks)} tasks are in {cache or assets.default_cache_dir()}.")
    if missing:
        raise typer.Exit(1)


def _usage_error(message: str) -> typer.Exit:
    print(f"dart-envs: {message}", file=sys.stderr)
    return typer.Exit(2)
