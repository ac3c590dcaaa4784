"""A claim and a reset that find a frozen copy: live, on each provider that keeps one. What the former tenant of a desktop did is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from served_farm import served_farm

from dart_envs.farm.client import AsyncFarmClient
from dart_server import wire

PROVIDERS = [pytest.param("runc", marks=pytest.mark.desktop), pytest.param("docker", marks=pytest.mark.docker)]
SHAPE = wire.DesktopShape(resolution=(640, 400))
POOL, LABELS = "frozen", {"kind": "frozen"}
NOTE = "/home/user/note"
READY_S = 120.0


@pytest.fixture(scope="module", params=PROVIDERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {"DART_WARM_DESKTOPS": "0", "DART_HISTORY_DAYS": "0"}
    place = tmp_path_factory.mktemp("farm")
    with served_farm(place, provider=request.param, max_desktops=3, environment=environment) as url:
        yield url


async def frozen_copy(farm: AsyncFarmClient) -> str:
    """The desktop that stands by, once it does."""
    async with asyncio.timeout(READY_S):
        while (await farm.pool(POOL)).standby < 1:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
    [frozen] = [desktop.desktop_id for desktop in await farm.desktops() if desktop.frozen]
    return frozen


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_claim_and_a_reset_take_the_frozen_copy(url: str) -> None:
    async with await AsyncFarmClient.connect(url) as farm:
        await farm.set_pool(POOL, wire.PoolSpec(shape=SHAPE, labels=LABELS, standby=1))
        waiting = await frozen_copy(farm)
        lease = await farm.lease(SHAPE, match_labels=LABELS, ttl_s=300)
        assert lease.desktop_id == waiting, "the frozen one was thawed, none was made"
        await lease.write_file(NOTE, b"of this episode")
        frame = await lease.step([wire.MoveEvent(x=10, y=10)], None, frame=wire.FrameSpec(encoding="png"))
        assert (frame.header.width, frame.header.height) == SHAPE.resolution
        fencing_token, waiting = lease.fencing_token, await frozen_copy(farm)
        assert waiting != lease.desktop_id
        reply = await lease.reset()
        assert (reply.standby, reply.desktop_id) == (True, waiting)
        assert lease.fencing_token > fencing_token
        assert (await lease.exec(["test", "-e", NOTE])).returncode == 1, "nothing of the last episode is there"
        await lease.step([wire.MoveEvent(x=20, y=20)], None, frame=wire.FrameSpec(encoding="none"))
        pool = await farm.pool(POOL)
        assert (pool.hits, pool.misses) == (2, 0)
        kinds = [event.data.get("standby") for event in await farm.events() if event.kind == "desktop_reset"]
        assert kinds[-1] is True
        await farm.delete_pool(POOL)
