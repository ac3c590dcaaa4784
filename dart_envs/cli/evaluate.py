"""`dart-envs eval`: a policy on tasks, with a report.

Role: arguments, files and output. Non-goals: episodes and tables (`dart_envs.evaluation`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_envs.action_spaces import make_codec
from dart_envs.cli.exits import failed, wrong
from dart_envs.envs.env import make_shape
from dart_envs.envs.task_sources import one_image, select
from dart_envs.errors import DartEnvError, EvaluatorError, TaskError
from dart_envs.evaluation.page import Part, to_html
from dart_envs.evaluation.policies import Policy
from dart_envs.evaluation.report import summarise, to_text
from dart_envs.evaluation.run import Trial, append, read_trials, run_trials
from dart_envs.evaluators import scorer_named
from dart_envs.tasks import Task, load, shape_of
from dart_server.wire import DesktopShape

TRIALS, SETTINGS, REPORT_JSON, REPORT_HTML = "trials.jsonl", "settings.json", "report.json", "report.html"
MAY_CHANGE = frozenset({"split", "base_url"})
"""Settings that say which trials there are, or where the same model is, but not how a trial was made."""
EXIT_STOPPED = 130
"""As of a program that Ctrl-C ended."""


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
    image: Annotated[str | None, typer.Option(help="desktop image; default: the tasks' own")] = None,
    resolution: Annotated[str | None, typer.Option(help="screen size in pixels; default: the first task's own")] = None,
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
    from dart_envs.evaluation import make_policy
    from dart_envs.evaluation.openai import Endpoint, openai_policy

    try:
        budgets = read_budgets(max_steps)
        tasks = choose(targets, split, limit)
        image = image or one_image(tasks)
        shape = trial_shape(tasks[0], image, resolution)
        if policy == "openai":
            if base_url is None or model is None:
                raise ValueError("the policy openai needs --base-url and --model")
            chosen = openai_policy(Endpoint(base_url, model, api_key_env, history), action_space)
        else:
            chosen = make_policy(policy)
        make_codec(action_space, shape.resolution)
        settings = {
            "policy": policy,
            "model": model,
            "base_url": base_url,
            "history": history if policy == "openai" else None,
            "action_space": action_space,
            "image": shape.image,
            "resolution": list(shape.resolution),
            "font_size": shape.font_size,
            "seed": seed,
            "scorer": str(scorer_named(scorer)),
            "split": split,
        }
        run = _Run(chosen, tasks, shape, action_space, desktops, seed, scorer)
        parts = [
            run.part(out if len(budgets) == 1 else out / f"steps-{budget}", budget, settings) for budget in budgets
        ]
    except (TaskError, ValueError, EvaluatorError) as error:
        raise wrong(str(error) if str(error).endswith(".") else f"{error}.") from None
    unplayable = [task for task in tasks if task.unsupported]
    if unplayable:
        raise wrong(f"{unplayable[0].id} cannot run: no {', no '.join(unplayable[0].unsupported)}.")
    title = f"{policy} on {', '.join(targets)}"
    try:
        for part in parts:
            run.go(part, title if part.budget is None else f"{title}, at most {part.budget} steps")
    except DartEnvError as error:
        raise failed(f"{error} What was done is in {out}; the same command goes on from there.") from None
    except KeyboardInterrupt:
        print(f"\ndart-envs: stopped. What was done is in {out}; the same command goes on from there.", file=sys.stderr)
        raise typer.Exit(EXIT_STOPPED) from None
    finally:
        if any(part.begun for part in parts):
            write_report(out, parts, tasks, title, settings)
    if not any(part.trials for part in parts):
        raise failed(f"no trial came to a verdict; the causes are above and in {out}.")


def trial_shape(first: Task, image: str | None, resolution: str | None) -> DesktopShape:
    """The desktop of all trials: what was asked for, else what the first task is for. Raises ValueError."""
    own = shape_of(first)
    size = own.resolution
    if resolution is not None:
        width, _, height = resolution.partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            raise ValueError(f"--resolution looks like 1280x800, not {resolution!r}.")
        size = (int(width), int(height))
    return make_shape(image or own.image, size, own.font_size)


def read_budgets(given: str | None) -> list[int | None]:
    """`15` or `15,50,100`; [None] for the tasks' own. Raises ValueError."""
    if given is None:
        return [None]
    words = [word.strip() for word in given.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 500 for word in words):
        raise ValueError(f"--max-steps is a number from 1 to 500, or several with commas between, not {given!r}")
    return list(dict.fromkeys(int(word) for word in words))


