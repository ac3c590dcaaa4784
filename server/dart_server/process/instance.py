"""The one farm of a runtime directory: its locks, its address, its process, its end.

Rule: a lock file holds process, provider and address for as long as the farm lives. Non-goals: listening (`process.listening`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dart_server.errors import FarmConfigError
from dart_server.settings import FarmSettings


class AlreadyRunning(Exception):
    """A farm runs in this runtime directory; `pid` is its process."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"a farm is already running (process {pid})")
        self.pid = pid


@contextmanager
def exclusive_farm(settings: FarmSettings) -> Iterator[None]:
    """Hold the locks of the runtime and of the state directory. Raises `AlreadyRunning`, `FarmConfigError`."""
    with _held(settings.lock_path, settings), contextlib.ExitStack() as both:
        if settings.state_dir != settings.runtime_dir:
            try:
                both.enter_context(_held(settings.state_dir / settings.lock_path.name, settings))
            except AlreadyRunning as other:
                raise FarmConfigError(
                    f"the farm of process {other.pid} keeps its state in {settings.state_dir}; set DART_STATE_DIR to another directory."
                ) from None
        yield


@contextmanager
def _held(path: Path, settings: FarmSettings) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(_pid_in(descriptor)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "provider": settings.provider}).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def note_address(settings: FarmSettings, listening: socket.socket) -> dict[str, Any]:
    """Write where the farm listens beside its process, so that this user's commands find it there; what was written."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    place = f"[{host}]" if ":" in host else host
    scheme = "http" if settings.tls_cert is None else "https"
    url = f"unix://{settings.uds}" if settings.uds else f"{scheme}://{place}:{listening.getsockname()[1]}"
    noted = {"pid": os.getpid(), "provider": settings.provider, "url": url}
    descriptor = os.open(settings.lock_path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        text = json.dumps(noted).encode()
        os.ftruncate(descriptor, os.pwrite(descriptor, text, 0))
    finally:
        os.close(descriptor)
    return noted


def running_url(settings: FarmSettings) -> str | None:
    """Where the farm that holds this runtime directory listens, None when there is none or it does not listen yet."""
    if running_pid(settings) is None:
        return None
    try:
        return str(json.loads(settings.lock_path.read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def running_pid(settings: FarmSettings) -> int | None:
    """The process of the farm that holds this runtime directory, None when there is none."""
    try:
        descriptor = os.open(settings.lock_path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(descriptor)
    finally:
        os.close(descriptor)
    return None


def _pid_in(descriptor: int) -> int:
    try:
        return int(json.loads(os.pread(descriptor, 4096, 0))["pid"])
    except (ValueError, KeyError, TypeError):
        return 0


def stop_running(settings: FarmSettings, timeout_s: float) -> bool:
    """Ask the running farm to stop and wait for its end; False when none runs. Raises `FarmConfigError` when it does not end."""
    pid = running_pid(settings)
    if pid is None:
        return False
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while running_pid(settings) is not None:
        if time.monotonic() >= deadline:
            raise FarmConfigError(
                f"the farm (process {pid}) did not stop within {timeout_s:g} s; end it with `kill -9 {pid}`, then `dart-farm reap`."
            )
        time.sleep(0.05)
    return True
