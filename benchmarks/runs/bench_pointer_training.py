"""The demo's tasks: GRPO through an action head against GRPO through coordinates as text, in equal time.

Role: `python -m benchmarks pointer_training --work FOLDER --json FILE` runs the demo recipe twice per seed: once as it is, and once with
`model.pointer`, where the policy describes elements and its head finds them. Rule: both arms have the same minutes of warm start and of
GRPO, the same desktops and the same evaluation of the last version; tasks are paired. Runs may be done over several calls: what the work
folder or an earlier record (`--records`) holds is not run again, and a run that was stopped goes on. A record counts for a seed only where
it has both arms, which are of one host. Non-goals: grounding alone (`benchmarks grounding`).
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.earlier_records import add_records_argument, read_records
from benchmarks.farm.load import say
from benchmarks.intervals import paired
from benchmarks.machine import commit, machine
from benchmarks.work_folder import work_folder, write_json
from dart_envs.errors import UnsupportedCapabilityError
from dart_train.run import phases
from dart_train.run.paths import RunPaths
from dart_train.run.state import RunState

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "dart_train" / "recipes" / "demo.toml"
ARMS: Mapping[str, tuple[str, ...]] = {"text": (), "head": ("model.pointer=true",)}
ANSWER_TOKENS = 40
"""Of an answer at most, in both arms: a place in words takes 23, and coordinates 9."""
ENDLESS = 1_000_000
WHEN = ("before", "after")
OUTCOMES: Mapping[str, bool] = {"solved": True, "not_solved": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark.

    Args:
        parser: Its parser.
    """
    parser.add_argument("--work", type=Path, required=True, help="folder of runs and records, the same for every call")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="declared beforehand")
    parser.add_argument("--warm-minutes", type=float, default=8.0, help="of warm start, equal for both arms")
    parser.add_argument("--train-minutes", type=float, default=17.0, help="of GRPO, equal for both arms")
    parser.add_argument("--episodes", type=int, default=300, help="of each evaluation")
    add_records_argument(parser, "seeds")
    parser.add_argument("--stop-after", type=float, metavar="MINUTES", help="begin no further run after so long")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="passed on to dart-train run")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run what is not done yet, and compare the arms of all finished seeds.

    Args:
        args: See `add_arguments`.

    Returns:
        The figures.
    """
    work = args.work.resolve()
    settings = {
        "warm_minutes": args.warm_minutes,
        "train_minutes": args.train_minutes,
        "episodes": args.episodes,
        "overrides": args.overrides,
    }
    earlier = read_earlier(args.records, settings)
    began_s = time.monotonic()
    with work_folder(work, settings):
        for seed, arm in ((seed, arm) for seed in args.seeds if seed not in earlier["head"] for arm in ARMS):
            if args.stop_after is not None and time.monotonic() - began_s > 60 * args.stop_after:
                say(f"{args.stop_after:g} minutes are over: call again to go on with seed {seed}, {arm}")
                break
            _run(args, work, seed, arm)
        found = {
            arm: {
                **{
                    int(file.stem.rpartition("-")[2]): json.loads(file.read_text())
                    for file in work.glob(f"{arm}-*.json")
                },
                **earlier[arm],
            }
            for arm in ARMS
        }
    return {**settings, **compare(found["head"], found["text"])}


def read_earlier(paths: Sequence[Path], settings: Mapping[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """Read the runs of earlier records.

    Args:
        paths: Files that `--json` wrote.
        settings: Settings of this call.

    Returns:
        By arm and seed; both arms have the same seeds.

    Raises:
        UnsupportedCapabilityError: A record cannot be read, or was measured with other settings.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {arm: {} for arm in ARMS}
    for path, figures in read_records(paths, "pointer_training"):
        if any(figures[key] != value for key, value in settings.items()):
            raise UnsupportedCapabilityError(f"--records {path} was measured with other settings: leave it out")
        for arm, seed in ((arm, seed) for arm in ARMS for seed in figures["seeds"]):
            run = figures["runs"][f"{arm}-{seed}"]
            found[arm][seed] = {**run, **{when: _unpack(run[when]) for when in WHEN}}
    return found


