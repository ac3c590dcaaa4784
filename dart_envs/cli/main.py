"""`dart-envs`: look at tasks, check them, play them, evaluate policies.

Role: argument parsing, output and exit codes. Rule: wrong input is one sentence on standard error and exit code 2, a
proof that fails or a farm that cannot be reached exits with 1. Non-goals: logic (`dart_envs.tasks`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dart_envs.cli import assets, check, demos, evaluate, scorer
from dart_envs.cli.exits import usage_error
from dart_envs.errors import TaskError
from dart_envs.evaluation.run import task_domain
from dart_envs.tasks import FolderSuite, Split, Task, load, load_file, load_suite, task_shape
from dart_envs.tasks.requirements import format_refusals, refusal_reason, unreachable_files
from dart_server.wire.extras import show_version

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Desktops as environments.", pretty_exceptions_enable=False
)
tasks_app = typer.Typer(no_args_is_help=True, help="Tasks: list, show, check, run.")
app.add_typer(tasks_app, name="tasks")
app.add_typer(assets.app, name="assets")
app.command(name="eval")(evaluate.evaluate)
app.add_typer(scorer.app, name="scorer")
tasks_app.command(name="check")(check.check)
tasks_app.command(name="run")(demos.run_task)
app.add_typer(demos.app, name="demos")


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Tell the installed version, and end."),
    ] = False,
) -> None:
    """Read the options of the program itself."""


Families = Annotated[str | None, typer.Option("--families", "-f", help="comma-separated; default: all")]


def _names(families: str | None) -> list[str] | None:
    return None if families is None else [name.strip() for name in families.split(",") if name.strip()]


def _list_files(folder: Path, ids: bool) -> None:
    """Raises TaskError for a file that is no task, and for a folder without one."""
    tasks = [load_file(file) for file in sorted(folder.rglob("*.json"))]
    if not tasks:
        raise TaskError(f"{folder} has no task file (*.json).")
    for task in tasks:
        first, _, rest = task.instruction.partition("\n")
        print(task.id if ids else f"{task_domain(task)}/{task.id}  {first}{' ...' if rest else ''}")


@tasks_app.command("list")
def list_tasks(
    name: Annotated[str, typer.Argument(help="suite, or a folder of task files")] = "basics",
    split: Annotated[str | None, typer.Option(help="train, validation or test")] = None,
    families: Families = None,
    ids: Annotated[bool, typer.Option("--ids", help="one task id per line")] = False,
) -> None:
    """List the families of a suite, or the ids of its tasks; of a folder, each task with its domain and instruction."""
    try:
        if Path(name).is_dir():
            _list_files(Path(name), ids)
            return
        chosen = load_suite(name)
        if ids:
            for task_id in chosen.tasks(split, _names(families)):
                print(task_id)
            return
        rows: list[tuple[str, ...]] = []
        for family_name in _names(families) or chosen.families:
            family = chosen.family(family_name)
            counts = {part: len(chosen.tasks(part, [family_name])) for part in ([split] if split else list(Split))}
            sizes = " ".join(f"{part}={count}" for part, count in counts.items())
            marks = "".join(mark for mark, on in (("  [demo]", family.demo), ("  [held out]", family.held_out)) if on)
            rows.append((family.name, family.app, f"steps<={family.max_steps}", sizes, f"{family.description}{marks}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    except TaskError as error:
        raise usage_error(str(error)) from None


@tasks_app.command()
def index(
    folder: Annotated[Path, typer.Argument(help="folder of task files, such as OSWorld's examples")],
    image: Annotated[str | None, typer.Option(help="desktop image; default: the tasks' own")] = None,
    web: Annotated[bool, typer.Option("--web", help="desktops reach the live web")] = False,
    only: Annotated[
        Path | None, typer.Option("--only", help="an index of tasks to choose from, such as test_all.json")
    ] = None,
) -> None:
    """Print an index of a folder's tasks that can run here, {"family": ["name", ...]}, and on standard error why others cannot."""
    try:
        suite = FolderSuite("tasks", folder, only)
        kept, refused = runnable_tasks(suite, image, web=web)
    except TaskError as error:
        raise usage_error(str(error)) from None
    if refused:
        print(format_refusals(refused, len(suite.tasks())), file=sys.stderr)
    print(json.dumps(kept, indent=1))


@tasks_app.command()
def show(
    task: Annotated[str, typer.Argument(help="task id, or path of a JSON file")],
    as_json: Annotated[bool, typer.Option("--json", help="the whole task in OSWorld's form")] = False,
) -> None:
    """Show one task."""
    loaded = _load(task)
    if as_json:
        print(json.dumps(loaded.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False))
        return
    print(f"{loaded.id}\n  {loaded.instruction}")
    print(f"  split {loaded.split}, at most {loaded.max_steps} steps, content {loaded.content_hash[:12]}")
    for step in loaded.config:
        print(f"  setup  {step.type} {json.dumps(dict(step.parameters), ensure_ascii=False)}")
    print(f"  verdict {' '.join(loaded.evaluator.functions)}")
    for missing in loaded.unsupported:
        print(f"  cannot run: no {missing}")


def runnable_tasks(suite: FolderSuite, image: str | None, *, web: bool) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Sort the tasks of a folder by whether they can run on this host.

    Args:
        suite: The tasks.
        image: Name of the desktop image; None: each task's own.
        web: Whether desktops reach the live web.

    Returns:
        Names by family of those that can, and the reason by id of those that cannot.
    """
    local_images = not os.environ.get("DART_FARM_URL")
    tasks: dict[str, Task] = {}
    refused: dict[str, str] = {}
    for task_id in suite.tasks():
        try:
            task = suite.load(task_id)
            shape = task_shape(task) if image is None else task_shape(task).model_copy(update={"image": image})
            reason = refusal_reason(task, shape, local_images=local_images, web=web)
        except TaskError as error:
            reason = str(error).rstrip(".")
        else:
            tasks[task_id] = task
        if reason is not None:
            refused[task_id] = reason
    own_ids = {task.id: task_id for task_id, task in tasks.items()}
    lost = unreachable_files(task for task_id, task in tasks.items() if task_id not in refused)
    refused |= {own_ids[own_id]: reason for own_id, reason in lost.items()}
    kept: dict[str, list[str]] = {}
    for task_id in suite.tasks():
        if task_id not in refused:
            _, family, name = task_id.split("/")
            kept.setdefault(family, []).append(name)
    return kept, refused


def _load(task: str) -> Task:
    try:
        return load(task)
    except TaskError as error:
        raise usage_error(str(error)) from None


def main() -> None:
    """Entry point."""
    try:
        app()
    except ModuleNotFoundError as error:
        from dart_server.wire.extras import exit_without_module

        exit_without_module(error, "dart-envs", "server")


if __name__ == "__main__":
    main()
