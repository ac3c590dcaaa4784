"""A disk that fills up while a run goes on pauses it; with space it goes on by itself, whatever failed meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from killable_run import KillableRun

from dart_agent.errors import StoreError
from dart_agent.types import WorkItem
from dart_train.run import disk
from dart_train.run.decisions.disk import GIB
from dart_train.run.launcher import ComponentSpec
from dart_train.run.state import RunState
from dart_train.simulation.components.processes import TaskProcess
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time
from dart_train.trainer.checkpoint import CheckpointStore

LONGEST_EPISODE_S = 40.0
PAUSE_S = 600.0
"""Longer than the run waits without progress, and than the data manager is waited for."""
LIMITS = {"stall_minutes": 5.0}


class FullDiskRun(KillableRun):
    """Its disk is full for a while after the trainer has made two updates; components that then write end as on ENOSPC."""

    full_from_s = float("inf")
    trainer_starts = 0

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock) -> None:
        super().__init__(root, monkeypatch, clock, limits=LIMITS)
        monkeypatch.setattr(disk, "free_disk_bytes", self.free_bytes)
        self.episode_ends_s: list[float] = []

    def free_bytes(self, folder: Path) -> int:
        if self.full_from_s == float("inf") and CheckpointStore(self.paths.checkpoints, keep=1).updates() >= 2:
            self.full_from_s = self.clock.monotonic()
        return 0 if self.is_full else 100 * GIB

    @property
    def is_full(self) -> bool:
        return 0 <= self.clock.monotonic() - self.full_from_s < PAUSE_S

    def reward(self, item: WorkItem) -> float:
        self.episode_ends_s.append(self.clock.monotonic())
        return super().reward(item)

    async def inference(self, process: TaskProcess, spec: ComponentSpec) -> int:
        return await self.exit_code(super().inference(process, spec))

    async def rollouts(self, process: TaskProcess, spec: ComponentSpec) -> int:
        return await self.exit_code(super().rollouts(process, spec))

    async def trainer(self, process: TaskProcess, spec: ComponentSpec) -> int:
        self.trainer_starts += 1
        return await self.exit_code(super().trainer(process, spec))

    async def exit_code(self, work: Coroutine[Any, Any, int]) -> int:
        """As a process whose data manager stays away."""
        try:
            return await work
        except StoreError:
            return 1

    async def fill_up(self) -> None:
        """Ends data manager and trainer again and again while the disk is full."""
        while True:
            await self.clock.sleep(60)
            for name in ("data-manager", "trainer"):
                if self.is_full and (found := self.live.get(name)) is not None and found.returncode is None:
                    found.kill_group()


def test_a_full_disk_pauses_a_run_and_is_no_crash_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(clock: VirtualClock) -> FullDiskRun:
        run = FullDiskRun(tmp_path, monkeypatch, clock)
        filling = asyncio.create_task(run.fill_up())
        try:
            assert await run.run() is not None
        finally:
            filling.cancel()
        return run

    run = run_in_virtual_time(body)
    assert CheckpointStore(run.paths.checkpoints, keep=1).updates() == 4, "the pause used up no minutes of training"
    begun = run.full_from_s + disk.LOOK_S + LONGEST_EPISODE_S
    assert not [at_s for at_s in run.episode_ends_s if begun < at_s < run.full_from_s + PAUSE_S]
    assert run.trainer_starts == 2, "it was started again when there was space, and not before"
    state = RunState.load(run.paths.state)
    assert state.paused is None
    (paused,) = [line for line in state.incidents if line.startswith("paused: ")]
    assert "0.00 GiB free, and below limits.pause_disk_gib = 1 no rollout and no train step begins" in paused
    assert any("the run goes on after 10 minutes" in line for line in state.incidents)
    assert f"train: {paused}" in run.printed.getvalue()


def test_a_state_that_cannot_be_written_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = RunState.save

    def save_unless_paused(state: RunState, path: Path) -> None:
        if state.paused is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, path)

    async def body(clock: VirtualClock) -> str:
        run = FullDiskRun(tmp_path, monkeypatch, clock)
        monkeypatch.setattr(RunState, "save", save_unless_paused)
        assert await run.run() is not None
        return run.printed.getvalue()

    assert "state.json cannot be written now: No space left on device" in run_in_virtual_time(body)


def test_a_stage_that_cannot_be_marked_done_pauses_the_run_and_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = RunState.save

    async def body(clock: VirtualClock) -> FullDiskRun:
        run = FullDiskRun(tmp_path, monkeypatch, clock)

        def save_with_space(state: RunState, path: Path) -> None:
            if "eval-before" in state.stages_s and run.full_from_s == float("inf"):
                run.full_from_s = clock.monotonic()  # full at the moment at which the stage is marked
            if run.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            save(state, path)

        monkeypatch.setattr(RunState, "save", save_with_space)
        assert await run.run() is not None
        return run

    run = run_in_virtual_time(body)
    printed = run.printed.getvalue()
    assert "0.00 GiB free, and below limits.pause_disk_gib = 1 no rollout and no train step begins" in printed
    assert printed.count("eval-before: done in") == 1, "nothing of the stage is lost"
    begun = run.full_from_s + disk.LOOK_S + LONGEST_EPISODE_S
    assert not [at_s for at_s in run.episode_ends_s if begun < at_s < run.full_from_s + PAUSE_S]
    state = RunState.load(run.paths.state)
    assert list(state.stages_s)[:4] == ["demos", "warm-start", "eval-before", "train"]
    assert state.paused is None
    assert any("the run goes on after 10 minutes" in line for line in state.incidents)
