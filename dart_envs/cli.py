"""`dart-envs`: look at tasks, check them, play them, evaluate policies.

Role: argument parsing, output and exit codes. Rule: wrong input is one sentence on standard error and exit code 2, a
proof that fails or a farm that cannot be reached exits with 1. Non-goals: logic (`dart_envs.tasks`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dart_envs import assets_cli, check_cli, eval_cli, scorer_cli
from dart_envs.check_cli import EXIT_FAILED, EXIT_WRONG_INPUT
from dart_envs.env import make_shape
from dart_envs.errors import DartEnvError, TaskError
from dart_envs.tasks import Split, Task, load, suite
from dart_envs.tasks.suite import OSWORLD_SCREEN
from dart_envs.types import Action, Gesture
from dart_server.wire import DesktopShape

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Desktops as environments.", pretty_exceptions_enable=False
)
tasks_app = typer.Typer(no_args_is_help=True, help="Tasks: list, show, check, play.")
app.add_typer(tasks_app, name="tasks")
app.add_typer(assets_cli.app, name="assets")
app.command(name="eval")(eval_cli.evaluate)
app.add_typer(scorer_cli.app, name="scorer")
tasks_app.command(name="check")(check_cli.check)

Families = Annotated[str | None, typer.Option("--families", "-f", help="comma-separated; default: all")]
Resolution = Annotated[str | None, typer.Option("--resolution", help="screen size in pixels; default: the suite's own")]
FontSize = Annotated[
    int | None, typer.Option("--font-size", min=6, max=48, help="GUI font size in points; default: the suite's own")
]


def wrong(message: str) -> typer.Exit:
    """One sentence about wrong input; raise what is returned."""
    print(f"dart-envs: {message}", file=sys.stderr)
    return typer.Exit(EXIT_WRONG_INPUT)


def failed(message: str) -> typer.Exit:
    """One sentence about what did not work; raise what is returned."""
    print(f"dart-envs: {message}", file=sys.stderr)
    return typer.Exit(EXIT_FAILED)


def _shape(task: Task, resolution: str | None, font_size: int | None) -> DesktopShape:
    """The desktop that a task is proved on, but for what was asked for."""
    own = suite(task.suite).shape if task.origin is None else DesktopShape(image=task.image, resolution=OSWORLD_SCREEN)
    size = own.resolution
    if resolution is not None:
        width, _, height = resolution.partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            raise wrong(f"--resolution looks like 640x400, not {resolution!r}.")
        size = int(width), int(height)
    try:
        return make_shape(own.image, size, own.font_size if font_size is None else font_size)
    except ValueError as error:
        raise wrong(str(error)) from None


def _names(families: str | None) -> list[str] | None:
    return None if families is None else [name.strip() for name in families.split(",") if name.strip()]


@tasks_app.command("list")
def list_tasks(
    name: Annotated[str, typer.Argument(help="suite")] = "basics",
    split: Annotated[str | None, typer.Option(help="train, validation or test")] = None,
    families: Families = None,
    ids: Annotated[bool, typer.Option("--ids", help="one task id per line")] = False,
) -> None:
    """List the families of a suite, or the ids of its tasks."""
    try:
        chosen = suite(name)
        if ids:
            for task_id in chosen.tasks(split, _names(families)):
                print(task_id)
            return
        for family_name in _names(families) or chosen.families:
            family = chosen.family(family_name)
            counts = {part: len(chosen.tasks(part, [family_name])) for part in ([split] if split else list(Split))}
            sizes = " ".join(f"{part}={count}" for part, count in counts.items())
            marks = "".join(mark for mark, on in (("  [demo]", family.demo), ("  [held out]", family.held_out)) if on)
            print(f"{family.name:<14} {family.app:<11} steps<={family.max_steps:<3} {sizes}  {family.about}{marks}")
    except TaskError as error:
        raise wrong(str(error)) from None


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
        print(f"  set-up  {step.type} {json.dumps(dict(step.parameters), ensure_ascii=False)}")
    print(f"  verdict {' '.join(loaded.evaluator.functions)}")
    for missing in loaded.unsupported:
        print(f"  cannot run: no {missing}")


@tasks_app.command()
def play(
    task: Annotated[str, typer.Argument(help="task id, or path of a JSON file")],
    near_miss: Annotated[bool, typer.Option("--near-miss", help="play the near miss instead of the oracle")] = False,
    save: Annotated[Path | None, typer.Option(help="folder for a screenshot of every step")] = None,
    resolution: Resolution = None,
    font_size: FontSize = None,
) -> None:
    """Play a task's own solution on a live desktop."""
    loaded = _load(task)
    script = "near_miss" if near_miss else "oracle"
    if script not in loaded.scripts:
        raise wrong(f"Task {loaded.id} has no script {script!r} to play.")
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(_play(loaded, script, save, _shape(loaded, resolution, font_size)))
    except DartEnvError as error:
        raise failed(str(error)) from None


def _load(task: str) -> Task:
    try:
        return load(task)
    except TaskError as error:
        raise wrong(str(error)) from None


async def _play(task: Task, script: str, save: Path | None, shape: DesktopShape) -> None:
    from PIL import Image

    from dart_envs.core import AsyncDesktopEnv
    from dart_envs.farm import AsyncFarm
    from dart_envs.types import ActionType, RgbImage

    def keep(image: RgbImage, index: int) -> None:
        if save is not None:
            Image.fromarray(image).save(save / f"{index:02d}.png")

    print(f"{task.id}: {task.instruction}")
    async with await AsyncFarm.connect() as farm, AsyncDesktopEnv(farm, shape=shape) as env:
        observation, _ = await env.reset(task)
        keep(observation.screenshot, 0)
        index = 0
        while env.lease is not None:
            plays = await task.play(env.lease, script=script, step=index)
            action = plays[0].action if plays else Action(ActionType.DONE)
            result = await env.step(action)
            index += 1
            keep(result.observation.screenshot, index)
            target = f" on {plays[0].target.role} {plays[0].target.name!r}" if plays and plays[0].target else ""
            print(f"  {index}. {_said(action)}{target}".rstrip())
            if result.end is not None:
                print(f"  {result.end}: reward {result.reward:g} {result.info.get('outcome', '')}")
                return


def _said(action: Action | Gesture) -> str:
    if isinstance(action, Gesture):
        return f"runs {action.code!r}"
    return f"{action.type} {action.text or '+'.join(action.keys)}".rstrip()


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
