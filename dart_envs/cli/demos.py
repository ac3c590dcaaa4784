"""`dart-envs tasks run`, `dart-envs demos record` and `dart-envs demos replay`.

This module parses arguments, tells the human in the live view what to do, and reads how they say that they are done. It does not record
(`dart_envs.demos`) and does not serve the page (`dart_envs.farm.live`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dart_envs.cli.exits import runtime_error, usage_error
from dart_envs.envs.config import make_shape
from dart_envs.envs.evaluation_target import EvaluateOn
from dart_envs.errors import DartEnvError, TaskError
from dart_envs.tasks import Task, load, task_shape
from dart_envs.types import Action, ActionType, DecodedAction, Observation, StepResult
from dart_server.wire import DesktopShape

if TYPE_CHECKING:
    from dart_envs.demos import Demonstration, DemoStep, DemoWriter
    from dart_envs.demos.human import HumanRecorder
    from dart_envs.demos.oracle import ScriptStep
    from dart_envs.envs.core import AsyncDesktopEnv

LABELS = {"purpose": "demonstration"}
MAX_SHOWN_TEXT_LENGTH = 60
app = typer.Typer(no_args_is_help=True, help="Demonstrations: record one, do one again.")

Resolution = Annotated[str | None, typer.Option("--resolution", help="screen size in pixels; default: the suite's own")]
FontSize = Annotated[
    int | None, typer.Option("--font-size", min=6, max=48, help="GUI font size in points; default: the suite's own")
]


def run_task(
    task: Annotated[str, typer.Argument(help="task id, or path of a JSON file")],
    near_miss: Annotated[bool, typer.Option("--near-miss", help="run the near miss instead of the oracle")] = False,
    save: Annotated[
        Path | None, typer.Option(help="folder for a screenshot and the accessibility tree of every step")
    ] = None,
    resolution: Resolution = None,
    font_size: FontSize = None,
) -> None:
    """Run a task's own solution, or its near miss, on a live desktop."""
    with _input_errors():
        loaded = load(task)
        script = "near_miss" if near_miss else "oracle"
        if script not in loaded.scripts:
            raise TaskError(f"Task {loaded.id} has no script {script!r} to run.")
        work = _run_script(loaded, _shape(loaded, resolution, font_size), script, None, False, save)
    _finish(work)


@app.command()
def record(
    task: Annotated[str, typer.Argument(help="task id, or path of a JSON file")],
    folder: Annotated[Path, typer.Argument(help="new folder for the demonstration")],
    oracle: Annotated[bool, typer.Option("--oracle", help="record the task's own solution instead of a human")] = False,
    a11y: Annotated[
        bool, typer.Option("--a11y/--no-a11y", help="record the accessibility tree, which a warm start needs")
    ] = True,
    resolution: Resolution = None,
    font_size: FontSize = None,
) -> None:
    """Record a demonstration: a human in the farm's live view, or the task's own solution."""
    from dart_envs.demos.store import DemonstrationError, check_folder_empty

    with _input_errors(DemonstrationError):
        loaded = load(task)
        shape = _shape(loaded, resolution, font_size)
        check_folder_empty(folder)
        if not oracle:
            work = _record_human(loaded, shape, folder, a11y)
        elif "oracle" in loaded.scripts:
            work = _run_script(loaded, shape, "oracle", folder, a11y, None)
        else:
            raise TaskError(f"Task {loaded.id} has no script 'oracle' to record.")
    _finish(work, folder)


@app.command()
def replay(folder: Annotated[Path, typer.Argument(help="folder of a demonstration")]) -> None:
    """Do a demonstration again on a fresh desktop, and compare the reward."""
    from dart_envs.demos.store import DemonstrationError, read_demonstration

    with _input_errors(DemonstrationError):
        recorded = read_demonstration(folder)
        work = _replay(load(recorded.task_id), recorded, folder)
    _finish(work)


@contextmanager
def _input_errors(*errors: type[Exception]) -> Iterator[None]:
    """Turn errors of what the user gave into a usage error."""
    try:
        yield
    except (TaskError, *errors) as error:  # type: ignore[misc]  # mypy cannot see that the tuple holds exceptions only
        raise usage_error(str(error)) from None


def _finish(work: Coroutine[Any, Any, int], folder: Path | None = None) -> NoReturn:
    """Run the work and end with its exit code; `folder` holds what an interrupted recording kept."""
    try:
        code = asyncio.run(work)
    except DartEnvError as error:
        raise runtime_error(str(error)) from None
    except KeyboardInterrupt:
        kept = f" What was recorded so far is in {folder}." if folder is not None and folder.exists() else ""
        raise runtime_error(f"Stopped.{kept}") from None
    raise typer.Exit(code)


