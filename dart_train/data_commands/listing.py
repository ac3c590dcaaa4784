"""Which trajectories a run has, and what became of each.

Role: `list_trajectories` with its filters, and the table that a terminal shows. Rule: newest last; what was asked for is read and no more.
Non-goals: single steps (`provenance`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from dart_train.data_commands.provenance import read_provenance
from dart_train.data_manager.store.models import TrajectoryTable

FATES = ("trained", "left_out", "waiting", "dropped", "quarantined", "masked", "eval", "demo")


@dataclass(frozen=True, slots=True)
class TrajectoryFilter:
    """Which trajectories are wanted; None: any.

    Attributes:
        phase: Name of the phase.
        family: Task family.
        task_id: The task.
        fate: What became of it (`FATES`).
        min_reward: Least reward; masked ones have none and are left out.
        max_reward: Greatest reward; masked ones have none and are left out.
    """

    phase: str | None = None
    family: str | None = None
    task_id: str | None = None
    fate: str | None = None
    min_reward: float | None = None
    max_reward: float | None = None


@dataclass(frozen=True, slots=True)
class ListedTrajectory:
    """A line of the list; the attributes are the columns of the table `trajectories`, and `fate` with `why`."""

    rollout_id: str
    task_id: str
    phase: str
    group_id: str
    reward: float | None
    reward_source: str
    stop: str
    steps: int
    version_min: int | None
    version_max: int | None
    fate: str
    why: str


def select_trajectories(session: Session, wanted: TrajectoryFilter) -> list[TrajectoryTable]:
    """Find trajectories, whatever became of them.

    Args:
        session: The transaction.
        wanted: The filter; its `fate` is not looked at.

    Returns:
        Their rows, oldest first.
    """
    query = select(TrajectoryTable).order_by(TrajectoryTable.seq)
    for column, value in (
        (TrajectoryTable.phase, wanted.phase),
        (TrajectoryTable.family, wanted.family),
        (TrajectoryTable.task_id, wanted.task_id),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.min_reward is not None:
        query = query.where(TrajectoryTable.reward >= wanted.min_reward)
    if wanted.max_reward is not None:
        query = query.where(TrajectoryTable.reward <= wanted.max_reward)
    return list(session.scalars(query))


def list_trajectories(session: Session, wanted: TrajectoryFilter, limit: int) -> list[ListedTrajectory]:
    """List the newest trajectories that fit.

    Args:
        session: The transaction.
        wanted: The filter.
        limit: Greatest number.

    Returns:
        The list, newest last.
    """
    found: list[ListedTrajectory] = []
    for row in reversed(select_trajectories(session, wanted)):
        if len(found) == limit:
            break
        known = read_provenance(session, row)
        if wanted.fate in (None, known.fate):
            found.append(
                ListedTrajectory(
                    rollout_id=row.rollout_id,
                    task_id=row.task_id,
                    phase=row.phase,
                    group_id=row.group_id,
                    reward=row.reward,
                    reward_source=row.reward_source,
                    stop=row.stop,
                    steps=row.n_steps,
                    version_min=row.version_min,
                    version_max=row.version_max,
                    fate=known.fate,
                    why=known.why,
                )
            )
    return found[::-1]


def format_table(rows: Sequence[ListedTrajectory]) -> str:
    """Format a list for a terminal.

    Args:
        rows: The list.

    Returns:
        One line for each, below a line of headings.
    """
    table = [("trajectory", "task", "phase", "reward", "by", "stop", "steps", "versions", "fate")]
    for row in rows:
        reward = "-" if row.reward is None else f"{row.reward:g}"
        versions = "-" if row.version_min is None else f"{row.version_min}-{row.version_max}"
        by, steps = row.reward_source, str(row.steps)
        table.append((row.rollout_id, row.task_id, row.phase, reward, by, row.stop, steps, versions, row.fate))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table
    )
