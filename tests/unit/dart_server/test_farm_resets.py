"""What a reset leaves behind when it is refused, or when the farm is killed in the middle of it: the fencing token that is written."""

from __future__ import annotations

import asyncio

import pytest
from database_fixtures import locked
from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, ManualClock, wait_until
from test_farm_failures import abandon

from dart_server.database import write_queue
from dart_server.database.repository import NewEvent


async def execute(api: Api, lease: dict[str, object]) -> tuple[int, str]:
    """Status and error code of a call into the desktop."""
    path = f"/v1/leases/{lease['lease_id']}/execute"
    reply = await api.call("POST", path, lease=lease, json={"argv": ["echo", "x"]})
    return reply.status_code, reply.json().get("error", "")


@pytest.mark.parametrize("standbys", [0, 1])
async def test_a_farm_killed_in_a_reset_comes_back_with_its_fence(
    make_api: MakeApi, provider: FakeProvider, standbys: int
) -> None:
    api = await make_api(warm_desktops=standbys)
    lease = await api.create_lease()
    await wait_until(lambda: sum(slot.unused for slot in api.farm.pool.slots.values()) == standbys)
    before, done = dict(lease), len(provider.log)
    for slot in api.farm.pool.slots.values():
        provider.desktops[slot.desktop_id].frozen = slot.unused
    provider.gate = asyncio.Event()
    path = f"/v1/leases/{lease['lease_id']}/reset"
    resetting = asyncio.create_task(api.call("POST", path, lease=lease, json={"reset_id": "killed-reset"}))
    if standbys:
        await wait_until(lambda: len(provider.desktops) == 1)
    else:
        await wait_until(lambda: len(provider.log) > done)
    abandon(api.farm)
    second = await make_api(warm_desktops=0)
    (view,) = (await second.call("GET", "/v1/leases")).json()
    assert (view["lease_id"], view["desktop_id"] == before["desktop_id"]) == (lease["lease_id"], not standbys)
    assert view["fencing_token"] > before["fencing_token"]
    assert view["reset_id"] == "killed-reset", "its client may go on with the fencing token"
    assert await execute(second, before) == (409, "fenced")
    lease["fencing_token"] = view["fencing_token"]
    assert (await execute(second, lease))[1] == "desktop_failed", "nobody knows how far the reset had come"
    resetting.cancel()
    await asyncio.wait({resetting})
    provider.gate.set()
    await second.reset(lease)
    assert await execute(second, lease) == (200, "")


async def test_a_lease_tells_the_reset_that_its_fencing_token_comes_from(
    make_api: MakeApi, provider: FakeProvider
) -> None:
    api = await make_api(max_desktops=3)
    lease = await api.create_lease()
    path = f"/v1/leases/{lease['lease_id']}"

    async def reset_id() -> str | None:
        view = (await api.call("GET", path)).json()
        lease["fencing_token"] = view["fencing_token"]
        return view["reset_id"]

    assert await reset_id() is None
    await api.reset(lease, reset_id="first-reset")
    assert await reset_id() == "first-reset"
    provider.host_faults = 3
    failed = await api.call("POST", f"{path}/reset", lease=lease, json={"reset_id": "second-reset"})
    assert failed.json()["error"] == "host_fault"
    refused = await api.call("POST", f"{path}/reset", lease=lease, json={"reset_id": "third-reset"})
    assert refused.json()["error"] == "fenced"
    assert await reset_id() == "second-reset"
    await api.call("POST", f"{path}/attach", json={})
    assert await reset_id() == "second-reset", "its fencing token is the same"
    await api.call("POST", f"{path}/attach", json={"takeover": True})
    assert await reset_id() is None
    await api.reset(lease, reset_id="fourth-reset")
    await api.reset(lease)
    assert await reset_id() is None
    await api.reset(lease, reset_id="fifth-reset")
    await api.call("POST", f"/v1/desktops/{(await api.call('GET', path)).json()['desktop_id']}/quarantine")
    assert await reset_id() is None
    await api.reset(lease, reset_id="sixth-reset")
    await api.call("DELETE", path)
    assert await reset_id() is None
    assert all(slot.reset_id is None for slot in api.farm.pool.slots.values())


async def test_while_the_database_is_away_resets_and_takeovers_change_nothing(
    make_api: MakeApi, provider: FakeProvider, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_queue, "AVAILABILITY_TIMEOUT_S", 0.2)
    api = await make_api()
    lease = await api.create_lease()
    path = f"/v1/leases/{lease['lease_id']}"
    done = len(provider.log)
    with locked(api.farm.settings.database_url):
        api.farm.repository.add_event(NewEvent("test"))
        await wait_until(lambda: api.farm.database.unavailable_reason is not None)
        for route, body in (("reset", {}), ("attach", {"takeover": True})):
            reply = await api.call("POST", f"{path}/{route}", lease=lease, json=body)
            assert (reply.status_code, reply.json()["error"]) == (503, "database_unavailable"), route
            assert int(reply.headers["retry-after"]) >= 1
        assert await execute(api, lease) == (200, ""), (
            "the desktop, and the fencing token that opens it, are as they were"
        )
        assert len(provider.log) == done
    async with asyncio.timeout(30):
        while api.farm.database.unavailable_reason is not None:
            await clock.advance(2.0)
    await api.reset(lease)
    assert await execute(api, lease) == (200, "")
