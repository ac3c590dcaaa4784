"""Claims told as a stream of events: positions, the grant, a broken stream, the limit of a key."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from claim_requests import granted, release, submit
from farm_harness import Api, MakeApi, ManualClock, advance_until_done, wait_until


async def read_events(reply: httpx.Response) -> list[tuple[int, str, dict[str, Any]]]:
    events = []
    for block in reply.text.strip().split("\n\n"):
        if not block.startswith(":"):
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            events.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return events


async def test_a_stream_tells_positions_and_ends_with_the_grant(api: Api, clock: ManualClock) -> None:
    held = [await api.create_lease(ttl_s=1000), await api.create_lease(ttl_s=1000)]
    first, second = await submit(api, "stream-0001"), await submit(api, "stream-0002")
    stream = asyncio.create_task(api.call("GET", f"/v1/claims/{second['claim_id']}/events"))
    await wait_until(lambda: sum(api.farm.claims._streams.values()) == 1)
    await clock.advance(2)
    await release(api, held[0])
    await granted(api, first)
    await clock.advance(20)
    await release(api, held[1])
    await granted(api, second)
    reply = await advance_until_done(clock, stream, 2)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert ": waiting" in reply.text, "it says now and then that it lives"
    events = await read_events(reply)
    assert [(kind, claim["position"]) for _, kind, claim in events] == [
        ("position", 1),
        ("position", 0),
        ("granted", None),
    ]
    assert events[-1][2]["leases"][0]["token"]
    assert all(claim["leases"] == [] for _, _, claim in events[:-1])
    assert sum(api.farm.claims._streams.values()) == 0


async def test_a_stream_goes_on_where_it_broke(api: Api, clock: ManualClock) -> None:
    for _ in range(2):
        await api.create_lease(ttl_s=1000)
    claim = await submit(api, deadline_s=5)
    known = {"last-event-id": "2"}
    stream = asyncio.create_task(api.call("GET", f"/v1/claims/{claim['claim_id']}/events", headers=known))
    await wait_until(lambda: sum(api.farm.claims._streams.values()) == 1)
    reply = await advance_until_done(clock, stream, 7)
    assert [kind for _, kind, _ in await read_events(reply)] == ["expired"]


async def test_a_key_has_a_limited_number_of_streams(make_api: MakeApi, clock: ManualClock) -> None:
    api = await make_api(max_desktops=1, claim_streams_per_key=2)
    lease = await api.create_lease(ttl_s=1000)
    claim = await submit(api)
    path = f"/v1/claims/{claim['claim_id']}/events"
    streams = [asyncio.create_task(api.call("GET", path)) for _ in range(2)]
    await wait_until(lambda: sum(api.farm.claims._streams.values()) == 2)
    reply = await api.call("GET", path)
    assert (reply.status_code, reply.json()["error"]) == (429, "quota_exceeded")
    await release(api, lease)
    await granted(api, claim)
    assert [(await advance_until_done(clock, stream, 2)).status_code for stream in streams] == [200, 200]
