"""Stored successes as episodes to imitate: rejection sampling.

Role: `read_successes` takes the solved training rollouts of a run, as the policy sampled them. Rule: token ids are taken over as they
are; an answer that was no action is not imitated; of one task at most so many rollouts are taken, the newest first, so that easy tasks do
not crowd out hard ones. Non-goals: importance ratios, which imitation has none of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from dart_agent.data_client.image_store import BlobStorage
from dart_agent.errors import StoreError
from dart_agent.types import Purpose
from dart_train.config import RecipeError
from dart_train.data_commands.open_run import OpenRun, open_run
from dart_train.data_manager.queries import IMPORT_PREFIX
from dart_train.data_manager.store.models import TrajectoryTable
from dart_train.data_manager.store.trajectories import read_trajectory
from dart_train.imitation.demonstrations import DemonstrationsUnusableError
from dart_train.imitation.tokens import ImitatedEpisode


def _solved(run: OpenRun) -> tuple[ColumnElement[bool], ...]:
    """Solved training rollouts that are a run's own."""
    return (
        TrajectoryTable.purpose == Purpose.TRAIN.value,
        TrajectoryTable.reward >= run.recipe.reward.success_at,
        TrajectoryTable.phase.not_like(f"{IMPORT_PREFIX}%"),
    )


@contextmanager
def open_solved(folder: Path) -> Iterator[OpenRun]:
    """Open a run that has something to imitate.

    Args:
        folder: The run folder.

    Yields:
        The run.

    Raises:
        DemonstrationsUnusableError: The folder is no run, or has no success.
    """
    with ExitStack() as stack:
        try:
            run = stack.enter_context(open_run(folder))
        except (RecipeError, StoreError) as error:
            raise DemonstrationsUnusableError(f"{folder} has no stored rollouts: {error}") from error
        with Session(run.engine) as session:
            if session.scalar(select(TrajectoryTable.seq).where(*_solved(run)).limit(1)) is None:
                raise DemonstrationsUnusableError(
                    f"{folder} has no solved training rollout: give another run, or leave it out"
                )
        yield run


@contextmanager
def read_successes(
    folders: tuple[Path, ...], per_task: int
) -> Iterator[tuple[list[ImitatedEpisode], list[BlobStorage]]]:
    """Read the successes of some runs.

    Args:
        folders: The run folders.
        per_task: Most rollouts of a task, over all runs.

    Yields:
        The episodes, and where their images are.

    Raises:
        DemonstrationsUnusableError: A folder is no run, or has no success.
    """
    taken: Counter[str] = Counter()
    episodes: list[ImitatedEpisode] = []
    with ExitStack() as stack:
        runs = [stack.enter_context(open_solved(folder)) for folder in folders]
        for run in runs:
            episodes += _successes(run, per_task, taken)
        yield episodes, [run.images for run in runs]


def _successes(run: OpenRun, per_task: int, taken: Counter[str]) -> Iterator[ImitatedEpisode]:
    """Episodes of a run of tasks that are not taken often enough yet."""
    query = select(TrajectoryTable).where(*_solved(run)).order_by(TrajectoryTable.seq.desc())
    with Session(run.engine) as session:
        for row in session.scalars(query):
            if taken[row.task_id] >= per_task:
                continue
            steps = tuple(
                step
                for step in read_trajectory(session, row).steps_S
                if step.parse_error is None and step.prompt_ids_P and step.token_ids_T
            )
            if steps:
                taken[row.task_id] += 1
                yield ImitatedEpisode(f"{run.recipe.run.name}/{row.rollout_id}", row.task_id, steps)
