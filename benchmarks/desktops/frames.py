"""How fast one desktop is seen and driven through the farm, over the binary WebSocket channel.

Role: `measure_frames` and `measure_throughput` for `python -m benchmarks desktops`. Rule: every counted frame is lossless, whole, and
shows a number that is newer than the frame's before it; a frame that is not raises. Non-goals: settling (`desktops_toggle`), resets.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.desktops.counter import BITS, WIDTH_PX
from dart_envs.farm import AsyncLease
from dart_envs.types import RgbImage
from dart_server.wire import ButtonEvent, FrameSpec, InputEvent, MoveEvent

PROGRAM = Path(__file__).with_name("counter.py")
IN_GUEST = "/tmp/desktops_counter.py"
COUNTER_PER_S = 240.0
"""Well above any frame rate here, so that every frame can show a new number."""
RAW = FrameSpec(encoding="raw")
WARM_STEPS = 5
FAR_APART = ((400, 300), (900, 600), (1400, 300))
"""Clicks in turn, so that no two are a double click."""


class NotAFrame(AssertionError):
    """A frame that does not show what was on the screen: a torn, old or altered one."""


def read_number(image: RgbImage) -> int:
    """The number that the bar code at the left edge shows. Raises `NotAFrame`."""
    row = image.shape[0] // BITS
    strip = image[: row * BITS, :WIDTH_PX]
    bars = strip.reshape(BITS, row * WIDTH_PX * 3)
    lit = bars[:, 0] == 255
    if not np.array_equal(bars, np.broadcast_to(np.where(lit, 255, 0).astype(np.uint8)[:, None], bars.shape)):
        raise NotAFrame("the bar code is not made of whole black and white bars")
    code = sum(1 << bit for bit in range(BITS) if lit[bit])
    number, inverse = code & 0xFFFFFFFF, code >> 32
    if number ^ inverse != 0xFFFFFFFF:
        raise NotAFrame(f"the bar code's halves disagree: {number:#x} and {inverse:#x}")
    return number


async def measure_frames(desktop: AsyncLease, *, seconds: float = 10.0, steps: int = 100) -> dict[str, Any]:
    """`step_unsettled_p50_ms` and `frames_per_s` of a leased desktop at rest.

    seconds: how long frames are counted; steps: how many single clicks are timed.
    """
    clicks_ms = await _clicks_ms(desktop, steps)
    frames, wall_s = await _frames(desktop, seconds)
    return {
        "step_unsettled_p50_ms": round(statistics.median(clicks_ms), 2),
        "step_unsettled_p95_ms": round(statistics.quantiles(clicks_ms, n=20)[-1], 2),
        "frames_per_s": round(frames / wall_s, 1),
        "frames_verified": frames,
    }


async def measure_throughput(desktops: Sequence[AsyncLease], *, seconds: float = 10.0) -> dict[str, Any]:
    """`steps_per_s_per_core`: clicks, each answered with a raw frame at once, on all desktops side by side, by the host's cores."""
    ends_s = time.perf_counter() + seconds
    counts = await asyncio.gather(*(_clicked_until(desktop, ends_s) for desktop in desktops))
    return {
        "steps_per_s_per_core": round(sum(counts) / seconds / (os.cpu_count() or 1), 1),
        "steps_desktops": len(desktops),
    }


async def _clicked_until(desktop: AsyncLease, ends_s: float) -> int:
    """Clicks made until that moment of `time.perf_counter`."""
    clicks = 0
    while time.perf_counter() < ends_s:
        await desktop.step(_click(clicks), frame=RAW)
        clicks += 1
    return clicks


def _click(number: int) -> list[InputEvent]:
    """The click of this number, far from the one before it."""
    x, y = FAR_APART[number % len(FAR_APART)]
    return [MoveEvent(x=x, y=y), ButtonEvent(type="down"), ButtonEvent(type="up")]


async def _clicks_ms(desktop: AsyncLease, steps: int) -> list[float]:
    """Milliseconds of single clicks answered with a raw frame at once."""
    taken: list[float] = []
    for number in range(WARM_STEPS + steps):
        click = _click(number)
        began_s = time.perf_counter()
        await desktop.step(click, frame=RAW)
        taken.append((time.perf_counter() - began_s) * 1000)
    return taken[WARM_STEPS:]


async def _frames(desktop: AsyncLease, seconds: float) -> tuple[int, float]:
    """Frames with a new number each, and the seconds they took."""
    await desktop.write_file(IN_GUEST, PROGRAM.read_bytes())
    started = await desktop.exec(["python3", IN_GUEST, str(seconds + 30), str(COUNTER_PER_S)], detach=True)
    assert started.returncode is None
    last = await _first_number(desktop)
    frames = 0
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        number = read_number((await desktop.step([], frame=RAW)).image)
        if number < last:
            raise NotAFrame(f"frame {frames} shows {number} after {last}")
        frames += number > last
        last = number
    wall_s = time.perf_counter() - began_s
    await desktop.exec(["pkill", "-f", IN_GUEST])
    return frames, wall_s


async def _first_number(desktop: AsyncLease) -> int:
    """Wait until the counter is on the screen."""
    async with asyncio.timeout(20.0):
        while True:
            try:
                return read_number((await desktop.step([], frame=RAW)).image)
            except NotAFrame:
                await asyncio.sleep(0.1)
