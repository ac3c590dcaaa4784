"""A farm in a process of its own for a benchmark: started, weighed, killed when that is what is measured, and ended.

Role: `FarmProcess` runs `dart-farm serve` on a Unix socket in a private runtime directory. Rule: whatever happens, Ctrl-C included, the
process is gone at the end and `dart-farm reap` has looked after what it left; its log is shown when something went wrong.
Non-goals: what is asked of the farm.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S, END_S, POLL_S = 90.0, 60.0, 0.02
TICKS = os.sysconf("SC_CLK_TCK")
LOG_TAIL = 3000


@dataclass(frozen=True, slots=True)
class Weight:
    """What a process takes at one moment."""

    cpu_s: float
    rss_mib: float
    descriptors: int
    threads: int


def weigh(pid: int) -> Weight:
    """The weight of a living process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Weight(
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS,
        rss_mib=int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=int(fields[17]),
    )


class FarmProcess:
    """One farm, perhaps several processes one after the other, in one runtime directory."""

    def __init__(self, place: Path, settings: Mapping[str, str], program: Sequence[str] | None = None) -> None:
        """`program`: what to run instead of `dart-farm`, as far as the arguments of `serve`."""
        self.directory = place
        self._program = program or [sys.executable, "-m", "dart_server.cli"]
        self.uds = place / "bench.sock"
        own = {"RUNTIME": place, "STATE": place / "state", "SNAPSHOT": place / "snapshots"}
        self._settings = {**{f"DART_{name}_DIR": str(path) for name, path in own.items()}, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the farm was not started"
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to find this farm."""
        return {**os.environ, **self._settings}

    @property
    def key(self) -> str:
        """The admin key."""
        return (self.state_dir / "farm.key").read_text().strip()

    @property
    def state_dir(self) -> Path:
        """Where its database is."""
        return Path(self._settings["DART_STATE_DIR"])

    def setting(self, name: str) -> str | None:
        """A setting that it was given."""
        return self._settings.get(name)

    @property
    def log(self) -> Path:
        return self.directory / "served.log"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Begin a process, without waiting for it."""
        command = [*self._program, "serve", "--uds", str(self.uds)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def start(self) -> None:
        """Begin, and wait until it answers. Raises RuntimeError with the end of the log."""
        self.launch()
        deadline_s = time.monotonic() + START_S
        while not self.answers():
            if not self.alive or time.monotonic() > deadline_s:
                raise RuntimeError(f"the farm did not start: {self.tail()}")
            time.sleep(POLL_S)

    def answers(self) -> bool:
        """Whether somebody takes connections on its socket."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.uds))
            except OSError:
                return False
        return True

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=END_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it lives."""
        if self.alive:
            os.kill(self.pid, number)

    def stop(self) -> None:
        """The farm's own orderly stop; killed when it takes too long."""
        if self._process is None or not self.alive:
            return
        self.send(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the farm did not stop within {END_S:.0f} s: {self.tail()}") from None

    def reap(self) -> list[str]:
        """What an orderly stop, or a killed farm, left behind and `dart-farm reap` removed."""
        command = [sys.executable, "-m", "dart_server.cli", "reap"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"dart-farm reap: {done.stderr.strip()}")
        return done.stdout.split("\n")

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:] if self.log.exists() else ""


@contextmanager
def own_farm(
    settings: Mapping[str, str], *, place: Path | None = None, program: Sequence[str] | None = None
) -> Iterator[FarmProcess]:
    """A farm that answers, ended and cleaned up after, in `place` or a new directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="dart-bench-", dir="/tmp") as made:
        farm = FarmProcess(place or Path(made), settings, program)
        try:
            farm.start()
            yield farm
        except BaseException:  # Ctrl-C, too, leaves the end of the log worth reading; raised again
            sys.stderr.write(farm.tail())
            raise
        finally:
            try:
                farm.stop()
            finally:
                farm.reap()
