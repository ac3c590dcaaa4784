"""A snapshot of a run on a terminal.

Role: `render(snapshot)` makes what `rich` shows. Rule: every figure has its unit and its window; it is readable with 80 columns and without
colours. Non-goals: figures (`dart_train.watch.snapshot`).
"""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dart_train.metrics import ROLLOUT_REWARD
from dart_train.watch.snapshot import FamilyProgress, RunSnapshot

UPDATE_FIGURES = {
    ROLLOUT_REWARD: "mean reward of rollouts",
    "reward_mean": "mean reward of the batch",
    "staleness_mean": "staleness, versions",
    "entropy": "entropy, nats",
    "grad_norm": "gradient norm",
    "update_k3": "KL of the update, nats",
    "mismatch_k3": "KL to the sampling policy, nats",
    "clip_fraction": "clipped tokens",
    "rows_trained": "trained steps",
    "step_s": "train step, s",
    "wait_s": "wait for the batch, s",
    "publish_s": "publish, s",
}
"""Figures of a train step that are shown, and how they are called."""
OF_SEVERAL_STEPS = ("clip_fraction", "update_k3")
"""Figures that are 0 by definition where a batch has one optimiser step; they are left out there."""
QUIET_S = 300.0
"""Seconds without a line of the metrics after which a person should look: engines start, and the warm start has minutes between lines."""


def render(snapshot: RunSnapshot) -> RenderableType:
    """Show a snapshot.

    Args:
        snapshot: How the run stands.

    Returns:
        Something that `rich` prints.
    """
    minutes = f"{snapshot.window_s / 60:g} min"
    tables = []
    if snapshot.utilisation or snapshot.throughput:
        tables.append(_rates(snapshot, minutes))
    if snapshot.update:
        tables.append(_update(snapshot))
    if any(each.episodes for each in snapshot.families.values()):
        tables.append(_families(snapshot, minutes))
    parts: list[RenderableType] = [_headline(snapshot), _progress(snapshot)]
    if snapshot.warmup:
        parts.append(_warm_start(snapshot))
    if snapshot.stages_s:
        done = ", ".join(f"{name} {_duration(seconds)}" for name, seconds in snapshot.stages_s.items())
        parts.append(Text(f"done      {done}"))
    if snapshot.groups or snapshot.rollouts:
        parts.append(_queues(snapshot))
    warned = [Text(f"! {told}", style="bold red") for told in warnings(snapshot)]
    return Group(*parts, *warned, Columns(tables, padding=(0, 2)))


def warnings(snapshot: RunSnapshot) -> list[str]:
    """Say what a person should look at.

    Args:
        snapshot: How the run stands.

    Returns:
        One sentence each, the most urgent first.
    """
    found = [] if snapshot.paused is None else [snapshot.paused]
    if snapshot.running and snapshot.paused is None and snapshot.idle_s is not None and snapshot.idle_s > QUIET_S:
        found.append(f"nothing was measured for {_duration(snapshot.idle_s)}: look into the logs of the run")
    if snapshot.running and not snapshot.answered:
        found.append("the data manager does not answer: queues and masked episodes are not known")
    if snapshot.equal_rewards:
        found.append(
            f"all rewards of the latest {snapshot.equal_rewards} training episodes are equal, so that nothing can be learned from them: "
            "choose easier tasks, a better start model, or demonstrations"
        )
    if snapshot.masked_percent:
        cause = f", latest cause: {snapshot.masked_cause}" if snapshot.masked_cause else ""
        found.append(f"{snapshot.masked_percent:.1f} % of the episodes are masked{cause}")
    if snapshot.failing_workers is not None:
        found.append(snapshot.failing_workers)
    if snapshot.alarm is not None:
        found.append(snapshot.alarm)
    if snapshot.failed_batches:
        found.append(
            f"batches that were not trained on: {snapshot.failed_batches}, the latest because {snapshot.failed_batch_cause}"
        )
    return [*found, *snapshot.incidents[-3:]]


