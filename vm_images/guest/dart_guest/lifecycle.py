"""`/v1/quiesce` and `/v1/restored`: around a checkpoint.

Role: leave nothing transient before a dump; renew what must differ between forks after a restore.
Rule: the reply of quiesce is the last byte on its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from aiohttp import web

from dart_guest import events, identity, machine
from dart_guest.agent import Agent, count_processes, zombies
from dart_guest.events import BadRequest
from dart_guest.http import agent_of, failure, json_body
from dart_guest.v1 import is_number, seconds
from dart_guest.xinput import SessionDown

POLL_S = 0.01
ZOMBIE_LIMIT_S = 2.0

routes = web.RouteTableDef()


async def wait_idle(agent: Agent, limit_s: float) -> bool:
    """Wait for steps and programs to end."""
    deadline_s = time.monotonic() + limit_s
    while agent.active_steps or agent.runner.running:
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def wait_reaped(limit_s: float) -> list[dict[str, object]]:
    """Wait for zombies to be collected; returns those that stay."""
    deadline_s = time.monotonic() + limit_s
    while True:
        left = zombies()
        if not left or time.monotonic() > deadline_s:
            return left
        await asyncio.sleep(POLL_S)


@routes.post("/v1/quiesce")
async def quiesce(request: web.Request) -> web.Response:
    """Make the desktop fit for a checkpoint."""
    agent = agent_of(request)
    body = events.mapping(await json_body(request), "the request", frozenset({"timeout_s"}))
    limit_s = seconds(body.get("timeout_s", 5), "timeout_s", 60)
    if not await wait_idle(agent, limit_s):
        return failure(409, "busy", "a step or a program is still running")
    for socket in list(agent.channels):
        with contextlib.suppress(ConnectionError, RuntimeError):
            await asyncio.wait_for(socket.close(code=1001), 1.0)
    for transport in list(agent.transports):
        if transport is not request.transport:
            transport.abort()
    await agent.walker.stop()
    await asyncio.to_thread(agent.recorder.halt)
    await agent.on_desktop(agent.desktop.release_shared_memory)
    left = await wait_reaped(ZOMBIE_LIMIT_S)
    response = web.json_response({"ok": not left, "zombies": left, "processes": count_processes()})
    response.force_close()
    return response


def digits(raw: object, what: str, count: int) -> bytes:
    """A string of hex digits."""
    if not isinstance(raw, str) or len(raw) != count:
        raise BadRequest(f"{what!r} must be {count} hex digits")
    try:
        return bytes.fromhex(raw)
    except ValueError as error:
        raise BadRequest(f"{what!r} must be {count} hex digits") from error


def renew_identity(machine_id: str, entropy: bytes) -> None:
    """A machine id and a randomness of its own; neither fails a restore."""
    identity.stir_randomness(entropy, own_kernel=machine.present())
    identity.write_machine_id(machine_id)


@routes.post("/v1/restored")
async def restored(request: web.Request) -> web.Response:
    """Renew identity and connections after a restore."""
    agent = agent_of(request)
    known = frozenset({"entropy", "machine_id", "realtime_s"})
    body = events.mapping(await json_body(request), "the request", known)
    entropy = digits(body.get("entropy"), "entropy", 64)
    machine_id = digits(body.get("machine_id"), "machine_id", 32).hex()
    realtime_s = body.get("realtime_s")
    if machine.present() and is_number(realtime_s):
        # A machine's kernel has a clock of its own, which stood still with the machine.
        time.clock_settime(time.CLOCK_REALTIME, float(realtime_s))
    if agent.clock.usable and is_number(realtime_s):
        agent.clock.follow(float(realtime_s))
    random.seed(entropy)
    agent.renew_boot_id(entropy)
    agent.restores += 1
    if agent.managed:
        await asyncio.to_thread(renew_identity, machine_id, entropy)
    with contextlib.suppress(SessionDown):
        await agent.on_desktop(agent.desktop.probe)
    answer = await agent.health()
    offset_s = agent.clock.now_s() - float(realtime_s) if is_number(realtime_s) else None
    return web.json_response(answer | {"clock_offset_s": offset_s})
