"""The grid of length distributions on which partial rollouts are compared, declared before it was measured.

Role: the cells and the arms of `bench_rollout`. Rule: a cell is never removed or changed after its measurement; every cell is published.
Source of the method: APRIL (arXiv 2509.18521): twice as many groups as a batch needs are launched, the batch is closed when enough are
complete, and the unfinished rollouts are continued first.

All cells: 64 desktops (a batch of 8 groups of 8 uses all of them), 4 inference workers, our own fast desktops, weights swapped in place,
and a trainer so fast that rollouts take about 90 % of a synchronous step, as the paper says of its own. Long-tailed are the cells with a
spread of at least 1.0. Arms: `sync` (batches and updates take turns), `april` (the same, with 16 groups launched for 8, unfinished
rollouts kept), `async` (rollout-wise, per-worker updates), `async_partial` (the same with 25 % more rollouts per group, unfinished ones
kept).
"""

from __future__ import annotations

from typing import NamedTuple

from dart_train.scheduling.settings import BatchSettings, SchedulerSettings, SchedulingMode, SchedulingSettings
from dart_train.simulation.models import EpisodeModel, PublishModel, SystemModels, TrainerModel
from dart_train.simulation.scenario import Scenario


class Cell(NamedTuple):
    """One distribution of lengths.

    Attributes:
        median_steps: Median number of steps before the cut.
        sigma: Standard deviation of the logarithm.
        max_steps: Step limit.
    """

    median_steps: float
    sigma: float
    max_steps: int

    @property
    def name(self) -> str:
        """Its name in the record."""
        return f"median{self.median_steps:g}_sigma{self.sigma:g}_limit{self.max_steps}"

    @property
    def long_tailed(self) -> bool:
        """Whether it counts for the acceptance figures."""
        return self.sigma >= 1.0


GRID = tuple(
    Cell(median_steps, sigma, max_steps)
    for median_steps in (6.0, 12.0)
    for sigma in (0.3, 0.6, 1.0, 1.3)
    for max_steps in (30, 100)
)

ARMS = {
    "sync": SchedulingSettings(mode=SchedulingMode.BATCH),
    "april": SchedulingSettings(mode=SchedulingMode.BATCH, over_provision=2.0),
    "async": SchedulingSettings(mode=SchedulingMode.ROLLOUT_PER_WORKER),
    "async_partial": SchedulingSettings(mode=SchedulingMode.ROLLOUT_PER_WORKER, over_provision=1.25),
}


def scenario(cell: Cell, scheduling: SchedulingSettings, seed: int, hours: float) -> Scenario:
    """Return the scenario of an arm in a cell.

    Args:
        cell: The cell.
        scheduling: The arm.
        seed: Seed.
        hours: Simulated hours of the window.
    """
    return Scenario(
        desktops=64,
        workers=4,
        rollouts_per_task=8,
        max_steps=cell.max_steps,
        hours=hours,
        warm_up_hours=0.5,
        seed=seed,
        batch_waits_for_workers=True,
        scheduler=SchedulerSettings(
            seed=seed, scheduling=scheduling, batch=BatchSettings(min_groups=8, max_groups=8, max_staleness=4)
        ),
        models=SystemModels(
            episode=EpisodeModel(median_steps=cell.median_steps, sigma=cell.sigma),
            trainer=TrainerModel(update_s=5.0, tokens_per_s=200_000.0),
            publish=PublishModel(keeps_prefixes=True),
        ),
    )
