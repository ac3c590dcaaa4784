"""Requests about claims that several test files make."""

from __future__ import annotations

import asyncio
from typing import Any

from farm_harness import Api, wait_until

from dart_server.keys import Scope


async def key_for(api: Api, name: str, **quota: Any) -> Api:
    """The same farm as another key sees it."""
    from dart_server.ids import hash_secret, new_id, new_secret

    secret = new_secret("dart")
    await api.farm.repository.add_key(new_id("key"), name, hash_secret(secret), Scope.LEASE.value, **quota)
    return Api(api.farm, api.client, secret)


async def submit(api: Api, name: str = "claim-0001", **fields: Any) -> dict[str, Any]:
    reply = await api.call("POST", "/v1/claims", json={"client_request_id": name, **fields})
    assert reply.status_code == 202, reply.text
    claim: dict[str, Any] = reply.json()
    return claim


async def look(api: Api, claim: dict[str, Any], wait_s: float = 0) -> dict[str, Any]:
    reply = await api.call("GET", f"/v1/claims/{claim['claim_id']}", params={"wait_s": wait_s})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def granted(api: Api, claim: dict[str, Any]) -> dict[str, Any]:
    """The claim once it has ended, which must be by a grant."""
    found = claim
    async with asyncio.timeout(10):
        while found["state"] == "waiting":
            found = await look(api, claim)
            await asyncio.sleep(0.002)
    assert found["state"] == "granted", found
    return found


async def release(api: Api, lease: dict[str, Any]) -> None:
    assert (await api.call("DELETE", f"/v1/leases/{lease['lease_id']}")).status_code == 204


async def nothing_is_left(api: Api) -> None:
    """No lease, nobody waits, no desktop, and no key holds anything."""
    await wait_until(lambda: not api.farm.pool.slots and not api.farm.leases.active and not api.farm.pool.queue.waiting)
    assert all(api.farm.pool.queue.fair_queue.held(owner) == 0 for owner in api.farm.pool.queue.fair_queue._keys)
