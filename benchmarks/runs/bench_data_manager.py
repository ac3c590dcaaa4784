"""CPU time of the data manager per episode, over a database with many trajectories.

Role: a data manager in a process of its own, as in a run, with rollouts that are reported over HTTP and batches that are trained on; and
the decisions alone, with 10,000 desktops. Rule: processor time of the data manager's process, not wall time, so that other work on the
host matters little. Non-goals: episodes on desktops, training.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import insert

from dart_agent.data_client.client import DataManagerClient
from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.data_client.payloads import SamplingPayload
from dart_agent.data_client.wire import BatchReport, PhaseSpec, TaskSelection, VersionRecord
from dart_agent.types import Purpose
from dart_train.data_manager.catalog import SuiteCatalog
from dart_train.data_manager.config import DataManagerConfig
from dart_train.data_manager.store.models import GroupTable, PhaseTable, RolloutTable, StepTable, TrajectoryTable
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.scheduling.commands import AssignRollout, IssueBatch
from dart_train.scheduling.decide import decide
from dart_train.scheduling.events import (
    BatchAsked,
    BatchDone,
    Event,
    PhasePlan,
    PhaseStarted,
    PolicyPublished,
    RolloutEnded,
    WorkAsked,
)
from dart_train.scheduling.settings import BatchSettings, SchedulerSettings
from dart_train.scheduling.state import SchedulerState

GROUP_SIZE, BATCH_GROUPS = 8, 8
FAMILIES = ["press_nth", "press_two", "choose_nth", "tick_nth"]
TOKENS = 40
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stored", type=int, default=20_000, help="trajectories that are stored before the measurement"
    )
    parser.add_argument("--episodes", type=int, default=800, help="episodes of the measurement")
    parser.add_argument("--chunk", type=int, default=100, help="episodes per reading of the processor time")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 5, 15], help="steps per episode")
    parser.add_argument("--desktops", type=int, default=10_000, help="desktops of the decisions alone")


def measure(args: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        config = DataManagerConfig(
            database=root / "data.db",
            images=root / "images",
            socket=root / "data.sock",
            batch=BatchSettings(min_groups=BATCH_GROUPS, max_groups=BATCH_GROUPS, max_ready_groups=2 * BATCH_GROUPS),
        )
        (root / "config.json").write_text(config.model_dump_json(), encoding="utf-8")
        fill(config, args.stored)
        episodes = {str(steps): asyncio.run(measure_episodes(root, config, args, steps)) for steps in args.steps}
    return {
        "stored_trajectories": args.stored,
        "cpu_ms_per_episode_by_steps": episodes,
        "decide_us_per_event": measure_decisions(args.desktops),
        "decide_desktops": args.desktops,
    }


def fill(config: DataManagerConfig, trajectories: int) -> None:
    """A finished run: so many trajectories of five steps, in groups that were used."""
    store = TrajectoryStore.open(config.database, SuiteCatalog().split_of)
    tasks = SuiteCatalog().select(TaskSelection(split="train", families=FAMILIES))
    sampling = SamplingPayload().model_dump()
    ids = np.arange(TOKENS, dtype="<i4").tobytes()
    logprobs = np.zeros(TOKENS, dtype="<f4").tobytes()
    shared: dict[str, Any] = {"purpose": "train", "phase": "before"}
    with store.begin() as session:
        session.execute(
            insert(PhaseTable),
            [
                {
                    "name": "before",
                    "purpose": "train",
                    "spec": _phase("before").model_dump(mode="json"),
                    "task_ids": tasks,
                    "n_tasks": len(tasks),
                    "state": "stopped",
                    "created_s": 0.0,
                }
            ],
        )
        for task_id in tasks:
            store.register_task(session, task_id, Purpose.TRAIN)
        session.flush()
        of_group = [tasks[number % len(tasks)] for number in range(-(-trajectories // GROUP_SIZE))]
        session.execute(
            insert(GroupTable),
            [
                {
                    **shared,
                    "group_id": f"grp_{number}",
                    "task_id": task_id,
                    "size": GROUP_SIZE,
                    "max_steps": 15,
                    "state": "used",
                    "opened_s": 0.0,
                }
                for number, task_id in enumerate(of_group)
            ],
        )
        numbers = range(trajectories)
        session.execute(
            insert(RolloutTable),
            [
                {
                    **shared,
                    "rollout_id": f"roll_{number}",
                    "group_id": f"grp_{number // GROUP_SIZE}",
                    "task_id": of_group[number // GROUP_SIZE],
                    "repeat": number % GROUP_SIZE,
                    "attempt": 1,
                    "state": "done",
                    "sampling": sampling,
                    "max_steps": 15,
                }
                for number in numbers
            ],
        )
        session.execute(
            insert(TrajectoryTable),
            [
                {
                    **shared,
                    "rollout_id": f"roll_{number}",
                    "group_id": f"grp_{number // GROUP_SIZE}",
                    "task_id": of_group[number // GROUP_SIZE],
                    "family": of_group[number // GROUP_SIZE].split("/")[1],
                    "reward": float(number % 2),
                    "end": "done",
                    "stop": "done",
                    "started_at_s": float(number),
                    "duration_s": 10.0,
                    "stored_s": 0.0,
                    "info": {},
                    "n_steps": 5,
                    "version_min": 0,
                    "version_max": 0,
                }
                for number in numbers
            ],
        )
        session.execute(
            insert(StepTable),
            [
                {
                    "rollout_id": f"roll_{number}",
                    "index": index,
                    "segment": index,
                    "response_start": TOKENS,
                    "response_end": 2 * TOKENS,
                    "prompt_new": ids,
                    "token_ids": ids,
                    "logprobs": logprobs,
                    "version_spans": [[0, 0, TOKENS]],
                    "image_sha256_new": [],
                    "image_hw_new": [],
                    "text": "fake",
                    "sampling": sampling,
                    "finish_reason": "stop",
                    "model_s": 0.0,
                    "env_s": 0.0,
                }
                for number in numbers
                for index in range(5)
            ],
        )
    store.close()


async def measure_episodes(
    root: Path, config: DataManagerConfig, args: argparse.Namespace, steps: int
) -> dict[str, float]:
    """Start the data manager, and read its processor time while a worker and a trainer use it."""
    command = [sys.executable, "-m", "dart_train.data_manager", "--config", str(root / "config.json")]
    server = subprocess.Popen(command)  # noqa: ASYNC220 - it is started once, before anything else runs
    readings: list[float] = []
    try:
        async with DataManagerClient(config.socket, config.images, desktops=64) as client:
            started_s = time.monotonic()
            await client.start_phase(_phase(f"steps-{steps}"))
            rebuilt_cpu_s = _cpu_s(server.pid)
            latest = await client.latest_version()
            version = 0 if latest is None else latest.version
            for _ in range(args.episodes // args.chunk):
                before_s = _cpu_s(server.pid)
                for number in range(args.chunk):
                    version = await _episode(client, steps, version, number)
                readings.append(1000 * (_cpu_s(server.pid) - before_s) / args.chunk)
            await client.stop_phase(f"steps-{steps}")
            return {
                "median": round(statistics.median(readings), 2),
                "min": round(min(readings), 2),
                "max": round(max(readings), 2),
                "start_and_rebuild_cpu_s": round(rebuilt_cpu_s, 2),
                "wall_s": round(time.monotonic() - started_s, 1),
            }
    finally:
        server.terminate()
        server.wait()


async def _episode(client: DataManagerClient, steps: int, version: int, number: int) -> int:
    """One episode, and a train step where there is a batch; returns the version after it."""
    item = await client.acquire("bench")
    assert item is not None, "the phase is endless and the trainer takes every batch"
    prompt = range(TOKENS)
    trajectory, _ = fake_trajectory(
        item, reward=float(number % 2), version=version, steps=steps, tokens=TOKENS, prompt_ids_P=prompt
    )
    await client.report(trajectory, {})
    if number % GROUP_SIZE:
        return version
    reply = await client.next_batch(version, wait_s=0)
    if reply.batch is not None:
        version += 1
        await client.publish_version(VersionRecord(version=version, path=f"fake/{version}"))
        await client.batch_done(reply.batch.batch_id, BatchReport(version=version))
    return version


def measure_decisions(desktops: int, seconds: float = 600.0) -> dict[str, float]:
    """Simulated desktops on an event heap; processor time of `decide` alone."""
    ids = count()
    batch = BatchSettings(min_groups=64, max_groups=64, max_ready_groups=128)
    state = SchedulerState(SchedulerSettings(batch=batch), lambda prefix: f"{prefix}_{next(ids)}")
    generator = random.Random(0)
    events: list[tuple[float, int, str, str]] = []
    order, readings = count(), []
    tasks = tuple(f"s/{number % 40}/{number}" for number in range(2000))
    training = False

    def do(event: Event) -> None:
        nonlocal training
        started_s = time.process_time()
        commands = decide(state, event)
        readings.append(1e6 * (time.process_time() - started_s))
        for command in commands:
            if isinstance(command, AssignRollout):
                length_s = generator.lognormvariate(math.log(60.0), 0.5)
                heapq.heappush(events, (event.now_s + length_s, next(order), command.rollout_id, command.worker_id))
            elif isinstance(command, IssueBatch):
                training = True
                heapq.heappush(events, (event.now_s + 5.0, next(order), "update", ""))

    do(PhaseStarted(0.0, PhasePlan("train", Purpose.TRAIN, tasks, GROUP_SIZE, 30, endless=True)))
    for number in range(desktops):
        do(WorkAsked(0.0, f"w{number % 64}", f"r{next(ids)}", desktops // 64, wait=True))
    readings.clear()
    version = 0
    while events and (at_s := events[0][0]) <= seconds:
        _, _, name, worker = heapq.heappop(events)
        if name == "update":
            version, training = version + 1, False
            do(PolicyPublished(at_s, version))
            do(BatchDone(at_s, version))
        else:
            do(RolloutEnded(at_s, name, float(generator.random() < 0.5), 12, 60.0, 5.0, version, version))
            do(WorkAsked(at_s, worker, f"r{next(ids)}", wait=True))
        if not training:
            do(BatchAsked(at_s, version))
    return {
        "mean": round(statistics.mean(readings), 1),
        "median": round(statistics.median(readings), 1),
        "p99": round(sorted(readings)[int(0.99 * len(readings))], 1),
        "events": len(readings),
    }


def _phase(name: str) -> PhaseSpec:
    return PhaseSpec(
        name=name,
        purpose=Purpose.TRAIN,
        select=TaskSelection(split="train", families=FAMILIES),
        rollouts_per_task=GROUP_SIZE,
        max_steps=15,
        endless=True,
    )


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
