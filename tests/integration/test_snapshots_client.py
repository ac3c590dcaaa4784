"""Snapshots through the client: named, restored elsewhere, forked while the desktop goes on, broken ones told of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from served_farm import served_farm

from dart_envs.errors import FarmError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.sync import FarmClient
from dart_server.wire import DesktopShape, ErrorCode

SHAPE = DesktopShape(resolution=(640, 400))
NOTE = "/home/user/note"


@pytest.fixture(scope="module", params=["sim", pytest.param("runc", marks=pytest.mark.desktop)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("farm"), provider=request.param, max_desktops=4) as url:
        yield url


@pytest.fixture
async def farm(url: str) -> AsyncIterator[AsyncFarmClient]:
    async with await AsyncFarmClient.connect(url) as farm:
        yield farm
        for view in await farm.snapshots():
            if view.kind == "user":
                await farm.delete_snapshot(view.snapshot_id)


async def test_a_named_snapshot_comes_back_on_its_own_and_on_another_desktop(farm: AsyncFarmClient) -> None:
    lease = await farm.lease(SHAPE)
    base = lease.snapshot_id
    await lease.write_file(NOTE, b"before")
    view = await lease.snapshot("before", description="nothing is lost yet")
    assert (view.name, view.parent, view.lineage) == ("before", base, [base])
    assert view.bytes == view.memory_bytes + view.files_bytes > 0
    assert view.pause_ms is not None
    await lease.write_file(NOTE, b"after")
    assert (await lease.restore("before")).snapshot_id == lease.snapshot_id == view.snapshot_id
    assert await lease.read_file(NOTE) == b"before"
    other = await farm.lease(SHAPE, snapshot_id="before")
    assert other.desktop_id != lease.desktop_id
    assert await other.read_file(NOTE) == b"before"
    assert (await farm.snapshot("before")).last_used_at > view.last_used_at
    with pytest.raises(FarmError) as taken:
        await other.snapshot("before")
    assert taken.value.code == ErrorCode.INVALID
    assert await other.read_file(NOTE) == b"before"


async def test_a_fork_leaves_the_original_running_and_its_copies_apart(farm: AsyncFarmClient) -> None:
    lease = await farm.lease(SHAPE)
    await lease.write_file(NOTE, b"common")
    fork = await lease.fork(2)
    assert fork.snapshot.pause_ms is not None
    assert {copy.snapshot_id for copy in fork.leases} == {fork.snapshot.snapshot_id}
    assert len({lease.desktop_id, *(copy.desktop_id for copy in fork.leases)}) == 3
    desktops = (lease, *fork.leases)
    for index, desktop in enumerate(desktops):
        assert await desktop.read_file(NOTE) == b"common"
        await desktop.write_file(NOTE, str(index).encode())
    assert [await desktop.read_file(NOTE) for desktop in desktops] == [b"0", b"1", b"2"]
    made = [event for event in await farm.events() if event.kind == "snapshot_created"]
    assert made[-1].data["pause_ms"] == fork.snapshot.pause_ms
    assert made[-1].lease_id == lease.lease_id
    assert fork.snapshot.snapshot_id not in {view.snapshot_id for view in await farm.snapshots()}


async def grants(farm: AsyncFarmClient) -> int:
    return len([event for event in await farm.events() if event.kind == "lease_granted"])


async def test_a_fork_that_finds_no_room_gives_everything_back(farm: AsyncFarmClient) -> None:
    lease = await farm.lease(SHAPE)
    before = await grants(farm)
    with pytest.raises(FarmError) as full:
        await lease.fork(4, wait_s=0.2)
    assert full.value.code == ErrorCode.NO_CAPACITY
    held = [view.lease_id for view in await farm.leases()]
    assert held == [lease.lease_id]
    assert [view for view in await farm.snapshots() if view.kind == "user"] == []
    await lease.write_file(NOTE, b"usable")
    assert await grants(farm) == before, "no copy was held while the others were waited for"


def test_the_same_without_async(url: str) -> None:
    with FarmClient(url) as farm, farm.lease(SHAPE) as lease:
        lease.write_file(NOTE, b"kept")
        view = lease.snapshot("sync", description="by a plain program")
        lease.write_file(NOTE, b"lost")
        assert lease.restore(view).snapshot_id == lease.snapshot_id == view.snapshot_id
        assert lease.read_file(NOTE) == b"kept"
        saved, copies = lease.fork(1)
        assert saved.parent == view.snapshot_id
        with copies[0] as copy:
            assert copy.read_file(NOTE) == b"kept"
        assert farm.snapshot("sync").description == "by a plain program"
        farm.delete_snapshot("sync")
        assert "sync" not in [view.name for view in farm.snapshots()]


async def test_forks_of_forks_know_what_they_stand_on(farm: AsyncFarmClient) -> None:
    lease = await farm.lease(SHAPE)
    await lease.write_file(NOTE, b"root")
    first = await lease.fork(1)
    second = await asyncio.gather(*(one.fork(1) for one in (lease, *first.leases)))
    copies = [copy for fork in second for copy in fork.leases]
    assert [await copy.read_file(NOTE) for copy in copies] == [b"root", b"root"]
    assert second[1].snapshot.parent == first.snapshot.snapshot_id
    assert second[1].snapshot.lineage[0] == first.snapshot.snapshot_id
