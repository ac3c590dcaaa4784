"""A farm of its own in a process of its own, for tests that share one among many cases.

Role: `served_farm` starts `dart-farm serve` on a socket in a private directory and ends it. Rule: it has answered before it is given out.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

START_S, END_S, POLL_S = 60.0, 60.0, 0.05


@contextmanager
def served_farm(
    place: Path,
    *,
    provider: str = "runc",
    max_desktops: int = 4,
    environment: Mapping[str, str] | None = None,
    port: int | None = None,
    options: Sequence[str] = (),
) -> Iterator[str]:
    """Yields its URL: of a Unix socket, or of `port` on loopback. `place` becomes its private runtime directory, with its snapshots unless
    `environment` puts them elsewhere."""
    place.chmod(0o700)
    path = place / "farm.sock"
    settings = {"DART_RUNTIME_DIR": str(place), "DART_SNAPSHOT_DIR": str(place / "snapshots"), **(environment or {})}
    command = [sys.executable, "-m", "dart_server.cli", "serve", "--provider", provider]
    command += ["--uds", str(path)] if port is None else ["--port", str(port)]
    command += ["--max-desktops", str(max_desktops), *options]
    with (place / "log").open("w") as log:
        farm = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + START_S
        while not _answers(path if port is None else ("127.0.0.1", port)):
            if farm.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"the farm did not start: {(place / 'log').read_text()[-2000:]}")
            time.sleep(POLL_S)
        yield f"unix://{path}" if port is None else f"http://127.0.0.1:{port}"
    finally:
        farm.terminate()
        farm.wait(timeout=END_S)


def free_port() -> int:
    """A port of loopback that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(place: Path | tuple[str, int]) -> bool:
    if isinstance(place, tuple):
        try:
            return httpx.get(f"http://{place[0]}:{place[1]}/readyz", timeout=5).is_success
        except httpx.TransportError:
            return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(place))
        except OSError:
            return False
    return True
