"""Every request ends: what hangs is given up with `timed_out`, an upload has its time, streams end themselves, steps are capped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from farm_fake import FakeProvider
from farm_harness import Api, ManualClock

from dart_server import wire
from dart_server.http import middleware
from dart_server.http.app import create_app
from dart_server.http.middleware import (
    DESKTOP_REQUEST_TIMEOUT_S,
    EVENT_STREAM_TIMEOUT_S,
    SHORT_REQUEST_TIMEOUT_S,
    request_timeout_of,
)
from dart_server.http.routes.claims import MAX_POLL_S
from dart_server.http.routes.guest import PART_NBYTES
from dart_server.leases import claims
from dart_server.wire.desktop import MAX_STEP_S, step_limit_s

QUICK = {"farm", "keys", "events"}


async def test_a_request_that_hangs_is_given_up(
    api: Api, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await api.create_lease(ttl_s=3600)
    given_up = asyncio.Event()

    async def hangs(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    monkeypatch.setattr(api.farm.leases, "reset", hangs)
    monkeypatch.setattr(middleware, "DESKTOP_REQUEST_TIMEOUT_S", 0.05)
    reply = await asyncio.wait_for(api.call("POST", f"/v1/leases/{lease['lease_id']}/reset", lease=lease, json={}), 5)
    assert (reply.status_code, reply.json()["error"]) == (504, "timed_out")
    assert given_up.is_set(), "its work has ended"
    assert "given up" in caplog.text
    assert (await api.call("GET", "/v1/farm")).status_code == 200
    key_id = (await api.call("GET", "/v1/keys")).json()[0]["key_id"]
    assert api.farm.limits.active_count(key_id) == 0


async def test_a_body_that_goes_on_coming_is_not_cut_short(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await api.create_lease(ttl_s=3600)
    monkeypatch.setattr(middleware, "DESKTOP_REQUEST_TIMEOUT_S", 0.2)

    async def slowly():  # type: ignore[no-untyped-def]
        for _ in range(6):
            await asyncio.sleep(0.08)
            yield b"part"

    path = f"/v1/leases/{lease['lease_id']}/files?path=/home/user/x"
    reply = await api.call("PUT", path, lease=lease, content=slowly())
    assert reply.status_code == 204, reply.text


async def test_an_answer_that_goes_on_being_taken_is_not_cut_short(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await api.create_lease(ttl_s=3600)
    content = bytes(3 * PART_NBYTES)
    path = f"/v1/leases/{lease['lease_id']}/files?path=/home/user/x"
    assert (await api.call("PUT", path, lease=lease, content=content)).status_code == 204
    monkeypatch.setattr(middleware, "DESKTOP_REQUEST_TIMEOUT_S", 1.0)
    headers = [
        (b"host", b"localhost"),
        (b"authorization", f"Bearer {api.key}".encode()),
        (wire.LEASE_TOKEN_HEADER.lower().encode(), lease["token"].encode()),
        (wire.FENCING_TOKEN_HEADER.lower().encode(), str(lease["fencing_token"]).encode()),
    ]
    taken = 0

    async def send(message: Any) -> None:
        nonlocal taken
        taken += len(message.get("body", b""))
        await asyncio.sleep(0.6)  # a slow client, whose whole answer takes longer than the request may

    asked = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if not asked:
            await asyncio.Event().wait()
        return asked.pop()

    address, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": address,
        "raw_path": address.encode(),
        "query_string": query.encode(),
    }
    scope |= {"headers": headers, "scheme": "http", "server": ("localhost", 80), "http_version": "1.1"}
    await create_app(api.farm)(scope, receive, send)
    assert taken == len(content)


async def test_a_stream_of_events_ends_before_it_is_cut(api: Api, clock: ManualClock) -> None:
    for _ in range(2):
        await api.create_lease(ttl_s=3600)
    body = {"client_request_id": "waits-for-long", "deadline_s": 86_400}
    claim_id = (await api.call("POST", "/v1/claims", json=body)).json()["claim_id"]
    principal = await api.farm.keys.principal(f"Bearer {api.key}")
    events = api.farm.claims.events(api.farm.claims.find(claim_id, principal), principal)
    assert (await anext(events)) is not None
    clock.now += claims.EVENT_STREAM_TIMEOUT_S  # the next look is the last

    async def rest() -> list[claims.ClaimEvent | None]:
        return [event async for event in events]

    reading = asyncio.ensure_future(rest())
    async with asyncio.timeout(10):
        while not reading.done():
            await clock.advance(1.0)
    assert all(event is None for event in reading.result()), "the claim goes on waiting"


def test_which_time_a_route_has(api: Api) -> None:
    assert claims.EVENT_STREAM_TIMEOUT_S < EVENT_STREAM_TIMEOUT_S
    assert request_timeout_of("/v1/claims/claim_1/events") == EVENT_STREAM_TIMEOUT_S
    paths = create_app(api.farm).openapi()["paths"]
    quick = {path for path in paths if request_timeout_of(path) == SHORT_REQUEST_TIMEOUT_S}
    assert quick == {path for path in paths if path.split("/")[1] != "v1" or path.split("/")[2] in QUICK}
    assert MAX_POLL_S < DESKTOP_REQUEST_TIMEOUT_S, "who waits as long as one may is told so by its route"


def test_a_step_of_many_waits_is_capped() -> None:
    request = wire.StepRequest.model_validate({"events": [{"type": "wait", "ms": 60_000}] * 2000})
    assert step_limit_s(request) == MAX_STEP_S <= DESKTOP_REQUEST_TIMEOUT_S
    assert step_limit_s(wire.StepRequest()) < 60
