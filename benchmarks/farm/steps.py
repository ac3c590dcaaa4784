"""What the farm adds to a step over the WebSocket channel, on a pretended desktop that does nothing.

Role: `measure_steps` sends steps one after the other over one channel of a real farm process: without a picture, and with a raw 1080p frame
whose every byte is read. Rule: each step goes the whole way: client, farm (key, token, fencing_token, validation, event), the desktop's
agent and back; the pretended agent's own handling is in the figure, so the farm's share is less. Non-goals: real desktops
(`bench_desktops`).
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from functools import partial
from typing import Any

from benchmarks.farm.client import spread_ms
from benchmarks.farm.http import ask_json
from benchmarks.farm.load import SETTINGS, say
from benchmarks.farm.process import FarmProcess, own_farm, weigh
from dart_server.wire import FENCING_TOKEN_HEADER, LEASE_TOKEN_HEADER
from dart_server.wire.messages import MessageSocket

WARM_STEPS = 100
SIZE = (1920, 1080)
EVENTS_LIMIT_S = 10.0


def measure_steps(steps: int, frames: int) -> dict[str, Any]:
    """Milliseconds per step: p50 and p99 without a picture, the same with a raw frame. Raises RuntimeError when the history lacks steps."""
    with own_farm({**SETTINGS, "DART_MAX_DESKTOPS": "2", "DART_WARM_DESKTOPS": "1"}) as farm:
        return asyncio.run(_measure(farm, steps, frames))


async def _measure(farm: FarmProcess, steps: int, frames: int) -> dict[str, Any]:
    body = {"client_request_id": "bench-steps", "shape": {"resolution": SIZE}, "ttl_s": 600.0}
    lease = await ask_json(farm.uds, farm.key, "POST", "/v1/leases", body)
    socket = await MessageSocket.open(
        partial(asyncio.get_running_loop().create_unix_connection, path=str(farm.uds)),
        "farm",
        f"/v1/leases/{lease['lease_id']}/channel",
        headers={
            "Authorization": f"Bearer {farm.key}",
            LEASE_TOKEN_HEADER: lease["token"],
            FENCING_TOKEN_HEADER: str(lease["fencing_token"]),
        },
        timeout_s=10.0,
    )
    try:
        await _steps(socket, WARM_STEPS, "none")
        before = weigh(farm.pid)
        bare_s = await _steps(socket, steps, "none")
        between = weigh(farm.pid)
        raw_s = await _steps(socket, frames, "raw")
        after = weigh(farm.pid)
    finally:
        await socket.aclose()
    events = await _events(farm, lease["lease_id"], WARM_STEPS + steps + frames)
    await ask_json(farm.uds, farm.key, "DELETE", f"/v1/leases/{lease['lease_id']}")
    figures = {
        "bare": spread_ms(bare_s),
        "raw_1080p": spread_ms(raw_s),
        "server_cpu_ms_per_step": round((between.cpu_s - before.cpu_s) * 1000 / steps, 3),
        "server_cpu_ms_per_frame": round((after.cpu_s - between.cpu_s) * 1000 / frames, 3),
        "event_rows": events,
    }
    say(f"step: {figures}")
    return figures


async def _steps(socket: MessageSocket, count: int, encoding: str) -> list[float]:
    took_s = []
    wanted = SIZE[0] * SIZE[1] * 3 if encoding == "raw" else 0
    for number in range(count):
        text = json.dumps({"seq": number, "events": [], "frame": {"encoding": encoding}})
        sent_s = time.perf_counter()
        socket.send(text)
        answer = await socket.receive()
        took_s.append(time.perf_counter() - sent_s)
        (length,) = struct.unpack_from(">I", answer)
        if len(answer) != 4 + length + wanted:
            raise RuntimeError(f"step {number} gave {len(answer)} bytes: {bytes(answer[:300])!r}")
    return took_s


async def _events(farm: FarmProcess, lease_id: str, steps: int) -> int:
    """How many event rows tell of the steps; they must tell of all."""
    deadline_s = time.monotonic() + EVENTS_LIMIT_S
    while True:
        rows = await ask_json(farm.uds, farm.key, "GET", f"/v1/events?limit=1000&kind=stepped&lease_id={lease_id}")
        told = sum(row["data"]["steps"] for row in rows)
        if told == steps:
            return len(rows)
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the history tells of {told} steps, {steps} were made")
        await asyncio.sleep(0.1)
