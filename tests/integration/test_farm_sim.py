"""The farm as a process of its own on the sim provider, over a real Unix socket: channel, tunnel, daemon, command line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape

SHAPE = DesktopShape(resolution=(640, 400)).model_dump(mode="json")
START_TIMEOUT_S = 60.0


class Daemon:
    """One `dart-farm serve --embedded` in a runtime directory of its own."""

    def __init__(self, runtime_dir: Path, **settings: str) -> None:
        self.runtime_dir = runtime_dir
        self.socket = runtime_dir / "farm.sock"
        names = {f"DART_{name.upper()}": value for name, value in settings.items()}
        self.env = {
            **os.environ,
            "DART_RUNTIME_DIR": str(runtime_dir),
            "DART_PROVIDER": "sim",
            "DART_HOME": str(runtime_dir),
            **names,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def cli(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dart_server.cli", *argv],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def told(self, *argv: str) -> Any:
        """What a command says as JSON."""
        ended = self.cli(*argv, "--json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def spawn(self) -> subprocess.Popen[bytes]:
        with (self.runtime_dir / "farm.log").open("ab") as log:
            command = [sys.executable, "-m", "dart_server.cli", "serve", "--embedded"]
            self.process = subprocess.Popen(command, env=self.env, stderr=log)
        return self.process

    def start(self) -> None:
        process = self.spawn()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.healthy():
            assert process.poll() is None, (self.runtime_dir / "farm.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def healthy(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        with self.client() as client:
            return client.get("/healthz").status_code == 200

    def client(self) -> httpx.Client:
        key = (self.runtime_dir / "farm.key").read_text().strip()
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(
            transport=transport, base_url="http://farm", headers={"authorization": f"Bearer {key}"}, timeout=30
        )

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    place = tmp_path_factory.mktemp("farm")
    place.chmod(0o700)
    daemon = Daemon(place)
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[httpx.Client]:
    with daemon.client() as client:
        yield client
        for lease in client.get("/v1/leases").json():
            client.delete(f"/v1/leases/{lease['lease_id']}")


def claim(client: httpx.Client, request_id: str, **fields: Any) -> dict[str, Any]:
    reply = client.post("/v1/leases", json={"client_request_id": f"request-{request_id}", "shape": SHAPE, **fields})
    assert reply.status_code == 200, reply.text
    lease: dict[str, Any] = reply.json()
    return lease


def headers(client: httpx.Client, lease: dict[str, Any]) -> dict[str, str]:
    own = {"X-Dart-Lease-Token": lease["token"], "X-Dart-Fencing-Token": str(lease["fencing_token"])}
    return {"authorization": client.headers["authorization"], **own}


def channel(daemon: Daemon, client: httpx.Client, lease: dict[str, Any], tail: str = "channel") -> unix_connect:
    uri = f"ws://farm/v1/leases/{lease['lease_id']}/{tail}"
    return unix_connect(
        str(daemon.socket), uri, additional_headers=headers(client, lease), compression=None, max_size=None
    )


async def step(connection: ClientConnection, **request: Any) -> tuple[dict[str, Any], bytes]:
    await connection.send(json.dumps(request))
    frame = await connection.recv(decode=False)
    (length,) = struct.unpack_from(">I", frame)
    return json.loads(frame[4 : 4 + length]), frame[4 + length :]


async def test_the_channel_steps_and_says_what_is_wrong(daemon: Daemon, client: httpx.Client) -> None:
    lease = claim(client, "channel-1")
    async with channel(daemon, client, lease) as connection:
        header, payload = await step(
            connection, seq=7, events=[{"type": "move", "x": 3, "y": 4}], frame={"encoding": "raw"}
        )
        assert (header["seq"], header["width"], header["height"], header["cursor"]) == (7, 640, 400, [3, 4])
        assert len(payload) == header["nbytes"] == 640 * 400 * 3
        header, _ = await step(connection, seq=8, events=[{"type": "fly"}])
        assert (header["error"], header["status"]) == ("invalid", 422)
        header, _ = await step(connection, seq=9, events=[{"type": "key_down", "key": "no such key"}])
        assert (header["seq"], header["error"], header["status"]) == (9, "guest_error", 400)
        header, payload = await step(connection, seq=10, frame={"encoding": "png"})
        assert payload.startswith(b"\x89PNG")


async def test_a_reset_ends_the_channel_with_fenced(daemon: Daemon, client: httpx.Client) -> None:
    lease = claim(client, "channel-2")
    async with channel(daemon, client, lease) as connection:
        await step(connection, seq=1)
        reply = await asyncio.to_thread(
            client.post, f"/v1/leases/{lease['lease_id']}/reset", json={}, headers=headers(client, lease)
        )
        header, _ = await step(connection, seq=2)
        assert (header["seq"], header["error"], header["status"]) == (2, "fenced", 409)
        with pytest.raises(ConnectionClosed):
            await connection.recv()
    with pytest.raises(InvalidStatus) as refused:
        async with channel(daemon, client, lease):
            pass
    assert refused.value.response.status_code == 409
    assert json.loads(refused.value.response.body)["error"] == "fenced"
    lease["fencing_token"] = reply.json()["fencing_token"]
    async with channel(daemon, client, lease) as connection:
        assert "error" not in (await step(connection, seq=3))[0]


async def test_a_snapshot_leaves_the_channel_usable(daemon: Daemon, client: httpx.Client) -> None:
    lease = claim(client, "channel-3")
    async with channel(daemon, client, lease) as connection:
        await step(connection, seq=1)
        reply = await asyncio.to_thread(
            client.post,
            f"/v1/leases/{lease['lease_id']}/snapshot",
            json={"name": "here"},
            headers=headers(client, lease),
        )
        assert reply.status_code == 200
        assert "error" not in (await step(connection, seq=2))[0]


async def test_the_tunnel_carries_bytes_and_refuses_closed_ports(daemon: Daemon, client: httpx.Client) -> None:
    lease = claim(client, "tunnel-1")
    async with channel(daemon, client, lease, "tunnel?port=7") as connection:
        await connection.send(b"there and back")
        assert await connection.recv(decode=False) == b"there and back"
    for port, status in (("9", 502), ("x", 422)):
        with pytest.raises(InvalidStatus) as refused:
            async with channel(daemon, client, lease, f"tunnel?port={port}"):
                pass
        assert refused.value.response.status_code == status


def test_what_was_done_can_be_forked(client: httpx.Client) -> None:
    lease = claim(client, "fork-1")
    path = f"/v1/leases/{lease['lease_id']}"
    client.put(f"{path}/files", params={"path": "/home/user/doc"}, content=b"prepared", headers=headers(client, lease))
    snapshot = client.post(f"{path}/snapshot", json={}, headers=headers(client, lease)).json()
    forks = [claim(client, f"fork-of-{n}", snapshot_id=snapshot["snapshot_id"]) for n in range(3)]
    for fork in forks:
        reply = client.get(
            f"/v1/leases/{fork['lease_id']}/files", params={"path": "/home/user/doc"}, headers=headers(client, fork)
        )
        assert reply.content == b"prepared"
    assert len({fork["desktop_id"] for fork in forks}) == 3


def test_private_files_and_one_daemon(daemon: Daemon) -> None:
    assert daemon.socket.stat().st_mode & 0o777 == 0o600
    for name in ("farm.key", "farm.secret", "farm.db"):
        assert (daemon.runtime_dir / name).stat().st_mode & 0o077 == 0
    second = daemon.cli("serve", "--embedded")
    assert second.returncode == 0
    assert "already running" in second.stderr
    third = daemon.cli("serve", "--port", "0")
    assert third.returncode == 2
    assert "already running" in third.stderr


def test_the_command_line_looks(daemon: Daemon, client: httpx.Client) -> None:
    lease = claim(client, "cli-1")
    status = daemon.told("status")
    assert (status["running"], status["provider"], status["leases_active"]) == (True, "sim", 1)
    assert [row["lease_id"] for row in daemon.told("leases")] == [lease["lease_id"]]
    assert daemon.told("snapshots")[0]["kind"] == "booted"
    assert lease["desktop_id"] in daemon.cli("desktops").stdout


def test_the_command_line_shows_and_removes_snapshots(daemon: Daemon, client: httpx.Client) -> None:
    lease = claim(client, "cli-2")
    body = {"name": "mine", "description": "half way"}
    reply = client.post(f"/v1/leases/{lease['lease_id']}/snapshot", json=body, headers=headers(client, lease))
    assert reply.status_code == 200, reply.text
    table = daemon.cli("snapshots").stdout
    assert "half way" in table
    assert reply.json()["parent"] in table
    assert daemon.told("snapshots", "--quarantined") == []
    assert daemon.cli("snapshots", "--rm", "mine").returncode == 0
    left = [view["snapshot_id"] for view in daemon.told("snapshots")]
    assert reply.json()["snapshot_id"] not in left


def test_a_key_made_on_the_command_line_works_at_once(daemon: Daemon, client: httpx.Client) -> None:
    reader = daemon.cli("key", "dashboard", "--scope", "read").stdout.strip()
    bearer = {"authorization": f"Bearer {reader}"}
    assert client.get("/v1/farm", headers=bearer).status_code == 200
    assert client.post("/v1/leases", json={"client_request_id": "not-allowed"}, headers=bearer).status_code == 403
    assert daemon.cli("key", "x", "--scope", "god").returncode == 2


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_stop_is_clean(place: Path) -> None:
    daemon = Daemon(place)
    daemon.start()
    with daemon.client() as client:
        claim(client, "stop-1")
    assert daemon.cli("stop").stdout.strip() == "stopped"
    assert daemon.process is not None
    assert daemon.process.wait(10) == 0
    assert not daemon.socket.exists()
    assert daemon.cli("stop").stdout.strip() == "no farm is running"


def test_an_idle_farm_stops_itself(place: Path) -> None:
    daemon = Daemon(place, idle_shutdown_s="1", tick_interval_s="0.1")
    assert daemon.spawn().wait(60) == 0
    assert not daemon.socket.exists()


def test_a_killed_farm_is_reaped_or_taken_over(place: Path) -> None:
    daemon = Daemon(place)
    daemon.start()
    with daemon.client() as client:
        lease = claim(client, "killed-1", ttl_s=600)
    daemon.stop()
    daemon.start()
    with daemon.client() as client:
        assert client.get(f"/v1/leases/{lease['lease_id']}").json()["state"] == "active"
        body = client.post(f"/v1/leases/{lease['lease_id']}/reset", json={}, headers=headers(client, lease)).json()
        assert body["fencing_token"] > lease["fencing_token"]
    daemon.stop()
    assert daemon.cli("reap", "--dry-run").returncode == 0
    assert daemon.socket.exists()
    reaped = daemon.cli("reap")
    assert reaped.returncode == 0
    assert f"removed lease {lease['lease_id']}" in reaped.stdout.splitlines()
    assert not daemon.socket.exists()
    assert daemon.cli("leases").returncode == 1


HOLD_A_LEASE = """
import asyncio
from dart_envs.farm.client import AsyncFarmClient