@dataclass
class _Part:
    """What one step budget has in its folder."""

    folder: Path
    budget: int | None
    settings: Mapping[str, Any]
    trials: dict[str, Trial]
    unjudged: dict[str, Trial] = field(default_factory=dict)
    """Trials of this run that have no verdict."""

    @property
    def begun(self) -> bool:
        return bool(self.trials or self.unjudged)

    def of(self, tasks: Sequence[Task]) -> list[Trial]:
        """The trials of these tasks, in their order."""
        both = {**self.unjudged, **self.trials}
        return [both[task.id] for task in tasks if task.id in both]


def write_report(
    out: Path, parts: Sequence[_Part], tasks: Sequence[Task], title: str, settings: Mapping[str, Any]
) -> None:
    """`report.json` and `report.html` of all step budgets together, and of each where there are several."""
    told = [Part(part.budget, part.of(tasks), len(tasks)) for part in parts]
    folders = [(out, told), *((part.folder, [one]) for part, one in zip(parts, told, strict=True) if len(parts) > 1)]
    for folder, shown in folders:
        summaries = [{"max_steps": one.budget, **summarise(one.trials).as_dict()} for one in shown]
        content = {"settings": dict(settings), **(summaries[0] if len(shown) == 1 else {"budgets": summaries})}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REPORT_JSON).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (folder / REPORT_HTML).write_text(to_html(shown, title, settings), encoding="utf-8")
    for one in told:
        if one.trials:
            print("" if one.budget is None else f"\nat most {one.name}")
            print(to_text(summarise(one.trials)))
    print(f"\nreport: {out / REPORT_HTML}")


def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise ValueError where the folder holds trials that were made otherwise: they would be mixed."""
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        other = [name for name, value in settings.items() if before.get(name) != value]
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); remove it or choose another --out") from error
    if other:
        now = ", ".join(f"{name} {before.get(name)} (now {settings[name]})" for name in other)
        raise ValueError(f"{path.parent} holds trials made with {now}; choose another --out")


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

    def part(self, folder: Path, budget: int | None, settings: Mapping[str, Any]) -> _Part:
        """Raises ValueError for a file that is none of ours, and for trials made with other settings."""
        exact = {name: value for name, value in settings.items() if name not in MAY_CHANGE} | {"max_steps": budget}
        check_settings(folder / SETTINGS, exact)
        return _Part(folder, budget, exact, read_trials(folder / TRIALS))

    def go(self, part: _Part, title: str) -> None:
        """Run what is not done. Raises DartEnvError."""
        todo = [task for task in self.tasks if task.id not in part.trials]
        part.folder.mkdir(parents=True, exist_ok=True)
        (part.folder / SETTINGS).write_text(json.dumps(part.settings, indent=1) + "\n", encoding="utf-8")
        print(f"{title}: {len(self.tasks)} tasks, {len(self.tasks) - len(todo)} of them done already.", flush=True)
        if todo:
            asyncio.run(self._trials(todo, part))

    async def _trials(self, todo: Sequence[Task], part: _Part) -> None:
        from dart_envs.farm import AsyncFarm

        async with await AsyncFarm.connect() as farm:
            async for trial in run_trials(
                farm,
                todo,
                self.policy,
                desktops=self.desktops,
                shape=self.shape,
                action_space=self.action_space,
                max_steps=part.budget,
                seed=self.seed,
                scorer=self.scorer,
            ):
                (part.unjudged if trial.reward is None else part.trials)[trial.task_id] = trial
                append(part.folder / TRIALS, trial)
                reward = "  - " if trial.reward is None else f"{trial.reward:4.2f}"
                told = f"{reward}  {trial.task_id}  {trial.end}, {trial.steps} steps  {trial.cause or ''}"
                print(told.rstrip(), flush=True)


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
