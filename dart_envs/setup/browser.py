"""The desktop's browser over its debugging port, as OSWorld's tasks start it.

Role: tabs (list, open, close), forms, and a browsing history, for the setup steps of that name. Rule: reached through the lease's tunnel
to port 9222, which the tasks lead to the browser themselves; a page that cannot be had at all fails its step, one that is slow does
not. Non-goals: evaluation, launching the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from dart_envs.types import Desktop, SupportsTunnel
from dart_server.wire import Clock
from dart_server.wire.guest_answers import JsonLimit, MalformedAnswer, parse_object

DEBUGGING_PORT = 9222
LOAD_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 15.0
MESSAGE_LIMIT = JsonLimit(32 * 1024**2, depth=64, values=500_000)
POLL_S = 0.2
HISTORY = "/home/user/.config/google-chrome/Default/History"
BASE_HISTORY_URL = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
BASE_HISTORY_NAME = "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_new.sqlite"
"""OSWorld's empty history and its name in the asset cache, for desktops whose browser has made none yet."""
SECONDS_1601_TO_1970 = 11_644_473_600
LINK_TRANSITION = 805_306_368
"""Chromium's transition of a visit: a chain of its own, begun and ended by a link."""


class BrowserError(Exception):
    """The browser did not do what a step asked; one sentence."""


@dataclass(frozen=True, slots=True)
class Tab:
    """One page of the browser."""

    tab_id: str
    url: str


def _parsed(message: str | bytes) -> dict[str, Any]:
    try:
        return parse_object(message.encode() if isinstance(message, str) else message, MESSAGE_LIMIT)
    except MalformedAnswer as error:
        raise BrowserError(f"what answers is no browser: {error}") from error


class BrowserPage:
    """One tab's debugging connection."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)

    async def call(self, method: str, timeout_s: float = ANSWER_TIMEOUT_S, **params: Any) -> dict[str, Any]:
        """The result of one command. Raises BrowserError."""
        number = next(self._ids)
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    said = _parsed(await self._socket.recv())
                    if said.get("id") == number:
                        break
        except TimeoutError:
            raise BrowserError(f"the browser did not answer {method} within {timeout_s:g} s") from None
        if "error" in said:
            raise BrowserError(f"the browser refused {method}: {said['error'].get('message', '')}")
        result: dict[str, Any] = said.get("result", {})
        return result

    async def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression is worth in the page."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return result.get("result", {}).get("value")

    async def navigate(self, url: str) -> None:
        """Navigate and wait until the page is loaded, at most `LOAD_TIMEOUT_S`. Raises BrowserError where there is no such page."""
        try:
            result = await self.call("Page.navigate", LOAD_TIMEOUT_S, url=url)
        except BrowserError as slow:
            if "within" in str(slow):
                return
            raise
        if result.get("errorText"):
            raise BrowserError(
                f"{url} could not be opened: {result['errorText']}; desktops reach what DART_EGRESS allows and nothing else"
            )
        with contextlib.suppress(BrowserError):
            await self._wait_until("document.readyState === 'complete'", LOAD_TIMEOUT_S, "has not loaded")

    async def _wait_until(self, condition: str, timeout_s: float, otherwise: str) -> None:
        """Poll a JavaScript condition. Raises BrowserError."""
        limit_s = time.monotonic() + timeout_s
        while not await self.evaluate(condition):
            if time.monotonic() >= limit_s:
                raise BrowserError(f"the page {otherwise} within {timeout_s:g} s")
            await asyncio.sleep(POLL_S)

    async def wait_until_visible(self, selector: str, timeout_s: float) -> None:
        """Wait until an element is there. Raises BrowserError."""
        found = f"(() => {{ const e = document.querySelector({json.dumps(selector)}); return !!e && e.getClientRects().length > 0 }})()"
        await self._wait_until(found, timeout_s, f"shows no {selector}")

    async def fill(self, selector: str, text: str) -> None:
        """Type into a field."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.call("Input.insertText", text=text)

    async def click(self, selector: str) -> None:
        """Click an element. Raises BrowserError where it is missing."""
        clicked = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (e) e.click(); return !!e }})()"
        )
        if not await self.evaluate(clicked):
            raise BrowserError(f"the page has no {selector}")


