"""One suite for every provider: what `providers.base` promises, by declared capability."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from provider_cases import SPEC, Case, eventually, needs

from dart_server.guest import limits
from dart_server.guest.client import GuestClient, GuestUnreachable
from dart_server.providers.base import (
    SELF_INFLICTED,
    CapabilityMissing,
    DesktopGone,
    DesktopSpec,
    HealthCause,
    HostFault,
    ImageMissing,
    SnapshotBroken,
    SupportsFreeze,
)


async def test_created_desktop_is_ready_and_shows_its_screen(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    seen = await case.provider.health("d1")
    assert (seen.alive, seen.cause) == (True, HealthCause.OK)
    assert 0 < seen.memory_bytes <= seen.memory_limit_bytes == SPEC.memory_mib << 20
    header, pixels = await case.step("d1", {"type": "move", "x": 31, "y": 47})
    assert (header["seq"], header["width"], header["height"], header["cursor"]) == (3, 640, 400, [31, 47])
    assert len(pixels) == 640 * 400 * 3


BUSY_S = 1.5
BUSY = f"""
import os, time
ends = time.monotonic() + {BUSY_S}
children = []
while len(children) < 3 and 0 not in children:
    children.append(os.fork())
while time.monotonic() < ends:
    pass
if 0 in children:
    os._exit(0)
for child in children:
    os.waitpid(child, 0)
