"""The JSON answers of the guest agent's own routes, as values of the wire.

Role: `clock`, `elements`, `ended_program`, and `decode` to run one beside the event loop. Rule: whatever a desktop sent is either a valid
value or a `MalformedAnswer`. Large answers are decoded one at a time, in a thread, and come out as the JSON that is sent on.
Non-goals: limits (`guest.limits`), frames (`wire.guest_answers`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from dart_server import wire
from dart_server.guest import limits
from dart_server.wire.guest_answers import MalformedAnswer, parse_object

T = TypeVar("T")
INLINE_NBYTES = 16 * 1024
"""Smaller answers are decoded at once: that takes less time than a thread's turn."""
MAX_NUMBER = 2**53
_DECODER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="guest-answers")
_A11Y_FIELDS = frozenset(wire.A11yElement.model_fields)


async def decode(decoder: Callable[[bytes], T], content: bytes) -> T:
    """Run a decoder, beside the event loop where the answer is large. Raises `MalformedAnswer`."""
    if len(content) <= INLINE_NBYTES:
        return decoder(content)
    return await asyncio.get_running_loop().run_in_executor(_DECODER, decoder, content)


def elements(content: bytes) -> bytes:
    """The showing elements of an accessibility tree, as a JSON list of `A11yElement`."""
    found = parse_object(content, limits.A11Y.json).get("elements")
    if not isinstance(found, list):
        raise MalformedAnswer("an accessibility tree without elements")
    return b"[" + b",".join(map(_element, found)) + b"]"


def _element(told: Any) -> bytes:
    if not isinstance(told, dict):
        raise MalformedAnswer("an element of the accessibility tree that is no object")
    for name in ("x", "y", "w", "h"):
        _check_number(told.get(name))
    try:
        element = wire.A11yElement.model_validate({name: told[name] for name in _A11Y_FIELDS & told.keys()})
    except ValidationError as error:
        raise MalformedAnswer("an element of the accessibility tree that is not what the protocol says") from error
    return element.model_dump_json().encode()


def ended_program(content: bytes) -> bytes:
    """How a program ended, as the JSON of an `ExecReply`."""
    told = parse_object(content, limits.EXEC.json)
    timed_out = bool(told.get("timed_out", False))
    if told.get("returncode") is not None:
        _check_number(told["returncode"])
    try:
        reply = wire.ExecReply(
            returncode=None if timed_out else told["returncode"],
            stdout=told["stdout"],
            stderr=told["stderr"],
            timed_out=timed_out,
        )
    except (KeyError, ValidationError) as error:
        raise MalformedAnswer("the end of a program is not what the protocol says") from error
    return reply.model_dump_json().encode()


def clock(content: bytes) -> wire.ClockView:
    """What time of day it is in the desktop."""
    told = parse_object(content, limits.CLOCK.json)
    try:
        return wire.ClockView(time=datetime.fromtimestamp(told["time_s"], UTC), declared=told["declared"])
    except (ValueError, KeyError, TypeError, OverflowError, OSError) as error:
        raise MalformedAnswer("the clock is not what the protocol says") from error


def declared_clock_s(content: bytes) -> float | None:
    """The time of day that a desktop has declared, in seconds since 1970; None when it declared none."""
    view = clock(content)
    return view.time.timestamp() if view.declared else None


def _check_number(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_NUMBER:
        raise MalformedAnswer("a number that is not what the protocol says")
