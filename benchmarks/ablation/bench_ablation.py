"""What each part of the curation is worth for learning, in equal time, over declared seeds.

Role: `python -m benchmarks ablation --work FOLDER --json FILE` trains the tiny model on simulated dialogs, once per arm and seed: full
curation, plain GRPO, full curation without each of its parts, plain GRPO on a perturbed engine with late weights with and without the
correction; `--only hard_tasks`: with and without experience pool and imitation on families without a success in 256 samples. Rule: data
manager, farm, rollout worker, vLLM and trainer are the real ones; only the desktops are simulated. All arms of a seed begin with one warm
start and train for the same minutes. Arms and seeds may be run over several calls: what the work folder or an earlier record (`--records`)
holds is not run again, and the record always covers all of it. Non-goals: other models and live desktops.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.ablation.arms import ARMS, CURATION_ARMS, HARD_ARMS, STALE_ARMS
from benchmarks.ablation.earlier import Earlier, read_earlier, with_warm_start
from benchmarks.ablation.figures import format_table, summarize
from benchmarks.ablation.runs import WARM, run_arm
from benchmarks.ablation.session import Session
from benchmarks.earlier_records import add_records_argument
from benchmarks.farm.load import say
from benchmarks.work_folder import work_folder
from dart_envs.errors import UnsupportedCapabilityError
from dart_train.config import RecipeError

GROUPS = {"curation": CURATION_ARMS, "stale": STALE_ARMS, "hard_tasks": HARD_ARMS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark.

    Args:
        parser: Its parser.
    """
    parser.add_argument("--work", type=Path, required=True, help="folder of runs and records, the same for every call")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="declared beforehand")
    parser.add_argument(
        "--only", choices=tuple(GROUPS), nargs="+", default=["curation", "stale"], help="groups of arms"
    )
    parser.add_argument("--arms", choices=tuple(ARMS), nargs="+", help="single arms, in place of --only")
    parser.add_argument("--minutes-per-arm", type=float, default=10.0, help="minutes of training, equal for all arms")
    parser.add_argument(
        "--stop-after", type=float, default=None, metavar="MINUTES", help="begin no further arm after so long"
    )
    add_records_argument(parser, "groups of arms of a seed, each in whole,")
    parser.add_argument(
        "--noise", type=float, default=0.02, help="of the perturbed engine's weights, share of their own"
    )
    parser.add_argument("--late", type=float, default=60.0, help="seconds between versions that this engine takes")
    parser.add_argument(
        "--judged-tasks", type=int, default=None, help="of each split, to check the program; default: all"
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=JSON", help="of the common recipe"
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run what is not done yet, and gather everything.

    Args:
        args: See `add_arguments`.

    Returns:
        The figures.
    """
    settings = read_overrides(args.overrides)
    session = Session(args.work.resolve(), settings, args.minutes_per_arm, args.noise, args.late, args.judged_tasks)
    try:
        session.recipe({})
    except RecipeError as error:
        raise UnsupportedCapabilityError(f"--set: {error}") from None
    earlier = read_earlier(args.records, session.noted(), GROUPS)
    with work_folder(session.work, session.noted()):
        return _run(session, args, earlier)


def read_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """Read what `--set` says.

    Args:
        texts: `KEY=JSON` each.

    Returns:
        Values by `section.key`.

    Raises:
        UnsupportedCapabilityError: One cannot be read.
    """
    found = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            found[key] = json.loads(value)
        except ValueError:
            raise UnsupportedCapabilityError(
                f"--set {text}: give a key of the recipe and a JSON value, such as --set warmup.images=2000"
            ) from None
    return found


def _run(session: Session, args: argparse.Namespace, earlier: Earlier) -> dict[str, Any]:
    names = args.arms or [name for group in args.only for name in GROUPS[group]]
    began_s = time.monotonic()
    session.open()
    try:
        for seed, name in ((seed, name) for seed in args.seeds for name in names):
            if args.stop_after is not None and time.monotonic() - began_s > 60 * args.stop_after:
                say(f"{args.stop_after:g} minutes are over: call again to go on with seed {seed}, {name}")
                break
            if not earlier.holds(name, seed):
                run_arm(session, seed, ARMS[name])
    finally:
        session.close()
    warm_starts = session.records(WARM)
    records = {
        name: found
        for name in ARMS
        if (
            found := {
                **{seed: with_warm_start(row, warm_starts.get(seed)) for seed, row in session.records(name).items()},
                **earlier.arms.get(name, {}),
            }
        )
    }
    figures = {
        "minutes_per_arm": args.minutes_per_arm,
        "settings": session.noted(),
        "hard_families": {**earlier.hard_families, **session.records("hard-probe")},
        **summarize(records),
    }
    print(format_table(figures), file=sys.stderr, flush=True)
    return figures