print(sum(os.times()[:4]))
"""
"""Several processes that want all they can get; tells the processor seconds that all of them got."""


@pytest.mark.timeout(900)
async def test_the_screen_and_the_processors_are_what_was_asked_for(case: Case) -> None:
    if case.provider.capabilities.accelerator:
        pytest.skip("a machine's screen and processors are proved where it is made")
    spec = replace(SPEC, resolution=(1024, 600), cpus=0.2)
    await case.provider.create("d1", spec)
    header, pixels = await case.step("d1", {"type": "move", "x": 1000, "y": 590})
    assert (header["width"], header["height"], header["cursor"]) == (1024, 600, [1000, 590])
    assert len(pixels) == 1024 * 600 * 3
    if "cpus" in case.provider.capabilities.limits:
        told = await case.exec("d1", "python3", "-c", BUSY, user="user")
        # The kernel counts in periods of 0.1 s: one may have been begun before.
        assert 0.05 < float(told["stdout"]) < spec.cpus * (BUSY_S + 0.3), told


async def test_unknown_image_is_named_with_a_cure(case: Case) -> None:
    with pytest.raises(ImageMissing) as caught:
        await case.provider.create("d1", DesktopSpec("nothing-like-it"))
    assert "nothing-like-it" in str(caught.value)
    assert caught.value.hint
    with pytest.raises(ImageMissing):
        await case.provider.image_digest("nothing-like-it")
    assert (await case.provider.image_digest("basic")).startswith("sha256:")


async def test_an_id_in_use_is_refused(case: Case) -> None:
    await case.ready("d1")
    with pytest.raises(HostFault):
        await case.provider.create("d1", SPEC)
    assert (await case.provider.health("d1")).alive


async def test_restore_brings_back_memory_and_files(case: Case) -> None:
    needs(case, "memory_snapshot")
    await case.ready("d1")
    await case.put("d1", "before")
    await case.step("d1", {"type": "move", "x": 100, "y": 50})
    info = await case.provider.snapshot("d1", "s1")
    assert info.snapshot_id == "s1"
    assert info.bytes > 0
    assert info.image_digest == await case.provider.image_digest("basic")

    header, _ = await case.step("d1")
    assert header["cursor"] == [100, 50], "the desktop goes on after a snapshot"
    await case.put("d1", "after")
    await case.step("d1", {"type": "move", "x": 3, "y": 4})
    before = json.loads((await case.call("d1", "GET", "/v1/health")).content)

    await case.provider.restore("d1", "s1")
    header, _ = await case.step("d1")
    assert header["cursor"] == [100, 50]
    assert await case.get("d1") == "before"
    after = json.loads((await case.call("d1", "GET", "/v1/health")).content)
    assert after["restores"] == before["restores"] + 1
    assert after["boot_id"] != before["boot_id"]


async def test_forks_are_independent_copies(case: Case) -> None:
    needs(case, "fork")
    await case.ready("d1")
    await case.put("d1", "common")
    await case.provider.snapshot("d1", "s1")
    forks = [f"f{i}" for i in range(4)]
    await asyncio.gather(*(case.provider.restore(fork, "s1") for fork in forks))
    await asyncio.gather(*(case.put(fork, fork) for fork in forks[1:]))
    assert [await case.get(fork) for fork in forks] == ["common", "f1", "f2", "f3"]
    assert await case.get("d1") == "common"
    assert set((await case.provider.inventory()).desktops) == {"d1", *forks}


async def test_a_restored_desktop_can_be_saved_again(case: Case) -> None:
    needs(case, "fork")
    await case.ready("d1")
    await case.put("d1", "one")
    await case.provider.snapshot("d1", "s1")
    await case.provider.restore("d2", "s1")
    await case.put("d2", "two")
    await case.provider.snapshot("d2", "s2")
    await case.provider.delete_snapshot("s1")
    await case.provider.destroy("d2")
    await case.provider.restore("d3", "s2")
    assert await case.get("d3") == "two"
    with pytest.raises(SnapshotBroken):
        await case.provider.restore("d4", "s1")
    assert not (await case.provider.health("d4")).alive


async def test_a_desktop_outlives_its_snapshot(case: Case) -> None:
    needs(case, "fork")
    await case.ready("d1")
    await case.put("d1", "kept")
    await case.provider.snapshot("d1", "s1")
    await case.provider.restore("d2", "s1")
    await case.provider.destroy("d1")
    await case.provider.delete_snapshot("s1")
    await case.provider.delete_snapshot("s1")
    assert await case.get("d2") == "kept"


async def test_a_snapshot_closes_dialled_connections(case: Case) -> None:
    needs(case, "memory_snapshot")
    await case.ready("d1")
    with await case.provider.dial("d1", "control") as dialled:
        await case.provider.snapshot("d1", "s1")
        async with asyncio.timeout(5.0):
            assert await asyncio.get_running_loop().sock_recv(dialled, 1) == b""


async def test_destroy_is_idempotent_and_final(case: Case) -> None:
    await case.ready("d1")
    await case.provider.destroy("d1")
    await case.provider.destroy("d1")
    await case.provider.destroy("never-was")
    with pytest.raises(DesktopGone):
        await case.provider.dial("d1", "control")
    with pytest.raises(DesktopGone if case.provider.capabilities.memory_snapshot else CapabilityMissing):
        await case.provider.snapshot("d1", "s1")
    seen = await case.provider.health("d1")
    assert not seen.alive
    await case.ready("d1")
    assert (await case.provider.health("d1")).alive


async def test_a_desktop_killed_by_the_host_is_not_to_blame(case: Case) -> None:
    await case.ready("d1")
    await case.kill("d1")

    async def dead() -> bool:
        return not (await case.provider.health("d1")).alive

    await eventually(dead)
    assert (await case.provider.health("d1")).cause is HealthCause.KILLED_FROM_OUTSIDE
    assert HealthCause.KILLED_FROM_OUTSIDE not in SELF_INFLICTED


async def test_a_session_ended_from_inside_is_self_inflicted_and_a_reset_heals_it(case: Case) -> None:
    await case.ready("d1")
    if case.provider.capabilities.memory_snapshot:
        await case.provider.snapshot("d1", "s1")
    await case.log_out("d1")

    async def dead() -> bool:
        return (await case.provider.health("d1")).cause is HealthCause.SESSION_DEAD

    await eventually(dead)
    if case.provider.capabilities.memory_snapshot:
        await case.provider.restore("d1", "s1")
    else:
        await case.provider.destroy("d1")
        await case.ready("d1")
    assert (await case.provider.health("d1")).cause is HealthCause.OK


async def test_tunnels_reach_ports_inside(case: Case) -> None:
    needs(case, "tunnel")
    await case.ready("d1")
    port = await case.serve("d1")
    loop = asyncio.get_running_loop()

    async def echoed() -> bool:
        try:
            connection = await case.provider.dial("d1", port)
        except ConnectionRefusedError:
            return False
        with connection:
            await loop.sock_sendall(connection, b"hello")
            return await loop.sock_recv(connection, 5) == b"hello"

    await eventually(echoed)
    with pytest.raises(ConnectionRefusedError):
        await case.provider.dial("d1", 65001)


async def test_what_is_not_declared_is_refused_with_a_cure(case: Case) -> None:
    if case.provider.capabilities.memory_snapshot:
        pytest.skip("the provider has memory snapshots")
    await case.ready("d1")
    for asked in (case.provider.snapshot("d1", "s1"), case.provider.restore("d1", "s1")):
        with pytest.raises(CapabilityMissing) as caught:
            await asked
        assert caught.value.hint
    await case.provider.delete_snapshot("s1")
    assert (await case.provider.health("d1")).alive


async def test_reap_leaves_the_desktops_that_are_kept(case: Case) -> None:
    await case.ready("d1", "d2")
    assert list(await case.provider.reap({"d2", "unknown"})) == ["d1"]
    assert (await case.provider.inventory()).desktops == ("d2",)
    assert (await case.provider.health("d2")).alive


async def test_reap_removes_all_but_what_is_kept(case: Case) -> None:
    needs(case, "memory_snapshot")
    await case.ready("d1", "d2")
    await case.provider.snapshot("d1", "s1")
    await case.provider.snapshot("d1", "s2")
    assert set(await case.provider.reap({"d2", "s2", "unknown"})) == {"d1", "s1"}
    inventory = await case.provider.inventory()
    assert (inventory.desktops, inventory.snapshots) == (("d2",), ("s2",))
    assert (await case.provider.health("d2")).alive
    await case.provider.restore("d3", "s2")


async def test_a_frozen_desktop_stands_still_and_goes_on_where_it_was(case: Case) -> None:
    needs(case, "freeze")
    provider = case.provider
    assert isinstance(provider, SupportsFreeze)
    await provider.create("d1", SPEC)
    await case.put("d1", "kept")
    header, before = await case.step("d1", {"type": "move", "x": 31, "y": 47})
    guest = GuestClient(lambda port: provider.dial("d1", port))
    assert (await guest.request("GET", "/v1/health", limits.HEALTH, timeout_s=30.0)).status == 200
    await provider.freeze("d1")
    await provider.freeze("d1")
    async with asyncio.timeout(5.0):
        seen = await provider.health("d1")
    assert (seen.alive, seen.cause, seen.detail) == (True, HealthCause.OK, "frozen")
    with pytest.raises(GuestUnreachable) as silent:
        await guest.request("GET", "/v1/health", limits.HEALTH, timeout_s=0.5)
    assert silent.value.timed_out
    assert "d1" in (await provider.inventory()).desktops
    await provider.thaw("d1")
    await provider.thaw("d1")
    assert (await guest.request("GET", "/v1/health", limits.HEALTH, timeout_s=30.0)).status == 200
    await guest.close_connections()
    assert await case.get("d1") == "kept"
    header, after = await case.step("d1")
    assert header["cursor"] == [31, 47]
    assert after == before, "the screen is what it was"
    assert (await provider.health("d1")).detail == ""


async def test_frozen_desktops_are_replaced_and_removed_as_others_are(case: Case) -> None:
    needs(case, "freeze")
    provider = case.provider
    assert isinstance(provider, SupportsFreeze)
    await provider.create("d1", SPEC)
    if provider.capabilities.memory_snapshot:
        await provider.snapshot("d1", "s1")
        await provider.freeze("d1")
        with pytest.raises(HostFault):
            await provider.snapshot("d1", "s2")
        await provider.restore("d1", "s1")
        assert (await provider.health("d1")).detail == "", "a copy runs"
        header, _ = await case.step("d1")
        assert header["seq"] == 3
    await provider.freeze("d1")
    await provider.destroy("d1")
    assert not (await provider.health("d1")).alive
    with pytest.raises(DesktopGone):
        await provider.thaw("d1")
    with pytest.raises(DesktopGone):
        await provider.freeze("d1")
    await provider.create("d2", SPEC)
    await provider.freeze("d2")
    assert "d2" in await provider.reap(set())
    assert (await provider.inventory()).desktops == ()


async def test_a_desktop_that_is_killed_while_it_is_frozen_is_dead(case: Case) -> None:
    needs(case, "freeze")
    assert isinstance(case.provider, SupportsFreeze)
    await case.ready("d1")
    await case.provider.freeze("d1")
    await case.kill("d1")

    async def dead() -> bool:
        return not (await case.provider.health("d1")).alive

    await eventually(dead)
    assert (await case.provider.health("d1")).cause is HealthCause.KILLED_FROM_OUTSIDE
    await case.provider.destroy("d1")
    assert (await case.provider.inventory()).desktops == ()
