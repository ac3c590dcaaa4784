"""`dart-envs eval`: a policy on tasks, with a report.

Role: arguments, files and output. Non-goals: episodes and tables (`dart_envs.evaluation`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from dart_envs.action_formats import make_format
from dart_envs.action_spaces import make_codec
from dart_envs.cli.exits import runtime_error, usage_error
from dart_envs.envs.config import make_shape
from dart_envs.envs.task_sources import select_tasks
from dart_envs.errors import DartEnvError, EvaluatorError, InvalidRequestError, TaskError
from dart_envs.evaluation.page import BudgetReport, to_html
from dart_envs.evaluation.policies import EpisodePolicyFactory
from dart_envs.evaluation.report import summarise, to_text
from dart_envs.evaluation.run import (
    POLICY_ERROR,
    EvaluationEpisode,
    append_episode,
    read_episodes,
    run_episodes,
    task_domain,
)
from dart_envs.evaluators import INFEASIBLE, parse_scorer
from dart_envs.farm.base import FarmLike
from dart_envs.farm.transport import check_certificate_file, parse_address
from dart_envs.tasks import Task, load, task_shape
from dart_envs.tasks.requirements import format_refusals, refusal_reason, unreachable_files
from dart_server.wire import DesktopShape

EPISODES_FILE, SETTINGS_FILE, REPORT_JSON, REPORT_HTML = "episodes.jsonl", "settings.json", "report.json", "report.html"
REFUSED_FILE = "refused.json"
"""Tasks that cannot run here: the reason by task id."""
CHANGEABLE_SETTINGS = frozenset({"split", "base_url"})
"""Settings that say which episodes there are, or where the same model is, but not how an episode was made."""
EXIT_INTERRUPTED = 130
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
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="a domain, or the beginning of an OSWorld id (os/28cc3b7e); repeatable"),
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="desktops reach the live web: run tasks that need it")] = False,
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
        str | None, typer.Option(help="who judges: auto, builtin or osworld; default: DART_SCORER, else auto")
    ] = None,
    save_trajectories: Annotated[
        bool,
        typer.Option(
            "--save-trajectories", help="keep actions, a screenshot per step and a recording, in OSWorld's layout"
        ),
    ] = False,
    base_url: Annotated[str | None, typer.Option(help="of openai: an OpenAI-compatible endpoint, up to /v1")] = None,
    model: Annotated[str | None, typer.Option(help="of openai: the model's name there")] = None,
    api_key_env: Annotated[str, typer.Option(help="of openai: environment variable with the key")] = "OPENAI_API_KEY",
    action_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="of openai: ask as a checkpoint was trained: uitars-1.5, qwen3-vl, ...; the page Environments lists them",
        ),
    ] = None,
    history: Annotated[
        int | None,
        typer.Option(min=0, max=50, help="of openai: past turns that are sent again; default: 3, or the format's own"),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="of openai: of the answers")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="of openai: of one answer")] = 1024,
    prompt: Annotated[
        Path | None,
        typer.Option(
            help="of openai: file with the system prompt; {instruction}, {width}, {height}, {actions} are filled in"
        ),
    ] = None,
) -> None:
    """Run a policy on tasks, resumably, and report by domain with confidence intervals."""
    from dart_envs.evaluation import make_policy
    from dart_envs.evaluation.openai import Endpoint, format_policy, openai_policy

    own_prompt: str | None = None
    try:
        check_farm_address()
        budgets = parse_step_budgets(max_steps)
        unreadable: dict[str, str] = {}
        named = select_by_id(tasks_from_arguments(targets, split, unreadable), only or ())
        if policy == "oracle":
            named = [with_oracle(task) for task in named]
        shapes = {task.id: evaluation_shape(task, image, resolution) for task in named}
        local_images = not os.environ.get("DART_FARM_URL")
        refused = unreadable | {
            task.id: reason
            for task in named
            if (
                reason := refusal_reason(task, shapes[task.id], local_images=local_images, web=web)
                or ("has no oracle" if policy == "oracle" and not has_oracle(task) else None)
            )
        }
        refused |= unreachable_files(task for task in named if task.id not in refused)
        tasks = spread([task for task in named if task.id not in refused], limit)
        if not tasks:
            raise TaskError(f"None of the {len(named)} tasks can run here: {next(iter(refused.values()))}.")
        shape = shapes[tasks[0].id]
        mixed = len({shapes[task.id] for task in tasks}) > 1
        if policy == "openai":
            if base_url is None or model is None:
                raise ValueError("the policy openai needs --base-url and --model")
            own_prompt = None if prompt is None else prompt.read_text(encoding="utf-8")
            asked = None if action_format is None else make_format(action_format)
            history = (3 if asked is None else asked.images - 1) if history is None else history
            endpoint = Endpoint(base_url, model, api_key_env, history, max_tokens, temperature, prompt=own_prompt)
            chosen = openai_policy(endpoint, action_space) if asked is None else format_policy(endpoint, asked)
        elif action_format is not None:
            raise ValueError("--format is for the policy openai")
        else:
            if ":" in policy and "" not in sys.path:
                sys.path.insert(0, "")  # a module in the current folder, as `python -m` finds it
            chosen = make_policy(policy)
        make_codec(action_space, shape.resolution)
        settings = {
            "policy": policy,
            "model": model,
            "base_url": base_url,
            "history": history if policy == "openai" else None,
            "temperature": temperature if policy == "openai" else None,
            "max_tokens": max_tokens if policy == "openai" else None,
            "prompt": own_prompt,
            "action_space": action_space,
            "format": action_format,
            "image": "the tasks' own" if mixed else shape.image,
            "resolution": None if mixed else list(shape.resolution),
            "font_size": None if mixed else shape.font_size,
            "seed": seed,
            "scorer": str(parse_scorer(scorer)),
            "split": split,
        }
        run = _EvaluationRun(chosen, tasks, shapes, action_space, desktops, seed, scorer, save_trajectories)
        parts = [
            run.part(out if len(budgets) == 1 else out / f"steps-{budget}", budget, settings) for budget in budgets
        ]
        if any(run.pending(part) for part in parts):
            asyncio.run(check_farm())
    except (TaskError, ValueError, EvaluatorError, OSError, InvalidRequestError) as error:
        raise usage_error(str(error) if str(error).endswith(".") else f"{error}.") from None
    except DartEnvError as error:
        raise runtime_error(str(error)) from None
    if refused:
        print(format_refusals(refused, len(named) + len(unreadable)), flush=True)
        out.mkdir(parents=True, exist_ok=True)
        (out / REFUSED_FILE).write_text(json.dumps(refused, indent=1) + "\n", encoding="utf-8")
    title = f"{policy} on {', '.join(targets)}"
    try:
        for part in parts:
            run.run_pending(part, title if part.budget is None else f"{title}, at most {part.budget} steps")
    except DartEnvError as error:
        raise runtime_error(f"{error} What was done is in {out}; the same command goes on from there.") from None
    except KeyboardInterrupt:
        print(f"\ndart-envs: stopped. What was done is in {out}; the same command goes on from there.", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        if any(part.has_results for part in parts):
            write_report(out, parts, tasks, title, settings, refused)
    errors = [one for part in parts for one in part.masked.values() if one.end == POLICY_ERROR]
    if errors:
        raise runtime_error(
            f"the policy raised in {len(errors)} episodes ({errors[0].cause}); fix it, and the same command runs their tasks again."
        )
    if not any(part.episodes for part in parts):
        raise runtime_error(f"no episode came to a verdict; the causes are above and in {out}.")


def check_farm_address() -> None:
    """Raise InvalidRequestError for a `DART_FARM_URL` that is no address, and for a wrong `SSL_CERT_FILE`; no farm is asked."""
    check_certificate_file()
    if url := os.environ.get("DART_FARM_URL"):
        parse_address(url)


async def check_farm() -> None:
    """Ask the farm for its state, which needs a good address, certificate and key. Raises DartEnvError."""
    from dart_envs.farm import AsyncFarmClient

    async with await AsyncFarmClient.connect() as farm:
        await farm.view()


def evaluation_shape(first: Task, image: str | None, resolution: str | None) -> DesktopShape:
    """The desktop of all episodes: what was asked for, else what the first task is for. Raises ValueError."""
    builtin = task_shape(first)
    size = builtin.resolution
    if resolution is not None:
        width, _, height = resolution.partition("x")
        if not (width.isdecimal() and height.isdecimal()):
            raise ValueError(f"--resolution looks like 1280x800, not {resolution!r}.")
        size = (int(width), int(height))
    return make_shape(image or builtin.image, size, builtin.font_size)


def parse_step_budgets(given: str | None) -> list[int | None]:
    """`15` or `15,50,100`; [None] for the tasks' own. Raises ValueError."""
    if given is None:
        return [None]
    words = [word.strip() for word in given.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= 500 for word in words):
        raise ValueError(f"--max-steps is a number from 1 to 500, or several with commas between, not {given!r}")
    return list(dict.fromkeys(int(word) for word in words))