async def hold():
    async with await AsyncFarmClient.connect() as farm:
        await farm.lease(ttl_s=9)
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(hold())
"""


async def test_a_desktop_that_was_given_back_while_the_farm_was_away_is_free_once_it_is_back(place: Path) -> None:
    daemon = Daemon(place, max_desktops="1", warm_desktops="0")
    daemon.start()
    async with await AsyncFarmClient.connect(f"unix://{daemon.socket}") as farm:
        lease = await farm.lease(ttl_s=60.0)
        daemon.stop()
        await lease.release()
        daemon.start()
        again = await farm.lease(ttl_s=60.0, wait_s=15.0)
        assert again.lease_id != lease.lease_id
    assert daemon.cli("stop").returncode == 0
    assert daemon.process is not None
    daemon.process.wait()


def test_reap_refuses_while_a_client_lives_and_outwaits_one_that_was_killed(place: Path) -> None:
    daemon = Daemon(place, tick_interval_s="0.1")
    daemon.start()
    client = subprocess.Popen([sys.executable, "-c", HOLD_A_LEASE], env=daemon.env, stdout=subprocess.PIPE, text=True)
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "held\n"
        refused = daemon.cli("reap")
        assert refused.returncode == 1
        assert "its 1 leases are being renewed" in refused.stderr
        assert daemon.healthy()
        client.kill()
        reaped = daemon.cli("reap")
        assert reaped.returncode == 0, reaped.stderr
        assert "waiting up to" in reaped.stderr
        assert not daemon.socket.exists()
    finally:
        client.kill()
        client.communicate()
        daemon.stop()


def test_reap_removes_what_dead_runs_left_and_spares_the_living(place: Path) -> None:
    for run in ("dead", "living"):
        worker = place / f"policy-{run}" / "0"
        worker.mkdir(parents=True)
        (worker / "key").write_text("secret")
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(worker / "w.sock"))
    with socket.socket(socket.AF_UNIX) as ended, socket.socket(socket.AF_UNIX) as living:
        ended.bind(str(place / "data-dead.sock"))
        living.bind(str(place / "data-living.sock"))
        living.listen()
        dead = {str(place / "data-dead.sock"), str(place / "policy-dead")}
        daemon = Daemon(place)
        assert set(daemon.told("reap", "--dry-run")["removed"]) == dead
        assert set(daemon.told("reap")["removed"]) == dead | {str(place / "farm.lock")}
    assert not any(Path(path).exists() for path in dead)
    assert (place / "policy-living" / "0" / "key").exists()
    assert (place / "data-living.sock").exists()


BAD_STARTS = [
    ({}, ("--host", "0.0.0.0"), "only with TLS"),
    ({"max_desktops": "0"}, (), "DART_MAX_DESKTOPS"),
    ({"provider": "magic"}, (), "DART_PROVIDER"),
    ({"max_desktops": "2", "warm_desktops": "3"}, (), "warm_desktops"),
    ({"provider": "runc", "home": "/nonexistent"}, (), "no desktop image is installed"),
    ({}, ("--embedded", "--port", "1"), "--embedded"),
    ({}, ("--uds", "/" + "x" * 120), "too long"),
]


@pytest.mark.parametrize(("settings", "argv", "words"), BAD_STARTS)
def test_a_bad_start_is_one_sentence_and_exit_code_2(
    place: Path, settings: dict[str, str], argv: tuple[str, ...], words: str
) -> None:
    done = Daemon(place, **settings).cli("serve", *argv)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_port_or_socket_in_use_is_said(place: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        done = Daemon(place).cli("serve", "--port", str(port))
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(place / "own.sock"))
        busy.listen()
        done = Daemon(place).cli("serve", "--uds", str(place / "own.sock"))
    assert done.returncode == 2
    assert "in use" in done.stderr


def test_a_runtime_directory_open_to_others_is_refused(place: Path) -> None:
    place.chmod(0o755)
    done = Daemon(place).cli("serve")
    assert done.returncode == 2
    assert "chmod 700" in done.stderr


def test_a_dry_run_of_reap_spares_the_files_of_the_running_farm(place: Path) -> None:
    daemon = Daemon(place)
    daemon.start()
    try:
        removed = daemon.told("reap", "--dry-run")["removed"]
        assert [line for line in removed if "which would be stopped" in line]
        assert not [line for line in removed if line.endswith(("farm.lock", "farm.sock"))]
    finally:
        daemon.stop()
