"""What the page's tests share: a browser that is logged in, over the farm's application."""

from __future__ import annotations

from typing import Any

import httpx
from farm_harness import Api

from dart_server.keys import Scope

HOST = "127.0.0.1:8700"
ORIGIN = f"http://{HOST}"
SHAPE = {"resolution": [320, 240]}


class Page:
    """A browser that is logged in: cookie, origin, the session's token."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.csrf = ""

    async def log_in(self, key: str) -> httpx.Response:
        reply = await self.client.post("/dashboard/api/login", json={"key": key})
        if reply.status_code == 200:
            self.csrf = reply.json()["csrf"]
        return reply

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(f"/dashboard/api{path}", **options)

    async def change(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"x-dart-csrf": self.csrf, **options.pop("headers", {})}
        return await self.client.request(method, f"/dashboard/api{path}", headers=headers, **options)


async def tenant(api: Api, name: str, scope: Scope = Scope.LEASE) -> Api:
    """The same farm as another key sees it."""
    return Api(api.farm, api.client, await api.farm.keys.add(name, scope))
