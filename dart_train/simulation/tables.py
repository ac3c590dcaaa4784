"""Tables of a simulation for the terminal.

Role: `print_outcome` writes what `dart-train simulate` shows. Rule: every figure has its unit; shares are of the time of all resources of
a kind. Non-goals: computing (`outcome`, `planning`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from dart_train.simulation.components.activity import ComponentFigures, ComponentsOutcome
from dart_train.simulation.outcome import SimulationOutcome
from dart_train.simulation.planning import Bottleneck, SplitOption
from dart_train.simulation.scenario import Scenario

COMPONENT_ROWS = {
    "actions_per_min": "actions per minute",
    "trained_rows_per_min": "trained samples per minute",
    "env_in_use": "desktops: executing or waiting for a response",
    "env_util": "desktops: utilisation",
    "resetting": "desktops: resetting",
    "worker_in_use": "inference workers: with a request under way",
    "worker_util": "inference workers: utilisation",
    "trainer_util": "trainer: utilisation",
}


def print_outcome(
    console: Console,
    scenario: Scenario,
    outcome: SimulationOutcome,
    limit: Bottleneck,
    split: tuple[SplitOption, Sequence[SplitOption]] | None,
    usd_per_1000: float,
) -> None:
    """Write the tables of a simulation.

    Args:
        console: Where to.
        scenario: What was simulated.
        outcome: The figures.
        limit: The bottleneck.
        split: The recommended split and all that were looked at; None: none were.
        usd_per_1000: Cost of 1,000 trained trajectories, in US dollars.
    """
    mode = scenario.scheduler.scheduling.mode.value
    console.print(
        f"{scenario.desktops} desktops, {scenario.workers} inference workers, mode {mode}, "
        f"{outcome.window_s / 3600:g} simulated hours, seed {scenario.seed}"
    )
    console.print(_shares(outcome))
    console.print(_rates(outcome))
    console.print(f"Bottleneck: {limit.name}. {limit.reason[0].upper()}{limit.reason[1:]}.")
    console.print(f"Cost of 1,000 trained trajectories: {usd_per_1000:,.2f} USD")
    if split is not None:
        best, options = split
        console.print(_splits(best, options))
        console.print(
            f"Recommended split: {best.desktops} desktops, {best.workers} inference workers and {best.trainer_gpus} GPUs of the trainer "
            f"({best.usd_per_1000_rollouts:,.2f} USD per 1,000 trained trajectories)"
        )


def print_components(console: Console, outcome: ComponentsOutcome, decisions: ComponentFigures) -> None:
    """Write what the components of production did beside what the decisions alone do.

    Args:
        console: Where to.
        outcome: The simulation with the components.
        decisions: Figures of the simulation of the decisions.
    """
    table = Table("figure", "components", "decisions", "difference", title="Components of production in virtual time")
    real = outcome.figures
    for name, title in COMPONENT_ROWS.items():
        value, other = getattr(real, name), getattr(decisions, name)
        if value is None or other is None:
            continue
        shown = (f"{value:.1%}", f"{other:.1%}") if value <= 1 and other <= 1 else (f"{value:.1f}", f"{other:.1f}")
        table.add_row(title, *shown, f"{other / value - 1:+.1%}" if value else "")
    console.print(table)
    console.print(
        f"{outcome.updates} train steps, {outcome.trajectories} stored trajectories, {outcome.cpu_s:.0f} s of processor time"
    )


def _shares(outcome: SimulationOutcome) -> Table:
    table = Table("resource", "utilisation", "shares of its time", title="Utilisation")
    slots, workers, trainer = outcome.slots, outcome.workers, outcome.trainer
    table.add_row(
        "desktops",
        f"{slots.utilisation:.1%}",
        f"executing {slots.executing:.1%}, running request {slots.running:.1%}, queued request {slots.queued:.1%}, "
        f"resetting {slots.resetting:.1%}, idle {slots.idle:.1%}",
    )
    table.add_row(
        "inference workers",
        f"{workers.utilisation:.1%}",
        f"serving {workers.serving:.1%}, new weights {workers.updating:.1%}, idle {workers.idle:.1%}, "
        f"down {workers.down:.1%}; load {outcome.worker_load:.1%} of capacity",
    )
    table.add_row(
        "trainer",
        f"{trainer.utilisation:.1%}",
        f"training {trainer.training:.1%}, publishing {trainer.publishing:.1%}, waiting {trainer.waiting:.1%}",
    )
    return table


def _rates(outcome: SimulationOutcome) -> Table:
    table = Table("quantity", "value", title="Throughput and freshness")
    for name, value in (
        ("actions per minute", f"{outcome.actions_per_min:,.1f}"),
        ("trained samples per minute", f"{outcome.trained_rows_per_min:,.1f}"),
        ("episodes per minute", f"{outcome.episodes_per_min:,.1f}"),
        ("trained trajectories", f"{outcome.trained_rollouts:,}"),
        ("policy versions", f"{outcome.updates:,}"),
        ("staleness, mean and greatest", f"{outcome.staleness.mean:.2f}, {outcome.staleness.max:.0f} versions"),
        ("samples withheld as stale", f"{outcome.withheld_fraction:.2%}"),
        ("lag, median and 95th percentile", f"{outcome.lag_s.p50:,.0f} s, {outcome.lag_s.p95:,.0f} s"),
        ("prompt tokens from the prefix cache", f"{outcome.prefix_hit_rate:.1%}"),
    ):
        table.add_row(name, value)
    return table


def _splits(best: SplitOption, options: Sequence[SplitOption]) -> Table:
    table = Table(
        "desktops",
        "workers",
        "trainer GPUs",
        "trained trajectories/h",
        "USD per 1,000",
        "bottleneck",
        title="Other splits",
    )
    for option in options:
        row = (
            f"{option.desktops:,}",
            str(option.workers),
            str(option.trainer_gpus),
            f"{option.trained_rollouts_per_hour:,.0f}",
            f"{option.usd_per_1000_rollouts:,.2f}",
            option.bottleneck,
        )
        table.add_row(*row, style="bold" if option == best else "")
    return table
