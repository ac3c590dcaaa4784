"""The few calls a provider makes to the guest agent: health, quiesce, restored. Plain HTTP/1.1 over a dialled socket.

Rule: what comes back is untrusted; sizes and times are bounded, and anything malformed is an `AgentTimeout`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from dart_server.providers.guest_http import STREAM_LIMIT_NBYTES, read_answer, request_head
from dart_server.wire.guest_answers import JsonLimit, parse_object

REPLY_LIMIT = JsonLimit(64 * 1024, depth=6, values=2_000)

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
    reader, writer = await asyncio.open_connection(sock=connection, limit=STREAM_LIMIT_NBYTES)
    try:
        payload = b"" if body is None else json.dumps(body).encode()
        headers = {"Connection": "close", "Content-Type": "application/json"}
        writer.write(request_head(method, path, headers, len(payload)) + payload)
        answer = await read_answer(reader, REPLY_LIMIT.nbytes)
        return answer.status, parse_object(answer.content, REPLY_LIMIT)
    finally:
        writer.close()
