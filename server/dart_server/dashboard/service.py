"""The dashboard's parts and what they do by themselves: samples, pictures of steps, ends of idle controls.

Rule: nothing here is needed for leases and steps to work; a fault of it is logged and goes no further. Non-goals: HTTP (`routes`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from dart_server.dashboard.attempts import LoginRateLimiter
from dart_server.dashboard.camera import ScreenCaptures
from dart_server.dashboard.control import Controls
from dart_server.dashboard.inputs import HumanInputLog
from dart_server.dashboard.novnc import installed
from dart_server.dashboard.replay import Replay
from dart_server.dashboard.samples import INTERVAL_S, Samples, Timings, host_metrics
from dart_server.dashboard.sessions import Sessions
from dart_server.dashboard.tickets import LoginTickets
from dart_server.database.repository import Repository
from dart_server.keys import KeyStore
from dart_server.leases.service import Leases
from dart_server.pool.service import Pool
from dart_server.settings import FarmSettings
from dart_server.wire import Clock, DesktopState

log = logging.getLogger(__name__)


class Dashboard:
    """Everything behind the page. `start` once, `stop` once."""

    def __init__(
        self,
        settings: FarmSettings,
        keys: KeyStore,
        pool: Pool,
        leases: Leases,
        repository: Repository,
        timings: Timings,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._leases = leases
        self._clock = clock
        self.sessions = Sessions(keys, clock, str(settings.state_dir.resolve()))
        self.login_limiter = LoginRateLimiter(clock)
        self.captures = ScreenCaptures(clock)
        self.tickets = LoginTickets(clock)
        self.inputs = HumanInputLog(clock)
        self.controls = Controls(repository, clock, self.inputs)
        self.replay = Replay(clock)
        self.samples = Samples(timings, self._numbers)
        self.views: set[str] = set()
        """Ids of the live views that are open."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def viewer(self) -> Path | None:
        """Where the viewer's modules are, None while it is not installed."""
        return installed(self._settings.home)

    def _numbers(self) -> dict[str, Any]:
        """What a sample holds beside latencies."""
        states = Counter(slot.state for slot in self._pool.slots.values())
        return {
            "at": round(self._clock.time(), 1),
            "leased": states[DesktopState.LEASED] + states[DesktopState.RESETTING],
            "ready": states[DesktopState.READY],
            "desktops": len(self._pool.slots),
            "max_desktops": self._settings.max_desktops,
            "leases": len(self._leases.active),
            "waiting": self._pool.queue.waiting,
            **host_metrics(self._settings.runtime_dir),
        }

    async def start(self) -> None:
        """Begin to sample."""
        self.samples.take()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._tick_forever(), self.replay.make_thumbnails())]

    async def _tick_forever(self) -> None:
        while True:
            await self._clock.sleep(INTERVAL_S)
            try:
                self.samples.take()
                active = {lease.lease_id for lease in self._leases.active}
                self.captures.prune(active)
                self.inputs.prune(active)
                self.replay.prune(set(self._pool.slots))
                await self.controls.release_idle()
            except Exception:  # the page's numbers must not end the farm; the next tick looks again
                log.exception("the dashboard's tick failed")

    async def stop(self) -> None:
        """Let go of every desktop, stop sampling."""
        await self.controls.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
