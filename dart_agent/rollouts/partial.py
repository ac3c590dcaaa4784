"""Unfinished rollouts: which of them a worker continues, and why the others begin anew.

Role: `PartialRollouts` gives each rollout its journal, and the episode where one can be continued; `RolloutHandover` leaves what a worker
does not finish. Rule: an episode is continued only where it is known that the desktop is as the last stored step left it; otherwise its
steps are dropped and it begins anew, with the cause on record. An error that says nothing about that desktop drops nothing: the rollout is
put back. A worker that ends while it takes a rollout up drops nothing, either. Non-goals: which unfinished rollout comes next (the data
manager), playing (`dart_agent.rollouts.episode_loop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from dart_agent.component_process import run_to_its_end
from dart_agent.data_client.image_store import BlobStorage
from dart_agent.errors import StoreError, StoreRefusedError, StoreUnavailableError
from dart_agent.rollouts.episode import EpisodeSettings, ResumedEpisode
from dart_agent.rollouts.episode_report import PlayedItem
from dart_agent.rollouts.episode_state import EpisodeState, KeptDesktop, SavedEpisode
from dart_agent.rollouts.journal import ActionMarks, PartialWorkSource, ResumableEnv, StepJournal, last_segment
from dart_agent.rollouts.worker_config import ABANDON_TIMEOUT_S, DISCARD_TIMEOUT_S, PARK_TIMEOUT_S
from dart_agent.types import StepRecord, WorkItem, WorkSource
from dart_envs.clock import wait_for
from dart_envs.envs.parking import RESET_CODE
from dart_envs.errors import DartEnvError, FarmError, HostFaultError
from dart_envs.types import RgbImage, TaskLike
from dart_server.wire import Clock, ErrorCode

logger = logging.getLogger(__name__)

FAILED_START_DELAY_S = 1.0
"""Pause of a slot whose rollout could not start; an unfinished one is put back after it."""
DESKTOP_GONE_CODES = frozenset(
    {
        ErrorCode.NOT_FOUND.value,
        ErrorCode.SNAPSHOT_MISSING.value,
        ErrorCode.SNAPSHOT_BROKEN.value,
        ErrorCode.CAPABILITY_MISSING.value,
        ErrorCode.INVALID.value,
        RESET_CODE,
    }
)
"""Codes of refusals that stay as they are: the lease or the snapshot is gone, or this farm can never take it up."""


class EpisodePostponed(Exception):
    """An unfinished rollout could not be taken up now, for a cause that says nothing about its desktop.

    Args:
        state: The episode after its last stored step.
        cause: What failed.
    """

    def __init__(self, state: EpisodeState, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.state = state


def is_desktop_gone(error: DartEnvError | StoreError) -> bool:
    """Say what an error means for an unfinished rollout whose desktop could not be taken up.

    Args:
        error: The error.

    Returns:
        True where its desktop, or an image of it, is gone; False where the same may go well later: the farm, its host or the storage is
        away, busy or full, or the key is refused.
    """
    if isinstance(error, StoreError):
        return not isinstance(error, StoreUnavailableError)
    if isinstance(error, FarmError):
        return error.code in DESKTOP_GONE_CODES
    return not isinstance(error, HostFaultError)


@dataclass(frozen=True, slots=True)
class PartialRollouts:
    """What a worker needs to store steps as they happen, and to continue unfinished rollouts.

    Attributes:
        source: The work source, which keeps unfinished rollouts.
        images: Where images are read from.
        marks: Marks of actions under way, in a directory that outlives the process.
        keep_lease: Parked desktops stay leased for their TTL; otherwise they become snapshots.
    """

    source: PartialWorkSource
    images: BlobStorage
    marks: ActionMarks
    keep_lease: bool = False

    async def clear_obsolete_marks(self) -> None:
        """Clear what a killed process left of rollouts that are over, or of which nothing is stored: nobody continues them.

        A mark that another worker sets meanwhile says nothing either, as long as no step of its rollout is stored.

        Raises:
            StoreError: The data manager cannot be reached.
        """
        for rollout_id, index in self.marks.all():
            if await self.source.saved_episode(rollout_id) is None:
                self.marks.clear(rollout_id, index)

    async def begin(
        self, env: object, settings: EpisodeSettings, task: TaskLike, played: PlayedItem, *, screenshots: int = 0
    ) -> tuple[ResumedEpisode | None, StepJournal]:
        """Begin or continue a rollout.

        Args:
            env: The slot's environment, a `ResumableEnv`.
            settings: Names the worker and its process.
            task: The task.
            played: The rollout; the state in which it can be left meanwhile is kept in it.
            screenshots: How many of the latest different screens its reward source looks at.

        Returns:
            The episode where it is continued, None where it begins; and the journal of its steps.

        Raises:
            EpisodePostponed: It is to be continued, and its desktop cannot be taken up now (`put_back`).
            StoreError: The data manager cannot be reached.
        """
        resumable, item = cast(ResumableEnv, env), played.item
        if item.stored_steps:
            saved = await self.source.saved_episode(item.rollout_id)
            resumed = (
                "nothing is stored of it"
                if saved is None
                else await self._continue(resumable, settings, task, played, saved, screenshots)
            )
            if isinstance(resumed, ResumedEpisode):
                return resumed, self._journal(resumable, item, resumed.saved)
            logger.warning("%s (%s) begins anew: %s", item.rollout_id, item.task_id, resumed)
            await self.source.restart(item, resumed)
            self.marks.clear(item.rollout_id, item.stored_steps)
        return None, self._journal(resumable, item, None)

    async def put_back(self, item: WorkItem, postponed: EpisodePostponed) -> None:
        """Leave a rollout that could not be taken up to whoever is assigned it next, with its steps; it has used up an attempt.

        Args:
            item: The rollout.
            postponed: Why.

        Raises:
            StoreError: The data manager cannot be reached, or refused.
        """
        # No action was under way, and nobody has used its desktop since: any worker may continue it.
        state = postponed.state.model_copy(update={"parked": True})
        await self.source.park(item, state, failed_start=str(postponed))

    async def leave_untouched(self, played: PlayedItem) -> None:
        """Leave a rollout that is being taken up, and in which nothing was performed yet, as it is stored; it uses up no attempt.

        Args:
            played: The rollout.

        Raises:
            StoreRefusedError: Nothing is stored of it.
            StoreError: The data manager cannot be reached.
        """
        state = played.untouched
        if state is None:
            saved = await self.source.saved_episode(played.item.rollout_id)
            if saved is None:
                raise StoreRefusedError("nothing is stored of it")
            state = saved.state  # whether an action of its last worker was under way is for the next one to find out
        await self.source.park(played.item, state)

    def _journal(self, env: ResumableEnv, item: WorkItem, saved: SavedEpisode | None) -> StepJournal:
        segment = 0 if saved is None else last_segment(saved.steps_S)
        return StepJournal(self.source, item, env, self.marks, saved, segment)

    async def _continue(
        self,
        env: ResumableEnv,
        settings: EpisodeSettings,
        task: TaskLike,
        played: PlayedItem,
        saved: SavedEpisode,
        screenshots: int,
    ) -> ResumedEpisode | str:
        """The unfinished episode with its desktop, or why it cannot be continued."""
        item, state, steps = played.item, saved.state, saved.steps_S
        if state.desktop is None:
            return "no desktop of it was kept"
        if not state.parked and state.worker != settings.worker:
            return f"worker {state.worker} was lost, and only it knows whether its last action was performed"
        if not state.parked and state.process == settings.process:
            return "this worker has used its desktop since"
        if state.desktop.snapshot_id is None and self.marks.found(item.rollout_id, len(steps)):
            return f"the worker died while the action of step {len(steps)} was under way"
        played.untouched = state.model_copy(update={"parked": True})
        try:
            images = await asyncio.to_thread(self._needed_images, steps, screenshots)
            observation = await env.resume(task, state.desktop.to_value())
        except (DartEnvError, StoreError) as error:
            if not is_desktop_gone(error):
                raise EpisodePostponed(state, error) from error
            return f"{type(error).__name__}: {error}"
        if state.desktop.snapshot_id is None:
            # From now on this desktop may be changed: whoever comes next must ask this worker's marks.
            held = env.held_desktop()
            desktop = None if held is None else KeptDesktop.from_value(held)
            own = {"worker": settings.worker, "process": settings.process, "parked": False, "desktop": desktop}
            try:
                await self.source.resume(item, state.model_copy(update=own))
            except asyncio.CancelledError:
                await env.park(keep_lease=True)  # the slot gives back what its environment holds
                raise
        else:
            # The snapshot stays as it is, and is named until the next step is stored: what a killed worker did was on its own desktop.
            self.marks.clear(item.rollout_id, len(steps))
        return ResumedEpisode(saved, observation, images)

    def _needed_images(self, steps: Sequence[StepRecord], screenshots: int) -> dict[str, RgbImage]:
        """The images of the last prompt, of which the coming one shows some, and the latest screens, for the reward source."""
        latest = dict.fromkeys(step.image_sha256[-1] for step in reversed(steps))
        wanted = {*steps[-1].image_sha256, *islice(latest, screenshots)}
        return {sha256: self.images.get(sha256) for sha256 in wanted}


class RolloutHandover:
    """Hands rollouts over that a worker does not finish: parked, put back with their steps, or given back to begin anew.

    Args:
        source: Where the rollouts come from.
        partial: Keeps unfinished ones; None: all begin anew.
        clock: Clock of limits and pauses.
    """

    def __init__(self, source: WorkSource, partial: PartialRollouts | None, clock: Clock) -> None:
        self._source = source
        self._partial = partial
        self._clock = clock

    async def leave(self, played: PlayedItem, cause: str, *, ends: bool = False) -> None:
        """Park a rollout where that is possible, otherwise give it back: it is not to blame.

        Args:
            played: The rollout.
            cause: Why it is left.
            ends: Whether the worker does not go on.

        Raises:
            StoreError: The data manager stays away; not where the worker ends.
        """
        partial, journal = self._partial, played.journal
        if partial is not None and journal is None and played.item.stored_steps:
            await self._leave_untouched(partial, played, cause, ends=ends)
            return
        if partial is None or journal is None or not journal.can_park:
            await self.abandon(played, cause, ends=ends, uses_attempt=False)
            return
        parking = asyncio.create_task(
            journal.park(keep_lease=partial.keep_lease), name=f"park-{played.item.rollout_id}"
        )
        if not ends:
            try:
                await asyncio.wait({parking})
            except asyncio.CancelledError:
                await run_to_its_end(self._end_parking(played, cause, parking, ends=True))
                raise
        await self._end_parking(played, cause, parking, ends=ends)

    async def _leave_untouched(self, partial: PartialRollouts, played: PlayedItem, cause: str, *, ends: bool) -> None:
        """Leave a rollout that is being taken up; where the worker ends, within a short time, and its steps stay in any case."""
        leaving = partial.leave_untouched(played)
        try:
            await (wait_for(self._clock, ABANDON_TIMEOUT_S, leaving) if ends else leaving)
        except StoreRefusedError as error:
            await self.abandon(played, f"{cause}; it could not be left: {error}", ends=ends, uses_attempt=False)
        except (StoreError, TimeoutError) as error:
            if not ends:
                raise
            logger.warning("%s stays assigned: %s: %s", played.item.rollout_id, type(error).__name__, error)

    async def _end_parking(self, played: PlayedItem, cause: str, parking: asyncio.Task[None], *, ends: bool) -> None:
        """Wait for the end of parking, shortly where the worker ends; give the rollout back where it could not be parked."""
        item, journal = played.item, played.journal
        assert journal is not None
        try:
            await wait_for(self._clock, PARK_TIMEOUT_S, parking)
            return
        except (DartEnvError, StoreError, TimeoutError) as error:
            cause = f"{cause}; it could not be parked: {type(error).__name__}: {error}"
            logger.warning("%s (%s): %s", item.rollout_id, item.task_id, cause)
        try:
            await self.abandon(played, cause, ends=ends, uses_attempt=False)
        finally:
            await journal.discard_snapshot(self._clock, DISCARD_TIMEOUT_S)

    async def abandon(self, played: PlayedItem, cause: str, *, ends: bool = False, uses_attempt: bool = True) -> None:
        """Give a rollout back; it begins anew, because its desktop is used for others from now on.

        A worker that goes on must not keep it: its heartbeats would extend the assignment for ever.

        Args:
            played: The rollout.
            cause: Why.
            ends: Whether the worker does not go on.
            uses_attempt: Whether it uses up an attempt.

        Raises:
            StoreError: The data manager stays away; not where the worker ends.
        """
        played.give_back(cause)
        await self._give_back(self._source.abandon(played.item, cause, uses_attempt=uses_attempt), ends=ends)

    async def put_back(self, played: PlayedItem, postponed: EpisodePostponed) -> None:
        """Leave a rollout that could not be taken up, with its steps, to whoever asks after a pause.

        Args:
            played: The rollout.
            postponed: Why.

        Raises:
            StoreError: The data manager stays away; not where the worker ends.
        """
        assert self._partial is not None
        ends = True
        try:
            try:
                await self._clock.sleep(FAILED_START_DELAY_S)
                ends = False
            finally:
                await self._give_back(self._partial.put_back(played.item, postponed), ends=ends)
        except StoreRefusedError as error:
            await self.abandon(played, f"{postponed}; it could not be put back: {error}")

    async def _give_back(self, giving_back: Awaitable[None], *, ends: bool) -> None:
        """Wait until the data manager has a rollout back; where the worker ends, for a short time, and nothing is raised."""
        if not ends:
            await giving_back
            return
        with contextlib.suppress(StoreError, TimeoutError):
            await wait_for(self._clock, ABANDON_TIMEOUT_S, giving_back)
