"""The end of a key is the end of what stands on it: leases and their desktops, WebSockets, sessions of the dashboard."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from farm_harness import Api, MakeApi, ManualClock, wait_until

from dart_server.errors import ApiError
from dart_server.http.app import create_app
from dart_server.http.middleware import KEY_ENDED_CLOSE_CODE
from dart_server.wire import LeaseState


async def tenant(api: Api, **fields: Any) -> tuple[str, Api]:
    """(key id, the farm as this new key sees it)."""
    made = (await api.call("POST", "/v1/keys", json={"name": "tenant", **fields})).json()
    return made["key_id"], Api(api.farm, api.client, made["secret"])


async def told(api: Api, lease_id: str) -> list[tuple[str, dict[str, Any]]]:
    history = (await api.call("GET", f"/v1/leases/{lease_id}/events")).json()
    return [(event["kind"], event["data"]) for event in history]


async def test_a_revoked_key_holds_no_lease(api: Api) -> None:
    key_id, mine = await tenant(api)
    lease, others = await mine.create_lease(ttl_s=3600), await api.create_lease(ttl_s=3600)
    assert (await api.call("DELETE", f"/v1/keys/{key_id}")).status_code == 204
    assert [left.lease_id for left in api.farm.leases.active] == [others["lease_id"]], (
        "before the answer, and no other's"
    )
    assert [slot.lease_id for slot in api.farm.pool.slots.values() if slot.lease_id] == [others["lease_id"]]
    assert (await api.call("GET", f"/v1/leases/{lease['lease_id']}")).json()["state"] == "expired"
    assert ("lease_expired", {"reason": "its key was revoked or has expired"}) in await told(api, lease["lease_id"])
    again = await api.create_lease(ttl_s=3600)
    assert again["lease_id"] != lease["lease_id"], "there is room for others at once"


async def test_an_expired_key_holds_no_lease(api: Api, clock: ManualClock) -> None:
    ends = datetime.fromtimestamp(clock.time() + 30, UTC)
    _, mine = await tenant(api, expires_at=ends.isoformat())
    lease = await mine.create_lease(ttl_s=3600)
    await clock.advance(29)
    assert len(api.farm.leases.active) == 1
    await clock.advance(2.5)
    await wait_until(lambda: not api.farm.leases.active)
    assert ("lease_expired", {"reason": "its key was revoked or has expired"}) in await told(api, lease["lease_id"])


async def test_a_key_that_was_revoked_while_no_farm_ran_holds_no_lease(make_api: MakeApi, clock: ManualClock) -> None:
    api = await make_api()
    key_id, mine = await tenant(api)
    await mine.create_lease(ttl_s=3600)
    api.farm.keys._known.clear()  # as after a restart: nobody has called with it yet
    await api.farm.repository.wait_committed(api.farm.repository.revoke_key(key_id))
    await clock.advance(api.farm.settings.tick_interval_s)
    await wait_until(lambda: not api.farm.leases.active)


async def test_the_channel_of_a_revoked_key_is_closed(api: Api) -> None:
    key_id, mine = await tenant(api)
    lease = await mine.create_lease(ttl_s=3600)
    sent: list[dict[str, Any]] = []
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    inbox.put_nowait({"type": "websocket.connect"})
    headers = {"authorization": f"Bearer {mine.key}", "x-dart-lease-token": lease["token"], "x-dart-fencing-token": "1"}
    scope = {
        "type": "websocket",
        "path": f"/v1/leases/{lease['lease_id']}/channel",
        "raw_path": b"",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "extensions": {"websocket.http.response": {}},
        "server": ("farm", None),
        "subprotocols": [],
    }

    async def send(message: Any) -> None:
        sent.append(message)

    served = asyncio.ensure_future(create_app(api.farm)(scope, inbox.get, send))
    await wait_until(lambda: bool(sent))
    assert sent[0]["type"] == "websocket.accept", sent
    await api.call("DELETE", f"/v1/keys/{key_id}")
    await asyncio.wait_for(served, 5)
    assert (sent[-1]["type"], sent[-1]["code"]) == ("websocket.close", KEY_ENDED_CLOSE_CODE)


async def test_a_gang_that_is_granted_while_its_key_ends_is_given_back(api: Api) -> None:
    key_id, mine = await tenant(api)
    one, other = await mine.create_lease(), await mine.create_lease()
    body = {"client_request_id": "a-gang-of-two", "count": 2, "deadline_s": 600}
    claim_id = (await mine.call("POST", "/v1/claims", json=body)).json()["claim_id"]
    for lease in (one, other):
        await mine.call("DELETE", f"/v1/leases/{lease['lease_id']}")
    await api.call("DELETE", f"/v1/keys/{key_id}")
    await wait_until(lambda: api.farm.pool.queue.waiting == 0 and not api.farm.leases.active)
    leases = await api.farm.repository.leases_of_claim(claim_id)
    assert all(lease.state is not LeaseState.ACTIVE for lease in leases)


async def test_sessions_of_a_revoked_key_end(api: Api) -> None:
    key_id, mine = await tenant(api)
    sessions = api.farm.dashboard.sessions
    cookie, session, _ = await sessions.log_in(mine.key)
    kept, *_ = await sessions.log_in(api.key)
    await api.call("DELETE", f"/v1/keys/{key_id}")
    assert session.ended.is_set()
    assert len(sessions) == 1
    assert (await sessions.require(kept))[1].scope.value == "admin"
    with pytest.raises(ApiError, match="has ended"):
        await sessions.require(cookie)
