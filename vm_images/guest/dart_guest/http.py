"""Errors and body reading that all handlers share.

Role: one error envelope; JSON bodies checked once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from dart_guest.a11y import WalkFailed
from dart_guest.agent import Agent
from dart_guest.events import BadRequest
from dart_guest.keymap import UnknownKey
from dart_guest.xinput import SessionDown

AGENT: web.AppKey[Agent] | str
try:
    AGENT = web.AppKey("agent", Agent)
except AttributeError:
    # aiohttp before 3.9 has no typed keys.
    AGENT = "agent"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def agent_of(request: web.Request) -> Agent:
    """The agent that this application serves."""
    agent: Agent = request.app[AGENT]
    return agent


def failure(status: int, code: str, detail: str) -> web.Response:
    """The error envelope."""
    return web.json_response({"error": code, "detail": detail}, status=status)


def describe(error: Exception) -> tuple[int, str, str]:
    """(status, code, sentence) of a known error; raises any other one again."""
    if isinstance(error, BadRequest):
        return 400, error.code, str(error)
    if isinstance(error, UnknownKey):
        return 400, "unknown_key", str(error)
    if isinstance(error, SessionDown):
        return 503, "session_down", str(error)
    if isinstance(error, WalkFailed):
        return 503, "timeout" if error.timed_out else "session_down", str(error)
    raise error


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what handlers raise into the envelope."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return failure(error.status, "not_found" if error.status == 404 else "bad_request", error.reason)
    except (BadRequest, UnknownKey, SessionDown, WalkFailed) as error:
        return failure(*describe(error))
    except Exception as error:  # noqa: BLE001 - the agent must outlive any request
        return failure(500, "internal", f"{type(error).__name__}: {error}")


async def json_body(request: web.Request) -> Mapping[str, Any]:
    """The body as a JSON object; an empty body is an empty object."""
    text = await request.text()
    if not text.strip():
        return {}
    try:
        body = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body
