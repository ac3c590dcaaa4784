"""Steps of a running episode, stored as they happen.

Role: `StepJournal` is the `EpisodeJournal` of one episode over a `PartialWorkSource`, `StopSignal` that over any other source. Rule: a step
is stored while the next one is sampled; at most one is under way, in order. Before an action is performed a mark is written to a file that
survives this process; it is removed once the step is stored: where it is found, nobody knows whether the action was performed, and the
episode begins anew. Non-goals: what follows from a directive (`dart_agent.rollouts.worker`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dart_agent.errors import StoreError
from dart_agent.rollouts.episode_state import EpisodeState, KeptDesktop, SavedEpisode
from dart_agent.types import Directive, StepRecord, Trajectory, WorkItem, WorkSource
from dart_envs.clock import wait_for
from dart_envs.envs.parking import ParkedDesktop
from dart_envs.errors import DartEnvError
from dart_envs.types import Observation, RgbImage, TaskLike
from dart_server.wire import Clock

logger = logging.getLogger(__name__)


class PartialWorkSource(WorkSource, Protocol):
    """A work source that keeps unfinished rollouts: `dart_agent.data_client.client.DataManagerClient`."""

    async def store_step(
        self,
        item: WorkItem,
        steps_S: Sequence[StepRecord],
        segment: int,
        images: Mapping[str, RgbImage],
        state: EpisodeState,
    ) -> tuple[int, Directive]:
        """Store the last of the steps; `segment`: that of the step before. Returns its segment, and what the episode does next."""
        ...

    async def report(self, trajectory: Trajectory, images: Mapping[str, RgbImage], *, stored_steps: int = 0) -> None:
        """Store a finished trajectory whose first `stored_steps` steps are stored, and images that are not."""
        ...

    async def park(self, item: WorkItem, state: EpisodeState, *, failed_start: str | None = None) -> bool:
        """Leave an unfinished rollout to whoever is assigned it next.

        failed_start: why it could not be continued now, which uses up an attempt; None: it was stopped at a step. Returns False where the
        assignment holds no more: an earlier call came through, or somebody else has the rollout.
        """
        ...

    async def saved_episode(self, rollout_id: str) -> SavedEpisode | None:
        """What is stored of an unfinished rollout."""
        ...

    async def resume(self, item: WorkItem, state: EpisodeState) -> None:
        """Say on which desktop an unfinished rollout goes on."""
        ...

    async def restart(self, item: WorkItem, cause: str) -> None:
        """Drop the stored steps of an unfinished rollout that begins anew."""
        ...


class ResumableEnv(Protocol):
    """An environment whose episodes can be parked: `dart_envs.envs.parking.ResumableDesktopEnv`."""

    def held_desktop(self) -> ParkedDesktop | None:
        """Where the running episode's desktop is, should this process die now."""
        ...

    async def park(self, *, keep_lease: bool = False) -> ParkedDesktop:
        """Stop the running episode and keep its desktop. Raises DartEnvError when it cannot be kept."""
        ...

    async def resume(self, task: TaskLike, parked: ParkedDesktop, *, share_setup: bool | None = None) -> Observation:
        """Go on with a parked episode. Raises DartEnvError when its desktop is gone."""
        ...

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete the snapshot of a parked episode that nobody continues. Raises DartEnvError when it stays."""
        ...


class ActionMarks:
    """Marks of actions under way, one empty file each, in a directory that outlives the process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def set(self, rollout_id: str, index: int) -> None:
        """The action of step `index` is performed from now on."""
        self._path(rollout_id, index).touch()

    def clear(self, rollout_id: str, index: int) -> None:
        """The step is stored, or the rollout begins anew."""
        self._path(rollout_id, index).unlink(missing_ok=True)

    def found(self, rollout_id: str, index: int) -> bool:
        """Whether it is not known if the action of step `index` was performed."""
        return self._path(rollout_id, index).exists()

    def all(self) -> list[tuple[str, int]]:
        """Every mark, as rollout and index."""
        named = (path.name.rpartition(".") for path in self._directory.iterdir())
        return sorted((rollout_id, int(index)) for rollout_id, _, index in named)

    def _path(self, rollout_id: str, index: int) -> Path:
        return self._directory / f"{rollout_id}.{index}"


class StopSignal:
    """Stops an episode whose steps are not stored as they happen; an `EpisodeJournal`."""

    def __init__(self) -> None:
        self.sent_images: Collection[str] = frozenset()
        self._told = Directive.CONTINUE

    def stop(self, directive: Directive) -> None:
        """Let the episode do this after the step that it is in."""
        self._told = directive

    def acting(self, index: int) -> None:
        """Nobody continues this episode: no mark is needed."""

    async def stored(self, steps_S: tuple[StepRecord, ...], image: RgbImage, state: EpisodeState) -> Directive:
        """Say what the episode does next."""
        return self._told


