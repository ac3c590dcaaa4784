"""The farm that a run uses: the one at DART_FARM_URL, or this user's embedded farm.

Role: makes sure before the first rollout that the farm is there, is of the asked kind, and is large enough; stops an embedded farm that it
started. Rule: a farm that others use is never stopped or changed. Non-goals: no leases (the rollout worker takes them).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dart_envs.errors import FarmError
from dart_envs.farm.client import AsyncFarm
from dart_envs.farm.embedded import runtime_dir
from dart_train.config import Recipe

LEASES_END_S = 90.0
"""Longer than the TTL of a rollout worker's leases (60 s)."""
POLL_S = 0.5


class FarmUnusable(Exception):
    """The farm cannot be reached or cannot give what the recipe asks for; one sentence with the cure."""


@asynccontextmanager
async def farm_for(recipe: Recipe, note: Callable[[str], None]) -> AsyncIterator[None]:
    """Have a farm that fits the recipe for as long as the context lasts.

    Raises:
        FarmUnusable: no farm, another provider, or fewer desktops than asked for.
    """
    remote = "DART_FARM_URL" in os.environ
    was_running = remote or (runtime_dir() / "farm.sock").exists()
    os.environ.setdefault("DART_PROVIDER", recipe.desktops.provider)
    os.environ.setdefault("DART_MAX_DESKTOPS", str(recipe.desktops.count))
    try:
        async with await AsyncFarm.connect() as farm:
            view = await farm.view()
    except FarmError as error:
        raise FarmUnusable(str(error)) from error
    cure = "give DART_FARM_URL of another farm" if remote else "stop it with dart-farm stop and run again"
    if view.provider != recipe.desktops.provider:
        raise FarmUnusable(
            f"the farm runs {view.provider} desktops, the recipe asks for {recipe.desktops.provider}: {cure}"
        )
    if view.max_desktops < recipe.desktops.count:
        raise FarmUnusable(
            f"the farm has room for {view.max_desktops} desktops, the recipe asks for {recipe.desktops.count}: {cure}"
        )
    note(f"farm: {view.provider}, up to {view.max_desktops} desktops{', found running' if was_running else ''}")
    try:
        yield
    finally:
        if not was_running:
            await asyncio.shield(_stop_if_unused(note))


async def _stop_if_unused(note: Callable[[str], None]) -> None:
    """Stop the farm once nobody leases from it; a component that was killed leaves a lease, which ends by its TTL."""
    give_up_s = time.monotonic() + LEASES_END_S
    try:
        async with await AsyncFarm.connect() as farm:
            while (active := (await farm.view()).leases_active) and time.monotonic() < give_up_s:  # noqa: ASYNC110 - the farm has no event for it
                await asyncio.sleep(POLL_S)
    except FarmError as error:
        note(f"farm: not answering any more ({error})")
        return
    if active:
        note(f"farm: still leased {active} times, left running")
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dart_server.cli", "stop", stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait() != 0:
        note("farm: could not be stopped, see dart-farm status")
