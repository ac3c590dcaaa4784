"""Clients that do not read, against a served farm on `sim`: it does not grow for them, and others step on at their pace."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from served_farm import free_port, served_farm
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

RESOLUTION = [1280, 800]
FRAME_NBYTES = 1280 * 800 * 3
STALLED, ASKED = 4, 60
STEP = json.dumps({"events": [], "settle": None, "frame": {"encoding": "raw"}})
EACH_NBYTES = 10 * FRAME_NBYTES
"""What one stalled channel may hold: a few frames, here also the simulated guest's own; not the sixty it asked for."""
SERVED_S = 10.0


class Served:
    """A farm's address, key, and process."""

    def __init__(self, url: str, place: Path) -> None:
        self.url = url
        self.key = (place / "farm.key").read_text().strip()
        self.process = psutil.Process(json.loads((place / "farm.lock").read_text())["pid"])

    def claim(self, name: str) -> dict[str, Any]:
        body = {"client_request_id": name, "ttl_s": 600, "wait_s": 60, "shape": {"resolution": RESOLUTION}}
        headers = {"authorization": f"Bearer {self.key}"}
        reply = httpx.post(f"{self.url}/v1/leases", json=body, headers=headers, timeout=90)
        assert reply.status_code == 200, reply.text
        lease: dict[str, Any] = reply.json()
        return lease

    def channel(self, lease: dict[str, Any], **options: Any) -> Any:
        headers = {"authorization": f"Bearer {self.key}", "X-Dart-Lease-Token": lease["token"]}
        headers["X-Dart-Fencing-Token"] = str(lease["fencing_token"])
        url = f"{self.url.replace('http', 'ws', 1)}/v1/leases/{lease['lease_id']}/channel"
        return connect(url, additional_headers=headers, max_size=None, compression=None, **options)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("farm")
    with served_farm(place, provider="sim", max_desktops=STALLED + 2, port=free_port()) as url:
        yield Served(url, place)


async def stepped(channel: ClientConnection, times: int) -> list[float]:
    """Seconds of so many steps, one after the other."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        await channel.send(STEP)
        frame = await channel.recv()
        taken.append(time.perf_counter() - started)
        assert len(frame) > FRAME_NBYTES
    return taken


async def test_clients_that_do_not_read_cost_a_frame_each_and_hold_nobody_up(farm: Served) -> None:
    leases = [await asyncio.to_thread(farm.claim, f"slow-reader-{number}") for number in range(STALLED + 1)]
    async with farm.channel(leases[-1]) as mine:
        await stepped(mine, 3)
        before = farm.process.memory_info().rss
        stalled = [await farm.channel(lease, max_queue=1).__aenter__() for lease in leases[:-1]]
        for channel in stalled:
            for _ in range(ASKED):
                await channel.send(STEP)
        async with asyncio.timeout(SERVED_S * 5):
            taken = await stepped(mine, 10)
        grown = farm.process.memory_info().rss - before
        assert max(taken) < SERVED_S, taken
        assert grown < STALLED * EACH_NBYTES, f"{grown / 1e6:.0f} MB for {STALLED} clients that do not read"
        for channel in stalled:
            channel.transport.abort()


async def test_a_message_beyond_the_limit_is_not_taken(farm: Served) -> None:
    lease = await asyncio.to_thread(farm.claim, "too-large-a-message")
    async with farm.channel(lease) as channel:
        await channel.send(" " * (1024**2 + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await channel.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
