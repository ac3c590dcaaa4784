"""`dart-envs eval`: a policy on tasks, with a report.

Role: arguments, files and output. Non-goals: episodes and tables (`dart_envs.trials`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_envs.action_spaces import make_codec
from dart_envs.env import make_shape
from dart_envs.errors import DartEnvError, EvaluatorError, TaskError
from dart_envs.evaluate import scorer_named
from dart_envs.selection import select
from dart_envs.tasks import Task, load
from dart_envs.tasks.suite import OSWORLD_SCREEN
from dart_envs.trials.policies import Policy
from dart_envs.trials.report import summarise, to_html, to_text
from dart_envs.trials.run import Trial, append, read_trials, run_trials
from dart_server.wire import DesktopShape

TRIALS, REPORT_JSON, REPORT_HTML = "trials.jsonl", "report.json", "report.html"


def evaluate(
    targets: Annotated[list[str], typer.Argument(help="suites, families, task ids, task files, folders of task files")],
    policy: Annotated[
        str, typer.Option("--policy", help="oracle, noop, fail, random, openai, or module:callable")
    ] = "oracle",
    out: Annotated[
        Path, typer.Option("--out", help="folder of the records and the report; what it holds is not run again")
    ] = Path("eval"),
    desktops: Annotated[int, typer.Option("--desktops", "-p", min=1, max=256, help="desktops at a time")] = 2,
    split: Annotated[str, typer.Option(help="of suites and families: train, validation or test")] = "test",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="at most so many tasks, spread over the choice")
    ] = None,
    max_steps: Annotated[
        str | None, typer.Option(help="step budget instead of the tasks' own; several: 15,50,100")
    ] = None,
    action_space: Annotated[str, typer.Option(help="how the policy writes its actions")] = "canonical",
    image: Annotated[str | None, typer.Option(help="desktop image; default: the first task's own")] = None,
    resolution: Annotated[
        str | None, typer.Option(help="screen size in pixels; default: 1280x800, for OSWorld's tasks 1920x1080")
    ] = None,
    seed: Annotated[int, typer.Option(help="of random policies")] = 0,
    scorer: Annotated[
        str | None, typer.Option(help="who judges: auto, own or official; default: DART_SCORER, else auto")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="of openai: an OpenAI-compatible endpoint, up to /v1")] = None,
    model: Annotated[str | None, typer.Option(help="of openai: the model's name there")] = None,
    api_key_env: Annotated[str, typer.Option(help="of openai: environment variable with the key")] = "OPENAI_API_KEY",
    history: Annotated[int, typer.Option(min=0, max=50, help="of openai: past turns that are sent again")] = 3,
) -> None:
    """Run a policy on tasks, resumably, and report by domain with confidence intervals."""
    from dart_envs.cli import failed, wrong
    from dart_envs.trials import make_policy
    from dart_envs.trials.openai import Endpoint, openai_policy

    try:
        budgets = read_budgets(max_steps)
        tasks = choose(targets, split, limit)
        shape = shape_of(tasks[0], image, resolution)
        if policy == "openai":
            if base_url is None or model is None:
                raise ValueError("the policy openai needs --base-url and --model")
            chosen = openai_policy(Endpoint(base_url, model, api_key_env, history), action_space)
        else:
            chosen = make_policy(policy)
        make_codec(action_space, shape.resolution)
        run = _Run(chosen, tasks, shape, action_space, desktops, seed, scorer)
        judges = str(scorer_named(scorer))
        parts = {budget: run.part(out if len(budgets) == 1 else out / f"steps-{budget}") for budget in budgets}
    except (TaskError, ValueError, EvaluatorError) as error:
        raise wrong(str(error) if str(error).endswith(".") else f"{error}.") from None
    unplayable = [task for task in tasks if task.unsupported]
    if unplayable:
        raise wrong(f"{unplayable[0].id} cannot run: no {', no '.join(unplayable[0].unsupported)}.")
    settings = {
        "policy": policy,
        "model": model,
        "base_url": base_url,
        "history": history if policy == "openai" else None,
        "action_space": action_space,
        "image": shape.image,
        "resolution": list(shape.resolution),
        "seed": seed,
        "scorer": judges,
        "split": split,
    }
    for budget, part in parts.items():
        title = f"{policy} on {', '.join(targets)}" + ("" if budget is None else f", at most {budget} steps")
        try:
            run.go(part, budget, title, settings | {"max_steps": budget})
        except DartEnvError as error:
            place = part.folder / TRIALS
            raise failed(f"{error} What was done is in {place}; the same command goes on from there.") from None


def shape_of(first: Task, image: str | None, resolution: str | None) -> DesktopShape:
    """The desktop of all trials: what was asked for, else what the first task is for. Raises ValueError."""
    if resolution is None:
        size = OSWORLD_SCREEN if first.is_osworlds else (1280, 800)
    else:
        width, _, height = resolution.partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            raise ValueError(f"--resolution looks like 1280x800, not {resolution!r}.")
        size = (int(width), int(height))
    return make_shape(image or first.image, size, None)


def read_budgets(given: str | None) -> list[int | None]:
    """`15` or `15,50,100`; [None] for the tasks' own. Raises ValueError."""
    if given is None:
        return [None]
    words = [word.strip() for word in given.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 500 for word in words):
        raise ValueError(f"--max-steps is a number from 1 to 500, or several with commas between, not {given!r}")
    return list(dict.fromkeys(int(word) for word in words))


