"""Event history: of the farm, of a lease, of a desktop; paged, and each tenant sees its own."""

from __future__ import annotations

from farm_harness import Api

from dart_server.keys import Scope


async def tenant(api: Api, name: str) -> Api:
    """The same farm as another key sees it."""
    return Api(api.farm, api.client, await api.farm.keys.add(name, Scope.LEASE))


async def kinds(api: Api, path: str) -> list[str]:
    reply = await api.call("GET", path)
    assert reply.status_code == 200, reply.text
    return [event["kind"] for event in reply.json()]


async def test_a_lease_and_its_desktop_tell_their_story(api: Api) -> None:
    lease = await api.create_lease()
    await api.reset(lease)
    await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    assert await kinds(api, f"/v1/leases/{lease['lease_id']}/events") == [
        "lease_granted",
        "desktop_reset",
        "lease_released",
    ]
    of_desktop = await kinds(api, f"/v1/desktops/{lease['desktop_id']}/events")
    assert of_desktop[0] == "desktop_creating"
    assert {"lease_granted", "lease_released"} <= set(of_desktop)
    assert await kinds(api, f"/v1/events?kind=desktop_reset&desktop_id={lease['desktop_id']}") == ["desktop_reset"]
    assert await kinds(api, f"/v1/events?lease_id={lease['lease_id']}&kind=lease_granted") == ["lease_granted"]


async def test_pages_go_forward_and_back_without_gap_or_overlap(api: Api) -> None:
    for _ in range(3):
        lease = await api.create_lease()
        await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    everything = [event["id"] for event in (await api.call("GET", "/v1/events?limit=5000")).json()]
    forward: list[int] = []
    # The last desktop is still being made fresh: what is written meanwhile comes after everything.
    while not forward or forward[-1] < everything[-1]:
        page = (await api.call("GET", f"/v1/events?limit=2&after={forward[-1] if forward else 0}")).json()
        forward += [event["id"] for event in page if event["id"] <= everything[-1]]
        assert page
    backward: list[int] = []
    before = everything[-1] + 1
    while page := (await api.call("GET", f"/v1/events?limit=2&before={before}")).json():
        backward = [event["id"] for event in page] + backward
        before = page[0]["id"]
        assert len(backward) <= len(everything)
    assert forward == backward == everything


async def test_a_tenant_sees_the_events_of_its_own_leases_only(api: Api) -> None:
    mine, theirs = await tenant(api, "mine"), await tenant(api, "theirs")
    lease = await mine.create_lease()
    assert await kinds(mine, "/v1/events") == ["lease_granted"]
    assert await kinds(mine, f"/v1/desktops/{lease['desktop_id']}/events") == ["lease_granted"]
    assert await kinds(theirs, "/v1/events") == []
    assert await kinds(theirs, f"/v1/events?lease_id={lease['lease_id']}") == []
    for path in (f"/v1/leases/{lease['lease_id']}/events", f"/v1/desktops/{lease['desktop_id']}/events"):
        assert (await theirs.call("GET", path)).status_code == 404


async def test_an_unknown_desktop_and_wrong_numbers_are_refused(api: Api) -> None:
    assert (await api.call("GET", "/v1/desktops/desk_none/events")).status_code == 404
    for query in ("after=-1", "before=0", "limit=0", "limit=5001", f"after={2**64}"):
        assert (await api.call("GET", f"/v1/events?{query}")).status_code == 422, query