def _headline(snapshot: RunSnapshot) -> Text:
    if snapshot.running:
        how = "running" if snapshot.stage is None else f"running, stage {snapshot.stage}"
    elif snapshot.stage is None:
        how = "finished"
    else:
        how = f"not running, stage {snapshot.stage} is next"
    return Text.assemble((snapshot.name, "bold"), ": ", how)


def _progress(snapshot: RunSnapshot) -> Table:
    table = Table.grid(padding=(0, 2))
    left = "" if snapshot.remaining_s is None else f", about {_duration(snapshot.remaining_s)} left"
    table.add_row(
        "updates",
        ProgressBar(total=max(1, snapshot.wanted_updates), completed=snapshot.updates, width=30),
        f"{snapshot.updates} of {snapshot.wanted_updates}{left}",
    )
    return table


def _warm_start(snapshot: RunSnapshot) -> Text:
    wanted = {"pages": snapshot.wanted_pages, "images": snapshot.wanted_images}
    figures = [
        f"{what} {snapshot.warmup[what]:.0f} of {number}" for what, number in wanted.items() if what in snapshot.warmup
    ]
    for key in ("loss", "reading_accuracy", "grounding_accuracy", "text_accuracy", "imitation_accuracy"):
        if key in snapshot.warmup:
            figures.append(f"{key.replace('_', ' ')} {snapshot.warmup[key]:.2f}")
    return Text(f"warm start  {', '.join(figures)}")


def _rates(snapshot: RunSnapshot, minutes: str) -> Table:
    table = Table(title=f"Latest {minutes}", title_justify="left")
    table.add_column("what")
    table.add_column("", justify="right")
    for each in snapshot.utilisation:
        table.add_row(each.what, f"{each.percent:.0f} %")
    if snapshot.requests_per_worker is not None:
        table.add_row("requests that an inference worker computes at once", f"{snapshot.requests_per_worker:.2f}")
    for stage in snapshot.throughput:
        table.add_row(f"{stage.stage}: episodes per minute", f"{stage.episodes_per_min:.1f}")
        table.add_row(f"{stage.stage}: actions per minute", f"{stage.actions_per_min:.1f}")
        if stage.trained_rows_per_min is not None:
            table.add_row(f"{stage.stage}: trained steps per minute", f"{stage.trained_rows_per_min:.1f}")
        if stage.lag_s is not None:
            table.add_row(f"{stage.stage}: lag of a trajectory, s", f"{stage.lag_s:.0f}")
    return table


def _update(snapshot: RunSnapshot) -> Table:
    table = Table(title=f"Train step {snapshot.updates}", title_justify="left")
    table.add_column("what")
    table.add_column("", justify="right")
    for key, name in UPDATE_FIGURES.items():
        if key in OF_SEVERAL_STEPS and snapshot.update.get("optimizer_steps") == 1 and not snapshot.update.get(key):
            continue
        if key in snapshot.update:
            table.add_row(name, f"{snapshot.update[key]:.4g}")
    return table


def _families(snapshot: RunSnapshot, minutes: str) -> Table:
    title = "\n".join([f"Success in training, latest {minutes}", *(f"({note})" for note in snapshot.rewards)])
    table = Table(title=title, title_justify="left")
    for name in ("family", "episodes", "success", f"{minutes} before"):
        table.add_column(name, justify="left" if name == "family" else "right")
    for family, each in snapshot.families.items():
        table.add_row(family, str(each.episodes), *_shown(each))
    return table


def _shown(progress: FamilyProgress) -> tuple[str, str]:
    now, before = ("" if rate is None else f"{100 * rate:.0f} %" for rate in (progress.success, progress.before))
    if progress.success is None or progress.before is None:
        return now, before
    change = progress.success - progress.before
    arrow = "↑" if change > 0.05 else "↓" if change < -0.05 else "="
    return f"{now} {arrow}", before


def _queues(snapshot: RunSnapshot) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, counts in (("groups", snapshot.groups), ("rollouts", snapshot.rollouts)):
        table.add_row(name, ", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
    return table


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
