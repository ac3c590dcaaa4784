"""Admission by what the host has: readings are given, answers are checked, and the farm waits with the reason."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from farm_fake import FakeProvider
from farm_harness import MakeApi, ManualClock, advance_until_done, wait_until

from dart_server.keys import Principal, Scope
from dart_server.pool.admission import (
    MIB,
    READING_MAX_AGE_S,
    TYPICAL_DISK_BYTES,
    TYPICAL_MEMORY_BYTES,
    Admission,
    HostReadings,
    SystemHostMonitor,
    estimate_capacity,
)
from dart_server.process import preflight

IDLE_HOST = HostReadings(
    memory_available_bytes=8192 * MIB,
    memory_total_bytes=16384 * MIB,
    disk_free_bytes=4096 * MIB,
    files_on_tmpfs=True,
    load=1.0,
    processors=2,
)


ADMIN = Principal("admin", Scope.ADMIN)


class FakeHostMonitor:
    """A host whose readings a test says."""

    def __init__(self, now: HostReadings) -> None:
        self.now = now

    def read(self) -> HostReadings:
        return self.now


def admission(host: FakeHostMonitor, clock: ManualClock, **changes: Any) -> Admission:
    settings: dict[str, Any] = {
        "uses_host": lambda: True,
        "measured_memory_bytes": lambda: 0,
        "reserve_memory_bytes": 512 * MIB,
        "reserve_files_bytes": 256 * MIB,
        "max_load_per_cpu": 8.0,
    }
    return Admission(host, clock, **{**settings, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_available_bytes": 600 * MIB}, "short of memory"),
        ({"disk_free_bytes": 300 * MIB}, "short of room"),
        ({"load": 17.0}, "overloaded"),
    ],
)
def test_a_host_that_is_short_of_something_is_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    host, clock = FakeHostMonitor(replace(IDLE_HOST, **changes)), ManualClock()
    door = admission(host, clock)
    assert not door.admits(0, prewarm=False)
    assert door.refusal is not None
    assert words in door.refusal
    host.now = IDLE_HOST
    clock.now += READING_MAX_AGE_S
    assert door.admits(0, prewarm=False)
    assert door.refusal is None


def test_those_on_their_way_count_and_those_made_ahead_leave_room_for_one_more() -> None:
    each = TYPICAL_MEMORY_BYTES + TYPICAL_DISK_BYTES
    host = FakeHostMonitor(replace(IDLE_HOST, memory_available_bytes=512 * MIB + 2 * each))
    door = admission(host, ManualClock())
    assert door.admits(0, prewarm=True)
    assert door.admits(1, prewarm=False)
    assert not door.admits(1, prewarm=True)
    assert not door.admits(2, prewarm=False)


def test_desktops_that_are_seen_to_use_more_are_reckoned_with_more() -> None:
    door = admission(FakeHostMonitor(IDLE_HOST), ManualClock(), measured_memory_bytes=lambda: 7900 * MIB)
    assert not door.admits(0, prewarm=False)


def test_where_desktops_take_nothing_the_host_is_not_asked() -> None:
    door = admission(
        FakeHostMonitor(replace(IDLE_HOST, memory_available_bytes=0)), ManualClock(), uses_host=lambda: False
    )
    assert door.admits(100, prewarm=True)
    assert door.readings() is None


def test_what_a_host_bears() -> None:
    each = TYPICAL_MEMORY_BYTES + TYPICAL_DISK_BYTES
    now = replace(IDLE_HOST, memory_available_bytes=100 * MIB + 5 * each + 1)
    assert estimate_capacity(now, reserve_memory_bytes=100 * MIB, reserve_files_bytes=0) == 5
    assert estimate_capacity(now, reserve_memory_bytes=100 * MIB, reserve_files_bytes=4000 * MIB) == 1
    assert estimate_capacity(replace(now, memory_available_bytes=0), reserve_memory_bytes=1, reserve_files_bytes=0) == 0


def fake_host(top: Path, *, mounts: str, limit: str | None = None) -> SystemHostMonitor:
    (top / "proc/pressure").mkdir(parents=True)
    (top / "sys/fs/cgroup").mkdir(parents=True)
    (top / "proc/meminfo").write_text("MemTotal:       1000000 kB\nMemAvailable:    600000 kB\nHugePages_Total: 0\n")
    (top / "proc/pressure/cpu").write_text("some avg10=12.50 avg60=1.00 avg300=0.00 total=5\n")
    (top / "proc/mounts").write_text(mounts)
    if limit is not None:
        (top / "sys/fs/cgroup/memory.max").write_text(limit)
        (top / "sys/fs/cgroup/memory.current").write_text("100000000\n")
    return SystemHostMonitor(top / "snapshots" / "not-yet", top)


def test_readings_of_a_host(tmp_path: Path) -> None:
    now = fake_host(tmp_path, mounts="/dev/vda / ext4 rw 0 0\n").read()
    assert (now.memory_total_bytes, now.memory_available_bytes) == (1_000_000 * 1024, 600_000 * 1024)
    assert (now.pressure, now.files_on_tmpfs) == (12.5, False)
    assert now.disk_free_bytes > 0
    assert now.processors >= 1


@pytest.mark.parametrize(("limit", "total"), [("400000000\n", 400_000_000), ("max\n", 1_000_000 * 1024)])
def test_a_container_has_what_its_limit_leaves(tmp_path: Path, limit: str, total: int) -> None:
    now = fake_host(tmp_path, mounts=f"tmpfs {tmp_path} tmpfs rw 0 0\n", limit=limit).read()
    assert now.memory_total_bytes == total
    assert now.memory_available_bytes == min(600_000 * 1024, total - 100_000_000 if total < 10**9 else total)
    assert now.files_on_tmpfs


async def test_a_claim_waits_for_the_host_and_is_told_why(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(FakeProvider, "limits", frozenset({"memory"}))
    host = FakeHostMonitor(replace(IDLE_HOST, memory_available_bytes=100 * MIB))
    api = await make_api(host=host, max_desktops=4)
    body = {"client_request_id": "too-early", "wait_s": 0}
    claiming = asyncio.create_task(api.call("POST", "/v1/leases", json=body))
    await wait_until(lambda: api.farm.pool.queue.waiting == 1)
    reply = await advance_until_done(clock, claiming, 0.1)
    assert reply.status_code == 503
    assert "the host is short of memory" in reply.json()["detail"]
    seen = (await api.call("GET", "/v1/farm")).json()
    assert "short of memory" in seen["capacity_limit_reason"]
    assert seen["host"]["memory_available_bytes"] == 100 * MIB
    host.now = IDLE_HOST
    clock.now += READING_MAX_AGE_S
    await api.create_lease()
    assert (await api.call("GET", "/v1/farm")).json()["capacity_limit_reason"] is None


@pytest.mark.parametrize("resolution", [(640, 400), (320, 200)], ids=["same", "other"])
async def test_what_ends_is_kept_for_a_gang_that_the_host_has_no_memory_for(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, resolution: tuple[int, int]
) -> None:
    monkeypatch.setattr(FakeProvider, "limits", frozenset({"memory"}))
    host = FakeHostMonitor(IDLE_HOST)
    api = await make_api(host=host, max_desktops=4, gang_hold_s=30.0)
    shape = {"resolution": (640, 400)}
    held = [await api.create_lease(ttl_s=600, shape=shape) for _ in range(2)]
    host.now = replace(IDLE_HOST, memory_available_bytes=100 * MIB)
    clock.now += READING_MAX_AGE_S
    state: dict[str, str] = {}

    async def submit(name: str, **fields: Any) -> None:
        reply = await api.call("POST", "/v1/claims", json={"client_request_id": name, **fields})
        state[name] = reply.json()["claim_id"]

    async def states() -> list[str]:
        return [(await api.call("GET", f"/v1/claims/{claim_id}")).json()["state"] for claim_id in state.values()]

    await submit("the-gang", count=2, shape=shape)
    await submit("one-more", shape={"resolution": resolution})
    await api.call("DELETE", f"/v1/leases/{held[0]['lease_id']}")
    await wait_until(lambda: len(api.farm.pool.table.idle()) == 1)
    assert await states() == ["waiting", "waiting"], "what is free is kept for the gang"
    await clock.advance(31.0)
    await wait_until(lambda: len(api.farm.claims.queue(ADMIN)) == 1)
    assert await states() == ["waiting", "granted"], "not for ever, where it does not come together"
    for lease in (await api.call("GET", "/v1/leases")).json():
        await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    await wait_until(lambda: not api.farm.claims.queue(ADMIN))
    assert await states() == ["granted", "granted"]


def test_doctor_tells_of_more_desktops_than_the_host_bears() -> None:
    few = preflight.capacity_check(4, IDLE_HOST, reserve_memory_mib=512, reserve_disk_mib=256)
    assert few.ok
    many = preflight.capacity_check(4000, IDLE_HOST, reserve_memory_mib=512, reserve_disk_mib=256)
    assert not many.ok
    assert "DART_MAX_DESKTOPS" in many.fix
