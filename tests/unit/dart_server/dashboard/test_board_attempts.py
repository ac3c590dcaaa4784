"""Guessing keys on the page: few failures by address and in all, then the time until the next try; the right key costs nothing."""

from __future__ import annotations

import httpx
import pytest
from dashboard_pages import ORIGIN, Page
from farm_harness import Api, ManualClock

from dart_server.dashboard.attempts import (
    ADDRESS_BURST,
    ADDRESS_INTERVAL_S,
    ALL_BURST,
    MAX_ADDRESSES,
    LoginRateLimiter,
    network_of,
)
from dart_server.errors import ApiError
from dart_server.http.app import create_app


def refused(attempts: LoginRateLimiter, host: str | None) -> float | None:
    """Seconds to wait; None for a try that was let through, and fails."""
    try:
        attempts.acquire(host)
    except ApiError as error:
        return error.retry_after_s if error.status == 429 else -1.0
    return None


async def test_an_address_that_fails_is_told_to_wait(api: Api, page: Page, clock: ManualClock) -> None:
    assert [(await page.log_in("dart_wrong")).status_code for _ in range(ADDRESS_BURST)] == [401] * ADDRESS_BURST
    reply = await page.log_in(api.key)
    assert (reply.status_code, reply.json()["error"]) == (429, "too_many_requests")
    assert reply.headers["retry-after"] == str(int(ADDRESS_INTERVAL_S))
    assert "set-cookie" not in reply.headers
    transport = httpx.ASGITransport(create_app(api.farm), client=("10.9.8.7", 1))
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers={"origin": ORIGIN}) as other:
        assert (await Page(other).log_in(api.key)).status_code == 200, "another address is not held up"
    assert (await api.call("GET", "/v1/farm")).status_code == 200, "nor is the API"
    clock.now += ADDRESS_INTERVAL_S
    assert (await page.log_in(api.key)).status_code == 200


async def test_the_right_key_costs_nothing(api: Api, page: Page) -> None:
    assert [(await page.log_in(api.key)).status_code for _ in range(3 * ADDRESS_BURST)] == [200] * 3 * ADDRESS_BURST


def test_all_addresses_together_are_limited_except_those_that_logged_in(clock: ManualClock) -> None:
    attempts = LoginRateLimiter(clock)
    attempts.succeeded(attempts.acquire("10.0.0.1"))
    assert [refused(attempts, f"10.1.0.{n}") for n in range(ALL_BURST)] == [None] * ALL_BURST
    assert refused(attempts, "10.2.0.1") == pytest.approx(1.0)
    assert refused(attempts, "10.0.0.1") is None, "who logged in before may again"


def test_what_is_remembered_is_bounded_and_forgetting_opens_nothing(clock: ManualClock) -> None:
    attempts = LoginRateLimiter(clock)
    for number in range(MAX_ADDRESSES + 10):
        refused(attempts, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(attempts._addresses) == MAX_ADDRESSES
    assert refused(attempts, "10.0.0.0") is not None, "forgotten, but the farm's own count is used up"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        (None, "", True),
    ],
)
def test_who_counts_as_one(one: str | None, other: str | None, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same
