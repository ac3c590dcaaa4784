"""The farm's process is killed with -9 and started again: what clients were told still holds, on either database."""

from __future__ import annotations

import concurrent.futures
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from test_farm_sim import SHAPE, Daemon, claim, headers

from dart_server.wire.paths import data_dir

ROUNDS, CLIENTS = 3, 4
LIVE_LIMIT_S = 120.0


@pytest.fixture
def daemon(tmp_path: Path, database_url: str) -> Iterator[Daemon]:
    place = tmp_path / "run"
    place.mkdir(mode=0o700)
    daemon = Daemon(place, db_url=database_url, max_desktops="8", warm_desktops="2")
    daemon.start()
    yield daemon
    daemon.stop()


def test_leases_and_keys_outlive_the_process(daemon: Daemon) -> None:
    with daemon.client() as client:
        held, released = claim(client, "killed-1", ttl_s=600), claim(client, "killed-2", ttl_s=600)
        assert client.delete(f"/v1/leases/{released['lease_id']}").is_success
        tenant = client.post("/v1/keys", json={"name": "tenant", "max_leases": 3, "weight": 2.0})
        assert tenant.is_success, tenant.text
        revoked = client.post("/v1/keys", json={"name": "gone"}).json()
        assert client.delete(f"/v1/keys/{revoked['key_id']}").is_success
    daemon.stop()
    told = daemon.told("reap", "--dry-run")
    assert told["dry_run"] is True
    assert {f"lease {held['lease_id']}"} == {name for name in told["removed"] if name.startswith("lease ")}
    daemon.start()
    with daemon.client() as client:
        path = f"/v1/leases/{held['lease_id']}"
        assert client.get(path).json()["state"] == "active"
        assert client.get(path).json()["fencing_token"] == held["fencing_token"]
        assert client.post(f"{path}/heartbeat").is_success
        assert client.get(f"/v1/leases/{released['lease_id']}").json()["state"] == "released"
        again = client.post("/v1/leases", json={"client_request_id": "request-killed-1", "shape": SHAPE})
        assert again.json()["lease_id"] == held["lease_id"], "a repeated claim is still the same claim"
        assert again.json()["token"] == held["token"]
        reset = client.post(f"{path}/reset", json={}, headers=headers(client, held))
        assert reset.is_success, reset.text
        assert reset.json()["fencing_token"] > held["fencing_token"]
        late = {"X-Dart-Lease-Token": held["token"], "X-Dart-Fencing-Token": str(held["fencing_token"])}
        assert client.post(f"{path}/execute", json={"argv": ["ls"]}, headers=late).status_code == 409
        (kept,) = [key for key in client.get("/v1/keys").json() if key["key_id"] == tenant.json()["key_id"]]
        assert (kept["max_leases"], kept["weight"], kept["revoked_at"]) == (3, 2.0, None)
        for secret, status in ((tenant.json()["secret"], 200), (revoked["secret"], 401)):
            assert client.get("/v1/farm", headers={"authorization": f"Bearer {secret}"}).status_code == status


def test_no_lease_that_a_client_was_given_is_forgotten_under_load(daemon: Daemon) -> None:
    for number in range(ROUNDS):
        granted, released = work_until_killed(daemon, number)
        assert granted, "the clients got nothing"
        daemon.start()
        with daemon.client() as client:
            for lease_id in granted - released:
                assert client.get(f"/v1/leases/{lease_id}").json()["state"] in {"active", "released"}
            active = {lease["lease_id"] for lease in client.get("/v1/leases").json()}
            assert len(active) <= 2 * CLIENTS
            assert not active & released
            desktops = [lease["desktop_id"] for lease in client.get("/v1/leases").json()]
            assert len(set(desktops)) == len(desktops), "one desktop, one lease"
            for lease_id in active:
                assert client.delete(f"/v1/leases/{lease_id}").is_success
            assert client.get("/v1/leases").json() == []


def work_until_killed(daemon: Daemon, round_number: int) -> tuple[set[str], set[str]]:
    """Clients claim and release until the farm is killed; ids of what they were given, and of what they were told is released."""
    granted: set[str] = set()
    released: set[str] = set()
    enough = threading.Event()

    def work(client_number: int) -> None:
        with daemon.client() as client:
            for count in range(10_000):
                try:
                    lease = claim(client, f"{round_number}-{client_number}-{count}", ttl_s=600)
                    granted.add(lease["lease_id"])
                    if len(granted) > 60:
                        enough.set()
                    if client.delete(f"/v1/leases/{lease['lease_id']}").is_success:
                        released.add(lease["lease_id"])
                except httpx.TransportError:
                    return

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        working = [clients.submit(work, number) for number in range(CLIENTS)]
        assert enough.wait(120)
        daemon.stop()
        for each in working:
            each.result(120)
    return granted, released


@pytest.fixture
def live() -> Iterator[Daemon]:
    place = Path(tempfile.mkdtemp(prefix="dart-k-"))
    home = str(data_dir())
    settings = {"provider": "runc", "home": home, "snapshot_dir": str(place / "snapshots")}
    daemon = Daemon(place, **settings, max_desktops="2", warm_desktops="1")
    yield daemon
    daemon.stop()
    daemon.cli("reap", "--force")
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.desktop
def test_live_desktops_outlive_the_process(live: Daemon) -> None:
    live.start()
    with live.client() as client:
        client.timeout = httpx.Timeout(LIVE_LIMIT_S)
        held = claim(client, "live-1", ttl_s=600, wait_s=LIVE_LIMIT_S)
        path = f"/v1/leases/{held['lease_id']}"

        def execute(client: httpx.Client, script: str) -> str:
            rights = {"X-Dart-Lease-Token": held["token"], "X-Dart-Fencing-Token": str(held["fencing_token"])}
            reply = client.post(f"{path}/execute", json={"argv": ["sh", "-c", script]}, headers=rights)
            assert reply.status_code == 200, reply.text
            return str(reply.json()["stdout"])

        started = execute(client, "sleep 100000 >/dev/null 2>&1 & echo $! > /tmp/pid; cat /tmp/pid")
    live.stop()
    told = live.told("reap", "--dry-run", "--provider", "runc")["removed"]
    assert held["desktop_id"] in told
    assert f"lease {held['lease_id']}" in told
    live.start()
    with live.client() as client:
        client.timeout = httpx.Timeout(LIVE_LIMIT_S)
        assert client.get(path).json()["state"] == "active"
        assert client.post(f"{path}/heartbeat").is_success
        alive = execute(client, "cat /tmp/pid; kill -0 $(cat /tmp/pid) && echo alive")
        assert alive.split() == [*started.split(), "alive"], (
            "the same desktop with the same processes, token and fencing_token"
        )
        assert client.delete(path).is_success
    assert live.cli("stop").stdout.strip() == "stopped"
    told = live.told("reap", "--dry-run", "--provider", "runc")["removed"]
    assert not [name for name in told if name.startswith(("desk_", "snap_", "lease "))]
