"""The osworld scorer's processes, from our side.

Role: `ScorerWorker`, one process that answers one request at a time over its pipes; `ScorerPool`, a bounded number of them, started on
demand.
Rule: a process has an environment without secrets, a home of its own that goes with it, and a time limit per request; one that misses it,
dies or writes nonsense is killed with its children and replaced; it ends by itself, and tidies up, when we are killed. Blocking: callers
on an event loop use `ScorerPool.request`. Non-goals: what is request_count.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from dart_envs.errors import EvaluatorError
from dart_envs.scorer import paths
from dart_envs.scorer.worker_process.parent_watch import HOME_PREFIX

START_TIMEOUT_S = 120.0
"""Importing the evaluators takes 3 s on a quiet machine; on a busy one many times that."""
REQUESTS_PER_WORKER = 100
DEFAULT_WORKERS = 2
WORKERS_VARIABLE = "DART_SCORER_WORKERS"
STDERR_TAIL_BYTES = 2_000
_LIMITS = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 2 << 30), (resource.RLIMIT_DATA, 8 << 30))
"""OSWorld's code parses files that a policy made: a bomb ends the process, and not the client's host."""


class ScorerNotInstalledError(EvaluatorError):
    """The osworld scorer is not installed, or lacks a package that a metric needs; the message says how to get it."""


class ScorerWorkerError(EvaluatorError):
    """A process of the osworld scorer died or missed its time limit."""


class ScorerWorker:
    """One process. Not for concurrent requests."""

    def __init__(self, folder: Path) -> None:
        python = paths.interpreter(folder)
        self._home = Path(tempfile.mkdtemp(prefix=HOME_PREFIX))
        self._stderr: IO[bytes] = (self._home / "stderr").open("w+b")
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self._home),
            "TMPDIR": str(self._home),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        try:
            self._process = subprocess.Popen(
                [str(python), "-I", "-W", "ignore", str(paths.WORKER_PACKAGE)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=self._home,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._remove_home()
            raise ScorerNotInstalledError(f"The osworld scorer cannot be started: {error}. {INSTALL_HINT}") from error
        for kind, most in _LIMITS:
            resource.prlimit(self._process.pid, kind, (most, most))
        self.request_count = 0
        self._buffer = b""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def request(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """The answer to one request. Raises ScorerWorkerError; the process is gone then."""
        assert self._process.stdin is not None
        if self.request_count == 0:
            timeout_s += START_TIMEOUT_S
        self.request_count += 1
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._read_line(time.monotonic() + timeout_s)
            answer = json.loads(line)
        except TimeoutError:
            self.close()
            raise ScorerWorkerError(
                f"The osworld scorer did not answer within {timeout_s:g} s and was ended."
            ) from None
        except (OSError, EOFError, ValueError) as error:
            said = self._stderr_tail()
            self.close()
            raise ScorerWorkerError(f"The osworld scorer died ({type(error).__name__}). {said}".strip()) from error
        if not isinstance(answer, dict):
            self.close()
            raise ScorerWorkerError(f"The osworld scorer answered {line[:200]!r}.")
        return answer

    def _read_line(self, deadline_s: float) -> bytes:
        """One line of answer. Raises EOFError or TimeoutError."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([handle], [], [], left_s)[0]:
                raise TimeoutError
            chunk = os.read(handle, 65536)
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _stderr_tail(self) -> str:
        """The end of what the process wrote to stderr."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_TAIL_BYTES))
        return self._stderr.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End the process and its children, and remove its home. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._remove_home()

    def _remove_home(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


INSTALL_HINT = "Run `dart-envs scorer install`."


def max_workers() -> int:
    """How many processes may run at a time: `DART_SCORER_WORKERS`. Raises EvaluatorError for a bad value."""
    said = os.environ.get(WORKERS_VARIABLE, str(DEFAULT_WORKERS))
    if not said.isdecimal() or not 1 <= int(said) <= 64:
        raise EvaluatorError(f"{WORKERS_VARIABLE} is a number from 1 to 64, not {said!r}.")
    return int(said)


class ScorerPool:
    """At most `size` workers on one installation; those that are free wait for the next request."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="dart-scorer")
        self._free: list[ScorerWorker] = []
        self._lock = threading.Lock()
        self._closed = False

    async def request(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """The answer to one request; a caller that is cancelled ends the worker at it. Raises ScorerNotInstalledError or
        ScorerWorkerError."""
        acquired: list[ScorerWorker] = []
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._request, request, timeout_s, acquired)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.cancel()
            for worker in acquired:
                await asyncio.to_thread(worker.close)
            raise

    def _request(self, request: Mapping[str, Any], timeout_s: float, acquired: list[ScorerWorker]) -> dict[str, Any]:
        worker = self._acquire_worker()
        acquired.append(worker)
        answer = worker.request(request, timeout_s=timeout_s)
        with self._lock:
            keep = not self._closed and worker.alive and worker.request_count < REQUESTS_PER_WORKER
            if keep:
                self._free.append(worker)
                acquired.clear()
        if not keep:
            worker.close()
        return answer

    def _acquire_worker(self) -> ScorerWorker:
        with self._lock:
            while self._free:
                worker = self._free.pop()
                if worker.alive:
                    return worker
                worker.close()
        if paths.read_installation(self.folder) is None:
            raise ScorerNotInstalledError(f"OSWorld's osworld scorer is not installed in {self.folder}. {INSTALL_HINT}")
        return ScorerWorker(self.folder)

    def close(self) -> None:
        """End every free worker; those at work end with their request."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for worker in free:
            worker.close()
        self._executor.shutdown(wait=False, cancel_futures=True)


_pools: dict[Path, ScorerPool] = {}
_pools_lock = threading.Lock()


def shared_pool() -> ScorerPool:
    """This process's pool on the installation that the environment names; ended with the process."""
    folder = paths.scorer_folder()
    with _pools_lock:
        if folder not in _pools:
            _pools[folder] = ScorerPool(folder, max_workers())
            atexit.register(_pools[folder].close)
        return _pools[folder]
