"""What is done to a farm under chaos, each fault chosen by a seeded generator.

Role: `Faults.strike` picks one of the faults that fit and does it: kills or stops clients, desktops, the server; stops the processes of a
desktop for a while; fills the disk that holds what desktops write and the database; cuts the connections of the database, stops its server
for a while or kills it. Rule: whatever is stopped goes on again, whatever is filled is emptied, and a server that was killed is started
again before `strike` returns; only processes of this farm and its database are touched. Non-goals: what must hold afterwards
(`chaos_history`, `chaos_rest`).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from benchmarks.chaos.clients import Clients
from benchmarks.chaos.database import OwnDatabase
from benchmarks.farm.process import FarmProcess
from dart_server.hostd.linux import cgroups

FULL_S = 3.0
STOPPED_S = 2.5
DATABASE_AWAY_S = 4.0
"""Longer than the farm's patience, so that it says 503."""
SLOW_S = 2.0
BLOCK = 4096
WEIGHTS = {
    "client_killed": 4,
    "client_stopped": 2,
    "desktop_killed": 4,
    "desktop_stopped": 3,
    "server_killed": 2,
    "server_stopped": 2,
    "disk_full": 1,
    "database_cut": 3,
    "database_stopped": 2,
    "database_killed": 1,
}


class Faults:
    """The faults of one run. `prefix`: the desktops' control groups, None where desktops are no processes."""

    def __init__(
        self,
        farm: FarmProcess,
        clients: Clients,
        seed: int,
        kinds: Collection[str],
        *,
        prefix: str | None,
        disk: Path | None,
        database: OwnDatabase | None,
    ) -> None:
        self._farm = farm
        self._clients = clients
        self._random = random.Random(seed)
        self._prefix = prefix
        self._disk = disk
        self._database = database
        self.done: Counter[str] = Counter()
        self.outages: list[tuple[float, float]] = []
        """When the server was killed and when it answered again, on the host's monotonic clock."""
        able: dict[str, Callable[[], bool]] = {
            "client_killed": self._client_killed,
            "client_stopped": self._client_stopped,
            "server_killed": self._server_killed,
            "server_stopped": self._server_stopped,
        }
        if prefix is not None:
            able |= {"desktop_killed": self._desktop_killed, "desktop_stopped": self._desktop_stopped}
        if disk is not None:
            able |= {"disk_full": self._disk_full}
        if database is not None:
            able |= {
                "database_cut": self._database_cut,
                "database_stopped": self._database_stopped,
                "database_killed": self._database_killed,
            }
        self._able = {name: fault for name, fault in able.items() if name in kinds}
        self.able = tuple(self._able)
        """Names of the faults that fit this host and farm."""

    def strike(self) -> str:
        """Do one fault; its name, with `(none)` when there was nothing to do it to."""
        names = list(self._able)
        name = self._random.choices(names, [WEIGHTS[name] for name in names])[0]
        if not self._able[name]():
            return f"{name} (none)"
        self.done[name] += 1
        return name

    def pause_s(self) -> float:
        """How long to wait before the next one."""
        return self._random.uniform(1.0, 4.0)

    def _client_killed(self) -> bool:
        self._clients.kill(self._random.randrange(len(self._clients)))
        return True

    def _client_stopped(self) -> bool:
        """For longer than its lease lives, so that it wakes up too late."""
        self._clients.stop_for(self._random.randrange(len(self._clients)), self._random.uniform(1.0, 2.0))
        return True

    def _groups(self) -> list[set[int]]:
        """The processes of each desktop."""
        if self._prefix is None:
            return []
        root = next((root / self._prefix for root in cgroups.hierarchies() if (root / self._prefix).is_dir()), None)
        if root is None:
            return []
        return [pids for path in sorted(root.iterdir()) if path.is_dir() and (pids := cgroups.members(path))]

    def _desktop_killed(self) -> bool:
        groups = self._groups()
        if not groups:
            return False
        pids = self._random.choice(groups)
        _signal({min(pids)} if self._random.random() < 0.5 else pids, signal.SIGKILL)
        return True

    def _desktop_stopped(self) -> bool:
        """A guest that is slow, or for a while does not answer at all."""
        groups = self._groups()
        if not groups:
            return False
        pids = self._random.choice(groups)
        _signal(pids, signal.SIGSTOP)
        try:
            time.sleep(self._random.uniform(0.2, SLOW_S))
        finally:
            _signal(pids, signal.SIGCONT)
        return True

    def _server_killed(self) -> bool:
        killed_s = time.monotonic()
        self._farm.kill()
        self._farm.start()
        self.outages.append((killed_s, time.monotonic()))
        return True

    def _server_stopped(self) -> bool:
        self._farm.send(signal.SIGSTOP)
        try:
            time.sleep(self._random.uniform(0.5, STOPPED_S))
        finally:
            self._farm.send(signal.SIGCONT)
        return True

    def _disk_full(self) -> bool:
        assert self._disk is not None
        ballast = self._disk / "ballast"
        try:
            with ballast.open("wb") as file:
                _fill(file.fileno())
                time.sleep(FULL_S)
        finally:
            ballast.unlink(missing_ok=True)
        return True

    def _database_cut(self) -> bool:
        assert self._database is not None
        return self._database.cut() > 0

    def _database_stopped(self) -> bool:
        assert self._database is not None
        self._database.server.send(signal.SIGSTOP)
        try:
            time.sleep(self._random.uniform(0.5, DATABASE_AWAY_S))
        finally:
            self._database.server.send(signal.SIGCONT)
        return True

    def _database_killed(self) -> bool:
        assert self._database is not None
        self._database.server.kill()
        time.sleep(self._random.uniform(0.0, DATABASE_AWAY_S))
        self._database.server.start()
        return True


def _fill(descriptor: int) -> None:
    """Take all the room of a file system, to the last block, without writing it."""
    taken, piece = 0, 1 << 32
    while piece >= BLOCK:
        try:
            os.posix_fallocate(descriptor, taken, piece)
            taken += piece
        except OSError:
            piece //= 2


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
