"""Clients and command line against farms in processes of their own, with simulated desktops: gangs, attaching, history, and a farm that is
killed and started again under its clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from served_farm import served_farm

from dart_envs.errors import ForbiddenError, LeaseLostError, NotFoundError, StaleFencingTokenError
from dart_envs.farm import AsyncFarmClient, FarmClient
from dart_server.wire import ClaimState, DesktopShape, FileQuery, KeyScope, PoolSpec, ProcessesQuery, StatQuery

SHAPE = DesktopShape(resolution=(640, 400))
DESKTOPS = 3
LIMIT_S = 60.0
AWAY_S = 3.0
"""Longer than the quick repetitions of a request take."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("farm")
    environment = {"DART_STATE_DIR": str(place), "DART_TICK_INTERVAL_S": "0.1"}
    with served_farm(place, provider="sim", max_desktops=DESKTOPS, environment=environment) as url:
        yield url


@pytest.fixture
async def farm(url: str) -> AsyncIterator[AsyncFarmClient]:
    async with await AsyncFarmClient.connect(url) as farm:
        yield farm


def cli(url: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dart_server.cli", *argv],
        env={**os.environ, "DART_FARM_URL": url, "DART_RUNTIME_DIR": str(Path(url.removeprefix("unix://")).parent)}
        | {"DART_STATE_DIR": str(Path(url.removeprefix("unix://")).parent)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


async def test_a_gang_waits_for_its_turn_and_is_told_of_it(farm: AsyncFarmClient) -> None:
    held = await farm.lease(SHAPE)
    gang = await farm.claim(DESKTOPS, SHAPE)
    behind = await farm.claim(1, SHAPE)
    assert [claim.claim_id for claim in await farm.claims()] == [gang.claim_id, behind.claim_id]
    told: list[tuple[ClaimState, int | None]] = []
    waiting = asyncio.create_task(gang.wait(LIMIT_S, on_progress=lambda view: told.append((view.state, view.position))))
    await held.release()
    leases = await waiting
    assert len({lease.desktop_id for lease in leases}) == DESKTOPS
    assert told[0] == (ClaimState.WAITING, 0)
    assert told[-1] == (ClaimState.GRANTED, None)
    frame = await leases[0].step([])
    assert frame.image.shape == (400, 640, 3)
    await gang.cancel()
    assert all(lease.lost for lease in leases)
    assert len(await behind.wait(LIMIT_S)) == 1


async def test_a_claim_is_cancelled_from_the_command_line(farm: AsyncFarmClient, url: str) -> None:
    held = [await farm.lease(SHAPE) for _ in range(DESKTOPS)]
    claim = await farm.claim(1, SHAPE)
    rows = json.loads((await asyncio.to_thread(cli, url, "claims", "--json")).stdout)
    assert [row["claim_id"] for row in rows] == [claim.claim_id]
    done = await asyncio.to_thread(cli, url, "claims", "cancel", claim.claim_id)
    assert done.returncode == 0, done.stderr
    assert (await claim.refresh()).state is ClaimState.CANCELLED
    done = await asyncio.to_thread(cli, url, "leases", "release", *(lease.lease_id for lease in held))
    assert done.returncode == 0, done.stderr
    with pytest.raises(LeaseLostError):
        await held[0].health()


async def test_another_process_attaches_by_reference_and_takes_over(farm: AsyncFarmClient, url: str) -> None:
    lease = await farm.lease(SHAPE)
    await lease.write_file("/home/user/a", b"1")
    async with await AsyncFarmClient.connect(url) as other:
        same = await other.attach(lease.reference())
        assert await same.read_file("/home/user/a") == b"1"
        await same.reset()
        with pytest.raises(StaleFencingTokenError):
            await lease.read_file("/home/user/a")
        again = await farm.attach(lease.reference(), takeover=True)
        with pytest.raises(StaleFencingTokenError):
            await same.step([])
        assert (await again.health()).alive
    assert (await again.view()).state == "active"
    await again.release()
    with pytest.raises(LeaseLostError):
        await farm.attach(lease.reference())


async def test_renewing_moves_the_end(farm: AsyncFarmClient) -> None:
    async with await farm.lease(SHAPE, ttl_s=30) as lease:
        before = (await lease.view()).expires_at
        assert await lease.renew(600) > before
        assert (await lease.view()).expires_at > before


async def test_a_tenant_is_kept_out_of_others_things(farm: AsyncFarmClient, url: str) -> None:
    made = await farm.add_key("tenant", KeyScope.LEASE, max_leases=1)
    lease = await farm.lease(SHAPE)
    async with await AsyncFarmClient.connect(url, made.secret) as tenant:
        with pytest.raises(ForbiddenError):
            await tenant.keys()
        with pytest.raises(NotFoundError):
            await tenant.attach(lease.reference())
        async with await tenant.lease(SHAPE):
            assert {event.kind for event in await tenant.events()} == {"lease_granted"}
    await lease.release()
    await farm.revoke_key(made.key_id)
    assert [key.revoked_at is not None for key in await farm.keys() if key.key_id == made.key_id] == [True]


async def test_history_is_the_same_by_client_and_command_line(farm: AsyncFarmClient, url: str) -> None:
    async with await farm.lease(SHAPE) as lease:
        await lease.reset()
    by_client = [event.id for event in await lease.events()]
    rows = json.loads((await asyncio.to_thread(cli, url, "events", "--lease", lease.lease_id, "--json")).stdout)
    assert [row["id"] for row in rows] == by_client
    kinds = [row["kind"] for row in rows]
    assert (kinds[0], kinds[-1]) == ("lease_granted", "lease_released")
    assert "desktop_reset" in kinds


async def test_pools_are_set_by_client_and_told_by_the_command_line(farm: AsyncFarmClient, url: str) -> None:
    await farm.set_pool("ready", PoolSpec(shape=SHAPE, warm=1, labels={"app": "any"}))
    try:
        table = (await asyncio.to_thread(cli, url, "pools")).stdout
        assert "ready" in table
        assert (await farm.pool("ready")).spec.warm == 1
        async with await farm.lease(SHAPE, match_labels={"app": "any"}) as lease:
            assert lease.resolution == (640, 400)
    finally:
        await farm.delete_pool("ready")
    with pytest.raises(NotFoundError):
        await farm.pool("ready")


def test_top_and_draining_on_a_real_farm(url: str) -> None:
    look = json.loads(cli(url, "top", "--once", "--json").stdout)
    assert look["farm"]["provider"] == "sim"
    with FarmClient.connect(url) as farm, farm.lease(SHAPE):
        done = cli(url, "drain", "--wait", "--timeout-s", "0", "--json")
        assert done.returncode == 1
        assert json.loads(done.stderr)["error"] == "timeout"
        refused = cli(url, "leases", "show", "lease_none", "--json")
        assert (refused.returncode, json.loads(refused.stderr)["error"]) == (1, "not_found")
    assert cli(url, "drain", "--wait").returncode == 0
    assert cli(url, "drain", "--undo").returncode == 0
    with FarmClient.connect(url) as farm, farm.lease(SHAPE) as lease:
        assert not lease.lost


class Killable:
    """A farm that is killed and started again on the same directories."""

    def __init__(self, place: Path) -> None:
        place.chmod(0o700)
        self.place = place
        self.url = f"unix://{place}/farm.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            "DART_RUNTIME_DIR": str(self.place),
            "DART_STATE_DIR": str(self.place),
            "DART_TICK_INTERVAL_S": "0.1",
        }
        command = [sys.executable, "-m", "dart_server.cli", "serve", "--provider", "sim", "--max-desktops", "1"]
        with (self.place / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--uds", str(self.place / "farm.sock")],
                env={**os.environ, **environment, "DART_SNAPSHOT_DIR": str(self.place / "snapshots")},
                stderr=log,
            )
        deadline_s = time.monotonic() + LIMIT_S
        while not self.healthy():
            assert self.process.poll() is None, (self.place / "log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def healthy(self) -> bool:
        path = str(self.place / "farm.sock")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                return False
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://farm") as client:
            return client.get("/readyz").status_code == 200

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[Killable]:
    farm = Killable(tmp_path)
    farm.start()
    yield farm
    farm.kill()


async def until_claims_wait(farm: AsyncFarmClient, number: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(await farm.claims()) != number:  # noqa: ASYNC110 - a test looks from outside
            await asyncio.sleep(0.1)


async def test_leases_and_claims_outlive_a_farm_that_is_killed(killable: Killable) -> None:
    async with await AsyncFarmClient.connect(killable.url) as farm:
        lease = await farm.lease(SHAPE, ttl_s=20)
        claim = await farm.claim(1, SHAPE)
        waiting = asyncio.create_task(claim.wait(LIMIT_S))
        asking = asyncio.create_task(farm.lease(SHAPE, wait_s=LIMIT_S))
        await until_claims_wait(farm, 2)
        await asyncio.to_thread(killable.kill)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(killable.start)
        ends_at = (await lease.view()).expires_at
        async with asyncio.timeout(LIMIT_S):
            while (view := await lease.view()).expires_at <= ends_at:  # noqa: ASYNC110 - a test looks from outside
                await asyncio.sleep(0.2)
        assert view.state == "active"
        await lease.reset()
        assert (await lease.health()).alive
        await until_claims_wait(farm, 2)
        assert not waiting.done()
        assert not asking.done()
        await lease.release()
        async with asyncio.timeout(LIMIT_S):
            done, _ = await asyncio.wait({waiting, asking}, return_when=asyncio.FIRST_COMPLETED)
            first = waiting.result()[0] if waiting in done else asking.result()
            assert first.lease_id != lease.lease_id
            assert (await first.events())[0].kind == "lease_granted"
            await first.release()
            [granted], asked = await waiting, await asking
        assert len({lease.lease_id, granted.lease_id, asked.lease_id}) == 3


async def test_what_the_host_sees_of_a_desktop_comes_under_its_lease(farm: AsyncFarmClient, url: str) -> None:
    lease = await farm.lease(SHAPE)
    await lease.write_file("/home/user/a", b"1")
    seen = await lease.evidence([FileQuery(path="/home/user/a"), StatQuery(path="/home/user/b"), ProcessesQuery()])
    assert seen.content(seen.answers[0]) == b"1"
    assert seen.answers[1].error == "not_found"
    assert [process.pid for process in seen.answers[2].processes or []] == [2]
    async with await AsyncFarmClient.connect(url) as other:
        await (await other.attach(lease.reference())).reset()
        with pytest.raises(StaleFencingTokenError):
            await lease.evidence([ProcessesQuery()])