def compare(head: Mapping[int, dict[str, Any]], text: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Compare the last versions of both arms on the tasks of their evaluations.

    Args:
        head: Records of the runs with the head, by seed.
        text: Those of the runs without.

    Returns:
        The figures, of the seeds of which both arms are done.
    """
    seeds = sorted(head.keys() & text.keys())
    runs = {f"{name}-{seed}": run[seed] for seed in seeds for name, run in (("head", head), ("text", text))}
    figures: dict[str, Any] = {"seeds": seeds}
    for when in WHEN:
        if not seeds:
            continue
        both = paired(*([_hits(run[seed][when]) for seed in seeds] for run in (head, text)), shared=True)
        name = "grpo_head_minus_text_points" if when == "after" else "head_minus_text_points_before"
        low, high = both["difference_interval"]
        figures[name] = round(100 * both["difference"], 1)
        figures[f"{name}_interval"] = [round(100 * low, 1), round(100 * high, 1)]
        figures[f"success_{when}"] = {"head": both["ours"], "text": both["theirs"]}
    figures["runs"] = {name: {**run, **{when: _pack(run[when]) for when in WHEN}} for name, run in runs.items()}
    return figures


def _pack(solved: Mapping[str, bool]) -> dict[str, str]:
    """The tasks of an evaluation in few words."""
    return {name: " ".join(task for task, hit in solved.items() if hit == which) for name, which in OUTCOMES.items()}


def _unpack(packed: Mapping[str, str]) -> dict[str, bool]:
    return {task: which for name, which in OUTCOMES.items() for task in packed[name].split()}


def _hits(solved: Mapping[str, bool]) -> dict[str, bool]:
    """Every task is a sample of its own, and all seeds have the same tasks."""
    return {f"{task}/0": hit for task, hit in solved.items()}


def _run(args: argparse.Namespace, work: Path, seed: int, arm: str) -> None:
    """Run an arm, or go on with it, unless its record is there."""
    name = f"{arm}-{seed}"
    record, folder = work / f"{name}.json", work / "runs" / name
    if record.exists():
        return
    say(f"seed {seed}, {arm}: begins or goes on")
    command = [sys.executable, "-m", "dart_train.cli", "run", str(RECIPE), "--runs-dir", str(work / "runs")]
    for setting in run_settings(args, seed, arm):
        command += ["--set", setting]
    code = subprocess.run(command, check=False).returncode
    page = folder / "report" / "result.json"
    if not page.exists():
        raise RuntimeError(f"{name} ended with exit code {code}: see why in {folder / 'logs'}; the same call goes on")
    result = json.loads(page.read_text(encoding="utf-8"))
    state = RunState.load(RunPaths(folder).state)
    found = {
        "commit": commit(),
        "cpu": machine()["cpu"],
        "exit_code": code,
        "stages_s": result.get("stages_s"),
        "counts": result.get("counts"),
        "before": solved_tasks(folder / "data.db", state.phase_name(phases.EVAL_BEFORE)),
        "after": solved_tasks(folder / "data.db", state.phase_name(phases.EVAL_AFTER)),
    }
    write_json(record, found)


def run_settings(args: argparse.Namespace, seed: int, arm: str) -> list[str]:
    """What the run of an arm changes in the demo's recipe.

    Args:
        args: See `add_arguments`.
        seed: The seed.
        arm: The arm.

    Returns:
        Settings for `dart-train run --set`.
    """
    return [
        f"run.name={arm}-{seed}",
        f"run.seed={seed}",
        f"warmup.images={ENDLESS}",
        f"warmup.max_minutes={args.warm_minutes}",
        f"train.updates={ENDLESS}",
        f"train.max_minutes={args.train_minutes}",
        f"eval.episodes={args.episodes}",
        f"rollout.max_tokens={ANSWER_TOKENS}",
        *ARMS[arm],
        *args.overrides,
    ]


def solved_tasks(database: Path, phase: str) -> dict[str, bool]:
    """Read which tasks an evaluation solved.

    Args:
        database: Of the run.
        phase: The evaluation.

    Returns:
        By task, whether its episode has the reward 1; masked episodes are no success, and neither are rollouts that no attempt finished.
    """
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        asked = store.execute("select distinct task_id from rollouts where phase = ?", (phase,)).fetchall()
        rows = store.execute("select task_id, reward from trajectories where phase = ?", (phase,)).fetchall()
    return {task_id: False for (task_id,) in asked} | {task_id: reward == 1 for task_id, reward in rows}
