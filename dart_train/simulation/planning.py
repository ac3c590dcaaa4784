"""What a simulation says about a system: its bottleneck, what a trajectory costs, and a better split.

Role: pure functions of outcomes, and `recommend_split`, which simulates a few neighbours. Rule: the bottleneck is the resource that is
used most of what it can be used; prices are settings. Non-goals: tables (`tables`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dart_train.simulation.models import PriceModel
from dart_train.simulation.outcome import SimulationOutcome, simulate
from dart_train.simulation.scenario import Scenario

WAITING_SHARE = 0.5
"""Desktops that wait for responses for more than this share of their time say that busy inference workers are the limit."""
EQUAL_COST = 0.05
"""Costs that differ less are equal: one simulation says no more."""
SATURATED = 0.9
"""A resource that is used more than this is saturated."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The resource that limits the throughput.

    Attributes:
        name: `trainer`, `inference`, `desktops` or `coupling`.
        reason: One sentence with the figures.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class SplitOption:
    """One split of desktops and GPUs, simulated.

    Attributes:
        desktops: Number of desktops.
        workers: Number of inference workers.
        trainer_gpus: GPUs of the trainer.
        trained_rollouts_per_hour: Trained trajectories per hour.
        usd_per_1000_rollouts: Cost of 1,000 trained trajectories, in US dollars; infinite where none was trained.
        bottleneck: Name of its bottleneck.
    """

    desktops: int
    workers: int
    trainer_gpus: int
    trained_rollouts_per_hour: float
    usd_per_1000_rollouts: float
    bottleneck: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, which has no infinite numbers: None in place of an infinite cost."""
        return asdict(self) | {"usd_per_1000_rollouts": finite_usd(self.usd_per_1000_rollouts)}


def finite_usd(usd: float) -> float | None:
    """Return a cost that JSON can hold.

    Args:
        usd: US dollars.

    Returns:
        The same; None for an infinite cost.
    """
    return usd if math.isfinite(usd) else None


def bottleneck(outcome: SimulationOutcome) -> Bottleneck:
    """Name the resource that limits the throughput.

    Args:
        outcome: Figures of a simulation.

    Returns:
        The bottleneck, with the reason in one sentence.
    """
    slots, trainer = outcome.slots, outcome.trainer
    if trainer.training + trainer.publishing > SATURATED:
        return Bottleneck(
            "trainer",
            f"the trainer trains or publishes {trainer.training + trainer.publishing:.0%} of the time, and desktops idle {slots.idle:.0%}",
        )
    waiting = slots.running + slots.queued
    if outcome.workers.serving > SATURATED and waiting > WAITING_SHARE:
        return Bottleneck(
            "inference",
            f"the workers serve {outcome.workers.serving:.0%} of the time, and desktops wait {waiting:.0%} of theirs for responses",
        )
    if slots.utilisation + slots.resetting > SATURATED or slots.idle < 1 - SATURATED:
        parts = {
            "preparing and evaluating tasks": slots.resetting,
            "executing": slots.executing,
            "waiting for running requests": slots.running,
            "waiting for queued requests": slots.queued,
        }
        larger = max(parts, key=lambda part: parts[part])
        return Bottleneck(
            "desktops",
            f"desktops are hardly ever idle, and most of their time ({parts[larger]:.0%}) is {larger}; "
            f"they are used {slots.utilisation:.0%}",
        )
    return Bottleneck(
        "coupling", f"desktops idle {slots.idle:.0%} of the time although neither trainer nor inference is saturated"
    )


def usd_per_hour(scenario: Scenario) -> float:
    """Compute what a system costs.

    Args:
        scenario: Its sizes and prices.

    Returns:
        US dollars per hour.
    """
    prices: PriceModel = scenario.models.prices
    gpus = scenario.workers * prices.gpus_per_worker + prices.trainer_gpus
    return gpus * prices.gpu_hour + scenario.desktops * prices.desktop_hour


def usd_per_1000_rollouts(scenario: Scenario, outcome: SimulationOutcome) -> float:
    """Compute what 1,000 trained trajectories cost.

    Args:
        scenario: The system.
        outcome: Its figures.

    Returns:
        US dollars; infinite where none was trained.
    """
    per_hour = outcome.trained_rollouts / (outcome.window_s / 3600)
    return 1000 * usd_per_hour(scenario) / per_hour if per_hour else float("inf")


def option(scenario: Scenario, outcome: SimulationOutcome) -> SplitOption:
    """Summarise a simulated split.

    Args:
        scenario: The system.
        outcome: Its figures.

    Returns:
        The split.
    """
    return SplitOption(
        desktops=scenario.desktops,
        workers=scenario.workers,
        trainer_gpus=scenario.models.prices.trainer_gpus,
        trained_rollouts_per_hour=outcome.trained_rollouts / (outcome.window_s / 3600),
        usd_per_1000_rollouts=usd_per_1000_rollouts(scenario, outcome),
        bottleneck=bottleneck(outcome).name,
    )


def recommend_split(
    scenario: Scenario, outcome: SimulationOutcome, run: Callable[[Scenario], SimulationOutcome] = simulate
) -> tuple[SplitOption, list[SplitOption]]:
    """Look for a cheaper split of desktops and GPUs.

    Simulated are half, the same and double the number of desktops and of inference workers with the same trainer, and, where trainer and
    inference workers have GPUs, other splits of the same number of GPUs between them. The trainer's tokens per second grow with its GPUs.

    Args:
        scenario: The system as it is.
        outcome: Its figures.
        run: Simulates a system.

    Returns:
        The split that trains most trajectories per hour among those whose cost per trajectory is within `EQUAL_COST` of the cheapest, and
        all that were looked at.
    """
    options = []
    for desktops, workers, trainer_gpus in _splits(scenario):
        other = _split(scenario, desktops, workers, trainer_gpus)
        options.append(option(scenario, outcome) if other is scenario else option(other, run(other)))
    limit_usd = (1 + EQUAL_COST) * min(each.usd_per_1000_rollouts for each in options)
    cheap = [each for each in options if each.usd_per_1000_rollouts <= limit_usd]
    return min(cheap, key=lambda each: (-each.trained_rollouts_per_hour, each.usd_per_1000_rollouts)), options


def _splits(scenario: Scenario) -> list[tuple[int, int, int]]:
    """Desktops, inference workers and GPUs of the trainer of each split."""
    prices = scenario.models.prices
    found = {
        (desktops, workers, prices.trainer_gpus)
        for desktops in (max(1, scenario.desktops // 2), scenario.desktops, scenario.desktops * 2)
        for workers in (max(1, scenario.workers // 2), scenario.workers, scenario.workers * 2)
    }
    if prices.trainer_gpus and prices.gpus_per_worker:
        gpus = prices.trainer_gpus + scenario.workers * prices.gpus_per_worker
        for trainer_gpus in (2**power for power in range(gpus.bit_length())):
            workers = (gpus - trainer_gpus) // prices.gpus_per_worker
            if workers > 0 and trainer_gpus + workers * prices.gpus_per_worker == gpus:
                found.add((scenario.desktops, workers, trainer_gpus))
    return sorted(found)


def _split(scenario: Scenario, desktops: int, workers: int, trainer_gpus: int) -> Scenario:
    """The system with another split; itself where that is its own."""
    models = scenario.models
    if (desktops, workers, trainer_gpus) == (scenario.desktops, scenario.workers, models.prices.trainer_gpus):
        return scenario
    if trainer_gpus != models.prices.trainer_gpus:
        speed = models.trainer.tokens_per_s * trainer_gpus / models.prices.trainer_gpus
        models = models.model_copy(
            update={
                "trainer": models.trainer.model_copy(update={"tokens_per_s": speed}),
                "prices": models.prices.model_copy(update={"trainer_gpus": trainer_gpus}),
            }
        )
    holders = min(desktops, max(1, round(scenario.rollout_workers * desktops / scenario.desktops)))
    return replace(scenario, desktops=desktops, workers=workers, rollout_workers=holders, models=models, gantt_s=0.0)
