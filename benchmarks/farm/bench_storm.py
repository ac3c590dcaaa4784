"""Steps of a vector environment in a storm of late answers, lost answers and deaths: is every result the one of its own step?

Role: `run_storm` drives `DartVectorEnv` against a misbehaving farm (`storm_farm`), by turns with `send`/`recv` and with the barrier, with
time-outs of the caller's own, and compares each result with the action it belongs to. Rule: every action moves the pointer to a place of
its own, and every frame says where the pointer is, so that a late answer taken for the next step's is seen. Non-goals: speed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.farm.load import SETTINGS
from benchmarks.farm.process import own_farm
from benchmarks.farm.storm_farm import position_in
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.types import Action, ActionType, Desktop, EndReason, Outcome
from dart_server.wire import DesktopShape

SIZE = (256, 64)
EPISODE_STEPS = 40
STEP_DEADLINE_S, RESET_DEADLINE_S = 1.0, 20.0
PATIENCE_S = 0.05
BARRIER_SHARE = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--steps", type=int, default=100_000, help="steps whose result is compared")
    parser.add_argument("--envs", type=int, default=16, help="desktops")
    parser.add_argument("--seed", type=int, default=7, help="of faults and of the order of calls")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """`wrong_step_results`, what was compared, and what the storm did."""
    return run_storm(args.steps, args.envs, args.seed)


def run_storm(steps: int, envs: int, seed: int, *, faults: str = "storm") -> dict[str, Any]:
    """Steps until `steps` results were compared. `faults`: `storm`, or `swapped` for a farm whose answers are really wrong."""
    program = [sys.executable, "-m", "benchmarks.farm.storm_farm", str(seed), faults]
    settings = {**SETTINGS, "DART_MAX_DESKTOPS": str(envs + 8), "DART_WARM_DESKTOPS": "4"}
    with own_farm(settings, program=program) as farm:
        os.environ["DART_API_KEY"] = farm.key
        try:
            return _Storm(f"unix://{farm.uds}", envs, seed).run(steps)
        finally:
            del os.environ["DART_API_KEY"]


@dataclass
class StormTask:
    """Nothing to do for some steps."""

    id: str = "storm/steps/0000"
    instruction: str = "Stay."
    max_steps: int = EPISODE_STEPS
    publish_setup: bool = False

    def setup_key(self, image_digest: str, shape: DesktopShape) -> str:
        return hashlib.sha256(f"{image_digest}{shape}".encode()).hexdigest()

    async def prepare(self, desktop: Desktop) -> None:
        pass

    async def evaluate(self, desktop: Desktop, *, end: EndReason | None = None) -> Outcome:
        return Outcome(0.0)

    async def oracle(self, desktop: Desktop, *, step: int = 0) -> Sequence[Action]:
        return []


@dataclass
class _Sent:
    """An action on its way: the tag it was given, where it points, the episode it was sent in."""

    place: tuple[int, int]
    episode: int
    tag: int | None = None


@dataclass
class _Storm:
    farm: str
    envs: int
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    sent: dict[int, _Sent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._next = 0
        self._episodes = [0] * self.envs
        self._over = [False] * self.envs
        self._wrong: list[str] = []

    def run(self, steps: int) -> dict[str, Any]:
        started_s = time.monotonic()
        vector = DartVectorEnv(
            self.envs,
            StormTask(),
            resolution=SIZE,
            farm=self.farm,
            step_deadline_s=STEP_DEADLINE_S,
            reset_deadline_s=RESET_DEADLINE_S,
        )
        try:
            _, infos = vector.reset(seed=self.seed)
            self._episodes = [int(number) for number in infos["episode_number"]]
            while self.counts["compared"] < steps:
                if not vector.busy and self._rng.random() < BARRIER_SHARE:
                    self._barrier(vector)
                else:
                    self._first_come(vector)
        finally:
            vector.close()
        return {
            "wrong_step_results": self.counts["wrong"],
            "compared": self.counts["compared"],
            "first_wrong": self._wrong[:5],
            "envs": self.envs,
            "seed": self.seed,
            **{
                name: self.counts[name]
                for name in ("resets", "deadlines", "faults", "broke_desktop", "caller_time_outs")
            },
            "steps_per_s": round(self.counts["compared"] / (time.monotonic() - started_s), 1),
        }

    def _action(self, index: int) -> Action:
        """A move to a place that no other action of the last 16,383 goes to; never the corner where desktops start."""
        self._next = self._next % (SIZE[0] * SIZE[1] - 1) + 1
        place = self._next % SIZE[0], self._next // SIZE[0]
        self.sent[index] = _Sent(place, self._episodes[index])
        return Action(ActionType.MOVE, x=place[0], y=place[1])

    def _first_come(self, vector: DartVectorEnv) -> None:
        free = sorted(set(range(self.envs)) - set(vector.busy))
        if free:
            tags = vector.send([self._action(index) for index in free], free)
            for index, tag in zip(free, tags, strict=True):
                self.sent[index].tag = int(tag)
        try:
            wanted = self._rng.randint(1, len(vector.busy))
            observations, _, _, truncated, infos, ids = vector.recv(wanted, timeout=PATIENCE_S)
        except TimeoutError:
            self.counts["caller_time_outs"] += 1
            return
        for row, index in enumerate(ids):
            self._compare(int(index), observations["screenshot"][row], bool(truncated[row]), infos[row])

    def _barrier(self, vector: DartVectorEnv) -> None:
        vector.step_async([self._action(index) for index in range(self.envs)])
        while True:
            try:
                observations, _, _, truncated, infos = vector.step_wait(timeout=PATIENCE_S)
                break
            except TimeoutError:
                self.counts["caller_time_outs"] += 1
        for index in range(self.envs):
            self._compare(index, observations["screenshot"][index], bool(truncated[index]), _row(infos, index))

    def _compare(self, index: int, picture: np.ndarray[Any, Any], truncated: bool, info: dict[str, Any]) -> None:
        """One result against the action it must belong to."""
        sent = self.sent.pop(index)
        if sent.tag is not None and info["tag"] != sent.tag:
            self._say(f"env {index}: the answer has tag {info['tag']}, the action had {sent.tag}")
        episode = int(info["episode_number"])
        self.counts["compared"] += 1
        end = info.get("end")
        if self._over[index]:
            self._over[index] = bool(truncated)
            self.counts["resets"] += 1
            self._episodes[index] = episode
            if not truncated and self._shown(picture) != (0, 0):
                self._say(f"env {index}: a fresh desktop shows {self._shown(picture)}")
            return
        if episode != sent.episode:
            self._say(f"env {index}: sent in episode {sent.episode}, answered in {episode}")
        self._over[index] = end is not None
        if end in (EndReason.FARM_FAULT, EndReason.BROKE_DESKTOP):
            name = "faults" if end == EndReason.FARM_FAULT else "broke_desktop"
            self.counts["deadlines" if "deadline" in str(info.get("cause")) else name] += 1
        elif self._shown(picture) != sent.place:
            self._say(f"env {index}: moved to {sent.place}, the answer shows {self._shown(picture)}")

    @staticmethod
    def _shown(picture: np.ndarray[Any, Any]) -> tuple[int, int]:
        return position_in(picture.tobytes()[:8])

    def _say(self, what: str) -> None:
        self.counts["wrong"] += 1
        self._wrong.append(what)


def _row(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """One desktop's plain infos out of the batch."""
    return {
        name: column[index]
        for name, column in infos.items()
        if isinstance(column, np.ndarray)
        and not name.startswith("_")
        and (f"_{name}" not in infos or infos[f"_{name}"][index])
    }
