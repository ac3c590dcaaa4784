"""`dart-train`: make a model, run a recipe, write the report of a run, look after its trajectories, simulate a run.

Role: argument parsing and exit codes. Rule: heavy imports happen after the arguments are checked; a usage error is one sentence on standard
error and exit code 2; a failed run, and a run that did not learn or cannot say whether it did, exits with 1. Non-goals: the logic of the
loop (`dart_train.run.orchestrator`).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dart_server.wire.extras import show_version
from dart_train.config import Recipe, RecipeError, load_recipe
from dart_train.data_commands.commands import app as data_app
from dart_train.evaluation.command import compare_command, evaluate_command, export_command
from dart_train.exits import EXIT_FAILED, EXIT_INTERRUPTED, check_output_file, wrong_input
from dart_train.run.paths import RunPaths
from dart_train.run.run_folder import check_run_folder
from dart_train.run.state import load_resolved_recipe
from dart_train.sft.command import sft_command
from dart_train.tracking.command import export_metrics_command

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Train agents on live desktops.", pretty_exceptions_enable=False
)

app.add_typer(data_app, name="data")
app.command("eval")(evaluate_command)
app.command("compare")(compare_command)
app.command("export")(export_command)
app.command("sft")(sft_command)
app.command("export-metrics")(export_metrics_command)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Tell the installed version, and end."),
    ] = False,
) -> None:
    """Read the options of the program itself."""


RunsDir = Annotated[Path, typer.Option("--runs-dir", help="where run directories live")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="change one key of the recipe, e.g. train.updates=10"),
]


class Components(StrEnum):
    """What runs in a simulation."""

    DECISIONS = "decisions"
    REAL = "real"


class BenchPart(StrEnum):
    """What `bench` measures."""

    TRAIN = "train"
    PUBLISH = "publish"
    ENGINE = "engine"


def _recipe(path: Path, overrides: list[str]) -> Recipe:
    try:
        return load_recipe(path, tuple(overrides))
    except RecipeError as error:
        raise wrong_input(str(error)) from None


@app.command()
def run(
    recipe: Annotated[Path, typer.Argument(help="TOML file, or the name of a recipe of the package, such as demo")],
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option("--name", help="name of the run and of its folder, in place of run.name")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check everything, print the resolved recipe, start nothing")
    ] = False,
) -> None:
    """Run the whole loop: demonstrations, warm start, evaluation, GRPO, evaluation, report. The same command resumes.

    With a higher train.updates or train.max_minutes a finished run trains on and is evaluated again.
    """
    checked = _recipe(recipe, [*(overrides or ()), *([] if name is None else [f"run.name={json.dumps(name)}"])])
    paths = RunPaths(runs_dir.resolve() / checked.run.name)
    from dart_train.run.orchestrator import Interrupted, run_recipe
    from dart_train.run.preflight import check_recipe
    from dart_train.run.waiting import RunFailed

    try:
        check_run_folder(checked, paths)
        check_recipe(checked, paths)
        if dry_run:
            print(checked.model_dump_json(indent=2))
            return
        evaluation = asyncio.run(run_recipe(checked, paths))
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    except RunFailed as error:
        print(
            f"dart-train: the run stopped: {error}\nWhat is stored is kept; the same command resumes there.",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED) from None
    except Interrupted:
        print("dart-train: stopped; the same command resumes here.", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if checked.train.updates == 0:
        return
    if evaluation is None:
        print(
            "dart-train: the run has no result, because no evaluation item of a feasible task has a reward both before and after training: "
            f"see why in {paths.report} and {paths.logs}",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED)
    if not evaluation.learned(checked.eval.min_gain_points):
        raise typer.Exit(EXIT_FAILED)


@app.command("init-model")
def init_model_command(
    out: Annotated[Path, typer.Argument(help="folder to write the model to")],
    preset: Annotated[str, typer.Option("--preset", help="which shape to make")] = "tiny",
    seed: Annotated[int, typer.Option("--seed", help="seed of the random weights")] = 0,
) -> None:
    """Make a small random policy with its own tokenizer; nothing is downloaded."""
    from dart_train.model.init_model import init_model

    if out.exists() and any(out.iterdir()):
        raise wrong_input(f"{out} is not empty: choose another folder")
    try:
        init_model(preset, out, seed)
    except ValueError as error:
        raise wrong_input(str(error)) from None
    print(f"wrote {preset} to {out}")


@app.command("merge-adapter")
def merge_adapter_command(
    adapter: Annotated[Path, typer.Argument(help="folder of a published LoRA adapter, e.g. runs/RUN/weights/v40")],
    base: Annotated[Path, typer.Argument(help="folder of the model that it was trained on")],
    out: Annotated[Path, typer.Argument(help="folder to write the merged model to")],
) -> None:
    """Write a LoRA adapter merged into its model: a complete model for transformers and vLLM."""
    from dart_agent.errors import AgentError
    from dart_agent.inference.checkpoint_files import resolve_checkpoint
    from dart_train.model.adapters import merge_version

    if out.exists() and any(out.iterdir()):
        raise wrong_input(f"{out} is not empty: choose another folder")
    try:
        merge_version(adapter, resolve_checkpoint(base), out)
    except AgentError as error:
        raise wrong_input(str(error)) from None
    print(f"wrote {base} with {adapter} to {out}")


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="a run directory, e.g. runs/demo")],
    as_json: Annotated[bool, typer.Option("--json", help="print the figures instead of the path of the page")] = False,
) -> None:
    """Write the report of a finished or interrupted run again."""
    paths = RunPaths(run_dir.resolve())
    for needed in ("matplotlib", "dart_train.data_manager.app"):  # a missing extra is told here, not in a process's log
        importlib.import_module(needed)
    from dart_train.run.orchestrator import rewrite_report
    from dart_train.run.waiting import RunFailed

    try:
        page = asyncio.run(rewrite_report(load_resolved_recipe(paths), paths))
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    except RunFailed as error:
        print(f"dart-train: the report cannot be written: {error}", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None
    figures = json.loads((paths.report / "result.json").read_text(encoding="utf-8"))
    print(json.dumps(figures, indent=2) if as_json else f"{figures['conclusion']}\n{page}")


@app.command()
def simulate(
    recipe: Annotated[Path, typer.Argument(help="TOML file, or the name of a recipe of the package, such as demo")],
    desktops: Annotated[int | None, typer.Option("--desktops", min=1, help="in place of desktops.count")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="in place of inference.workers")] = None,
    hours: Annotated[float, typer.Option("--hours", min=0.05, max=1000, help="simulated hours")] = 1.0,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="in place of run.seed")] = None,
    mode: Annotated[
        str | None,
        typer.Option("--mode", help="batch, task, rollout-global or rollout-per-worker; default: the recipe's"),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option("--models", help="latency models, .json or .toml; default: assumptions for 7B on H100"),
    ] = None,
    fit: Annotated[
        list[Path] | None, typer.Option("--fit", help="folder of a recorded run to fit the models on; may be repeated")
    ] = None,
    save_models: Annotated[Path | None, typer.Option("--save-models", help="write the models that were used")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures to this file")] = None,
    gantt: Annotated[Path | None, typer.Option("--gantt", help="write a Gantt chart (.svg) to this file")] = None,
    gantt_minutes: Annotated[float, typer.Option("--gantt-minutes", min=0.1, help="how long the chart is")] = 15.0,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="simulate other splits of desktops and workers")
    ] = True,
    components: Annotated[
        Components,
        typer.Option(
            "--components",
            help="real: run data manager, orchestrator, rollout worker and weight updater in virtual time, too, and compare",
        ),
    ] = Components.DECISIONS,
    overrides: Overrides = None,
) -> None:
    """Simulate a run in virtual time: utilisation, bottleneck, cost, and a better split of desktops and inference workers."""
    checked = _recipe(recipe, overrides or [])
    from dart_train.simulation.command import SimulateError, SimulateOptions, run_simulation

    try:
        run_simulation(
            checked,
            SimulateOptions(
                desktops=desktops,
                workers=workers,
                hours=hours,
                seed=seed,
                mode=mode,
                models=models,
                fit=tuple(fit or ()),
                save_models=save_models,
                json_file=json_file,
                gantt=gantt,
                gantt_minutes=gantt_minutes,
                split=split,
                components=components.value,
            ),
        )
    except SimulateError as error:
        raise wrong_input(str(error)) from None


@app.command()
def plan(
    recipe: Annotated[
        Path, typer.Argument(help="TOML file, or the name of a recipe of the package, such as ui-tars-1.5-7b-8gpu")
    ],
    overrides: Overrides = None,
    runs_dir: RunsDir = Path("runs"),
    gpu_gib: Annotated[
        float | None,
        typer.Option(
            "--gpu-gib",
            min=1,
            help="memory of a GPU in GiB; default: 80 where the recipe names GPUs or this host has one, else everything runs on the CPU",
        ),
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(
            "--tflops",
            min=0.001,
            help="TFLOP/s of the trainer's device; default: 989 (H100 SXM, dense bfloat16) on GPUs, else a matrix product is measured",
        ),
    ] = None,
    mfu: Annotated[
        float, typer.Option("--mfu", min=0.01, max=1, help="fraction of them that train steps reach")
    ] = 0.35,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures to this file")] = None,
) -> None:
    """Predict memory, disk and time of a recipe's components, and say what does not fit and what to change. Nothing is started.

    Exit code 1: something does not fit on GPUs of the given size or on this host.
    """
    check_output_file("--json", json_file)
    checked = _recipe(recipe, overrides or [])
    from dart_train.plan.command import run_plan

    try:
        problems = run_plan(checked, runs_dir, gpu_gib=gpu_gib, tflops=tflops, mfu=mfu, json_file=json_file)
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    if problems:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def bench(
    recipe: Annotated[Path, typer.Argument(help="TOML file, or the name of a recipe of the package, such as demo")],
    overrides: Overrides = None,
    skip: Annotated[
        list[BenchPart] | None, typer.Option("--skip", help="leave a part out; may be repeated", case_sensitive=False)
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=100, help="train steps that are measured")] = 3,
    rollouts: Annotated[int, typer.Option("--rollouts", min=2, max=256, help="trajectories of their batch")] = 2,
    tflops: Annotated[
        float | None,
        typer.Option("--tflops", min=0.001, help="predict with so many TFLOP/s; default: a matrix product is measured"),
    ] = None,
    mfu: Annotated[
        float, typer.Option("--mfu", min=0.01, max=1, help="fraction of them that train steps are predicted to reach")
    ] = 0.35,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all figures to this file")] = None,
) -> None:
    """Measure what a plan predicts, on this host: a train step, its memory, a published version, an inference worker.

    One trainer process and one inference worker, with random trajectories; no desktop. Exit code 1: a part could not be measured.
    """
    check_output_file("--json", json_file)
    checked = _recipe(recipe, overrides or [])
    from dart_train.bench.command import run_bench

    try:
        complete = run_bench(
            checked,
            skip=[part.value for part in skip or ()],
            repeats=repeats,
            rollouts=rollouts,
            tflops=tflops,
            mfu=mfu,
            json_file=json_file,
        )
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    if not complete:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def watch(
    run_dir: Annotated[Path, typer.Argument(help="a run directory, e.g. runs/demo")],
    minutes: Annotated[float, typer.Option("--minutes", min=0.1, help="window of rates and shares")] = 5.0,
    interval_s: Annotated[float, typer.Option("--interval", min=0.2, help="seconds between two looks")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="look once, and end")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per look")] = False,
) -> None:
    """Show how a run stands until it ends: progress, utilisation, the latest train step, success by family, queues, incidents."""
    from dart_train.watch.command import watch as watch_run

    try:
        asyncio.run(
            watch_run(
                RunPaths(run_dir.resolve()), window_s=60 * minutes, interval_s=interval_s, once=once, as_json=as_json
            )
        )
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except ModuleNotFoundError as error:
        from dart_server.wire.extras import exit_without_module

        exit_without_module(error, "dart-train", "train")


if __name__ == "__main__":
    main()
