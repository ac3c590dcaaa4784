"""One farm daemon for each user, found by its socket and started on demand.

`ensure_embedded_farm` never runs the farm inside the caller's process. A file lock makes N callers start one daemon. A
daemon that does not become healthy is reported with the end of its own log. A farm of this user that listens elsewhere is
named and never used: its address is for the user to give. This module does not stop the daemon: it stops by itself when
idle, or by `dart-farm stop`.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from dart_envs.clock import SYSTEM_CLOCK
from dart_envs.errors import FarmError
from dart_server.wire import Clock, paths
from dart_server.wire.extras import install_command, missing_server_module

START_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.1
DOCTOR_HINT = "\nRun `dart-farm doctor` to see what this host lacks."
LOG_TAIL_LINES = 15
LOG_TAIL_NBYTES = 8_192


def runtime_dir() -> Path:
    """Return the directory of the farm's socket, created with mode 0700 when it is missing.

    Returns:
        `DART_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/dart`, else `dart-<uid>` in the directory for temporary files.

    Raises:
        FarmError: If the directory belongs to another user.
    """
    path = paths.runtime_dir()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise FarmError(
            f"{path} belongs to another user.",
            code="forbidden",
            hint="Set DART_RUNTIME_DIR to a directory of your own.",
        )
    return path


async def ensure_embedded_farm(
    *, clock: Clock = SYSTEM_CLOCK, start_timeout_s: float = START_TIMEOUT_S, command: list[str] | None = None
) -> Path:
    """Start this user's farm unless it answers already.

    Args:
        clock: The clock that waits and measures.
        start_timeout_s: Seconds until the start is given up.
        command: Command of the daemon, for tests; None is this Python with `-m dart_server.cli serve --embedded`.

    Returns:
        Path of the farm's socket.

    Raises:
        FarmError: If the farm does not start, with the end of its log; or if this user's farm listens elsewhere.
    """
    directory = runtime_dir()
    socket_path = directory / "farm.sock"
    if await _healthy(socket_path):
        return socket_path
    deadline_s = clock.monotonic() + start_timeout_s
    with (directory / "farm.start.lock").open("w") as lock_file:
        while not _try_lock(lock_file.fileno()):
            if await _healthy(socket_path):
                return socket_path
            if clock.monotonic() > deadline_s:
                raise FarmError(
                    f"Another process has been starting the farm for more than {start_timeout_s:.0f} s.",
                    code="unreachable",
                    hint=f"See {directory / 'farm.log'}.",
                )
            await clock.sleep(POLL_INTERVAL_S)
        if await _healthy(socket_path):
            return socket_path
        await _start(directory, socket_path, clock, deadline_s, command or _server_command())
    return socket_path


def _server_command() -> list[str]:
    """Return the daemon's command; raise `FarmError` where only the client is installed."""
    missing = missing_server_module()
    if missing is not None:
        raise FarmError(
            f"This installation has no farm of its own ({missing} is not installed).",
            code="unreachable",
            hint=f"Set DART_FARM_URL to a farm that runs, or install one: {install_command('server')}, then `dart-farm setup`.",
        )
    return [sys.executable, "-m", "dart_server.cli", "serve", "--embedded"]


async def _start(directory: Path, socket_path: Path, clock: Clock, deadline_s: float, command: list[str]) -> None:
    log_path = directory / "farm.log"
    daemon = _spawn(command, log_path)
    while not await _healthy(socket_path):
        status = daemon.poll()
        if status not in {None, 0}:
            raise FarmError(
                f"The embedded farm stopped at once (exit status {status}). The end of {log_path}:\n{_tail(log_path)}",
                code="unreachable",
                hint=DOCTOR_HINT,
            )
        if clock.monotonic() > deadline_s:
            daemon.terminate()
            raise FarmError(
                f"The embedded farm did not become healthy in time. The end of {log_path}:\n{_tail(log_path)}",
                code="timeout",
                hint=DOCTOR_HINT,
            )
        await clock.sleep(POLL_INTERVAL_S)
        if status == 0 and not await _healthy(socket_path):
            if url := await _address_elsewhere(directory, socket_path):
                raise FarmError(
                    f"This user's farm listens at {url}, and programs do not look for it there by themselves.",
                    code="unreachable",
                    hint=f"Set DART_FARM_URL={url} and DART_API_KEY (the farm's own key is in "
                    f"{paths.state_dir(directory) / paths.KEY_FILE}), or end that farm with `dart-farm stop`.",
                )
            daemon = _spawn(command, log_path)


def _spawn(command: list[str], log_path: Path) -> subprocess.Popen[bytes]:
    """Start the daemon in a session of its own.

    It ends with status 0 when another farm still holds the directory (starting or stopping); the caller then starts it
    again until one answers.
    """
    with _append_private(log_path) as log_fd:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log_fd, stderr=log_fd, start_new_session=True, cwd="/"
        )
    # The daemon stops when it is idle, while its caller runs on: without a wait it would stay a zombie of the caller.
    threading.Thread(target=daemon.wait, name="reap-embedded-farm", daemon=True).start()
    return daemon


async def _address_elsewhere(directory: Path, socket_path: Path) -> str | None:
    """Return where the farm that holds the directory listens; None for its socket, and where nobody listens any more."""
    try:
        url = str(json.loads((directory / paths.LOCK_FILE).read_text(encoding="utf-8"))["url"])
        place = urlsplit(url)
        if place.scheme == "unix" and Path(place.path) == socket_path:
            return None
        _, writer = await (
            asyncio.open_unix_connection(place.path)
            if place.scheme == "unix"
            else asyncio.open_connection(place.hostname, place.port)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    writer.close()
    return url


async def _healthy(socket_path: Path) -> bool:
    if not await asyncio.to_thread(socket_path.exists):
        return False
    transport = httpx.AsyncHTTPTransport(uds=str(socket_path))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://farm", timeout=5.0) as client:
            return (await client.get("/healthz")).is_success
    except httpx.TransportError:
        return False


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _append_private(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_NBYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return f"(the log cannot be read: {error})"
    return "\n".join(lines[-LOG_TAIL_LINES:])
