"""Looks into desktops from outside: who is told what when a look does not end, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from farm_fake import FakeProvider
from farm_harness import Api, MakeApi, wait_until

from dart_server.guest import access
from dart_server.keys import Scope
from dart_server.providers.base import Capabilities, HostFault

STAT = {"queries": [{"kind": "stat", "path": "/"}]}


class Looks:
    """What the provider does when it is asked: `answers` by desktop, else it hangs until `end`."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | Exception] = {}
        self.asked: list[str] = []
        self.end = asyncio.Event()

    async def evidence(self, _provider: FakeProvider, desktop_id: str, _queries: Sequence[Mapping[str, Any]]) -> bytes:
        self.asked.append(desktop_id)
        answer = self.answers.get(desktop_id)
        if answer is None:
            await self.end.wait()
            return b"late"
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
async def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()

    async def evidence(self: FakeProvider, desktop_id: str, queries: Sequence[Mapping[str, Any]]) -> bytes:
        return await looks.evidence(self, desktop_id, queries)

    monkeypatch.setattr(FakeProvider, "evidence", evidence, raising=False)
    capable = Capabilities(True, True, True, tunnel=True, freeze=False, evidence="host", limits=frozenset())
    monkeypatch.setattr(FakeProvider, "capabilities", property(lambda _self: capable))
    return looks


async def look(api: Api, lease: dict[str, Any]) -> tuple[int, dict[str, Any] | bytes]:
    reply = await api.call("POST", f"/v1/leases/{lease['lease_id']}/evidence", lease=lease, json=STAT)
    return reply.status_code, reply.content if reply.status_code == 200 else reply.json()


async def test_a_look_that_does_not_end_is_the_doing_of_a_desktop_that_is_well(
    api: Api, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "EVIDENCE_LIMIT_S", 0.05)
    lease = await api.create_lease()
    status, said = await look(api, lease)
    assert (status, said["error"]) == (502, "guest_error")  # type: ignore[index, call-overload]
    looks.answers[lease["desktop_id"]] = b"seen"
    assert await look(api, lease) == (200, b"seen")


async def test_a_look_that_the_host_fails_at_is_the_hosts(api: Api, looks: Looks) -> None:
    lease = await api.create_lease()
    looks.answers[lease["desktop_id"]] = HostFault("no root helper")
    status, said = await look(api, lease)
    assert (status, said["error"]) == (503, "host_fault")  # type: ignore[index, call-overload]


async def test_looks_that_do_not_end_keep_no_other_owner_waiting(make_api: MakeApi, looks: Looks) -> None:
    api = await make_api(max_desktops=access.PARALLEL_LOOKS + 3)
    one, other = [Api(api.farm, api.client, await api.farm.keys.add(name, Scope.LEASE)) for name in ("one", "other")]
    leases = [await one.create_lease() for _ in range(access.PARALLEL_LOOKS + 2)]
    theirs = await other.create_lease()
    looks.answers[theirs["desktop_id"]] = b"seen"
    slow = [asyncio.ensure_future(look(one, lease)) for lease in leases]
    await wait_until(lambda: len(looks.asked) == access.PARALLEL_LOOKS)
    quick = asyncio.ensure_future(look(other, theirs))
    await asyncio.sleep(0.05)
    looks.end.set()
    assert await quick == (200, b"seen")
    assert looks.asked.index(theirs["desktop_id"]) <= access.PARALLEL_LOOKS + 1, "before the last of the other owner"
    assert [status for status, _ in await asyncio.gather(*slow)] == [200] * len(leases)


async def test_an_answer_that_never_fits_is_the_desktops(make_api: MakeApi, looks: Looks) -> None:
    api = await make_api(
        file_body_limit_bytes=1 << 19, max_file_bytes_in_flight_per_key=1 << 20, max_file_bytes_in_flight=1 << 20
    )
    tenant = Api(api.farm, api.client, await api.farm.keys.add("tenant", Scope.LEASE))
    lease = await tenant.create_lease()
    looks.answers[lease["desktop_id"]] = bytes((1 << 20) + 1)
    status, said = await look(tenant, lease)
    assert (status, said["error"]) == (413, "guest_error")  # type: ignore[index, call-overload]
    assert api.farm.limits.reserved_bytes == 0
    looks.answers[lease["desktop_id"]] = b"seen"
    assert await look(tenant, lease) == (200, b"seen")
