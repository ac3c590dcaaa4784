"""The command `dart-train export-metrics`: the metrics of a run as event files of TensorBoard, or as a run of Weights & Biases.

Role: argument parsing and exit codes. Rule: everything is checked before anything is written; the run is only read, also while it goes on.
Where its own tracking writes a run of Weights & Biases meanwhile, another one with the same id is refused. Non-goals: trajectories
(`dart-train data export`).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dart_train.config import RecipeError
from dart_train.exits import wrong_input
from dart_train.run.lock import is_locked
from dart_train.run.paths import RunPaths
from dart_train.run.state import load_resolved_recipe
from dart_train.tracking.packages import missing_packages


class WandbTarget(StrEnum):
    """Where a run of Weights & Biases goes."""

    OFFLINE = "offline"
    ONLINE = "online"


def export_metrics_command(
    run_dir: Annotated[Path, typer.Argument(help="a run directory, e.g. runs/demo")],
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="empty folder to write event files to")
    ] = None,
    wandb: Annotated[
        WandbTarget | None,
        typer.Option(
            "--wandb", help="offline: write files for wandb sync to wandb/ of the run folder; online: send it"
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="project at Weights & Biases; default: tracking.wandb_project")
    ] = None,
) -> None:
    """Write the metrics of a run for TensorBoard or Weights & Biases, also of a run that was not tracked."""
    if tensorboard is None and wandb is None:
        raise wrong_input("nothing to export to: give --tensorboard FOLDER or --wandb offline")
    if tensorboard is not None and tensorboard.exists() and (not tensorboard.is_dir() or any(tensorboard.iterdir())):
        raise wrong_input(f"{tensorboard} is not an empty folder: choose another")
    paths = RunPaths(run_dir.resolve())
    try:
        recipe = load_resolved_recipe(paths)
    except RecipeError as error:
        raise wrong_input(str(error)) from None
    if wandb is not None and recipe.tracking.wandb != "off" and is_locked(paths):
        raise wrong_input(
            f"{paths.root} goes on and logs to Weights & Biases itself (tracking.wandb): wait until it has ended, or leave out --wandb"
        )
    extras = (*(() if tensorboard is None else ("tensorboard",)), *(() if wandb is None else ("wandb",)))
    if missing := missing_packages(extras):
        raise wrong_input("; ".join(missing))
    from dart_train.run.components import wandb_settings
    from dart_train.tracking.config import TrackingConfig
    from dart_train.tracking.follow import export
    from dart_train.tracking.sinks import open_sinks

    section = recipe.tracking.model_copy(
        update={"wandb": "off" if wandb is None else wandb.value}
        | ({} if project is None else {"wandb_project": project})
    )
    config = TrackingConfig(
        metrics=paths.metrics, tensorboard=tensorboard, wandb=wandb_settings(section, recipe.run.name, paths)
    )
    print(f"{export(paths.metrics, open_sinks(config))} lines with scalars exported")
