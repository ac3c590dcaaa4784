"""`dart-envs tasks check`: are task files good, and do a suite's evaluators tell right from wrong?

Role: arguments, files, output and exit codes: 0 all is well, 1 a validation fails or is missing, 2 wrong input, 130 interrupted. Non-goals:
playing and judging (`dart_envs.validation.suites`), the table (`dart_envs.validation.records`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dart_envs.cli.evaluate import evaluation_shape
from dart_envs.cli.exits import EXIT_RUNTIME_ERROR, EXIT_USAGE_ERROR
from dart_envs.envs.config import make_shape
from dart_envs.errors import DartEnvError, EvaluatorError, TaskError
from dart_envs.evaluators.scorer_choice import WHERE_NAMES_ARE, parse_scorer, unsupported_parts
from dart_envs.tasks import Suite, Task, load_file, load_suite, task_shape
from dart_envs.tasks.requirements import format_refusals, refusal_reason, unreachable_files
from dart_server.wire import DesktopShape

if TYPE_CHECKING:
    from dart_envs.validation.records import ValidationRecords
    from dart_envs.validation.suites import ValidationJob, ValidationResult

EXIT_INTERRUPTED = 130


def check(
    targets: Annotated[
        list[str] | None, typer.Argument(help="suites, suite/family, or task files and folders of them")
    ] = None,
    families: Annotated[str | None, typer.Option("--families", "-f", help="comma-separated; default: all")] = None,
    variations: Annotated[int, typer.Option("--variations", "-n", min=1, help="how many of each family")] = 1,
    split: Annotated[str | None, typer.Option(help="take them from this split")] = None,
    image: Annotated[str | None, typer.Option(help="desktop image; default: the suite's own")] = None,
    resolution: Annotated[
        str | None, typer.Option("--resolution", help="screen size in pixels; default: the suite's own")
    ] = None,
    font_size: Annotated[
        int | None,
        typer.Option("--font-size", min=6, max=48, help="GUI font size in points; default: the suite's own"),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=100, help="times that every play is done")] = 1,
    parallel: Annotated[int, typer.Option("--parallel", "-p", min=1, max=64, help="desktops at a time")] = 2,
    out: Annotated[
        Path | None, typer.Option("--out", help="folder of the validations; the same command goes on where it stopped")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the record with every validation here")
    ] = None,
    scorer: Annotated[
        str | None,
        typer.Option(
            help="who judges: auto, builtin or osworld; default: DART_SCORER, else auto; with --osworld: osworld"
        ),
    ] = None,
    osworld: Annotated[
        Path | None,
        typer.Option(
            "--osworld",
            help="folder of OSWorld's data: prove its tasks that need no network, with OSWorld's own scorer",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="with --osworld: a domain, or the beginning of an id; repeatable")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--table", help="with --osworld: the Markdown page whose table is replaced")
    ] = None,
) -> None:
    """Check task files; prove suites, and files with an oracle and a near miss, on real desktops.

    The oracle scores 1; doing nothing, the near miss and exploits score 0.
    """
    from dart_envs.validation.records import ValidationRecords
    from dart_envs.validation.suites import make_jobs

    if osworld is not None:
        check_osworld(osworld, only or (), out, table, parallel, scorer)
        return
    if only or table is not None:
        raise _exit_error(f"{'--only' if only else '--table'} goes with --osworld.", EXIT_USAGE_ERROR)
    if not targets:
        raise _exit_error("name a suite or task files, or OSWorld's data with --osworld.", EXIT_USAGE_ERROR)
    paths = [Path(target) for target in targets]
    if any(path.suffix == ".json" or path.exists() for path in paths):
        prove_files(paths, image, resolution, ValidationOptions(repeats, scorer, parallel, out, json_file))
        return
    names = None if families is None else [name.strip() for name in families.split(",") if name.strip()]
    try:
        scorer_used = None if scorer is None else str(parse_scorer(scorer))
        wanted = [
            (job, shape)
            for suite, _, family in (target.partition("/") for target in targets)
            for chosen in [load_suite(suite)]
            for shape in [suite_shape(chosen, image, resolution, font_size)]
            for job in make_jobs(
                first_variations(chosen, [family] if family else names, split, variations),
                repeats=repeats,
                scorer=scorer_used,
            )
        ]
        records = ValidationRecords(out)
    except (TaskError, EvaluatorError, ValueError) as error:
        raise _exit_error(str(error), EXIT_USAGE_ERROR) from None
    _prove(
        records, wanted, {"targets": targets, "variations": variations, "repeats": repeats}, parallel, out, json_file
    )


def _prove(
    records: ValidationRecords,
    wanted: Sequence[tuple[ValidationJob, DesktopShape]],
    asked: Mapping[str, Any],
    parallel: int,
    out: Path | None,
    json_file: Path | None,
) -> None:
    """Play what is not proved yet, print the table and write the record. Raises typer.Exit unless all of it holds."""
    from dart_envs.validation.records import RECORD_FILE, to_text

    code = 0
    try:
        asyncio.run(_validate(records, wanted, parallel))
    except DartEnvError as error:
        code = _print_error(str(error), EXIT_RUNTIME_ERROR)
    except KeyboardInterrupt:
        code = _print_error("interrupted.", EXIT_INTERRUPTED)
    if code and out is None:
        raise typer.Exit(code)
    record = {**asked, **records.summary(wanted)}
    if record["by_family"]:
        print(to_text(record))
    for place in (json_file, None if out is None else out / RECORD_FILE):
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if code:
        raise _exit_error(f"what was proved is in {out}; the same command goes on from there.", code)
    if not record["all_passed"]:
        raise typer.Exit(EXIT_RUNTIME_ERROR)


def check_osworld(
    folder: Path, only: Sequence[str], out: Path | None, page: Path | None, parallel: int, scorer: str | None
) -> None:
    """Prove OSWorld's offline tasks (`dart_envs.validation.osworld`)."""
    from dart_envs.validation.osworld import command

    try:
        good = command.check(folder, only=only, out=out, page=page, parallel=parallel, scorer=scorer)
    except (TaskError, EvaluatorError, ValueError, OSError) as error:
        raise _exit_error(str(error), EXIT_USAGE_ERROR) from None
    except DartEnvError as error:
        raise _exit_error(str(error), EXIT_RUNTIME_ERROR) from None
    except KeyboardInterrupt:
        raise _exit_error("interrupted; with --out the same command goes on from there.", EXIT_INTERRUPTED) from None
    if not good:
        raise typer.Exit(EXIT_RUNTIME_ERROR)