def _shape(task: Task, resolution: str | None, font_size: int | None) -> DesktopShape:
    """The desktop that a task is proved on, but for what was asked for. Raises `TaskError`."""
    own = task_shape(task)
    size = own.resolution
    if resolution is not None:
        width, _, height = resolution.partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            raise TaskError(f"--resolution looks like 640x400, not {resolution!r}.")
        size = int(width), int(height)
    try:
        return make_shape(own.image, size, own.font_size if font_size is None else font_size)
    except ValueError as error:
        raise TaskError(str(error)) from None


async def _run_script(
    task: Task, shape: DesktopShape, script: str, record: Path | None, a11y: bool, save: Path | None
) -> int:
    """Run one of the task's scripts, and record it where a folder is given. Return the exit code."""
    from dart_envs.demos.oracle import run_script
    from dart_envs.envs.core import AsyncDesktopEnv
    from dart_envs.farm import AsyncFarmClient

    print(f"{task.id}: {task.instruction}")
    reads_tree = save is not None or (record is not None and a11y)
    parts = ("screenshot", "a11y") if reads_tree else ("screenshot",)

    def on_step(told: ScriptStep) -> None:
        _save_observation(save, told.result.observation, told.index)
        print(f"  {told.index}. {describe_action(told.action)}{f' on {told.target}' if told.target else ''}")

    started = asyncio.get_running_loop().time()
    async with (
        await AsyncFarmClient.connect() as farm,
        AsyncDesktopEnv(farm, shape=shape, observation=parts, labels=LABELS if record else None) as env,
    ):
        observation, _ = await env.reset(task)
        _save_observation(save, observation, 0)
        writer = None if record is None else _writer(record, task, env, script)
        result = await run_script(env, task, observation, script=script, writer=writer, on_step=on_step)  # type: ignore[arg-type]
    if writer is not None:
        _finish_demonstration(writer, result, asyncio.get_running_loop().time() - started)
    print(f"  {_format_outcome(result)}")
    return 0


async def _record_human(task: Task, shape: DesktopShape, folder: Path, a11y: bool) -> int:
    """A human in the live view. Exit code."""
    from dart_envs.demos.human import HumanRecorder
    from dart_envs.envs.core import AsyncDesktopEnv
    from dart_envs.farm import AsyncFarmClient
    from dart_envs.farm.lease import AsyncLease
    from dart_envs.farm.live import LiveWindow

    print(f"{task.id}: preparing its desktop …", flush=True)
    async with (
        await AsyncFarmClient.connect() as farm,
        AsyncDesktopEnv(farm, shape=shape, labels=LABELS, evaluate_on=EvaluateOn.COPY) as env,
        LiveWindow(say=lambda line: print(line, flush=True)) as window,
    ):
        await env.reset(task)
        lease = env.lease
        assert isinstance(lease, AsyncLease)
        writer = _writer(folder, task, env, "human")
        recorder = HumanRecorder(
            lease, writer, a11y=a11y, on_step=lambda step: print(f"  {_format_step(step)}", flush=True)
        )
        began_s = asyncio.get_running_loop().time()
        await recorder.start()
        try:
            await window.show(lease)
            print(f"\nThe task: {task.instruction}\n")
            last = await _wait_for_outcome(recorder)
            await recorder.stop(last)
        finally:
            await recorder.aclose()
        if last is None:
            print(f"Broken off, without a verdict; what was done is in {folder}.")
            return 1
        result = await env.step(Action(last))
        _finish_demonstration(writer, result, asyncio.get_running_loop().time() - began_s)
    print(f"  {_format_outcome(result)}")
    if recorder.lost_inputs:
        print(f"  {recorder.lost_inputs} inputs were lost: this machine could not keep up. Better record it again.")
    if writer.count > task.max_steps:
        print(f"  {writer.count} actions; the task's own budget is {task.max_steps}.")
    print(f"Recorded in {folder}; `dart-envs demos replay {folder}` does it again.")
    return 0


