"""The command `dart-train sft`: fine-tunes the policy of a recipe on demonstrations and stored successes.

Role: checks what is imitated, runs the process in a folder of its own, shows its progress. Rule: what can be refused is refused before
anything starts; the same command goes on where an interrupted one stopped. Non-goals: the training (`dart_train.sft.fit`).
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dart_envs.clock import SYSTEM_CLOCK, wait_first
from dart_train.config import Recipe, RecipeError, load_recipe
from dart_train.exits import EXIT_FAILED, EXIT_INTERRUPTED, wrong_input
from dart_train.run.lock import components_ended, run_lock
from dart_train.run.paths import RunPaths

LOOK_S = 1.0


def sft_command(
    recipe: Annotated[
        Path, typer.Argument(help="TOML file: its sections model, demos, sft, train and tracking are used")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="change one key of the recipe, e.g. sft.epochs=2"),
    ] = None,
    demos: Annotated[
        Path | None, typer.Option("--demos", help="folder of demonstrations, in place of demos.path")
    ] = None,
    from_run: Annotated[
        list[Path] | None,
        typer.Option("--from-run", help="run folder whose solved training rollouts are imitated; may be repeated"),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="name of the run and of its folder, in place of run.name")
    ] = None,
    runs_dir: Annotated[Path, typer.Option("--runs-dir", help="where run directories live")] = Path("runs"),
) -> None:
    """Fine-tune the recipe's policy on demonstrations (demos.path) and on solved rollouts of runs. The same command resumes.

    The result is a model folder, which other recipes start from: --set model.path=FOLDER.
    """
    changes = [*(overrides or ())]
    if name is not None:
        changes.append(f"run.name={json.dumps(name)}")
    if demos is not None:
        changes.append(f"demos.path={json.dumps(str(demos))}")
    try:
        checked = load_recipe(recipe, tuple(changes))
        paths = RunPaths(RunPaths(runs_dir.resolve() / checked.run.name).fine_tuning)
        successes_of = tuple(folder.expanduser().resolve() for folder in from_run or ())
        check_imitated(checked, paths, successes_of)
        with run_lock(paths):
            model = asyncio.run(fine_tune_recipe(checked, paths, successes_of))
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    except KeyboardInterrupt:
        typer.echo("dart-train: stopped; the same command resumes here.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if model is None:
        raise typer.Exit(EXIT_FAILED)
    typer.echo(f"wrote {model}: start a run from it with --set model.path={model}")


def check_imitated(recipe: Recipe, paths: RunPaths, successes_of: tuple[Path, ...]) -> None:
    """Refuse a fine-tuning that cannot work.

    Args:
        recipe: The recipe.
        paths: The folder of the fine-tuning.
        successes_of: Folders of runs whose solved rollouts are imitated.

    Raises:
        RecipeError: There is nothing to imitate, or what there is must not be imitated, or it has been done already.
    """
    from dart_train.imitation.demonstrations import DemonstrationsUnusableError, read_demonstrations
    from dart_train.imitation.stored import open_solved
    from dart_train.run.recipe_policy import fine_tuning_problems
    from dart_train.tracking.packages import missing_packages

    if paths.fine_tuned_model.exists():
        raise RecipeError(
            f"{paths.fine_tuned_model} exists already: start a run from it with --set model.path, choose another --name, or remove it"
        )
    if recipe.demos.path is None and not successes_of:
        raise RecipeError(
            "there is nothing to imitate: set demos.path (or --demos), or give --from-run with a run folder"
        )
    if found := [*missing_packages(recipe.tracking.extras), *fine_tuning_problems(recipe)]:
        raise RecipeError(found[0])
    try:
        if recipe.demos.path is not None:
            known = read_demonstrations((recipe.demos.path.expanduser(),), recipe.tasks.task_folder)
            if not known.episodes:
                told = ", ".join(f"{count} {reason}" for reason, count in known.left_out.items())
                raise RecipeError(f"demos.path: no demonstration in {recipe.demos.path} can be imitated ({told})")
        for folder in successes_of:
            with open_solved(folder):
                pass
    except DemonstrationsUnusableError as error:
        raise RecipeError(str(error)) from error


async def fine_tune_recipe(
    recipe: Recipe, paths: RunPaths, successes_of: tuple[Path, ...], console: Console | None = None
) -> Path | None:
    """Run the fine-tuning, and the making of a random model before it where the recipe has a preset.

    Args:
        recipe: The recipe.
        paths: The folder of the fine-tuning.
        successes_of: Folders of runs whose solved rollouts are imitated.
        console: Where progress is shown; None: standard error.

    Returns:
        The folder of the model; None where the process failed, and then what it said has been shown.

    Raises:
        RecipeError: A process of a fine-tuning that was killed does not end.
    """
    from dart_train.run import training_components
    from dart_train.run.components import MetricsTail, tracking
    from dart_train.run.launcher import ComponentFailed, LocalLauncher
    from dart_train.run.progress import Progress
    from dart_train.sft.fit import METRICS_KIND

    paths.make()
    progress = Progress(console or Console(stderr=True, highlight=False))
    launcher = LocalLauncher()
    await components_ended(paths, SYSTEM_CLOCK, progress.note)
    try:
        if recipe.model.path is None and not paths.initial_model.exists():
            with progress.stage("init-model"):
                maker = await launcher.start(training_components.init_model_component(recipe, paths))
                await maker.wait()
        if (copies := tracking(recipe, paths)) is not None:
            await launcher.start(copies)
        with progress.stage("sft"):
            component = await launcher.start(training_components.sft(recipe, paths, successes_of))
            tail, ended = MetricsTail(paths.metrics, METRICS_KIND), asyncio.ensure_future(component.wait())
            while not ended.done():
                await wait_first(SYSTEM_CLOCK, LOOK_S, [ended])
                if line := tail.newest():
                    progress.update(line)
            await ended
    except ComponentFailed as error:
        progress.note(str(error))
        return None
    finally:
        await launcher.stop_all()
    return paths.fine_tuned_model
