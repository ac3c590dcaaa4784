"""The admin key: shown at the first start to a person at a terminal, and only then; never where standard error leads to a log."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    place = tmp_path / "farm"
    place.mkdir(mode=0o700)
    names = {"DART_RUNTIME_DIR": place, "DART_HOME": tmp_path, "DART_SNAPSHOT_DIR": tmp_path / "snapshots"}
    return {**os.environ, **{name: str(value) for name, value in names.items()}, "DART_PROVIDER": "sim"}


def serve(settings: dict[str, str], *options: str, terminal: bool) -> str:
    """What a farm says on standard error until it serves; it is ended then."""
    command = [sys.executable, "-m", "dart_server.cli", "serve", *(options or ("--port", "0"))]
    reader, writer = pty.openpty() if terminal else os.pipe()
    farm = subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    said = b""
    try:
        while b"the farm serves" not in said:
            part = os.read(reader, 65536)
            assert part, said
            said += part
    finally:
        farm.send_signal(signal.SIGTERM)
        farm.wait(timeout=30)
        os.close(reader)
    return said.decode()


def test_a_terminal_sees_it_once(settings: dict[str, str]) -> None:
    said = serve(settings, terminal=True)
    key = (Path(settings["DART_RUNTIME_DIR"]) / "farm.key").read_text().strip()
    assert said.count(key) == 1
    [line] = [line for line in said.splitlines() if key in line]
    assert "shown this once" in line
    assert " INFO " not in line, "it is no line of the log"
    assert key not in serve(settings, terminal=True)


def test_a_log_never_has_it(settings: dict[str, str]) -> None:
    said = serve(settings, "--port", "0", "--log-format", "json", terminal=False)
    path = Path(settings["DART_RUNTIME_DIR"]) / "farm.key"
    assert path.read_text().strip() not in said
    assert str(path) in said, "where it lies is told"
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_embedded_farm_says_nothing_of_it(settings: dict[str, str]) -> None:
    said = serve(settings, "--embedded", terminal=True)
    assert (Path(settings["DART_RUNTIME_DIR"]) / "farm.key").read_text().strip() not in said
    assert "key" not in said
