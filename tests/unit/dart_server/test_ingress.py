"""The door: host names, origins, CORS, security headers, bodies that no parser should see, limits per key."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from farm_harness import Api, MakeApi, ManualClock, wait_until

from dart_server.errors import ApiError
from dart_server.http.app import create_app
from dart_server.http.ingress.bodies import MAX_DEPTH, find_json_problem
from dart_server.http.ingress.hosts import host_name
from dart_server.http.ingress.limits import RequestLimiter
from dart_server.keys import Scope

PAGE = "https://dashboard.example"


def browser(api: Api, host: str) -> httpx.AsyncClient:
    """A client that names this host, as one does that came over TCP."""
    transport = httpx.ASGITransport(create_app(api.farm), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}")


@pytest.mark.parametrize("host", ["localhost:8700", "127.0.0.1:8700", "[::1]:8700", "10.1.2.3:80", "farm.example:8700"])
async def test_hosts_of_the_farm_are_served(make_api: MakeApi, host: str) -> None:
    api = await make_api(allowed_hosts=("farm.example",))
    async with browser(api, host) as client:
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize("host", ["evil.example:8700", "localhost.evil.example:8700", "127.0.0.1.evil.example:81"])
async def test_a_name_that_is_not_the_farms_is_refused(make_api: MakeApi, host: str) -> None:
    api = await make_api(allowed_hosts=("farm.example",))
    async with browser(api, host) as client:
        reply = await client.get("/healthz")
    assert (reply.status_code, reply.json()["error"]) == (403, "forbidden")
    assert "--allow-host" in reply.json()["hint"]


@pytest.mark.parametrize("text", ["a:b:c", "[", "[::1", "\x00", "é:1"])
def test_odd_hosts_are_no_error(text: str) -> None:
    assert isinstance(host_name(text), str)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:9999", "nonsense"])
async def test_foreign_pages_change_nothing(api: Api, origin: str) -> None:
    body = {"client_request_id": "from-a-page"}
    reply = await api.call("POST", "/v1/leases", json=body, headers={"origin": origin})
    assert (reply.status_code, reply.json()["error"]) == (403, "forbidden")
    assert api.farm.leases.active == []
    reply = await api.call("GET", "/v1/farm", headers={"origin": origin})
    assert reply.status_code == 200
    assert "access-control-allow-origin" not in reply.headers, "a page cannot read it"
    reply = await api.call("OPTIONS", "/v1/leases", headers={"origin": origin, "access-control-request-method": "POST"})
    assert reply.status_code == 405
    assert "access-control-allow-origin" not in reply.headers


async def test_the_farms_own_pages_and_named_origins_may_call(make_api: MakeApi) -> None:
    api = await make_api(cors_origins=(PAGE,))
    body = {"client_request_id": "from-a-page"}
    assert (await api.call("POST", "/v1/leases", json=body, headers={"origin": "http://farm"})).status_code == 200
    reply = await api.call("POST", "/v1/leases", json=body, headers={"origin": PAGE})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, PAGE)
    asked = {"origin": PAGE, "access-control-request-method": "POST"}
    reply = await api.client.options("/v1/leases", headers=asked)
    assert reply.status_code == 204
    assert "X-Dart-Fencing-Token" in reply.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in reply.headers
    reply = await api.call("GET", "/v1/farm", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in reply.headers
    assert reply.headers["vary"] == "Origin"


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/v1/farm", "/metrics", "/openapi.json"])
async def test_every_answer_is_dressed(api: Api, path: str) -> None:
    headers = (await api.call("GET", path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert "strict-transport-security" not in headers


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * (MAX_DEPTH + 1), "nested"),
        (b'{"a":' * 10_000, "nested"),
        (b'{"n": ' + b"9" * 5000 + b"}", "digits"),
        (rb'{"t": "\ud800"}', "surrogate"),
        (rb'{"t": "\udc00\ud800"}', "surrogate"),
        (rb'{"t": "\ud83d x \ude00"}', "surrogate"),
    ],
)
def test_bodies_that_no_parser_should_see(body: bytes, words: str) -> None:
    assert words in (find_json_problem(body) or "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json at all [[[[",
        json.dumps({"t": "[{" * 5000}).encode(),
        json.dumps({"t": "9" * 5000, "quote": '\\" [ \\\\'}).encode(),
        json.dumps({"t": "\U0001f600 \\ud800"}).encode(),
        json.dumps([[1, {"a": [2]}]] * 1000).encode(),
    ],
)
def test_ordinary_bodies_pass(body: bytes) -> None:
    assert find_json_problem(body) is None


async def test_such_bodies_are_refused_at_the_door(api: Api) -> None:
    for content in (rb'{"client_request_id": "\ud800-eight"}', b"[" * 100_000, b'{"ttl_s": ' + b"9" * 5000 + b"}"):
        reply = await api.call("POST", "/v1/leases", content=content, headers={"content-type": "application/json"})
        assert (reply.status_code, reply.json()["error"]) == (422, "invalid")


async def test_a_chunked_body_has_the_same_limit(make_api: MakeApi) -> None:
    api = await make_api(json_body_limit_bytes=2000)

    async def chunks():  # type: ignore[no-untyped-def]
        for _ in range(10):
            yield b" " * 500

    reply = await api.call("POST", "/v1/leases", content=chunks(), headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]) == (413, "invalid")


@pytest.mark.parametrize("path", ["/v1/leases/%00", "/v1/leases/a%0ab", "/v1/events?after=%00"])
async def test_addresses_have_no_control_characters(api: Api, path: str) -> None:
    reply = await api.call("GET", path)
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")


@pytest.mark.parametrize("headers", [{f"x-{n}": "a" for n in range(200)}, {"x-long": "a" * 40_000}])
async def test_heads_have_a_limit(api: Api, headers: dict[str, str]) -> None:
    reply = await api.call("GET", "/healthz", headers=headers)
    assert (reply.status_code, reply.json()["error"]) == (431, "invalid")


@pytest.mark.parametrize("fencing_token", ["²", "9" * 5000, "-1", "1e3", " ", "0x1"])
async def test_a_fencing_token_is_a_number(api: Api, fencing_token: str) -> None:
    lease = await api.create_lease()
    headers = [
        (b"authorization", f"Bearer {api.key}".encode()),
        (b"x-dart-lease-token", lease["token"].encode()),
        (b"x-dart-fencing-token", fencing_token.encode("latin-1")),
    ]
    reply = await api.client.get(f"/v1/leases/{lease['lease_id']}/screenshot", headers=headers)
    assert (reply.status_code, reply.json()["error"]) == (422, "invalid")


def limits(clock: ManualClock, **given: float) -> RequestLimiter:
    usual = {"requests_per_key": 2, "websockets_per_key": 1, "streams": 2, "requests_per_s": 5}
    return RequestLimiter(clock, **{**usual, "nbytes_per_key": 10, "nbytes": 15, **given})  # type: ignore[arg-type]


def refused(limits: RequestLimiter, key: str, *, stream: bool = False, unlimited: bool = False) -> bool:
    try:
        limits.acquire(key, stream=stream, unlimited=unlimited)
    except ApiError as error:
        return error.status == 429
    return False


async def test_requests_under_way_are_limited_by_key(clock: ManualClock) -> None:
    counted = limits(clock)
    active_requests = [counted.acquire("a", stream=False, unlimited=False) for _ in range(2)]
    assert refused(counted, "a")
    assert not refused(counted, "b"), "another key is not touched"
    assert not refused(counted, "a", unlimited=True)
    counted.release(active_requests[0])
    assert refused(counted, "a"), "the unlimited one counts"


async def test_websockets_are_limited_by_key_and_in_all(clock: ManualClock) -> None:
    counted = limits(clock)
    active_request = counted.acquire("a", stream=True, unlimited=False)
    assert refused(counted, "a", stream=True)
    assert not refused(counted, "b", stream=True)
    assert refused(counted, "c", stream=True), "two in all"
    counted.release(active_request)
    assert not refused(counted, "c", stream=True)


async def test_requests_per_second_are_limited_by_key(clock: ManualClock) -> None:
    counted = limits(clock, requests_per_key=1000)
    assert [refused(counted, "a") for _ in range(12)] == [False] * 10 + [True] * 2
    await clock.advance(1.0)
    assert [refused(counted, "a") for _ in range(6)] == [False] * 5 + [True]


async def test_what_is_over_a_limit_hears_when_to_come_again(make_api: MakeApi) -> None:
    api = await make_api(max_requests_per_key=1, max_desktops=1)
    await api.create_lease()
    tenant = await api.farm.keys.add("tenant", Scope.LEASE)
    headers = {"authorization": f"Bearer {tenant}"}
    waiting = asyncio.ensure_future(
        api.client.post("/v1/leases", json={"client_request_id": "waits-for-one", "wait_s": 60}, headers=headers)
    )
    await wait_until(lambda: api.farm.pool.queue.waiting == 1)
    reply = await api.client.get("/v1/farm", headers=headers)
    assert (reply.status_code, reply.json()["error"]) == (429, "too_many_requests")
    assert reply.headers["retry-after"] == "1"
    assert (await api.call("GET", "/v1/farm")).status_code == 200, "others are served"
    waiting.cancel()
    await asyncio.wait({waiting})
    await wait_until(lambda: api.farm.pool.queue.waiting == 0)
    assert (await api.client.get("/v1/farm", headers=headers)).status_code == 200
