"""Fixtures: a farm over simulated desktops (they have a screen), and its page as one who logged in sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from dashboard_pages import ORIGIN, Page
from farm_harness import Api, MakeApi, ManualClock

from dart_server.providers.sim.provider import SimProvider


@pytest.fixture
def provider(clock: ManualClock) -> SimProvider:
    return SimProvider(clock)


@pytest.fixture
async def api(make_api: MakeApi) -> Api:
    return await make_api()


@pytest.fixture
async def page(api: Api) -> AsyncIterator[Page]:
    """A browser before the log-in."""
    transport = api.client._transport
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers={"origin": ORIGIN}) as client:
        yield Page(client)


@pytest.fixture
async def admin(api: Api, page: Page) -> Page:
    assert (await page.log_in(api.key)).status_code == 200
    return page
