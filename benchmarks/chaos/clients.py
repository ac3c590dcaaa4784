"""The clients of a run under chaos: started, killed, stopped, started again, ended.

Rule: one journal file per client name, shared by its lives one after the other; every client is gone after `end`, stopped ones too.
Non-goals: what a client does (`chaos_client`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

END_S = 90.0


class Clients:
    """`count` client processes of one farm, each with `together` clients."""

    def __init__(
        self,
        count: int,
        *,
        place: Path,
        uds: Path,
        key: str,
        ttl_s: float,
        seed: int,
        together: int = 1,
        pause_s: float = 0.4,
        most_steps: int = 12,
    ) -> None:
        self._place = place
        pace = {"together": together, "pause_s": pause_s, "most_steps": most_steps}
        self._spec = {"uds": str(uds), "key": key, "ttl_s": ttl_s, **pace}
        self._ttl_s = ttl_s
        self._seed = seed
        self._lives = 0
        self._processes = [self._launch(number) for number in range(count)]
        self._asleep: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._processes)

    def _launch(self, number: int) -> subprocess.Popen[bytes]:
        self._lives += 1
        journal = self._place / f"journal-{number}.jsonl"
        spec = {**self._spec, "name": f"c{number}", "journal": str(journal), "seed": self._seed * 1000 + self._lives}
        with (self._place / f"client-{number}.log").open("a") as log:
            command = [sys.executable, "-m", "benchmarks.chaos.client", json.dumps(spec)]
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, number: int) -> None:
        """SIGKILL one, and start another in its place."""
        self._asleep.pop(number, None)
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = self._launch(number)

    def stop_for(self, number: int, lives: float) -> None:
        """SIGSTOP one for so many times a lease's time to live; `wake` lets it go on."""
        self._asleep[number] = time.monotonic() + lives * self._ttl_s
        self._processes[number].send_signal(signal.SIGSTOP)

    def wake(self, *, everyone: bool = False) -> None:
        """Let those go on whose time has come."""
        for number, until_s in list(self._asleep.items()):
            if everyone or time.monotonic() >= until_s:
                del self._asleep[number]
                self._processes[number].send_signal(signal.SIGCONT)

    def died(self) -> list[str]:
        """What clients wrote that ended by themselves, which none should; another takes its place."""
        found = []
        for number, process in enumerate(self._processes):
            if process.poll() is not None:
                log = (self._place / f"client-{number}.log").read_text(errors="replace")
                found.append(f"client {number} ended with {process.returncode}: {log[-600:]}")
                self._processes[number] = self._launch(number)
        return found

    def end(self, *, patience_s: float = END_S) -> None:
        """Ask all to release what they hold and to end; killed when they take too long."""
        self.wake(everyone=True)
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + patience_s
        for process in self._processes:
            try:
                process.wait(timeout=max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def granted(self) -> int:
        """Leases that the clients were told of so far."""
        return sum(line["what"] == "granted" for line in self.journal())

    def journal(self) -> Iterator[dict[str, Any]]:
        """Every line of all journals; a line that a kill cut short is left out."""
        for path in sorted(self._place.glob("journal-*.jsonl")):
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    yield json.loads(line)