def suite_shape(chosen: Suite, image: str | None, resolution: str | None, font_size: int | None) -> DesktopShape:
    """The suite's own desktop, but for what was asked for. Raises ValueError."""
    size = chosen.shape.resolution
    if resolution is not None:
        width, _, height = resolution.partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            raise ValueError(f"--resolution looks like 640x400, not {resolution!r}.")
        size = int(width), int(height)
    return make_shape(image or chosen.image, size, chosen.shape.font_size if font_size is None else font_size)


def first_variations(chosen: Suite, families: Sequence[str] | None, split: str | None, variations: int) -> list[Task]:
    """The first variations of each family. Raises TaskError."""
    return [
        chosen.load(task_id)
        for family in families or chosen.families
        for task_id in chosen.tasks(split, [family])[:variations]
    ]


@dataclass(frozen=True)
class ValidationOptions:
    """How task files are proved: see the options of `check` with these names."""

    repeats: int
    scorer: str | None
    parallel: int
    out: Path | None
    json_file: Path | None


def prove_files(paths: Sequence[Path], image: str | None, resolution: str | None, options: ValidationOptions) -> None:
    """Check every file; prove the tasks that have an oracle and a near miss, on the desktops that they are made for."""
    from dart_envs.validation.records import ValidationRecords
    from dart_envs.validation.suites import make_jobs

    tasks = [task for task in check_files(paths) if task.oracle_script and task.near_miss_script]
    if not tasks:
        return
    try:
        scorer_used = None if options.scorer is None else str(parse_scorer(options.scorer))
        wanted = [
            (job, evaluation_shape(task, image, resolution))
            for task in tasks
            for job in make_jobs([task], repeats=options.repeats, scorer=scorer_used)
        ]
        records = ValidationRecords(options.out)
    except (EvaluatorError, ValueError) as error:
        raise _exit_error(str(error), EXIT_USAGE_ERROR) from None
    print(f"proving {len(tasks)} of them on desktops: they have an oracle and a near miss.", flush=True)
    asked = {"targets": [str(path) for path in paths], "repeats": options.repeats}
    _prove(records, wanted, asked, options.parallel, options.out, options.json_file)