class Browser:
    """The debugging port of one browser."""

    def __init__(self, host: str, port: int) -> None:
        self._address = f"{host}:{port}"

    async def _request(self, method: str, path: str) -> httpx.Response:
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
            answer = await client.request(method, f"http://{self._address}{path}")
        answer.raise_for_status()
        return answer

    async def tabs(self) -> list[Tab]:
        """The pages, as the browser lists them. Raises httpx.HTTPError."""
        listed = (await self._request("GET", "/json/list")).json()
        return [Tab(str(one["id"]), str(one["url"])) for one in listed if one.get("type") == "page"]

    async def new_tab(self) -> Tab:
        """A new, empty tab."""
        made = (await self._request("PUT", "/json/new?about:blank")).json()
        return Tab(str(made["id"]), str(made["url"]))

    async def close(self, tab: Tab) -> None:
        """Close a tab and wait until it is gone. Raises BrowserError."""
        await self._request("GET", f"/json/close/{tab.tab_id}")
        limit_s = time.monotonic() + ANSWER_TIMEOUT_S
        while any(one.tab_id == tab.tab_id for one in await self.tabs()):
            if time.monotonic() >= limit_s:
                raise BrowserError(f"the tab of {tab.url} did not close within {ANSWER_TIMEOUT_S:g} s")
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def page(self, tab: Tab) -> AsyncIterator[BrowserPage]:
        """A debugging connection to a tab."""
        address = f"ws://{self._address}/devtools/page/{tab.tab_id}"
        async with connect(
            address, compression=None, max_size=MESSAGE_LIMIT.nbytes, open_timeout=ANSWER_TIMEOUT_S, proxy=None
        ) as socket:
            yield BrowserPage(socket)


@asynccontextmanager
async def connect_browser(desktop: Desktop, clock: Clock, timeout_s: float) -> AsyncIterator[Browser]:
    """The desktop's browser, waited for. Raises BrowserError."""
    if not isinstance(desktop, SupportsTunnel):
        raise BrowserError("this desktop's ports cannot be reached; lease one from a farm")
    limit_s = clock.monotonic() + timeout_s
    async with desktop.tunnel(DEBUGGING_PORT) as (host, port):
        browser = Browser(host, port)
        while True:
            try:
                if await browser.tabs():
                    break
            except (httpx.HTTPError, ValueError):
                pass
            if clock.monotonic() >= limit_s:
                raise BrowserError(f"no browser answers on port {DEBUGGING_PORT} of the desktop within {timeout_s:g} s")
            await clock.sleep(POLL_S)
        try:
            yield browser
        except (httpx.HTTPError, WebSocketException, OSError) as error:
            raise BrowserError(f"the browser went away: {type(error).__name__}: {error}") from error


async def open_tabs(browser: Browser, urls: Sequence[str]) -> None:
    """Open each address in a tab of its own; the tab that was there at first goes."""
    before = await browser.tabs()
    for index, url in enumerate(urls):
        tab = await browser.new_tab()
        async with browser.page(tab) as page:
            await page.navigate(url)
        if index == 0 and before:
            await browser.close(before[-1])


def same_page(one: str, other: str) -> bool:
    """Whether two addresses mean one page: scheme, `www.`, the case of the host and a slash at the end do not count."""
    return _normalize_url(one) == _normalize_url(other)


def _normalize_url(url: str) -> tuple[str, str, str]:
    parts = urlsplit(url if "//" in url else f"//{url}")
    return re.sub(r"^www\.", "", parts.netloc.lower()), parts.path.rstrip("/"), parts.query


async def close_tabs(browser: Browser, urls: Sequence[str], clock: Clock, timeout_s: float) -> None:
    """Close the first tab of each address, waiting for it to be there. Raises BrowserError."""
    for url in urls:
        limit_s = clock.monotonic() + timeout_s
        while True:
            tab = next((tab for tab in await browser.tabs() if same_page(tab.url, url)), None)
            if tab is not None:
                await browser.close(tab)
                break
            if clock.monotonic() >= limit_s:
                raise BrowserError(f"no tab shows {url} within {timeout_s:g} s")
            await clock.sleep(POLL_S)


async def log_in_to_google_drive(browser: Browser, email: str, password: str) -> None:
    """Fill in Google's form. Raises BrowserError where the page, the form or a field does not come."""
    tab = await browser.new_tab()
    async with browser.page(tab) as page:
        await page.navigate("https://drive.google.com/drive/my-drive")
        for field, text, button in (
            ('input[type="email"]', email, "#identifierNext > div > button"),
            ('input[type="password"]', password, "#passwordNext > div > button"),
        ):
            await page.wait_until_visible(field, ANSWER_TIMEOUT_S)
            await page.fill(field, text)
            await page.click(button)


def build_history(base: bytes, visits: Sequence[tuple[str, str, float]]) -> bytes:
    """A browser's History file that holds these visits (address, title, Unix time in seconds) and no others. Blocks.

    Raises BrowserError where `base` is no such file.
    """
    with tempfile.TemporaryDirectory(prefix="dart-history-") as folder:
        path = Path(folder) / "History"
        path.write_bytes(base)
        try:
            with contextlib.closing(sqlite3.connect(path)) as database, database:
                for table in ("urls", "visits"):
                    database.execute(f"DELETE FROM {table}")
                for url, title, time_s in visits:
                    microseconds = round((time_s + SECONDS_1601_TO_1970) * 1e6)
                    added = database.execute(
                        "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) VALUES (?, ?, 1, 0, ?, 0)",
                        (url, title, microseconds),
                    )
                    database.execute(
                        "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration)"
                        " VALUES (?, ?, 0, ?, 0, 0)",
                        (added.lastrowid, microseconds, LINK_TRANSITION),
                    )
        except sqlite3.Error as error:
            raise BrowserError(f"the browser's history is no file that visits can be written to: {error}") from error
        return path.read_bytes()