@dataclass
class _BudgetRun:
    """What one step budget has in its folder."""

    folder: Path
    budget: int | None
    settings: Mapping[str, Any]
    episodes: dict[str, EvaluationEpisode]
    masked: dict[str, EvaluationEpisode] = field(default_factory=dict)
    """Masked episodes of this run."""

    @property
    def has_results(self) -> bool:
        return bool(self.episodes or self.masked)

    def of(self, tasks: Sequence[Task]) -> list[EvaluationEpisode]:
        """The episodes of these tasks, in their order."""
        both = {**self.masked, **self.episodes}
        return [both[task.id] for task in tasks if task.id in both]


def write_report(
    out: Path,
    parts: Sequence[_BudgetRun],
    tasks: Sequence[Task],
    title: str,
    settings: Mapping[str, Any],
    refused: Mapping[str, str],
) -> None:
    """`report.json` and `report.html` of all step budgets together, and of each where there are several.

    Args:
        out: The folder of the run.
        parts: The step budgets.
        tasks: The tasks that can run.
        title: The head of the page.
        settings: What the run was started with.
        refused: Why tasks were left out, by id.
    """
    reports = [BudgetReport(part.budget, part.of(tasks), len(tasks)) for part in parts]
    folders = [
        (out, reports),
        *((part.folder, [one]) for part, one in zip(parts, reports, strict=True) if len(parts) > 1),
    ]
    for folder, shown in folders:
        summaries = [{"max_steps": one.budget, **summarise(one.episodes).as_dict()} for one in shown]
        content = {"settings": dict(settings), **(summaries[0] if len(shown) == 1 else {"budgets": summaries})}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REPORT_JSON).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (folder / REPORT_HTML).write_text(to_html(shown, title, settings, refused), encoding="utf-8")
    for one in reports:
        if one.episodes:
            print("" if one.budget is None else f"\nat most {one.name}")
            print(to_text(summarise(one.episodes)))
    print(f"\nreport: {out / REPORT_HTML}")


