"""The waits of a run: looks at what is waited for, and does what was decided.

Role: `Waits` feeds `dart_train.run.decisions.waits` and executes its commands. Rule: it decides nothing itself. Non-goals: stages (the
orchestrator), components (`launcher`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from dart_agent.data_client.client import DataManagerClient, DataManagerError
from dart_agent.data_client.wire import PhaseStatus
from dart_agent.errors import WorkerError
from dart_envs.clock import wait_first
from dart_server.wire import Clock
from dart_train.report.learning_signal import describe_learning_signal, since_start
from dart_train.run import components
from dart_train.run.decisions import waits
from dart_train.run.decisions.waits import Stall, WaitCommand, WaitEvent, WaitState
from dart_train.run.disk import Pauses
from dart_train.run.launcher import Component
from dart_train.run.masked_episodes import MaskedEpisodeGuard, format_versions
from dart_train.run.paths import RunPaths
from dart_train.run.progress import Progress
from dart_train.warmup.config import WARM_START_KINDS


class RunFailed(Exception):
    """A component ended, or a stage cannot be finished; what is stored is kept."""


async def look_at_workers(ask: Callable[[], Awaitable[Collection[int]]]) -> tuple[frozenset[int], str]:
    """Ask the inference workers which versions they serve.

    Args:
        ask: Asks them, as `dart_train.run.components.served_versions`.

    Returns:
        The versions, none where a worker does not answer, and the same in words, or why it is not known.
    """
    try:
        served = frozenset(await ask())
    except FileNotFoundError:
        return frozenset(), "their processes are starting"
    except WorkerError as error:
        return frozenset(), str(error)
    return served, f"they serve {format_versions(min(served, default=None), max(served, default=None))}"


class Waits:
    """Waits of one run.

    Args:
        client: The data manager.
        faults: The limit of masked episodes.
        progress: Where progress is shown.
        paths: The run folder.
        clock: Clock of limits and pauses.
        limit_s: How long nothing may happen, in seconds.
        poll_s: Seconds between two looks.
        pauses: How the run pauses; None: it never does. A pause counts as no wait, and a data manager that is away then is waited for.
    """

    def __init__(
        self,
        client: DataManagerClient,
        faults: MaskedEpisodeGuard,
        progress: Progress,
        paths: RunPaths,
        clock: Clock,
        *,
        limit_s: float,
        poll_s: float,
        pauses: Pauses | None = None,
    ) -> None:
        self._pauses = pauses or Pauses(clock)
        self._repeated = 0
        self._client = client
        self._faults = faults
        self._progress = progress
        self._paths = paths
        self._clock = clock
        self._limit_s = limit_s
        self._poll_s = poll_s

    async def for_phase(self, name: str) -> PhaseStatus:
        """Wait until every item of a phase has a reward, or no attempts left.

        Args:
            name: The phase.

        Returns:
            Its progress at the end.

        Raises:
            RunFailed: No episode has ended for too long.
            TooManyMaskedEpisodes: Too many episodes are masked.
        """
        view: PhaseStatus | None = None

        async def look() -> WaitEvent:
            nonlocal view
            view = await self._client.phase(name)
            return waits.PhaseSeen(
                self._clock.monotonic(),
                active=view.state == "active",
                done=view.done,
                total=view.total,
                failed=view.failed,
                masked=view.masked,
                in_flight=view.in_flight,
                queued=view.queued,
                mean_reward=view.mean_reward,
            )

        await self._wait(waits.PhaseWait(name, self._stall()), look, lambda: self._clock.sleep(self._poll_s))
        assert view is not None, "a wait ends after a look"
        return view

    async def for_version(self, version: int, ask: Callable[[], Awaitable[Collection[int]]]) -> None:
        """Wait until every inference worker serves a version.

        Args:
            version: The version.
            ask: As of `look_at_workers`.

        Raises:
            RunFailed: They do not come to it.
        """

        async def look() -> WaitEvent:
            return waits.VersionsSeen(self._clock.monotonic(), *await look_at_workers(ask))

        await self._wait(waits.VersionWait(version, self._stall()), look, lambda: self._clock.sleep(self._poll_s))

    async def for_data_manager(self, log: Path) -> None:
        """Wait until the data manager, whose process was started, answers; what a worker of before held is given free.

        Args:
            log: Its log.

        Raises:
            RunFailed: It does not answer for too long.
        """

        async def look() -> WaitEvent:
            try:
                await self._client.release_worker(None)
            except DataManagerError as error:
                if error.status is not None:
                    raise
                return waits.DataManagerSeen(self._clock.monotonic(), answered=False)
            return waits.DataManagerSeen(self._clock.monotonic(), answered=True)

        await self._wait(waits.DataManagerWait(str(log), self._stall()), look, lambda: self._clock.sleep(self._poll_s))

    async def for_component(
        self,
        component: Component,
        kind: str,
        *,
        notice_s: float,
        look_interval_s: float,
        explain: Callable[[], Awaitable[tuple[str, str]]] | None = None,
        count: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """Wait for a component that ends by itself, showing the newest line of its metrics, or why there is none.

        Args:
            component: The component.
            kind: What its lines report.
            notice_s: Seconds without a line after which the reason is shown.
            look_interval_s: Seconds between two counts.
            explain: Says why there is no line, and what to change.
            count: Counts what progresses while there is no line; with `explain` only.

        Raises:
            RunFailed: It has made no progress for too long.
            ComponentFailed: It ended otherwise.
        """
        tail = components.MetricsTail(self._paths.metrics, *(WARM_START_KINDS if kind in WARM_START_KINDS else (kind,)))
        waiter = asyncio.ensure_future(component.wait())
        state = waits.ComponentWait(
            component.name,
            kind,
            self._stall(),
            explained=explain is not None,
            notice_s=notice_s,
            look_interval_s=look_interval_s,
            line_s=self._clock.monotonic(),
        )

        async def pause() -> None:
            await wait_first(self._clock, self._poll_s, [waiter])

        async def look() -> WaitEvent:
            return waits.ComponentSeen(self._clock.monotonic(), waiter.done(), tail.newest())

        async def counted() -> WaitEvent:
            found = 0 if count is None else await count()
            return waits.EpisodesCounted(self._clock.monotonic(), found, waiter.done())

        try:
            await pause()
            await self._wait(state, look, pause, explain, counted)
            await waiter
        finally:
            waiter.cancel()

    async def explain_no_update(
        self, start: PhaseStatus, ask: Callable[[], Awaitable[Collection[int]]]
    ) -> tuple[str, str]:
        """Say why training makes no update, by the episodes that ended since a moment.

        Args:
            start: The phase of training at that moment.
            ask: As of `look_at_workers`.

        Returns:
            The reason, and what to change; empty: nothing is known.
        """
        view = since_start(await self._client.phase(start.name), start)
        if view.done or view.masked:
            return describe_learning_signal(view)
        served, found = await look_at_workers(ask)
        return ("no episode has ended yet" if served else f"waiting for the inference workers ({found})"), ""

    async def _wait(
        self,
        state: WaitState,
        look: Callable[[], Awaitable[WaitEvent]],
        pause: Callable[[], Awaitable[object]],
        explain: Callable[[], Awaitable[tuple[str, str]]] | None = None,
        counted: Callable[[], Awaitable[WaitEvent]] | None = None,
    ) -> None:
        """Execute the commands of a wait until it is over."""
        commands = deque(self._decide(state, await self._pauses.ask(look)))
        while commands:
            command = commands.popleft()
            if isinstance(command, waits.ShowProgress):
                self._progress.update(command.text, news=command.news)
            elif isinstance(command, waits.GiveAdvice):
                self._progress.note(command.text)
            elif isinstance(command, waits.CheckFaults):
                await self._pauses.ask(self._faults.check_if_due if command.due else self._faults.check)
            elif isinstance(command, waits.AskFault):
                stats = await self._pauses.ask(self._client.stats)
                commands.extend(self._decide(state, waits.FaultTold(stats.last_masked_cause)))
            elif isinstance(command, waits.ExplainWait):
                assert explain is not None, "only a wait that is explained asks for it"
                reason, advice = await self._pauses.ask(explain)
                # before what follows: the last command of a look ends the wait, or looks again
                commands.extendleft(reversed(self._decide(state, waits.WaitExplained(reason, advice, command.shown))))
            elif isinstance(command, waits.CountEpisodes):
                assert counted is not None, "only a wait that is explained counts"
                commands.extend(self._decide(state, await self._pauses.ask(counted)))
            elif isinstance(command, waits.LookAgain):
                await pause()
                commands.extend(self._decide(state, await self._pauses.ask(look)))
            elif isinstance(command, waits.FailWait):
                raise RunFailed(command.cause)
            else:
                return

    def _decide(self, state: WaitState, event: WaitEvent) -> list[WaitCommand]:
        reason = self._pauses.reason
        if reason is not None or self._repeated != self._pauses.repeated:
            waits.decide(state, waits.RunPaused(self._clock.monotonic()))
            self._repeated = self._pauses.repeated
        if reason is None:
            return waits.decide(state, event)
        shown = [each for each in waits.decide(state, event) if not isinstance(each, waits.ShowProgress)]
        return [waits.ShowProgress(reason), *shown]

    def _stall(self) -> Stall:
        return Stall(self._limit_s, self._clock.monotonic())
