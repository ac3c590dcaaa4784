"""What a person sees of a live desktop on the dashboard: pictures per second, how late they are, what they weigh; 1920×1080.

Role: starts a farm of its own, leases a live desktop in which a terminal scrolls without end, opens a live view as the page does (session
cookie, WebSocket, RFB) and reads updates as fast as they come; then takes over, moves the pointer and waits for each move to show.
Rule: the page's own protocol, no browser. Non-goals: how fast a browser draws.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import struct
import time
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, unix_connect

from benchmarks.farm.process import FarmProcess, own_farm, weigh
from dart_envs.farm.client import AsyncFarmClient
from dart_server.wire import DesktopShape

ORIGIN = {"origin": "http://farm"}
VIEW = "bench-view-0001"
SCROLL = ["lxterminal", "-e", "sh -c 'while :; do date +%N; sleep 0.02; done'"]
ENCODINGS = struct.pack(">BxH2i", 2, 2, 7, -24)
CHANGES = struct.pack(">BBHHHH", 3, 1, 0, 0, 1920, 1080)
QUIET_S = 1.0
MOST_WAIT_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--image", default="basic", help="an installed image that has lxterminal")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the scrolling terminal is watched")
    parser.add_argument("--moves", type=int, default=30, help="moves of the pointer that are waited for")
    parser.add_argument("--pictures", type=int, default=20, help="small pictures that are asked for, one a second")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run on a farm that is started for this and ended with its desktops."""
    with own_farm({"DART_PROVIDER": "runc", "DART_MAX_DESKTOPS": "2"}) as farm:
        return asyncio.run(_measure(args, farm))


async def _measure(args: argparse.Namespace, process: FarmProcess) -> dict[str, Any]:
    farm = await AsyncFarmClient.connect(f"unix://{process.uds}", process.key)
    try:
        lease = await farm.lease(DesktopShape(image=args.image), ttl_s=600, wait_s=300)
        page = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(process.uds)), base_url="http://farm")
        async with page:
            said = await page.post("/dashboard/api/login", json={"key": process.key}, headers=ORIGIN)
            said.raise_for_status()
            change = {**ORIGIN, "x-dart-csrf": said.json()["csrf"]}
            figures = await _small_pictures(page, lease.desktop_id, args.pictures)
            cookie = "; ".join(f"{name}={value}" for name, value in page.cookies.items())
            path = f"ws://farm/dashboard/api/leases/{lease.lease_id}/live?view={VIEW}"
            headers = {"cookie": cookie, **ORIGIN}
            async with unix_connect(
                str(process.uds), path, additional_headers=headers, origin=None, max_size=None, compression=None
            ) as view:
                await _greet(view)
                taken = await page.post(
                    f"/dashboard/api/leases/{lease.lease_id}/control", json={"view": VIEW}, headers=change
                )
                taken.raise_for_status()
                figures |= await _moves(view, args.moves)
                await lease.exec(SCROLL, detach=True)
                await asyncio.sleep(QUIET_S)
                figures |= await _watch(view, args.seconds, process.pid)
        await lease.release()
    finally:
        await farm.aclose()
    return figures


async def _small_pictures(page: httpx.AsyncClient, desktop_id: str, count: int) -> dict[str, Any]:
    times, sizes = [], []
    for _ in range(count):
        started = time.perf_counter()
        reply = await page.get(f"/dashboard/api/desktops/{desktop_id}/picture")
        times.append((time.perf_counter() - started) * 1000)
        sizes.append(len(reply.content))
        await asyncio.sleep(QUIET_S)
    return {"thumbnail_p50_ms": round(statistics.median(times), 1), "thumbnail_bytes": statistics.median(sizes)}


async def _greet(view: ClientConnection) -> None:
    """Shake hands, ask for all, read the first picture."""
    await view.send(b"RFB 003.008\n\x01\x01")
    for _ in range(4):
        await view.recv()
    await view.send(ENCODINGS + struct.pack(">BBHHHH", 3, 0, 0, 0, 1920, 1080))
    async with asyncio.timeout(MOST_WAIT_S):
        await view.recv()


async def _moves(view: ClientConnection, count: int) -> dict[str, Any]:
    """From a move of the pointer until it shows."""
    times = []
    for number in range(count):
        await view.send(CHANGES)
        started = time.perf_counter()
        await view.send(struct.pack(">BBHH", 5, 0, 300 + 40 * number, 500 + 100 * (number % 2)))
        async with asyncio.timeout(MOST_WAIT_S):
            await view.recv()
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    return {
        "move_shows_p50_ms": round(statistics.median(times), 1),
        "move_shows_p90_ms": round(times[len(times) * 9 // 10], 1),
    }


async def _watch(view: ClientConnection, seconds: float, pid: int) -> dict[str, Any]:
    """Updates in a time, each asked for when the one before has come."""
    count, nbytes, cpu_s = 0, 0, weigh(pid).cpu_s
    started = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started) < seconds:
        await view.send(CHANGES)
        async with asyncio.timeout(MOST_WAIT_S):
            nbytes += len(await view.recv())
        count += 1
    return {
        "pictures_per_s": round(count / elapsed_s, 2),
        "picture_bytes": round(nbytes / count),
        "farm_cpu_share": round((weigh(pid).cpu_s - cpu_s) / elapsed_s, 3),
    }