def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise ValueError where the folder holds episodes that were made otherwise: they would be mixed."""
    if not path.exists():
        return
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        other = [name for name, value in settings.items() if before.get(name) != value]
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); remove it or choose another --out") from error
    if other:
        now = ", ".join(f"{name} {before.get(name)} (now {settings[name]})" for name in other)
        raise ValueError(f"{path.parent} holds episodes made with {now}; choose another --out")


@dataclass(frozen=True)
class _EvaluationRun:
    """One policy on one choice of tasks, once for each step budget."""

    policy: EpisodePolicyFactory
    tasks: Sequence[Task]
    shapes: Mapping[str, DesktopShape]
    action_space: str
    desktops: int
    seed: int
    scorer: str | None
    save_trajectories: bool

    def part(self, folder: Path, budget: int | None, settings: Mapping[str, Any]) -> _BudgetRun:
        """Raises ValueError for a file that is none of ours, and for episodes made with other settings."""
        exact = {name: value for name, value in settings.items() if name not in CHANGEABLE_SETTINGS} | {
            "max_steps": budget
        }
        check_settings(folder / SETTINGS_FILE, exact)
        return _BudgetRun(folder, budget, exact, read_episodes(folder / EPISODES_FILE))

    def pending(self, part: _BudgetRun) -> list[Task]:
        """Return the tasks without a verdict, in order."""
        return [task for task in self.tasks if task.id not in part.episodes]

    def run_pending(self, part: _BudgetRun, title: str) -> None:
        """Run what is not done. Raises DartEnvError."""
        todo = self.pending(part)
        part.folder.mkdir(parents=True, exist_ok=True)
        (part.folder / SETTINGS_FILE).write_text(json.dumps(part.settings, indent=1) + "\n", encoding="utf-8")
        print(f"{title}: {len(self.tasks)} tasks, {len(self.tasks) - len(todo)} of them done already.", flush=True)
        if todo:
            asyncio.run(self._run_episodes(todo, part))

    async def _run_episodes(self, todo: Sequence[Task], part: _BudgetRun) -> None:
        from dart_envs.farm import AsyncFarmClient

        async with await AsyncFarmClient.connect() as farm:
            for shape in dict.fromkeys(self.shapes[task.id] for task in todo):
                group = [task for task in todo if self.shapes[task.id] == shape]
                await self._run_group(farm, group, shape, part)

    async def _run_group(self, farm: FarmLike, group: Sequence[Task], shape: DesktopShape, part: _BudgetRun) -> None:
        """Run tasks that need the same desktop."""
        episodes = run_episodes(
            farm,
            group,
            self.policy,
            desktops=self.desktops,
            shape=shape,
            action_space=self.action_space,
            max_steps=part.budget,
            seed=self.seed,
            scorer=self.scorer,
            trajectories=part.folder if self.save_trajectories else None,
        )
        async with aclosing(episodes):
            async for episode in episodes:
                (part.masked if episode.reward is None else part.episodes)[episode.task_id] = episode
                append_episode(part.folder / EPISODES_FILE, episode)
                reward = "  - " if episode.reward is None else f"{episode.reward:4.2f}"
                reports = f"{reward}  {episode.task_id}  {episode.end}, {episode.steps} steps  {episode.cause or ''}"
                print(reports.rstrip(), flush=True)


def select_by_id(tasks: Sequence[Task], only: Sequence[str]) -> list[Task]:
    """Select tasks by OSWorld's ids.

    Args:
        tasks: The tasks.
        only: Domains, beginnings of ids, or both with a slash (`os`, `28cc3b7e`, `os/28cc3b7e`); empty selects all.

    Returns:
        The tasks that fit one of them, in order.

    Raises:
        TaskError: If one of them fits no task.
    """

    def fits(task: Task, name: str) -> bool:
        domain, slash, beginning = name.partition("/")
        if slash:
            return task_domain(task) == domain and task.id.startswith(beginning)
        return task_domain(task) == name or task.id.startswith(name)

    for name in only:
        if not any(fits(task, name) for task in tasks):
            raise TaskError(
                f"--only {name}: none of the {len(tasks)} tasks has this domain or this beginning of its id."
            )
    return [task for task in tasks if not only or any(fits(task, name) for name in only)]


def with_oracle(task: Task) -> Task:
    """Return the task, with DART's solution where it is one of OSWorld's tasks and there is one."""
    from dart_envs.validation.osworld.oracles import ORACLES

    known = ORACLES.get(task.id)
    if task.oracle_script or known is None:
        return task
    return task.model_copy(update={"oracle_script": tuple(known.moves)})


def has_oracle(task: Task) -> bool:
    """Return whether the policy `oracle` can solve the task: it has a solution, or FAIL is the solution."""
    return bool(task.oracle_script) or INFEASIBLE in task.evaluator.functions


def spread(tasks: Sequence[Task], limit: int | None) -> list[Task]:
    """Return at most `limit` of the tasks, evenly spread; all of them for None."""
    if limit is None or limit >= len(tasks):
        return list(tasks)
    return [tasks[index * len(tasks) // limit] for index in range(limit)]


def tasks_from_arguments(
    targets: Sequence[str], split: str | None, unreadable: dict[str, str] | None = None
) -> list[Task]:
    """Load the tasks that the arguments name, in order, without repeats.

    Args:
        targets: Suites, families, task ids, task files, folders of task files.
        split: Of suites and families.
        unreadable: Takes the files of folders that are no tasks, with the reason by path; None makes each an error.

    Returns:
        The tasks.

    Raises:
        TaskError: If one of the arguments names no task, or two files have the same id.
    """
    ids: dict[str, str] = {}  # what is loaded, by what tells it apart: a task's id, or the resolved path of a file
    in_folders: set[str] = set()
    for target in targets:
        path = Path(target)
        if path.is_dir():
            files = {str(file.resolve()): str(file) for file in sorted(path.rglob("*.json"))}
            in_folders.update(files.values())
            ids |= {key: name for key, name in files.items() if key not in ids}
        elif target.endswith(".json"):
            ids.setdefault(str(path.resolve()), target)
        else:
            ids |= {name: name for name in select_tasks(target, split).ids}
    names = list(ids.values())
    if not names:
        raise TaskError(f"{', '.join(targets)}: there is no task in it.")
    tasks: list[Task] = []
    for name in names:
        try:
            tasks.append(load(name))
        except TaskError as error:
            if unreadable is None or name not in in_folders:
                raise
            unreadable[name] = f"is no task: {error}".rstrip(".")
    for task_id, count in Counter(task.id for task in tasks).items():
        if count > 1:
            raise TaskError(
                f"{count} of the task files have the id {task_id}: episodes are told apart by it, so give each its own."
            )
    if not tasks:
        raise TaskError(f"{', '.join(targets)}: there is no task in it; {next(iter((unreadable or {}).values()))}.")
    return tasks
