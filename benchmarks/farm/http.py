"""A lean HTTP/1.1 client for load: one kept connection, one request at a time.

Role: `Lane` sends prepared bytes and reads the answer, at a tenth of the processor time of a general client, so that the generator of a
load does not become what is measured. Rule: only what the farm sends is understood (`Content-Length`, or a status without a body);
anything else is an error. Non-goals: redirects, chunked bodies, pipelining.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any, cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
NO_BODY = frozenset({204, 304})


class LaneClosed(ConnectionError):
    """The connection ended before the answer was whole."""


class Lane(asyncio.Protocol):
    """One connection to the farm."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._have = bytearray()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def open(cls, uds: Path) -> Lane:
        """Connect to the farm's Unix socket."""
        _, lane = await asyncio.get_running_loop().create_unix_connection(cls, str(uds))
        return lane

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """(status, body) of one request. Raises `LaneClosed`."""
        if self._transport is None or self._transport.is_closing():
            raise LaneClosed("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Hang up, whether an answer is on its way or not."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._have += data
        end = self._have.find(b"\r\n\r\n")
        if end < 0:
            return
        status = int(self._have[9:12])
        nbytes = 0
        if status not in NO_BODY:
            found = _LENGTH.search(self._have, 0, end)
            if found is None:
                self._fail("an answer without Content-Length")
                return
            nbytes = int(found[1])
        if len(self._have) < end + 4 + nbytes:
            return
        body = bytes(self._have[end + 4 : end + 4 + nbytes])
        self._have.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(str(exc or "the farm hung up"))

    def _fail(self, reason: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LaneClosed(reason))
        if self._transport is not None:
            self._transport.abort()


def request(method: str, path: str, key: str, body: dict[str, Any] | bytes | None = None, **headers: str) -> bytes:
    """The bytes of one request; `body`: sent as JSON, bytes as they are; `headers` with `_` for `-`."""
    lines = [f"{method} {path} HTTP/1.1", "host: farm", f"authorization: Bearer {key}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    content = b""
    if body is not None:
        content, kind = (body, "octet-stream") if isinstance(body, bytes) else (json.dumps(body).encode(), "json")
        lines += [f"content-type: application/{kind}", f"content-length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


async def ask_json(uds: Path, key: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """One request on a connection of its own; the answer read as JSON, None when it has no body. Raises RuntimeError at an error."""
    lane = await Lane.open(uds)
    try:
        status, content = await lane.ask(request(method, path, key, body))
    finally:
        lane.close()
    if status >= 400:
        raise RuntimeError(f"{method} {path}: {status} {content[:300].decode('utf-8', 'replace')}")
    return json.loads(content) if content else None
