"""The few calls a provider makes to the guest agent: health, quiesce, restored. Plain HTTP/1.1 over a dialled socket.

Rule: what comes back is untrusted; sizes and times are bounded, and anything malformed is a `AgentTimeout`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

MAX_REPLY_BYTES = 1 << 20

Dial = Callable[[], Awaitable[socket.socket]]


class AgentTimeout(Exception):
    """The guest agent did not give a usable answer."""


class AgentBusy(AgentTimeout):
    """The guest agent answered that it cannot do this now."""


async def health(dial: Dial, timeout_s: float) -> dict[str, Any]:
    """The agent's own view of the session."""
    return await _call(dial, "GET", "/v1/health", None, timeout_s)


async def quiesce(dial: Dial, timeout_s: float) -> dict[str, Any]:
    """Ask the agent to end what it does and to close all its connections, so that it can be saved."""
    return await _call(dial, "POST", "/v1/quiesce", {"timeout_s": timeout_s}, timeout_s + 2.0)


async def notify_restored(dial: Dial, realtime_s: float, timeout_s: float) -> dict[str, Any]:
    """Tell the agent that it is a copy: fresh randomness, a machine id of its own, the time; returns its health."""
    body = {"entropy": secrets.token_hex(32), "machine_id": secrets.token_hex(16), "realtime_s": realtime_s}
    return await _call(dial, "POST", "/v1/restored", body, timeout_s)


async def _call(dial: Dial, method: str, path: str, body: Any, timeout_s: float) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            status, reply = await _exchange(await dial(), method, path, body)
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        raise AgentTimeout(f"{path}: {error or type(error).__name__}") from error
    if status != 200:
        kind = AgentBusy if status == 409 else AgentTimeout
        raise kind(f"{path}: status {status}, {str(reply.get('detail', ''))[:200]}")
    return reply


async def _exchange(connection: socket.socket, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_REPLY_BYTES)
    try:
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: guest\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(fields.get("content-length", "-1"))
        if not 0 <= length <= MAX_REPLY_BYTES:
            raise ValueError("no acceptable Content-Length")
        reply = json.loads(await reader.readexactly(length))
        if not isinstance(reply, dict):
            raise ValueError("the answer is not a JSON object")
        return status, reply
    except (IndexError, asyncio.LimitOverrunError) as error:
        raise ValueError("malformed answer") from error
    finally:
        writer.close()
