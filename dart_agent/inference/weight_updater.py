"""Keeps the workers of one pool at the newest policy version, and some of them at the version of an evaluation while it lasts.

Role: `WeightUpdater` carries out what `decisions.weight_updates` decides: it asks for the newest version, tells the planner what the
workers report, and sends each worker its commands in order. Rule: workers do not wait for each other (mode `per_worker`): each reads and
checks a version while it serves and swaps when it is ready; a command that is not answered in time ends with the worker reported as lost,
so nothing waits for ever. The newest accepted version stays held until a newer one is accepted, because a worker that restarts begins with
it. Non-goals: publishing (`dart_train.model.weights`), reading (`dart_agent.inference.engine`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from dart_agent.errors import StoreError, WeightUpdateError, WorkerError
from dart_agent.inference.client import WeightUpdateTimes
from dart_agent.inference.decisions.retries import RequestFailure
from dart_agent.inference.decisions.routing import WorkerState
from dart_agent.inference.decisions.weight_updates import (
    AbandonVersion,
    PauseWorker,
    ResumeWorker,
    StageWeights,
    SwapWeights,
    UpdateCommand,
    UpdateEvent,
    UpdatePlanner,
    UpdateRefused,
    UpdateSettings,
    VersionHeld,
    VersionPublished,
    WeightsId,
    WorkerLost,
    WorkerPaused,
    WorkerReported,
    WorkerStaged,
    WorkerStands,
    WorkerUpdated,
)
from dart_agent.inference.pool import PolicyWorker, VllmPool
from dart_agent.inference.settings import PublishedWeights
from dart_agent.inference.weights.leases import WeightLease, hold
from dart_agent.inference.wire import WorkerHealth
from dart_envs.clock import SYSTEM_CLOCK, wait_first
from dart_server.wire import Clock

logger = logging.getLogger(__name__)

LatestVersion = Callable[[], Awaitable[PublishedWeights | None]]


@dataclass(slots=True)
class WeightRollout:
    """What bringing all workers to one version cost.

    Attributes:
        weights: The version.
        staged_s: By worker, seconds in which it read and checked the weights while it served.
        times: By worker, how long its requests stood still.
        total_s: Seconds from the first command to the last worker.
    """

    weights: WeightsId
    staged_s: dict[str, float] = field(default_factory=dict)
    times: dict[str, WeightUpdateTimes] = field(default_factory=dict)
    total_s: float = 0.0

    @property
    def paused_s(self) -> dict[str, float]:
        """By worker, how long its requests stood still."""
        return {name: times.pause_s + times.load_s for name, times in self.times.items()}


class WeightUpdater:
    """Follows the newest version with all workers of `pool`; `run` never returns.

    latest: tells the newest version. held: tells the version that the workers `holding` have in its place, None: none. on_accepted: told
    when the first worker serves a version. on_rollout: told when all do. on_late: told of a worker that did not answer a command in time.
    """

    def __init__(
        self,
        pool: VllmPool,
        latest: LatestVersion,
        *,
        settings: UpdateSettings | None = None,
        clock: Clock | None = None,
        poll_s: float = 0.5,
        on_accepted: Callable[[PublishedWeights], None] | None = None,
        on_rollout: Callable[[WeightRollout], None] | None = None,
        on_late: Callable[[str], None] | None = None,
        held: LatestVersion | None = None,
        holding: Collection[str] = (),
    ) -> None:
        self.planner = UpdatePlanner(settings, holding)
        self.accepted: PublishedWeights | None = None
        self._pool = pool
        self._latest = latest
        self._held = held
        self._clock = clock or SYSTEM_CLOCK
        self._poll_s = poll_s
        self._on_accepted = on_accepted
        self._on_rollout = on_rollout
        self._on_late = on_late
        self._known: dict[WeightsId, PublishedWeights] = {}
        self._lease: WeightLease | None = None
        self._rollout: WeightRollout | None = None
        self._began_s = 0.0
        self._abandoned: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._busy: set[str] = set()
        self._queues = {member.client.name: asyncio.Queue[UpdateCommand]() for member in pool.members}

    async def run(self) -> None:
        """Follow until cancelled. Raises WeightUpdateError when a version is refused again and again."""
        self._pool.on_seen = self._seen
        for member in self._pool.members:
            self._seen(member.client.name, member.seen)
        tasks = [
            asyncio.create_task(self._poll(), name="newest-version"),
            *(
                asyncio.create_task(self._serve(member.client), name=f"update-{member.client.name}")
                for member in self._pool.members
            ),
        ]
        try:
            waited: list[asyncio.Future[None]] = [*tasks, self._abandoned]
            done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._pool.on_seen = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._lease is not None:
                self._lease.release()

    def publish(self, published: PublishedWeights) -> None:
        """There is a newer version: every worker is to have it."""
        if published.identity == self.planner.target:
            return
        self._finish_rollout()
        self._known[published.identity] = published
        self._rollout = WeightRollout(published.identity)
        self._began_s = self._clock.monotonic()
        self._apply(VersionPublished(published.identity))

    def hold(self, published: PublishedWeights | None) -> None:
        """The workers that hold versions are to have this one; None: the newest again."""
        if published is not None:
            self._known[published.identity] = published
        self._apply(VersionHeld(None if published is None else published.identity))

    async def _poll(self) -> None:
        while True:
            try:
                held = None if self._held is None else await self._held()
                newest = await self._latest()
            except StoreError as error:
                logger.warning("the newest policy version is not known: %s", error)
            else:
                self.hold(held)
                if newest is not None:
                    self.publish(newest)
            await self._clock.sleep(self._poll_s)

    def _seen(self, name: str, health: WorkerHealth | None) -> None:
        if health is None or health.state is WorkerState.DRAINING:
            self._lose(name)
        elif health.state is WorkerState.SERVING:
            # What one that updates says of its weights may be old when it is heard.
            self._apply(WorkerReported(name, health.weights))
        elif name not in self._busy and self._queues[name].empty():
            # Whatever stopped it is over: a command that is under way says itself how the worker goes on.
            self._apply(WorkerStands(name))

    def _lose(self, name: str, reason: str = "") -> None:
        """What it was asked for belongs to the process that is gone."""
        queue = self._queues[name]
        while not queue.empty():
            queue.get_nowait()
        self._apply(WorkerLost(name, reason))

    def _apply(self, event: UpdateEvent) -> None:
        commands = self.planner.apply(event)
        for command in commands:
            if isinstance(command, AbandonVersion):
                problem = f"version {command.weights.number} was refused again and again: {command.reason}"
                if not self._abandoned.done():
                    self._abandoned.set_exception(WeightUpdateError(problem))
            else:
                self._queues[command.worker].put_nowait(command)
        if self._rollout is not None and self._rollout.times and not self.planner.outdated:
            self._finish_rollout()

    def _finish_rollout(self) -> None:
        rollout, self._rollout = self._rollout, None
        if rollout is None or not rollout.times:
            return
        rollout.total_s = self._clock.monotonic() - self._began_s
        logger.info("version %d on %s in %.2f s", rollout.weights.number, ", ".join(rollout.times), rollout.total_s)
        if self._on_rollout is not None:
            self._on_rollout(rollout)

    async def _serve(self, client: PolicyWorker) -> None:
        """Send one worker its commands, one after the other."""
        while True:
            command = await self._queues[client.name].get()
            self._busy.add(client.name)
            try:
                event = await self._carry_out(client, command)
            except WeightUpdateError as error:
                logger.warning("%s keeps its weights: %s", client.name, error)
                assert isinstance(command, StageWeights | SwapWeights), "nothing else can be refused"
                event = UpdateRefused(client.name, command.weights, str(error))
            except WorkerError as error:
                logger.warning("%s missed a weight update and takes it later: %s", client.name, error)
                self._lose(client.name, str(error))
                if error.failure is RequestFailure.TIMEOUT and self._on_late is not None:
                    self._on_late(client.name)
                continue
            finally:
                self._busy.discard(client.name)
            if event is not None:
                self._apply(event)

    async def _carry_out(self, client: PolicyWorker, command: UpdateCommand) -> UpdateEvent | None:
        if isinstance(command, StageWeights):
            seconds = await client.stage(self._known[command.weights])
            if self._rollout is not None and self._rollout.weights == command.weights:
                self._rollout.staged_s[client.name] = seconds
            return WorkerStaged(client.name, command.weights)
        if isinstance(command, PauseWorker):
            await client.pause()
            return WorkerPaused(client.name)
        if isinstance(command, ResumeWorker):
            if not command.confirm or (await client.health()).state is WorkerState.UPDATING:
                await client.resume()
            return None
        assert isinstance(command, SwapWeights)
        times = await client.swap(command.weights, pause=command.pause)
        self._accept(command.weights)
        if self._rollout is not None and self._rollout.weights == command.weights:
            self._rollout.times[client.name] = times
        return WorkerUpdated(client.name, command.weights)

    def _accept(self, weights: WeightsId) -> None:
        """A worker serves it: what restarts begins with it, so it must not be removed. A version that is held is for evaluations alone."""
        published = self._known[weights]
        if weights == self.planner.held and weights != self.planner.target:
            return
        if self.accepted is not None and published.version <= self.accepted.version and weights != self.planner.target:
            return
        if self.accepted == published:
            return
        try:
            lease = hold(published.path)
        except WeightUpdateError as error:
            logger.warning("a worker that restarts now cannot begin with version %d: %s", published.version, error)
            return
        if self._lease is not None:
            self._lease.release()
        self._lease, self.accepted = lease, published
        if self._on_accepted is not None:
            self._on_accepted(published)


async def roll_out(
    pool: VllmPool,
    published: PublishedWeights,
    *,
    settings: UpdateSettings | None = None,
    timeout_s: float = 600.0,
    clock: Clock = SYSTEM_CLOCK,
) -> WeightRollout:
    """Bring every worker that serves to one version, and wait for it (without a data manager).

    Args:
        pool: The workers.
        published: The version.
        settings: Mode and limits.
        timeout_s: Limit of the wait, in seconds.
        clock: Measures the limit.

    Returns:
        What it cost.

    Raises:
        WeightUpdateError: The version was refused, or not everyone had it in time.
    """
    done: asyncio.Future[WeightRollout] = asyncio.get_running_loop().create_future()

    async def latest() -> PublishedWeights:
        return published

    def finished(rollout: WeightRollout) -> None:
        if not done.done():
            done.set_result(rollout)

    updater = WeightUpdater(pool, latest, settings=settings, clock=clock, on_rollout=finished)
    following = asyncio.ensure_future(updater.run())
    try:
        await wait_first(clock, timeout_s, [done, following])
        if following.done():
            following.result()
        if not done.done():
            late = ", ".join(updater.planner.outdated)
            raise WeightUpdateError(f"version {published.version} was not on {late} within {timeout_s:.0f} s")
        return done.result()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
