"""`dart-train eval`, `dart-train compare` and `dart-train export`.

Role: argument checks, exit codes, and what is printed. Rule: wrong input is one sentence on standard error and exit code 2; an evaluation
that failed exits with 1, an interrupted one with 130. Non-goals: playing (`stored`), formulas (`statistics`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_train.config import Recipe, RecipeError, load_recipe
from dart_train.exits import EXIT_FAILED, EXIT_INTERRUPTED, check_output_file, wrong_input
from dart_train.run.paths import RunPaths
from dart_train.run.state import load_resolved_recipe


class EvaluatedSplit(StrEnum):
    """Tasks that may be evaluated on."""

    VALIDATION = "validation"
    TEST = "test"


def evaluate_command(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|MODEL", help="a run folder; with --recipe a model folder, or the name of a fetched checkpoint"
        ),
    ],
    recipe: Annotated[
        Path | None, typer.Option("--recipe", help="tasks, desktops and engines; default: the run's own recipe")
    ] = None,
    version: Annotated[
        str, typer.Option("--version", help="number of a version of the run, or best: chosen on validation")
    ] = "best",
    against: Annotated[
        str | None,
        typer.Option(
            "--against", help="evaluate this version of the run, too, and print the gain over it with intervals"
        ),
    ] = None,
    split: Annotated[EvaluatedSplit, typer.Option("--split", help="test: held-out families, too")] = (
        EvaluatedSplit.VALIDATION
    ),
    episodes: Annotated[
        int | None, typer.Option("--tasks", min=1, help="number of tasks; default: eval.test_episodes or eval.episodes")
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, max=256, help="episodes per task, for pass@k")] = 1,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, max=2, help="default: 0 for --k 1, else rollout.temperature")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="use the test split again; the result says how often it was used")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the result to this file")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="change one key of the recipe")
    ] = None,
    runs_dir: Annotated[
        Path, typer.Option("--runs-dir", help="where evaluations of a model that belongs to no run are kept")
    ] = Path("runs"),
) -> None:
    """Evaluate a stored version of a run, or a model, with intervals and pass@k. The same command resumes."""
    from dart_train.evaluation.comparison import format_gains, paired_gains
    from dart_train.evaluation.results import format_table
    from dart_train.evaluation.stored import EvaluationRequest, evaluate_versions, version_of_model, version_of_run
    from dart_train.run.orchestrator import Interrupted
    from dart_train.run.waiting import RunFailed

    check_output_file("--json", json_file)
    try:
        paths = RunPaths(target.resolve())
        is_run = paths.resolved_recipe.exists()
        chosen = _recipe(recipe, tuple(overrides or ()), paths if is_run else None)
        if is_run:
            found = [version_of_run(paths, chosen, each) for each in (against, version) if each is not None]
            if against is not None and found[0].version == found[1].version:
                raise RecipeError(f"--against {against} is the version that is evaluated: give another one")
        elif against is not None:
            raise RecipeError(
                "--against compares versions of one run: give a run folder, or evaluate both models and use dart-train compare --paired"
            )
        else:
            model = str(target.resolve() if target.exists() else target)
            found = [version_of_model(model, chosen, runs_dir.resolve() / "evaluations")]
        default = chosen.eval.test_episodes or chosen.eval.episodes if split == "test" else chosen.eval.episodes
        request = EvaluationRequest(
            split=split.value,
            tasks=episodes or default,
            samples=k,
            temperature=(0.0 if k == 1 else chosen.rollout.temperature) if temperature is None else temperature,
            repeat_test=again,
        )
        results = asyncio.run(evaluate_versions(found, request))
        plain = [each.as_dict() for each in results]
        gains = paired_gains(*plain) if against is not None else {}
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    except RunFailed as error:
        print(
            f"dart-train: the evaluation stopped: {error}\nWhat is stored is kept; the same command resumes there.",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except Interrupted:
        print("dart-train: stopped; the same command resumes here.", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    print("\n\n".join(format_table(each) for each in results))
    if gains:
        print(f"\nversion {results[1].version} against version {results[0].version}")
        print(format_gains(gains))
        compared = {"version": results[0].version, "gains": {name: asdict(each) for name, each in gains.items()}}
        plain[-1] = {**plain[-1], "against": compared}
    if json_file is not None:
        json_file.write_text(json.dumps(plain[-1], indent=2) + "\n", encoding="utf-8")


def _recipe(file: Path | None, overrides: tuple[str, ...], run: RunPaths | None) -> Recipe:
    if file is not None:
        return load_recipe(file, overrides)
    if run is None:
        raise RecipeError(
            "this is no run folder: give --recipe, which says on which tasks and desktops a model is evaluated"
        )
    if overrides:
        raise RecipeError("--set changes a recipe file: give it as --recipe")
    return load_resolved_recipe(run)


def compare_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...", help="results of `dart-train eval`: one per seed; with --paired BEFORE AFTER"
        ),
    ],
    paired: Annotated[
        bool, typer.Option("--paired", help="the gain of the second result over the first, paired by task")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures to this file")] = None,
) -> None:
    """Average the evaluations of runs that differ in their training seed, with a 95 % interval over seeds; or pair two of them."""
    from dart_train.evaluation.comparison import compare_seeds, format_gains, paired_gains, read_result

    check_output_file("--json", json_file)
    try:
        results = [read_result(file) for file in files]
        if paired and len(results) != 2:
            raise RecipeError(f"--paired compares two results and got {len(results)}: give BEFORE and AFTER")
        figures: dict[str, Any]
        if paired:
            gains = paired_gains(*results)
            figures = {"gains": {name: asdict(each) for name, each in gains.items()}}
            text = format_gains(gains)
        else:
            rows = compare_seeds(results)
            figures = {"seeds": len(files), "rows": rows}
            text = _seeds_table(rows, len(files))
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    print(text)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _seeds_table(rows: Sequence[Mapping[str, Any]], seeds: int) -> str:
    from dart_train.evaluation.statistics import SMALL_SAMPLE_SEEDS

    lines = [f"mean over {seeds} training seeds, 95 % interval by Student's t over seeds"]
    for row in rows:
        interval = "one seed, no interval"
        if row["lower"] is not None:
            interval = f"{100 * row['lower']:.1f} to {100 * row['upper']:.1f} %"
        fewer = f"   ({len(row['values'])} of {seeds} seeds)" if len(row["values"]) < seeds else ""
        lines.append(f"{row['name']:24} {100 * row['mean']:6.1f} %   {interval}{fewer}")
    if seeds < SMALL_SAMPLE_SEEDS:
        lines.append(
            f"With fewer than {SMALL_SAMPLE_SEEDS} seeds the interval rests on normally distributed means of seeds."
        )
    return "\n".join(lines)


def export_command(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    out: Annotated[Path, typer.Argument(help="folder to write the model to")],
    version: Annotated[
        str, typer.Option("--version", help="number of a version of the run, or best: chosen on validation")
    ] = "best",
) -> None:
    """Write a version of a run as a complete model folder, adapter merged, with its evaluations in the model card."""
    from dart_train.evaluation.export import export_version
    from dart_train.evaluation.stored import version_of_run

    try:
        paths = RunPaths(run_dir.resolve())
        found = version_of_run(paths, load_resolved_recipe(paths), version)
        told = export_version(found, out)
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    print(
        f"wrote version {found.version} of {run_dir} to {out}, with {len(told)} evaluations of dart-train eval in its README.md"
    )
