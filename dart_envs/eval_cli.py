"""`dart-envs eval`: a policy on tasks, with a report.

Role: arguments, files and output. Non-goals: episodes and tables (`dart_envs.trials`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dart_envs.action_spaces import make_codec
from dart_envs.errors import DartEnvError, EvaluatorError, TaskError
from dart_envs.evaluate import scorer_named
from dart_envs.selection import select
from dart_envs.tasks import Task, load
from dart_server.wire import DesktopShape

TRIALS, REPORT_JSON, REPORT_HTML = "trials.jsonl", "report.json", "report.html"


def evaluate(
    targets: Annotated[list[str], typer.Argument(help="suites, families, task ids, task files, folders of task files")],
    policy: Annotated[str, typer.Option("--policy", help="oracle, noop, fail, random, or module:callable")] = "oracle",
    out: Annotated[
        Path, typer.Option("--out", help="folder of the records and the report; what it holds is not run again")
    ] = Path("eval"),
    desktops: Annotated[int, typer.Option("--desktops", "-p", min=1, max=256, help="desktops at a time")] = 2,
    split: Annotated[str, typer.Option(help="of suites and families: train, validation or test")] = "test",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="at most so many tasks, spread over the choice")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, max=500, help="step budget instead of the tasks' own, e.g. 15, 50, 100")
    ] = None,
    action_space: Annotated[str, typer.Option(help="how the policy writes its actions")] = "canonical",
    image: Annotated[str, typer.Option(help="desktop image")] = "basic",
    resolution: Annotated[str, typer.Option(help="screen size in pixels")] = "1280x800",
    seed: Annotated[int, typer.Option(help="of random policies")] = 0,
    scorer: Annotated[
        str | None, typer.Option(help="who judges: auto, own or official; default: DART_SCORER, else auto")
    ] = None,
) -> None:
    """Run a policy on tasks, resumably, and report by domain with confidence intervals."""
    from dart_envs.cli import failed, wrong
    from dart_envs.trials import make_policy, read_trials, summarise, to_html, to_text
    from dart_envs.trials.run import Trial, append, run_trials

    width, _, height = resolution.partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise wrong(f"--resolution looks like 1280x800, not {resolution!r}.")
    shape = DesktopShape(image=image, resolution=(int(width), int(height)))
    try:
        tasks = choose(targets, split, limit)
        chosen = make_policy(policy)
        make_codec(action_space, shape.resolution)
        trials = read_trials(out / TRIALS)
        judges = str(scorer_named(scorer))
    except (TaskError, ValueError, EvaluatorError) as error:
        raise wrong(str(error) if str(error).endswith(".") else f"{error}.") from None
    unplayable = [task for task in tasks if task.unsupported]
    if unplayable:
        raise wrong(f"{unplayable[0].id} cannot run: no {', no '.join(unplayable[0].unsupported)}.")
    todo = [task for task in tasks if task.id not in trials]
    out.mkdir(parents=True, exist_ok=True)
    print(f"{len(tasks)} tasks, {len(tasks) - len(todo)} of them done already.", flush=True)

    async def run() -> list[Trial]:
        from dart_envs.farm import AsyncFarm

        ended = []
        async with await AsyncFarm.connect() as farm:
            async for trial in run_trials(
                farm,
                todo,
                chosen,
                desktops=desktops,
                shape=shape,
                action_space=action_space,
                max_steps=max_steps,
                seed=seed,
                scorer=scorer,
            ):
                ended.append(trial)
                append(out / TRIALS, trial)
                reward = "  - " if trial.reward is None else f"{trial.reward:4.2f}"
                print(
                    f"{reward}  {trial.task_id}  {trial.end}, {trial.steps} steps  {trial.cause or ''}".rstrip(),
                    flush=True,
                )
        return ended

    try:
        ended = asyncio.run(run()) if todo else []
    except DartEnvError as error:
        raise failed(f"{error} What was done is in {out / TRIALS}; the same command goes on from there.") from None
    wanted = {task.id for task in tasks}
    every = [trial for trial in trials.values() if trial.task_id in wanted] + ended
    summary = summarise(every)
    settings = {
        "policy": policy,
        "action_space": action_space,
        "max_steps": max_steps,
        "image": image,
        "seed": seed,
        "scorer": judges,
        "split": split,
    }
    (out / REPORT_JSON).write_text(
        json.dumps({"settings": settings, **summary.as_dict()}, indent=1) + "\n", encoding="utf-8"
    )
    (out / REPORT_HTML).write_text(to_html(summary, every, f"{policy} on {', '.join(targets)}"), encoding="utf-8")
    print(to_text(summary))
    print(f"report: {out / REPORT_HTML}")


def choose(targets: Sequence[str], split: str | None, limit: int | None) -> list[Task]:
    """The tasks that the arguments name, in order, without repeats; `limit` of them, evenly spread. Raises `TaskError`."""
    ids: dict[str, None] = {}
    for target in targets:
        path = Path(target)
        if path.is_dir():
            ids.update(dict.fromkeys(str(file) for file in sorted(path.rglob("*.json"))))
        elif target.endswith(".json"):
            ids[target] = None
        else:
            ids.update(dict.fromkeys(select(target, split).ids))
    names = list(ids)
    if limit is not None and limit < len(names):
        names = [names[index * len(names) // limit] for index in range(limit)]
    if not names:
        raise TaskError(f"{', '.join(targets)}: there is no task in it.")
    return [load(name) for name in names]
