"""The embedded farm: one daemon for all callers, and a readable error when it does not come up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_envs.errors import FarmError
from dart_envs.farm.embedded import ensure_embedded_farm, runtime_dir

DAEMON = """
import http.server, os, pathlib, socketserver, sys
place = pathlib.Path(os.environ["DART_RUNTIME_DIR"])
with (place / "pids").open("a") as pids:
    pids.write(f"{os.getpid()} {os.getppid()} {os.getsid(0)}\\n")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def address_string(self):
        return "unix"
socketserver.UnixStreamServer(str(place / "farm.sock"), Handler).serve_forever()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DART_RUNTIME_DIR", str(tmp_path))
    yield tmp_path
    if (tmp_path / "pids").exists():
        for line in (tmp_path / "pids").read_text().splitlines():
            os.kill(int(line.split()[0]), signal.SIGKILL)


async def test_many_callers_start_one_daemon_in_its_own_session(place: Path) -> None:
    command = [sys.executable, "-c", DAEMON]
    found = await asyncio.gather(*(ensure_embedded_farm(command=command) for _ in range(4)))
    assert set(found) == {place / "farm.sock"}
    pids = (place / "pids").read_text().splitlines()
    assert len(pids) == 1
    pid, _parent, session = pids[0].split()
    assert pid == session
    assert int(session) != os.getsid(0)
    assert await ensure_embedded_farm(command=["/nowhere"]) == place / "farm.sock"
    assert (place / "farm.log").stat().st_mode & 0o777 == 0o600


async def test_a_daemon_that_stops_is_reported_with_the_end_of_its_log(place: Path) -> None:
    command = [sys.executable, "-c", "import sys; print('no runc here', file=sys.stderr); sys.exit(3)"]
    with pytest.raises(FarmError, match=r"exit status 3[\s\S]*no runc here[\s\S]*doctor"):
        await ensure_embedded_farm(command=command)


async def test_a_daemon_that_never_answers_is_ended(place: Path) -> None:
    code = "import os, time; print('thinking', os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(FarmError, match="thinking") as slow:
        await ensure_embedded_farm(command=[sys.executable, "-c", code], start_timeout_s=0.5)
    assert slow.value.code == "timeout"


async def test_a_daemon_that_finds_another_one_stopping_is_started_again(place: Path) -> None:
    (place / "farm.sock").touch()
    first_gives_way = f"""
import os, pathlib
place = pathlib.Path(os.environ["DART_RUNTIME_DIR"])
if (place / "farm.sock").exists():
    (place / "farm.sock").unlink()
else:
{textwrap.indent(DAEMON, "    ")}
"""
    assert await ensure_embedded_farm(command=[sys.executable, "-c", first_gives_way]) == place / "farm.sock"


async def test_a_farm_that_listens_elsewhere_is_named(place: Path) -> None:
    gives_way = [sys.executable, "-c", "pass"]
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        (place / "farm.lock").write_text(f'{{"pid": 1, "provider": "sim", "url": "{url}"}}')
        with pytest.raises(FarmError, match=rf"listens at {url}[\s\S]*DART_FARM_URL={url} and DART_API_KEY") as named:
            await ensure_embedded_farm(command=gives_way)
        assert named.value.code == "unreachable"
    # It has stopped since: its lock file names a place where nobody listens.
    assert await ensure_embedded_farm(command=[sys.executable, "-c", DAEMON]) == place / "farm.sock"


def test_the_runtime_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DART_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_dir() == tmp_path / "dart"
    assert (tmp_path / "dart").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("DART_RUNTIME_DIR", str(tmp_path / "own"))
    assert runtime_dir() == tmp_path / "own"
