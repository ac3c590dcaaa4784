"""What files on their way take of the farm's memory: bounded for a key and in all, given back at the end; large answers go in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from farm_harness import Api, MakeApi, wait_until
from pydantic import ValidationError

from dart_server.errors import ApiError
from dart_server.http.routes.guest import PART_NBYTES
from dart_server.keys import Scope
from dart_server.settings import FarmSettings

KIB = 1024
SMALL = {
    "file_body_limit_bytes": 600 * KIB,
    "max_file_bytes_in_flight_per_key": 1024 * KIB,
    "max_file_bytes_in_flight": 1536 * KIB,
}


async def put(api: Api, lease: dict[str, Any], content: bytes | AsyncIterator[bytes]) -> httpx.Response:
    path = f"/v1/leases/{lease['lease_id']}/files"
    return await api.call("PUT", path, lease=lease, params={"path": "/a"}, content=content)


class Slowly:
    """A body of which the last byte comes when it is told to."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self.end = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield bytes(self._nbytes - 1)
        await self.end.wait()
        yield b"."


async def test_files_on_their_way_have_room_for_each_key_and_in_all(make_api: MakeApi) -> None:
    api = await make_api(max_desktops=3, **SMALL)
    one, other = [Api(api.farm, api.client, await api.farm.keys.add(name, Scope.LEASE)) for name in ("one", "other")]
    lease, others = await one.create_lease(), await other.create_lease()
    limits = api.farm.limits
    slow = [Slowly(500 * KIB), Slowly(500 * KIB)]
    under_way = [asyncio.ensure_future(put(one, lease, body)) for body in slow]
    await wait_until(lambda: limits.reserved_bytes >= 1000 * KIB - 2)
    refused = await put(one, lease, bytes(100 * KIB))
    assert (refused.status_code, refused.json()["error"]) == (429, "too_many_requests")
    assert "retry-after" in refused.headers
    assert (await put(other, others, bytes(500 * KIB))).status_code == 204, "another's room is its own"
    theirs = Slowly(500 * KIB)
    under_way.append(asyncio.ensure_future(put(other, others, theirs)))
    await wait_until(lambda: limits.reserved_bytes >= 1500 * KIB - 3)
    full = await put(other, others, bytes(100 * KIB))
    assert "the farm has" in full.json()["detail"]
    for body in (*slow, theirs):
        body.end.set()
    assert [(await reply).status_code for reply in under_way] == [204] * 3
    assert limits.reserved_bytes == 0
    assert (await put(one, lease, bytes(500 * KIB))).status_code == 204


async def test_what_a_desktop_answers_with_is_counted_too(make_api: MakeApi) -> None:
    api = await make_api(**SMALL)
    tenant = Api(api.farm, api.client, await api.farm.keys.add("tenant", Scope.LEASE))
    lease = await tenant.create_lease()
    assert (await put(tenant, lease, bytes(600 * KIB))).status_code == 204
    body = Slowly(500 * KIB)
    under_way = asyncio.ensure_future(put(tenant, lease, body))
    await wait_until(lambda: api.farm.limits.reserved_bytes > 400 * KIB)
    read = f"/v1/leases/{lease['lease_id']}/files"
    refused = await tenant.call("GET", read, lease=lease, params={"path": "/a"})
    assert (refused.status_code, refused.json()["error"]) == (429, "too_many_requests")
    body.end.set()
    assert (await under_way).status_code == 204
    assert api.farm.limits.reserved_bytes == 0


async def test_a_large_file_goes_out_in_parts_and_whole(api: Api) -> None:
    lease = await api.create_lease()
    content = bytes(range(256)) * (3 * PART_NBYTES // 256) + b"end"
    assert (await put(api, lease, content)).status_code == 204
    read = await api.call("GET", f"/v1/leases/{lease['lease_id']}/files", lease=lease, params={"path": "/a"})
    assert read.content == content
    assert (read.headers["content-length"], read.headers["content-type"]) == (
        str(len(content)),
        "application/octet-stream",
    )
    assert api.farm.limits.reserved_bytes == 0


async def test_what_never_fits_is_not_to_be_tried_again(make_api: MakeApi) -> None:
    api = await make_api(
        file_body_limit_bytes=600 * KIB, max_file_bytes_in_flight_per_key=600 * KIB, max_file_bytes_in_flight=1536 * KIB
    )
    active_request = api.farm.limits.acquire("key_1", stream=False, unlimited=False)
    with pytest.raises(ApiError, match="would hold 614401 bytes, and there is room for 614400") as refused:
        api.farm.limits.reserve_bytes(active_request, 600 * KIB + 1)
    assert refused.value.status == 413
    api.farm.limits.release(active_request)


def test_a_larger_file_makes_the_rooms_larger() -> None:
    settings = FarmSettings(provider="sim", file_body_limit_bytes=3 * 1024**3)
    assert settings.max_file_bytes_in_flight_per_key == 6 * 1024**3
    assert settings.max_file_bytes_in_flight == 24 * 1024**3


def test_one_file_fits() -> None:
    with pytest.raises(ValidationError, match="each is at most the next"):
        FarmSettings(provider="sim", max_file_bytes_in_flight_per_key=1024)
