"""Requests without a valid key: each address has a limit, and who has a key is not held up by others."""

from __future__ import annotations

import pytest
from farm_harness import Api, MakeApi, ManualClock

from dart_server.errors import ApiError
from dart_server.http.ingress.limits import ALL_PEERS, MAX_PEERS, PEER_BURST_S, PeerLimiter
from dart_server.keys import Scope
from dart_server.wire import ClaimState

PER_S = 2.0
BURST = int(PER_S * PEER_BURST_S)


async def status(api: Api, path: str = "/v1/farm", key: str = "dart_guess") -> int:
    return (await api.client.get(path, headers={"authorization": f"Bearer {key}"})).status_code


async def test_guessing_is_refused_before_any_look_at_the_database(
    make_api: MakeApi, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api(requests_per_s_without_key=PER_S)
    assert await status(api, key=api.key) == 200, "a valid key is given back what it paid"
    asked = [await status(api, key=f"dart_{number}") for number in range(BURST)]
    assert asked == [401] * BURST
    looked: list[str] = []
    monkeypatch.setattr(api.farm.repository, "key_by_hash", looked.append)
    for path in ("/v1/farm", "/healthz", "/dashboard", "/v1/leases/x/step", "/nowhere"):
        reply = await api.client.get(path, headers={"authorization": "Bearer dart_more"})
        assert reply.status_code == 429
        assert reply.json()["error"] == "too_many_requests"
        assert int(reply.headers["retry-after"]) >= 1
    assert looked == []
    assert await status(api, key=api.key) == 200, "a key that is known is not held up"
    clock.now += 1.0
    monkeypatch.undo()
    assert [await status(api) for _ in range(3)] == [401, 401, 429]


async def test_many_requests_with_a_key_cost_nothing(make_api: MakeApi) -> None:
    api = await make_api(requests_per_s_without_key=PER_S)
    assert {await status(api, key=api.key) for _ in range(3 * BURST)} == {200}
    assert await status(api) == 401


async def test_all_addresses_together_have_a_limit_and_few_are_remembered(clock: ManualClock) -> None:
    limiter = PeerLimiter(clock, requests_per_s=PER_S)
    for number in range(ALL_PEERS * BURST):
        limiter.acquire(f"2001:db8:{number:x}::1")
    with pytest.raises(ApiError):
        limiter.acquire("2001:db8:ffff::1")
    clock.now += 10_000
    for number in range(MAX_PEERS + 100):
        clock.now += 1
        limiter.acquire(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(limiter._peers) == MAX_PEERS


async def test_one_address_counts_as_one_however_it_is_written(clock: ManualClock) -> None:
    limiter = PeerLimiter(clock, requests_per_s=PER_S)
    assert limiter.acquire("::ffff:10.0.0.1") == limiter.acquire("10.0.0.1")
    assert limiter.acquire("2001:db8::1") == limiter.acquire("2001:db8::ffff:1")
    assert limiter.acquire(None) == "socket"


async def test_a_key_without_a_number_of_leases_has_the_farms(make_api: MakeApi) -> None:
    api = await make_api(max_leases_per_key=1, max_desktops=4)
    tenant = Api(api.farm, api.client, await api.farm.keys.add("tenant", Scope.LEASE))
    await tenant.create_lease(ttl_s=1000)
    body = {"client_request_id": "second-claim", "deadline_s": 60}
    claim = (await tenant.call("POST", "/v1/claims", json=body)).json()
    assert (claim["state"], claim["waiting_for"]) == (ClaimState.WAITING, "quota")
    for _ in range(2):
        await api.create_lease(ttl_s=1000)
