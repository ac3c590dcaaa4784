"""A farm of pretended desktops in a storm: answers come late or never, desktops die before, during and after a step.

Role: the program `python -m benchmarks.farm.storm_farm SEED FAULTS serve ...`, which is `dart-farm` with a provider `sim` that
misbehaves. Rule: each frame says in its first bytes where the pointer was when it was taken, so that who asked can tell whose answer it
is; with `FAULTS`
`swapped` one frame in a hundred is the desktop's previous one, as a client that loses count would see it, for a check of the check.
Non-goals: real desktops.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
from collections.abc import Mapping
from typing import Any

from dart_server.providers import base
from dart_server.providers.guest_server import GuestRequestError
from dart_server.providers.sim import guest as sim_guest
from dart_server.providers.sim import provider as sim

LATE_SHARE, LATE_MEAN_S = 0.05, 0.02
LOST_SHARE, LOST_S = 0.002, 2.0
DEATH_SHARE = 0.002
SWAPPED_SHARE = 0.01
MARK = b"DART"


def picture(position: tuple[int, int], nbytes: int) -> bytes:
    """A raw frame that tells where the pointer is."""
    head = MARK + struct.pack(">HH", *position)
    return head + bytes(nbytes - len(head))


def position_in(pixels: bytes) -> tuple[int, int]:
    """What `picture` put in. Raises ValueError for pixels of something else."""
    if pixels[:4] != MARK:
        raise ValueError("this is not a frame of the storm")
    x, y = struct.unpack(">HH", pixels[4:8])
    return int(x), int(y)


def plant(seed: int, swapped: bool) -> None:
    """Make the simulation misbehave."""
    rng = random.Random(seed)
    providers: list[sim.SimProvider] = []
    calm_init, calm_step = sim.SimProvider.__init__, sim_guest.SimGuest.step
    before: dict[int, tuple[int, int]] = {}

    def init(self: sim.SimProvider, *given: Any, **named: Any) -> None:
        calm_init(self, *given, **named)
        providers.append(self)

    async def die(guest: sim_guest.SimGuest) -> None:
        for provider in providers:
            for desktop_id, life in list(provider._live.items()):
                if life.guest is guest and life.cause is base.HealthCause.OK:
                    cause = rng.choice([base.HealthCause.KILLED_FROM_OUTSIDE, base.HealthCause.OOM])
                    await provider.crash(desktop_id, cause)
        raise GuestRequestError(503, "session_down", "the desktop died in the storm")

    async def step(self: sim_guest.SimGuest, request: Mapping[str, Any]) -> bytes:
        fate, moment = rng.random(), rng.random()
        if not request.get("events"):
            return await calm_step(self, request)
        if fate < DEATH_SHARE and moment < 0.5:
            await die(self)
        lost = DEATH_SHARE <= fate < DEATH_SHARE + LOST_SHARE
        if lost and moment < 0.5:
            await asyncio.sleep(LOST_S)
        answer = await calm_step(self, request)
        if fate < DEATH_SHARE:
            await die(self)
        if lost:
            await asyncio.sleep(LOST_S)
        elif fate < DEATH_SHARE + LOST_SHARE + LATE_SHARE:
            await asyncio.sleep(rng.expovariate(1 / LATE_MEAN_S))
        return answer

    def paint(self: sim_guest.SimGuest, encoding: str, quality: int, *, cursor: bool) -> bytes:
        screen = self.state.screen
        old, before[id(self)] = before.get(id(self), (0, 0)), screen.pointer
        shown = old if swapped and rng.random() < SWAPPED_SHARE else screen.pointer
        return b"" if encoding == "none" else picture(shown, screen.width * screen.height * 3)

    sim.SimProvider.__init__ = init  # type: ignore[method-assign]
    sim_guest.SimGuest.step = step  # type: ignore[method-assign]
    setattr(sim_guest.SimGuest, "_picture", paint)  # noqa: B010 - mypy would take it for a bound method


def main() -> None:
    """`SEED FAULTS` and then the arguments of `dart-farm`."""
    seed, faults = int(sys.argv[1]), sys.argv[2]
    del sys.argv[1:3]
    plant(seed, faults == "swapped")
    from dart_server.cli import main as serve

    serve()


if __name__ == "__main__":
    main()
