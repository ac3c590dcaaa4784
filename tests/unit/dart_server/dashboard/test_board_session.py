"""Log-in to the page: the cookie, its end, origins and the session's token."""

from __future__ import annotations

import pytest
from dashboard_pages import HOST, Page
from farm_harness import Api, ManualClock

from dart_server.dashboard.sessions import (
    IDLE_TIMEOUT_S,
    MAX_SESSIONS,
    MAX_SESSIONS_PER_KEY,
    SESSION_TTL_S,
    Sessions,
    check_origin,
)
from dart_server.errors import ApiError
from dart_server.keys import Scope


async def test_a_key_is_traded_for_a_cookie_that_scripts_and_other_sites_cannot_use(api: Api, page: Page) -> None:
    assert (await page.get("/session")).json() is None
    reply = await page.log_in(api.key)
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert f"Max-Age={int(SESSION_TTL_S)}" in cookie
    assert api.key not in cookie + reply.text
    said = (await page.get("/session")).json()
    assert (said["name"], said["scope"]) == ("admin", "admin")


async def test_farms_of_one_host_do_not_share_a_cookie(api: Api, clock: ManualClock) -> None:
    one, other = (Sessions(api.farm.keys, clock, place) for place in ("/srv/one", "/srv/other"))
    cookie, _, _ = await one.log_in(api.key)
    sent = {one.cookie_name(secure=False): cookie}
    assert one.cookie_in(sent, secure=False) == cookie
    assert other.cookie_in(sent, secure=False) is None
    assert one.cookie_in(sent, secure=True) is None, "what was set without TLS opens nothing over TLS"
    assert Sessions(api.farm.keys, clock, "/srv/one").cookie_in(sent, secure=False) == cookie, "after a restart, too"


async def test_over_tls_the_cookie_has_a_name_that_only_tls_can_set(api: Api, page: Page) -> None:
    secure = f"https://{HOST}"
    reply = await page.client.post(f"{secure}/dashboard/api/login", json={"key": api.key}, headers={"origin": secure})
    cookie = reply.headers["set-cookie"]
    assert cookie.startswith("__Host-dart_session_")
    assert "; Path=/;" in cookie
    assert "Secure" in cookie
    name, value = cookie.split(";")[0].split("=", 1)
    page.client.cookies.clear()
    for sent, allowed in ((name, 200), (name.removeprefix("__Host-"), 401)):
        answer = await page.client.get(f"{secure}/dashboard/api/overview", headers={"cookie": f"{sent}={value}"})
        assert answer.status_code == allowed


async def test_a_wrong_key_gets_no_cookie(page: Page) -> None:
    reply = await page.log_in("dart_wrong")
    assert reply.status_code == 401
    assert "set-cookie" not in reply.headers
    assert (await page.get("/overview")).status_code == 401


async def test_log_out_ends_the_session_and_not_the_key(api: Api, admin: Page) -> None:
    cookies = dict(admin.client.cookies)
    assert (await admin.change("POST", "/logout")).status_code == 200
    admin.client.cookies.update(cookies)
    assert (await admin.get("/overview")).status_code == 401
    assert (await admin.log_in(api.key)).status_code == 200


async def test_a_session_ends_when_nobody_uses_it_and_after_its_day(api: Api, admin: Page, clock: ManualClock) -> None:
    clock.now += IDLE_TIMEOUT_S - 1
    assert (await admin.get("/overview")).status_code == 200
    clock.now += IDLE_TIMEOUT_S + 1
    assert (await admin.get("/overview")).status_code == 401
    await admin.log_in(api.key)
    used_s = 0.0
    while used_s < SESSION_TTL_S - IDLE_TIMEOUT_S:
        clock.now += IDLE_TIMEOUT_S / 2
        used_s += IDLE_TIMEOUT_S / 2
        assert (await admin.get("/session")).json() is not None
    clock.now += IDLE_TIMEOUT_S / 2
    await admin.get("/session")
    clock.now += IDLE_TIMEOUT_S / 2
    assert (await admin.get("/session")).json() is None


async def test_requests_of_other_pages_change_nothing(api: Api, admin: Page) -> None:
    lease = await api.create_lease(shape={"resolution": [320, 240]})
    path = f"/leases/{lease['lease_id']}/release"
    for origin in ("http://evil.example", "null", f"http://{HOST}.evil.example"):
        assert (await admin.change("POST", path, headers={"origin": origin})).status_code == 403, origin
    assert (await admin.change("POST", path, headers={"x-dart-csrf": "csrf_guess"})).status_code == 403
    assert (await admin.change("POST", path, headers={"x-dart-csrf": ""})).status_code == 403
    assert len(api.farm.leases.active) == 1
    assert (await admin.change("POST", path)).status_code == 200
    assert api.farm.leases.active == []


async def test_a_bearer_key_is_no_session(api: Api, page: Page) -> None:
    reply = await page.client.get("/dashboard/api/overview", headers={"authorization": f"Bearer {api.key}"})
    assert reply.status_code == 401


async def test_the_number_of_sessions_is_bounded(api: Api, clock: ManualClock) -> None:
    sessions = Sessions(api.farm.keys, clock)
    first, *_ = await sessions.log_in(api.key)
    tenants = [await api.farm.keys.add(f"tenant {number}", Scope.LEASE) for number in range(MAX_SESSIONS - 1)]
    for tenant in tenants:
        await sessions.log_in(tenant)
    assert len(sessions) == MAX_SESSIONS
    last, *_ = await sessions.log_in(api.key)
    assert len(sessions) == MAX_SESSIONS
    with pytest.raises(ApiError, match="has ended"):
        await sessions.require(first)
    assert (await sessions.require(last))[1].scope.value == "admin"


async def test_who_logs_in_again_and_again_ends_only_its_own_sessions(api: Api, clock: ManualClock) -> None:
    sessions = Sessions(api.farm.keys, clock)
    admins, *_ = await sessions.log_in(api.key)
    tenant = await api.farm.keys.add("tenant", Scope.LEASE)
    first, session, _ = await sessions.log_in(tenant)
    for _ in range(MAX_SESSIONS):
        last, *_ = await sessions.log_in(tenant)
    assert len(sessions) == 1 + MAX_SESSIONS_PER_KEY
    assert session.ended.is_set()
    with pytest.raises(ApiError, match="has ended"):
        await sessions.require(first)
    assert (await sessions.require(admins))[1].scope is Scope.ADMIN
    assert (await sessions.require(last))[1].scope is Scope.LEASE


@pytest.mark.parametrize("origin", ["", "null", "http://", "http://[", "ftp://farm:1", "http://farm:2"])
def test_an_origin_is_this_farm_or_refused(origin: str) -> None:
    with pytest.raises(ApiError):
        check_origin({"origin": origin, "host": "farm:1"})
    assert check_origin({"origin": "https://farm:1", "host": "farm:1"}) == "https"
