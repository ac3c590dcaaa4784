"""The pace of claims: few at a time, in order, and nobody who waits for something else holds the others up."""

from __future__ import annotations

import asyncio
import time

from farm_harness import Api, MakeApi, wait_until

from dart_server.ids import new_id
from dart_server.leases.admission_limiter import MAX_CONCURRENT_CLAIMS, AdmissionLimiter, Permit


async def begin(pace: AdmissionLimiter, name: str, begun: dict[str, Permit]) -> None:
    begun[name] = await pace.acquire()


async def test_so_many_begin_and_the_others_follow_in_their_order() -> None:
    pace, begun = AdmissionLimiter(2), dict[str, Permit]()
    tasks = [asyncio.create_task(begin(pace, name, begun)) for name in "abcde"]
    await asyncio.sleep(0)
    assert list(begun) == ["a", "b"]
    begun["b"].release()
    begun["b"].release()
    await asyncio.wait(tasks, timeout=0.01)
    assert list(begun) == ["a", "b", "c"], "a turn that ends twice is passed on once"
    tasks[3].cancel()
    begun["a"].release()
    await asyncio.wait(tasks, timeout=0.01)
    assert list(begun) == ["a", "b", "c", "e"], "who has left the line is passed over"


async def test_a_turn_given_to_one_that_leaves_in_the_same_moment_is_passed_on() -> None:
    pace, begun = AdmissionLimiter(1), dict[str, Permit]()
    first = await pace.acquire()
    second, third = (asyncio.create_task(begin(pace, name, begun)) for name in "bc")
    await asyncio.sleep(0)
    first.release()
    second.cancel()
    await asyncio.wait({second, third}, timeout=1.0)
    assert second.cancelled()
    assert list(begun) == ["c"]
    begun["c"].release()
    await asyncio.wait_for(pace.acquire(), 1.0)


async def claim(api: Api, name: str) -> int:
    body = {"client_request_id": name, "wait_s": 600}
    return (await api.call("POST", "/v1/leases", json=body)).status_code


async def test_claims_that_wait_for_a_desktop_hold_no_other_claim_up(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=1)
    assert await claim(api, "the-only-one") == 200
    waiting = [asyncio.create_task(claim(api, f"waits-{number:03}")) for number in range(2 * MAX_CONCURRENT_CLAIMS)]
    await wait_until(lambda: api.farm.pool.queue.waiting == 2 * MAX_CONCURRENT_CLAIMS)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_refused_and_repeated_claims_keep_no_turn(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=2)
    assert await claim(api, "claimed-once") == 200
    for _ in range(2 * MAX_CONCURRENT_CLAIMS):
        assert await claim(api, "claimed-once") == 200
    for number in range(2 * MAX_CONCURRENT_CLAIMS):
        body = {"client_request_id": f"refused-{number:03}", "snapshot_id": "snap_none", "wait_s": 0}
        assert (await api.call("POST", "/v1/leases", json=body)).status_code == 404
    assert await claim(api, "claimed-after") == 200


def test_ids_grow_and_tell_when_they_were_made() -> None:
    before_ms = time.time_ns() // 1_000_000
    found = [new_id("lease") for _ in range(5000)]
    assert found == sorted(set(found))
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    made_ms = 0
    for digit in found[0].removeprefix("lease_")[:10]:
        made_ms = made_ms * 32 + digits.index(digit)
    assert before_ms <= made_ms <= time.time_ns() // 1_000_000
    assert {len(each) for each in found} == {len("lease_") + 26}