class StepJournal:
    """Stores the steps of one episode.

    Args:
        source: Where they go.
        item: The rollout, as it was assigned.
        env: The environment that it is played in.
        marks: Marks of actions.
        saved: What is stored of it, where it continues.
        segment: Segment of the last stored step.
    """

    def __init__(
        self,
        source: PartialWorkSource,
        item: WorkItem,
        env: ResumableEnv,
        marks: ActionMarks,
        saved: SavedEpisode | None = None,
        segment: int = 0,
    ) -> None:
        self.stored_steps = 0 if saved is None else len(saved.steps_S)
        self.state = None if saved is None else saved.state
        self.sent_images: set[str] = set()
        if saved is not None:
            self.sent_images.update(sha256 for step in saved.steps_S for sha256 in step.image_sha256)
        self._source = source
        self._item = item
        self._rollout_id = item.rollout_id
        self._env = env
        self._marks = marks
        self._segment = segment
        self._storing: asyncio.Task[Directive] | None = None
        self._acting: int | None = None
        self._told = Directive.CONTINUE
        self._unclaimed: KeptDesktop | None = None

    @property
    def at_boundary(self) -> bool:
        """Whether every action that was performed is in a step that is stored or being stored."""
        return self._acting is None

    @property
    def can_park(self) -> bool:
        """Whether the episode is at a boundary, and a step of it is stored or being stored."""
        return self.at_boundary and (self.stored_steps > 0 or self._storing is not None)

    def stop(self, directive: Directive) -> None:
        """Let the episode do this after the step that it is in, also where the data manager lets it go on."""
        self._told = directive

    def acting(self, index: int) -> None:
        """The action of step `index` is performed from now on."""
        self._acting = index
        self._marks.set(self._rollout_id, index)

    async def stored(self, steps_S: tuple[StepRecord, ...], image: RgbImage, state: EpisodeState) -> Directive:
        """Begin to store the last step, and return what followed from the step before. Raises StoreError for that one."""
        directive = await self.flush()
        self._acting = None
        held = self._env.held_desktop()
        state = state.model_copy(update={"desktop": None if held is None else KeptDesktop.from_value(held)})
        self._storing = asyncio.create_task(self._store(steps_S, image, state), name=f"store-{self._rollout_id}")
        return self._told if directive is Directive.CONTINUE else directive

    async def flush(self) -> Directive:
        """Wait until what is being stored is stored. Raises StoreError."""
        if self._storing is None:
            return Directive.CONTINUE
        directive = await asyncio.shield(self._storing)
        self._storing = None
        return directive

    async def park(self, *, keep_lease: bool) -> None:
        """Leave the rollout at this turn boundary to whoever is assigned it next.

        Raises StoreError or DartEnvError when it cannot be left so; the desktop is not usable then, and a snapshot of it may be left
        (`discard_snapshot`).
        """
        await self.flush()
        assert self.state is not None, "nothing is stored: there is nothing to continue"
        parked = await self._env.park(keep_lease=keep_lease)
        self._unclaimed = KeptDesktop.from_value(parked)
        state = self.state.model_copy(update={"desktop": self._unclaimed, "parked": True})
        if not await self._source.park(self._item, state) and not await self._is_claimed():
            raise StoreError("its assignment holds no more")
        self._unclaimed = None

    async def discard_snapshot(self, clock: Clock, timeout_s: float) -> None:
        """Delete the snapshot of a rollout that could not be parked, as far as that can be done now; what stays is logged.

        clock, timeout_s: limit of asking whether the data manager names it nevertheless, and of deleting it.
        """
        snapshot_id = None if self._unclaimed is None else self._unclaimed.snapshot_id
        if snapshot_id is None:
            return
        try:
            if await wait_for(clock, timeout_s, self._is_claimed()):
                return
        except (StoreError, TimeoutError) as error:
            logger.info(
                "it is not known whether snapshot %s is needed: %s: %s", snapshot_id, type(error).__name__, error
            )
        try:
            await wait_for(clock, timeout_s, self._env.delete_snapshot(snapshot_id))
        except (DartEnvError, TimeoutError) as error:
            logger.warning(
                "snapshot %s of %s stays until the farm evicts it: %s: %s",
                snapshot_id,
                self._rollout_id,
                type(error).__name__,
                error,
            )

    async def _is_claimed(self) -> bool:
        """Whether the data manager continues the rollout on the desktop that was parked last."""
        saved = await self._source.saved_episode(self._rollout_id)
        return saved is not None and saved.state.desktop == self._unclaimed

    def forget(self) -> None:
        """The rollout is over, or begins anew: no mark of it stays."""
        for index in range(self.stored_steps, self.stored_steps + 2):
            self._marks.clear(self._rollout_id, index)

    async def _store(self, steps_S: tuple[StepRecord, ...], image: RgbImage, state: EpisodeState) -> Directive:
        sha256 = steps_S[-1].image_sha256[-1]
        images = {} if sha256 in self.sent_images else {sha256: image}
        self._segment, directive = await self._source.store_step(self._item, steps_S, self._segment, images, state)
        self.sent_images.add(sha256)
        self.stored_steps, self.state = len(steps_S), state
        self._marks.clear(self._rollout_id, len(steps_S) - 1)
        return directive


def last_segment(steps_S: Sequence[StepRecord]) -> int:
    """Segment of the last of some stored steps, 0 where there is none."""
    from dart_agent.data_client.token_stream import slice_steps

    return slice_steps(steps_S)[-1].segment if steps_S else 0
