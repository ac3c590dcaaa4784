"""Staleness by construction: the data manager, its scheduler and its gate against desktops and a trainer in virtual time."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from data_manager_harness import DataManagerHarness
from sqlalchemy import func, select

from dart_agent.data_client.fake_trajectories import fake_trajectory
from dart_agent.data_client.payloads import TrajectoryPayload
from dart_agent.data_client.wire import BatchReport, VersionRecord
from dart_agent.types import VersionSpan, WorkItem
from dart_train.data_manager.store.models import GroupTable, TrajectoryTable

DESKTOPS, GROUP_SIZE, BATCH_GROUPS, MAX_STALENESS = 80, 8, 8, 4
UPDATE_S, PUBLISH_S, EPISODE_S, SIGMA, STEP_S = 60.0, 5.0, 60.0, 0.5, 20.0
UPDATES = 12


class VirtualRun:
    """80 desktops whose episodes take lognormal times, inference workers that serve a version 5 s late, and a trainer."""

    def __init__(self, root: Path, **settings: Any) -> None:
        batch = {
            "min_groups": BATCH_GROUPS,
            "max_groups": BATCH_GROUPS,
            "max_staleness": MAX_STALENESS,
            "max_ready_groups": 2 * BATCH_GROUPS,
        }
        self.harness = DataManagerHarness(root, batch=batch, assignment_timeout_s=1e6, **settings)
        self.harness.phase(rollouts_per_task=GROUP_SIZE, max_steps=200)
        self.random = Random(0)
        self.started_s = self.harness.now_s
        self.served = [(-math.inf, 0)]
        self.version = 0
        self.events: list[tuple[float, int, Any]] = []
        self.order = count()
        self.training = False
        self.used = self.withheld = 0

    def run(self) -> float:
        """Until `UPDATES` updates were made; returns the fraction of rows that was withheld as stale."""
        idle = DESKTOPS
        while self.version < UPDATES:
            while idle and (item := self.harness.acquire()) is not None:
                idle -= 1
                length_s = self.random.lognormvariate(math.log(EPISODE_S) - SIGMA**2 / 2, SIGMA)
                self._push(length_s, (item, length_s))
            at_s, _, event = heapq.heappop(self.events)
            self.harness.now_s = self.started_s + at_s
            if isinstance(event, str):
                self._update(event, at_s)
            else:
                idle += 1
                self._report(*event, at_s)
            if not self.training:
                self._train()
        return self.withheld / (self.used + self.withheld)

    def _report(self, item: WorkItem, length_s: float, at_s: float) -> None:
        trajectory, _ = fake_trajectory(item, reward=float(self.random.random() < 0.5), steps=1, duration_s=length_s)
        times = [at_s - length_s + STEP_S * index for index in range(math.ceil(length_s / STEP_S))]
        steps = tuple(
            replace(trajectory.steps_S[0], index=index, version_spans=(VersionSpan(self._version_at(time_s), 0, 4),))
            for index, time_s in enumerate(times)
        )
        self.harness.manager.report(TrajectoryPayload.from_value(replace(trajectory, steps_S=steps)))

    def _train(self) -> None:
        batch = self.harness.batch(self.version)
        if batch is not None:
            self.training = True
            self.used += len(batch.rows)
            self.withheld += batch.excluded_steps.get("stale", 0)
            self._push(UPDATE_S, batch.batch_id)

    def _update(self, batch_id: str, at_s: float) -> None:
        self.training = False
        self.version += 1
        self.served.append((at_s + PUBLISH_S, self.version))
        self.harness.manager.publish(VersionRecord(version=self.version, path=f"fake/{self.version}"))
        self.harness.manager.batch_done(batch_id, BatchReport(version=self.version))

    def _version_at(self, time_s: float) -> int:
        return next(version for since_s, version in reversed(self.served) if since_s <= time_s)

    def _push(self, delay_s: float, event: Any) -> None:
        heapq.heappush(self.events, (self.harness.now_s - self.started_s + delay_s, next(self.order), event))


def rows_of_dropped_groups(run: VirtualRun) -> int:
    """Steps of groups that were dropped as a whole, because all their tokens were stale."""
    query = select(func.sum(TrajectoryTable.n_steps)).join(GroupTable, GroupTable.group_id == TrajectoryTable.group_id)
    with run.harness.store.begin() as session:
        return session.scalar(query.where(GroupTable.reason == "stale")) or 0


def test_groups_are_not_made_stale_by_the_way_they_are_filled(tmp_path: Path) -> None:
    run = VirtualRun(tmp_path)
    assert run.run() <= 0.02
    assert rows_of_dropped_groups(run) == 0
    assert run.harness.now_s - run.started_s <= 1.2 * UPDATES * UPDATE_S, "the trainer hardly ever waits"
    run.harness.store.close()
