"""Whether it matters how a desktop came to be: cold, restored, forked, or taken from the standby.

Role: `compare` plays one script of `ACTIONS` actions, solutions of bundled tasks one after the other, on a desktop of each kind, and
compares after every action the accessibility tree, after every task the verdict and the files of the home directory.
Rule: a fresh farm, whose first lease is the one desktop that is booted; all others are copies of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from dart_envs import tasks
from dart_envs.actions import to_input_events
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.types import DecodedAction
from dart_server.wire import DesktopShape, DesktopState, SettleSpec

ACTIONS = 50
_SETTLE = SettleSpec(quiet_ms=250, cap_ms=4_000)
_FAMILIES = (
    "enter_text", "fill_form", "set_scale", "tick_two", "press_both", "choose_row", "pick_radio", "tick_nth", "choose_nth", "press_two",
    "press_button", "press_nth", "tick_box",
)  # fmt: skip
_FILES = r"""
cd /home/user || exit 1
find . -type d -printf '%p\td %m %u\n'
find . ! -type d -printf '%p\t%y %m %u %s %l\n'
find . -type f -exec sha256sum {} + | sed -E 's/^([0-9a-f]+)  (.*)$/\2\t\1/'
"""
"""Lines of a path in the home directory, a tab and a fact of it. The size of a directory is its file system's."""


@dataclass
class Played:
    """What one desktop showed while the script was played."""

    trees: list[str] = field(default_factory=list)
    files: list[dict[str, list[str]]] = field(default_factory=list)
    """After every task: by path what the home directory holds there."""
    verdicts: list[float] = field(default_factory=list)

    @property
    def actions(self) -> int:
        return len(self.trees)

    def differences(self, other: Played) -> list[str]:
        """What differs, by kind, number and path; the paths once, where they first differ."""
        found = []
        for kind in ("trees", "verdicts"):
            pairs = enumerate(zip_longest(getattr(self, kind), getattr(other, kind)))
            found += [f"{kind} {at}" for at, (mine, theirs) in pairs if mine != theirs]
        told: set[str] = set()
        nothing: dict[str, list[str]] = {}
        for at, (mine, theirs) in enumerate(zip_longest(self.files, other.files, fillvalue=nothing)):
            paths = {path for path in mine.keys() | theirs.keys() if mine.get(path) != theirs.get(path)} - told
            found += [f"files {at}: {path}: {theirs.get(path)} became {mine.get(path)}" for path in sorted(paths)]
            told |= paths
        return found


def script() -> list[str]:
    """Ids of the tasks, more than are needed."""
    suite = tasks.load_suite("basics")
    return [suite.tasks(split="train", families=[family])[turn] for turn in range(6) for family in _FAMILIES]


async def play(lease: AsyncLease) -> Played:
    """Play the script to its last action."""
    played = Played()
    for task_id in script():
        task = tasks.load(task_id)
        await task.prepare(lease)
        await lease.step([], _SETTLE)
        step = 0
        while played.actions < ACTIONS and (actions := await task.oracle(lease, step=step)):
            action = actions[0]
            events = action.events if isinstance(action, DecodedAction) else to_input_events(action, lease.resolution)
            await lease.step(list(events), _SETTLE)
            tree = [element.model_dump(mode="json") for element in await lease.a11y()]
            played.trees.append(hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest())
            step += 1
        played.verdicts.append((await task.evaluate(lease)).reward)
        listed = await lease.exec(["sh", "-c", _FILES])
        facts: dict[str, list[str]] = {}
        for line in listed.stdout.splitlines():
            path, _, fact = line.partition("\t")
            facts.setdefault(path, []).append(fact)
        played.files.append(facts)
        if played.actions == ACTIONS:
            return played
    raise AssertionError(f"the script has only {played.actions} actions")


async def compare(farm: AsyncFarmClient, shape: DesktopShape) -> dict[str, Any]:
    """Play on each kind; `starts_equivalent`, and what differed from the cold one."""
    if await farm.snapshots():
        raise RuntimeError("a fresh farm is needed: this one has snapshots already")
    async with await farm.lease(shape) as lease:
        played = {"cold": await play(lease)}
        await lease.reset()
        played["restored"] = await play(lease)
        await lease.reset()
        saved = await lease.snapshot(name="origin of forks")
        while not any(view.state is DesktopState.READY for view in await farm.desktops()):  # noqa: ASYNC110 - outside this process
            await asyncio.sleep(0.2)
        async with await farm.lease(shape) as standby:
            played["standby"] = await play(standby)
            await asyncio.gather(*(one.reset(snapshot_id=saved.snapshot_id) for one in (lease, standby)))
            played["forked"], played["forked, the other"] = await asyncio.gather(play(lease), play(standby))
    differences = {kind: found for kind, one in played.items() if (found := one.differences(played["cold"]))}
    return {
        "starts_equivalent": not differences,
        "starts_compared": sorted(played),
        "starts_differences": differences,
        "starts_actions": min(one.actions for one in played.values()),
        "starts_verdicts": played["cold"].verdicts,
    }