@dataclass(frozen=True)
class _Part:
    """What one step budget has in its folder already."""

    folder: Path
    trials: Mapping[str, Trial]


@dataclass(frozen=True)
class _Run:
    """One policy on one choice of tasks, once for each step budget."""

    policy: Policy
    tasks: Sequence[Task]
    shape: DesktopShape
    action_space: str
    desktops: int
    seed: int
    scorer: str | None

    def part(self, folder: Path) -> _Part:
        """Raises ValueError for a file that is none of ours."""
        return _Part(folder, read_trials(folder / TRIALS))

    def go(self, part: _Part, budget: int | None, title: str, settings: Mapping[str, Any]) -> None:
        """Run what is not done, and write the report. Raises DartEnvError."""
        todo = [task for task in self.tasks if task.id not in part.trials]
        part.folder.mkdir(parents=True, exist_ok=True)
        print(f"{title}: {len(self.tasks)} tasks, {len(self.tasks) - len(todo)} of them done already.", flush=True)
        ended = asyncio.run(self._trials(todo, budget, part.folder / TRIALS)) if todo else []
        wanted = {task.id for task in self.tasks}
        every = [trial for trial in part.trials.values() if trial.task_id in wanted] + ended
        summary = summarise(every)
        (part.folder / REPORT_JSON).write_text(
            json.dumps({"settings": dict(settings), **summary.as_dict()}, indent=1) + "\n", encoding="utf-8"
        )
        (part.folder / REPORT_HTML).write_text(to_html(summary, every, title), encoding="utf-8")
        print(to_text(summary))
        print(f"report: {part.folder / REPORT_HTML}")

    async def _trials(self, todo: Sequence[Task], budget: int | None, path: Path) -> list[Trial]:
        from dart_envs.farm import AsyncFarm

        ended = []
        async with await AsyncFarm.connect() as farm:
            async for trial in run_trials(
                farm,
                todo,
                self.policy,
                desktops=self.desktops,
                shape=self.shape,
                action_space=self.action_space,
                max_steps=budget,
                seed=self.seed,
                scorer=self.scorer,
            ):
                ended.append(trial)
                append(path, trial)
                reward = "  - " if trial.reward is None else f"{trial.reward:4.2f}"
                told = f"{reward}  {trial.task_id}  {trial.end}, {trial.steps} steps  {trial.cause or ''}"
                print(told.rstrip(), flush=True)
        return ended


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
