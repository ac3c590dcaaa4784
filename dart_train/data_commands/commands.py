"""`dart-train data …`: list, explain, view, export, import and clean up the trajectories of a run.

Role: argument parsing and exit codes. Rule: heavy imports happen in the command; wrong input is one sentence on standard error and exit
code 2. All commands but `import` and `gc` only read, also while the run goes on. Non-goals: what they do (the modules beside this one).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dart_train.exits import wrong_input

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from dart_agent.types import Trajectory
    from dart_train.data_commands.open_run import OpenRun
    from dart_train.data_commands.provenance import TrajectoryProvenance
    from dart_train.data_commands.redaction import Redaction


app = typer.Typer(no_args_is_help=True, help="List, explain, view, export, import and clean up trajectories.")

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, e.g. runs/demo")]
RolloutId = Annotated[str, typer.Argument(metavar="TRAJECTORY", help="its id, or the end of it")]
RedactText = Annotated[bool, typer.Option("--redact-text", help="leave out typed text, responses and token ids")]
RedactScreens = Annotated[bool, typer.Option("--redact-screens", help="leave out screenshots")]
Phase = Annotated[str | None, typer.Option("--phase", help="name of a phase, e.g. train")]
Task = Annotated[str | None, typer.Option("--task", help="a task id")]
Family = Annotated[str | None, typer.Option("--family", help="a task family")]
Fate = Annotated[
    str | None, typer.Option("--fate", help="trained, left_out, waiting, dropped, quarantined, masked, eval or demo")
]
MinReward = Annotated[float | None, typer.Option("--min-reward", help="least reward")]
MaxReward = Annotated[float | None, typer.Option("--max-reward", help="greatest reward")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


class ExportFormat(StrEnum):
    """What an export is for."""

    HF = "hf"
    ATIF = "atif"
    PORTABLE = "portable"


@app.command("ls")
def list_command(
    run: RunDir,
    phase: Phase = None,
    task: Task = None,
    family: Family = None,
    fate: Fate = None,
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="so many of the newest")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the newest trajectories, and what became of each in training."""
    _check_fate(fate)
    with _reading(run) as (_, session):
        from dart_train.data_commands.listing import TrajectoryFilter, format_table, list_trajectories

        rows = list_trajectories(session, TrajectoryFilter(phase, family, task, fate, min_reward, max_reward), limit)
        print(json.dumps([asdict(row) for row in rows], indent=2) if as_json else format_table(rows))


@app.command()
def show(run: RunDir, trajectory: RolloutId, as_json: AsJson = False) -> None:
    """Say of each step of a trajectory which versions sampled it, and why it was trained on or was not."""
    with _reading(run) as (_, session):
        from dart_train.data_commands.open_run import find_trajectory
        from dart_train.data_commands.provenance import read_provenance

        row = find_trajectory(session, trajectory)
        known = read_provenance(session, row)
        if as_json:
            told = asdict(known) | {"reward": row.reward, "task_id": row.task_id, "phase": row.phase}
            told |= {"reward_source": row.reward_source, "verdict": row.info.get("verdict")}
            print(json.dumps(told, indent=2))
            return
        reward = "no reward" if row.reward is None else f"reward {row.reward:g} by {row.reward_source}"
        print(f"{row.rollout_id}\n{row.task_id}, phase {row.phase}, group {row.group_id} ({known.group_state})")
        print(f"{reward}, {row.stop}, {row.n_steps} steps\n{known.fate}: {known.why}")
        for step in known.steps:
            spans = ", ".join(f"version {version} [{start}, {end})" for version, start, end in step.version_spans)
            print(f"  step {step.index}: {spans or 'version not known'}")
            for line in step.verdict:
                print(f"    {line}")


@app.command()
def view(
    run: RunDir,
    trajectory: RolloutId,
    out: Annotated[Path | None, typer.Option("--out", help="the file; default: report/ of the run folder")] = None,
    redact_text: RedactText = False,
    redact_screens: RedactScreens = False,
) -> None:
    """Write the page of a trajectory: screens with actions, tokens by surprisal, advantages, and why each step was trained on."""
    with _reading(run) as (opened, session):
        from dart_train.data_commands.open_run import find_trajectory
        from dart_train.data_commands.provenance import read_provenance
        from dart_train.data_commands.viewer import view_trajectory, write_page
        from dart_train.data_manager.store.trajectories import read_trajectory

        row = find_trajectory(session, trajectory)
        redaction = _redaction(redact_text, redact_screens)
        one, known, instruction = _exported(read_trajectory(session, row), read_provenance(session, row), redaction)
        file = out or opened.paths.report / f"{row.rollout_id}.html"
        name = opened.recipe.run.name
        resolution = opened.recipe.desktops.resolution
        decode = _decoder(opened)
        write_page(view_trajectory(name, one, known, instruction, opened.images, resolution, decode, redaction), file)
        print(file)


