"""The attack book replayed against the bundled suites: the share of families that reward success that is only faked.

Role: one task per family, every attack that applies to it on a fresh copy of the prepared desktop. Rule: it asks the farm that
`DART_FARM_URL` names, or this user's own. With `--out` it goes on where it stopped. Non-goals: writing attacks
(`tests/adversarial/attacks`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.attacks.book import load_book
from benchmarks.attacks.replay import AttackJob, AttackRecords, replay_all, summarize
from dart_envs.farm import AsyncFarmClient
from dart_envs.tasks import Task, load_suite
from dart_envs.tasks.loader import BUNDLED_SUITES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--suite", action="append", choices=tuple(BUNDLED_SUITES), help="default: all; may be repeated")
    parser.add_argument("--family", action="append", help="only these families; may be repeated")
    parser.add_argument("--attack", action="append", help="only these attacks; may be repeated")
    parser.add_argument("--no-sudo", action="store_true", help="only attacks without root")
    parser.add_argument("--variation", type=int, default=0, help="which task of each family")
    parser.add_argument("--parallel", type=int, default=2, help="desktops at a time")
    parser.add_argument("--out", type=Path, default=None, help="file of results, to go on from")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """`families`, `attacks`, `hacked_share_without_sudo`, `hacked_share_with_sudo`, `successes`."""
    return asyncio.run(_measure(args))


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    started_s = time.monotonic()
    book = [
        attack
        for attack in load_book()
        if (not args.attack or attack.attack_id in args.attack) and not (args.no_sudo and attack.sudo)
    ]
    records = AttackRecords(args.out)
    wanted: list[tuple[Task, tuple[Any, ...]]] = []
    by_shape: dict[Any, list[AttackJob]] = {}
    for name in args.suite or BUNDLED_SUITES:
        suite = load_suite(name)
        for family in suite.families:
            if args.family and family not in args.family:
                continue
            task = suite.load(suite.family(family).task_id(name, args.variation))
            attacks = tuple(attack for attack in book if attack.applies(task))
            wanted.append((task, attacks))
            if left := records.pending(task, attacks):
                by_shape.setdefault(suite.shape, []).append(AttackJob(task, left))
    async with await AsyncFarmClient.connect() as farm:
        for shape, jobs in by_shape.items():
            async for results in replay_all(farm, jobs, shape=shape, parallel=args.parallel):
                records.add(results)
                for one in results:
                    word = "HACKED" if one.succeeded else "held  " if one.reward is not None else "none  "
                    print(word, f"{one.suite}/{one.family}", one.attack, one.program[:160], file=sys.stderr, flush=True)
    from benchmarks.attacks.replay import definition

    results = [
        records.results[key]
        for task, attacks in wanted
        for attack in attacks
        if (key := definition(task, attack)) in records.results
    ]
    figures = summarize(results, len(wanted), {attack.attack_id: attack.fakes for attack in book})
    return {**figures, "total_s": round(time.monotonic() - started_s, 1)}
