"""An ordinary user's farm on live desktops, with sudo's one line only: what its server has given up, and a root helper that dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from escalation_scene import Scene

from dart_server.hostd.layout import Layout, layout_of_user
from dart_server.hostd.linux import cgroups
from dart_server.wire import DesktopShape

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(180)]
ROOT = Path(__file__).resolve().parents[2]
SHAPE = DesktopShape(resolution=(640, 400)).model_dump(mode="json")
START_S, AGAIN_S, END_S = 60.0, 90.0, 60.0


def python_for(scene: Scene) -> list[str]:
    """An interpreter that the user can run, with the packages of this one; the running test is skipped where there is none."""
    packages = sysconfig.get_paths()["purelib"]
    path = f"PYTHONPATH={ROOT}:{ROOT / 'server'}:{packages}"
    for program in (sys.executable, "/usr/bin/python3"):
        command = ["env", path, program]
        code = (
            f"import sys, uvloop, pydantic, dart_server.cli; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
        )
        asked = subprocess.run(
            [*command, "-c", code],
            user=scene.uid,
            group=scene.uid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        )
        if asked.returncode == 0:
            return command
    pytest.skip("another user of this host cannot run this Python with its packages")


@contextmanager
def served(scene: Scene) -> Iterator[tuple[int, httpx.Client, Layout]]:
    """A farm of the user's: its process, a client with its admin key, and where its root helper keeps its things."""
    runtime, uds = scene.home / "run", scene.home / "farm.sock"
    store = Path("/dev/shm") / f"escalation-{scene.uid}"
    settings = {"DART_HOME": str(scene.place), "DART_RUNTIME_DIR": str(runtime), "DART_SNAPSHOT_DIR": str(store)}
    environment = {"HOME": str(scene.home), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **settings}
    command = [*python_for(scene), "-m", "dart_server.cli", "serve", "--uds", str(uds), "--max-desktops", "2", "--json"]
    log_path = scene.place / "server.log"
    with log_path.open("wb") as log:
        farm = subprocess.Popen(
            command,
            user=scene.uid,
            group=scene.uid,
            extra_groups=[],
            cwd="/",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    layout = layout_of_user(scene.uid, runtime, scene.images, store)
    try:
        assert farm.stdout is not None
        line = farm.stdout.readline()
        assert line, f"the farm did not start: {log_path.read_text()[-3000:]}"
        key = (runtime / "farm.key").read_text().strip()
        transport = httpx.HTTPTransport(uds=str(uds))
        with httpx.Client(
            transport=transport, base_url="http://farm", timeout=90, headers={"authorization": f"Bearer {key}"}
        ) as client:
            yield json.loads(line)["pid"], client, layout
    finally:
        farm.send_signal(signal.SIGTERM)
        farm.communicate(timeout=END_S)
        print(log_path.read_text(errors="replace")[-6000:])
        log_path.unlink()


def helper_pid(layout: Layout) -> int:
    """The process of the root helper; root may ask it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(layout.socket))
        connection.sendall(b'{"verb": "ping"}\n')
        return int(json.loads(connection.recv(65536))["ok"]["pid"])


def work(client: httpx.Client, request_id: str) -> dict[str, Any]:
    """Lease a desktop, run a program in it, give it back; the program's answer."""
    reply = client.post("/v1/leases", json={"client_request_id": request_id, "shape": SHAPE})
    assert reply.is_success, reply.text
    lease = reply.json()
    path = f"/v1/leases/{lease['lease_id']}"
    headers = {"X-Dart-Lease-Token": lease["token"], "X-Dart-Fencing-Token": str(lease["fencing_token"])}
    try:
        done = client.post(f"{path}/execute", json={"argv": ["id", "-un"]}, headers=headers)
        assert done.is_success, done.text
        answer: dict[str, Any] = done.json()
        return answer
    finally:
        client.delete(path)


def test_a_server_without_rights_serves_on_after_its_helper_has_died(scene: Scene) -> None:
    with served(scene) as (pid, client, layout):
        for task in Path(f"/proc/{pid}/task").iterdir():
            assert "NoNewPrivs:\t1" in (task / "status").read_text(), task
        assert work(client, "request-first-1")["stdout"] == "user\n"
        helper = helper_pid(layout)
        status = dict(line.split(":", 1) for line in Path(f"/proc/{helper}/status").read_text().splitlines())
        assert (status["Uid"].split()[0], status["NoNewPrivs"].strip()) == ("0", "0"), "sudo works in desktops"
        os.kill(helper, signal.SIGKILL)
        deadline_s = time.monotonic() + AGAIN_S
        attempt = 0
        while True:
            attempt += 1
            try:
                assert work(client, f"request-again-{attempt}")["stdout"] == "user\n"
                break
            except (AssertionError, httpx.HTTPError):
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
        assert helper_pid(layout) != helper
        log = (scene.place / "server.log").read_text()
        assert "attached to the next root helper" in log, "one that nobody is attached to ends when it has been idle"
    assert not layout.socket.parent.exists()
    assert cgroups.existing_groups(layout.prefix) == []