def check_files(paths: Sequence[Path]) -> list[Task]:
    """Load every file, and say the first thing that is wrong with each. Returns the tasks that can run here."""
    files = [file for path in paths for file in (sorted(path.rglob("*.json")) if path.is_dir() else [path])]
    if not files:
        told = ", ".join(map(str, paths))
        raise _exit_error(f"there is no task file (*.json) in {told}: name a folder that has some.", EXIT_USAGE_ERROR)
    wrong = 0
    loaded: dict[Path, Task] = {}
    for file in files:
        try:
            task = load_file(file)
        except TaskError as error:
            wrong = _print_error(str(error), EXIT_USAGE_ERROR)
            continue
        absent = unsupported_parts(task.evaluator)
        if absent:
            names = ", ".join(absent)
            wrong = _print_error(
                f"{file}: neither the builtin metrics nor OSWorld's scorer have {names}. {WHERE_NAMES_ARE}",
                EXIT_USAGE_ERROR,
            )
            continue
        loaded[file] = task
    local_images = not os.environ.get("DART_FARM_URL")
    reasons = {task.id: refusal_reason(task, task_shape(task), local_images=local_images) for task in loaded.values()}
    reasons |= unreachable_files(task for task in loaded.values() if reasons[task.id] is None)
    refused = {task_id: reason for task_id, reason in reasons.items() if reason is not None}
    for file, task in loaded.items():
        reason = refused.get(task.id)
        print(f"{file}: good" if reason is None else f"{file}: well-formed, but it cannot run here: it {reason}")
    runnable = [task for task in loaded.values() if task.id not in refused]
    if len(files) > 1 and refused:
        print(format_refusals(refused, len(files)))
    if wrong:
        raise typer.Exit(wrong)
    return runnable


async def _validate(
    records: ValidationRecords, wanted: Sequence[tuple[ValidationJob, DesktopShape]], parallel: int
) -> None:
    """Do what the records does not hold yet, shape by shape."""
    from dart_envs.farm import AsyncFarmClient
    from dart_envs.validation.suites import validate_all

    todo: list[tuple[DesktopShape, list[ValidationJob]]] = []
    for shape in dict.fromkeys(shape for _, shape in wanted):
        builtin = [job for job, of in wanted if of == shape]
        left = records.pending(builtin, shape)
        if len(left) < len(builtin):
            print(f"{len(builtin) - len(left)} of {len(builtin)} validations stand already.", flush=True)
        if left:
            todo.append((shape, left))
    if not todo:
        return
    async with await AsyncFarmClient.connect() as farm:
        for shape, left in todo:
            async for validation in validate_all(farm, left, shape=shape, parallel=parallel):
                records.add(validation, shape)
                print(format_validation(validation), flush=True)


def format_validation(validation: ValidationResult) -> str:
    """One validation in one line."""
    word = "ok  " if validation.passed else "FAIL"
    times = f"setup {validation.setup_s:5.2f} s, play {validation.episode_s:5.2f} s"
    again = "" if validation.attempts == 1 else f" ({validation.attempts} attempts)"
    return f"{word} {validation.task_id:<28} {validation.kind:<10} {times}{again} {validation.cause or ''}".rstrip()


def _print_error(message: str, code: int) -> int:
    print(f"dart-envs: {message}", file=sys.stderr)
    return code


def _exit_error(message: str, code: int) -> typer.Exit:
    return typer.Exit(_print_error(message, code))