@app.command()
def export(
    run: RunDir,
    out: Annotated[Path, typer.Argument(help="folder to write to")],
    form: Annotated[
        ExportFormat,
        typer.Option(
            "--format", help="hf: Parquet for Hugging Face datasets; atif: Harbor's JSON; portable: for data import"
        ),
    ] = ExportFormat.HF,
    phase: Phase = None,
    task: Task = None,
    family: Family = None,
    fate: Fate = None,
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    redact_text: RedactText = False,
    redact_screens: RedactScreens = False,
) -> None:
    """Export trajectories with their images and with what became of each step."""
    _check_fate(fate)
    if form is ExportFormat.PORTABLE and (redact_text or redact_screens):
        raise wrong_input("the format portable is for training and cannot be redacted: use hf or atif")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise wrong_input(f"{out} is not an empty folder: choose another")
    with _reading(run) as (opened, session):
        from dart_train.data_commands.listing import TrajectoryFilter, select_trajectories
        from dart_train.data_commands.provenance import read_provenance
        from dart_train.data_manager.store.trajectories import read_trajectory

        redaction = _redaction(redact_text, redact_screens)
        rows = select_trajectories(session, TrajectoryFilter(phase, family, task, None, min_reward, max_reward))

        def items() -> Iterator[tuple[Trajectory, TrajectoryProvenance, str]]:
            for row in rows:
                known = read_provenance(session, row)
                if fate in (None, known.fate):
                    yield _exported(read_trajectory(session, row), known, redaction)

        name = opened.recipe.run.name
        if form is ExportFormat.HF:
            from dart_train.data_commands.hf_dataset import write_dataset

            print(json.dumps(write_dataset(items(), opened.images, out, name, redaction)))
        elif form is ExportFormat.ATIF:
            from dart_train.data_commands.atif import write_atif

            written = [
                write_atif(one, known, instruction, opened.images, out, redaction, name)
                for one, known, instruction in items()
            ]
            print(json.dumps({"trajectories": len(written)}))
        else:
            from dart_train.data_commands.portable import write_portable

            print(json.dumps({"trajectories": write_portable((one for one, _, _ in items()), opened.images, out)}))


@app.command("import")
def import_command(
    run: RunDir,
    source: Annotated[Path, typer.Argument(help="folder that data export --format portable wrote")],
    name: Annotated[
        str | None, typer.Option("--name", help="what the source is called; default: the name of its folder")
    ] = None,
) -> None:
    """Take successful trajectories of another run into the experience pool. The run must not be going on."""
    with _writing(run) as opened:
        from dart_train.data_commands.pool_import import import_folder

        imported, left_out = import_folder(*opened, source, name or None)
        print(json.dumps({"imported": imported, "left_out": dict(left_out)}, indent=2))


@app.command()
def gc(
    run: RunDir,
    keep_days: Annotated[
        float | None,
        typer.Option("--keep-days", min=0, help="also delete images of trajectories that were finished longer ago"),
    ] = None,
    drop_successes: Annotated[
        bool, typer.Option("--drop-successes", help="with --keep-days: successful training trajectories, too")
    ] = False,
    drop_demonstrations: Annotated[
        bool, typer.Option("--drop-demonstrations", help="with --keep-days: demonstrations, too")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="delete nothing, print what would be deleted")] = False,
) -> None:
    """Delete images that nobody needs. What is unfinished, parked, or with the trainer always keeps its images."""
    with _reading(run) as (opened, session):
        from dart_envs.clock import SYSTEM_CLOCK
        from dart_train.data_commands.garbage import ImageRetention, collect_garbage

        retention = ImageRetention(
            keep_days, not drop_successes, not drop_demonstrations, opened.recipe.reward.success_at
        )
        report = collect_garbage(session, opened.images, retention, SYSTEM_CLOCK.time(), dry_run=dry_run)
        print(json.dumps(asdict(report) | {"dry_run": dry_run}, indent=2))


def _check_fate(fate: str | None) -> None:
    """Refuse a fate that does not exist."""
    from dart_train.data_commands.listing import FATES

    if fate is not None and fate not in FATES:
        raise wrong_input(f"--fate {fate} is not one of {', '.join(FATES)}")


@contextmanager
def _reading(folder: Path) -> Iterator[tuple[OpenRun, Session]]:
    """The run, and one transaction that reads it."""
    from sqlalchemy.orm import Session

    from dart_agent.errors import AgentError
    from dart_train.config import RecipeError
    from dart_train.data_commands.open_run import open_run

    try:
        with open_run(folder) as opened, Session(opened.engine) as session:
            yield opened, session
    except (AgentError, RecipeError) as error:
        raise wrong_input(str(error)) from None


@contextmanager
def _writing(folder: Path) -> Iterator[tuple[Any, Any]]:
    """The recipe and the paths of a run that is not going on: the lock of its database is held."""
    from dart_agent.errors import AgentError
    from dart_train.config import RecipeError
    from dart_train.data_manager.__main__ import writer_lock
    from dart_train.run.components import database_location
    from dart_train.run.paths import RunPaths
    from dart_train.run.state import load_resolved_recipe

    try:
        paths = RunPaths(folder.resolve())
        recipe = load_resolved_recipe(paths)
        with writer_lock(database_location(recipe, paths)):
            yield recipe, paths
    except (AgentError, RecipeError) as error:
        raise wrong_input(str(error)) from None


def _redaction(text: bool, screens: bool) -> Redaction:
    from dart_train.data_commands.redaction import Redaction

    return Redaction(text=text, screens=screens)


def _exported(
    trajectory: Trajectory, known: TrajectoryProvenance, redaction: Redaction
) -> tuple[Trajectory, TrajectoryProvenance, str]:
    """The trajectory without what is redacted, its provenance, and its instruction."""
    from dart_train.data_commands.redaction import redact_sentence, redact_trajectory
    from dart_train.report.examples import find_instruction

    instruction = redact_sentence(find_instruction(trajectory), trajectory, redaction)
    told = replace(
        known,
        why=redact_sentence(known.why, trajectory, redaction),
        steps=tuple(
            replace(step, verdict=tuple(redact_sentence(line, trajectory, redaction) for line in step.verdict))
            for step in known.steps
        ),
    )
    return redact_trajectory(trajectory, redaction), told, instruction


def _decoder(opened: OpenRun) -> Callable[[int], str]:
    """From a token id to its text, by the tokenizer of the run's model; its number where there is none."""
    from dart_train.run.components import start_model

    file = start_model(opened.recipe, opened.paths) / "tokenizer.json"
    if not file.is_file():
        return lambda token: f"⟨{token}⟩"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))