async def _wait_for_outcome(recorder: HumanRecorder) -> ActionType | None:
    """Return DONE, FAIL, or None for broken off: a line on the terminal says it, else giving the desktop back on the page does."""
    if not sys.stdin.isatty():
        print("Take over in the live view, do the task, and give the desktop back when it is done.", flush=True)
        await recorder.wait(recorder.control_returned)
        return ActionType.DONE
    print(
        "Take over in the live view and do the task. Then press Enter here (f and Enter: it cannot be done; q: break off)."
    )
    answered, lines = asyncio.Event(), list[str]()

    def read() -> None:
        lines.append(sys.stdin.readline())
        answered.set()

    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        loop.add_reader(sys.stdin, read)
        stack.callback(loop.remove_reader, sys.stdin)
        await recorder.wait(answered)
    word = lines[0].strip().lower() if lines[0] else "q"
    if word == "q":
        return None
    return ActionType.FAIL if word == "f" else ActionType.DONE


async def _replay(task: Task, recorded: Demonstration, folder: Path) -> int:
    """A demonstration again. Exit code: 0 where the reward is the same."""
    from dart_envs.demos.replay import replay
    from dart_envs.envs.core import AsyncDesktopEnv
    from dart_envs.farm import AsyncFarmClient

    print(
        f"{task.id}: {task.instruction}\n{len(recorded.steps)} steps by {recorded.recorded_by}, {recorded.started_at}"
    )
    if task.content_hash != recorded.content_hash:
        print("  The task has changed since: what was right then may not be now.")
    budget = max(task.max_steps, len(recorded.steps) + 1)
    async with (
        await AsyncFarmClient.connect() as farm,
        AsyncDesktopEnv(farm, shape=recorded.shape, max_steps=budget, labels={"purpose": "replay"}) as env,
    ):
        done = await replay(
            env,
            task,
            recorded,
            folder,
            on_step=lambda step, same: print(
                f"  {_format_step(step)}{'' if same else '   (the screen looked different)'}"
            ),
        )
    print(f"  {_format_outcome(done.result)}")
    if recorded.end is None or recorded.reward is None or done.reward is None:
        print("There are no two verdicts to compare.")
        return 1
    same = done.reward == recorded.reward
    print(f"The reward is {'the same' if same else 'another'}: {recorded.reward:g} then, {done.reward:g} now.")
    return 0 if same else 1


def _writer(folder: Path, task: Task, env: AsyncDesktopEnv, recorded_by: str) -> DemoWriter:
    from dart_envs.demos import Demonstration, DemoWriter

    assert env.lease is not None
    head = Demonstration(
        task_id=task.id if task.origin is None else str(task.origin.resolve()),
        content_hash=task.content_hash,
        instruction=task.instruction,
        recorded_by=recorded_by,
        shape=env.shape,
        image_digest=env.lease.image_digest,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        max_steps=task.max_steps,
    )
    return DemoWriter(folder, head)


def _finish_demonstration(writer: DemoWriter, result: StepResult, duration_s: float) -> None:
    assert result.end is not None
    writer.finish(
        result.end.value,
        None if result.end.masked else float(result.reward),
        duration_s=duration_s,
        cause=result.info.get("cause"),
        outcome=result.info.get("outcome", {}),
    )


def _save_observation(save: Path | None, observation: Observation, index: int) -> None:
    """Write the picture, and the accessibility tree with an element per line."""
    if save is not None:
        from PIL import Image

        save.mkdir(parents=True, exist_ok=True)
        Image.fromarray(observation.screenshot).save(save / f"{index:02d}.png")
        lines = [f"{element.model_dump_json()}\n" for element in observation.a11y or ()]
        (save / f"{index:02d}.a11y.jsonl").write_text("".join(lines), encoding="utf-8")


def _format_outcome(result: StepResult) -> str:
    assert result.end is not None
    if result.end.masked:
        return f"{result.end}: no verdict ({result.info.get('cause')})"
    return f"{result.end}: reward {result.reward:g} {result.info.get('outcome', '')}".rstrip()


def _format_step(step: DemoStep) -> str:
    if step.action is None:
        return f"{step.index + 1}. a gesture of {len(step.events)} events"
    return f"{step.index + 1}. {describe_action(step.action)}"


def describe_action(action: Action | DecodedAction) -> str:
    """An action in a few words."""
    if isinstance(action, DecodedAction):
        return f"runs {action.code!r}" if action.code is not None else f"{len(action.events)} events"
    shown = (
        replace(action, text=action.text[:MAX_SHOWN_TEXT_LENGTH] + "…")
        if len(action.text) > MAX_SHOWN_TEXT_LENGTH
        else action
    )
    place = "" if action.x is None else f" at {action.x}, {action.y}"
    place += "" if action.x2 is None else f" to {action.x2}, {action.y2}"
    what = repr(shown.text) if action.text else "+".join(action.keys)
    wheel = f" by {action.dx}, {action.dy}" if action.type is ActionType.SCROLL else ""
    return f"{action.type} {what}".rstrip() + place + wheel
