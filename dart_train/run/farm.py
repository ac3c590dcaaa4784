"""The farm that a run uses: the recipe's or the one at DART_FARM_URL, or the embedded farm of this user.

Role: reports before a run what keeps a farm from serving it; provides a farm as long as the run lasts; stops an embedded farm that it
started. Rule: a farm that others use is never stopped or changed. Non-goals: leases (the rollout worker takes them), checks of the host
(`dart-farm doctor`, which is called here).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

from dart_envs.clock import SYSTEM_CLOCK, wait_for
from dart_envs.errors import FarmError
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.embedded import runtime_dir
from dart_server.wire import Clock, FarmView
from dart_train.config import Recipe

URL = "DART_FARM_URL"
COMMAND_TIMEOUT_S = 120.0
LEASE_EXPIRY_TIMEOUT_S = 90.0
"""Longer than the TTL of a rollout worker's leases (60 s)."""
POLL_S = 0.5

FarmSession = Callable[[Recipe, Callable[[str], None], Clock], AbstractAsyncContextManager[None]]
"""Provides the farm of a run: recipe, lines for the user, clock."""


class FarmUnusableError(Exception):
    """The farm cannot be reached or cannot provide what the recipe asks for; one sentence with the fix."""


def problems(recipe: Recipe) -> list[str]:
    """Check whether a farm can serve the recipe; no farm is started.

    Args:
        recipe: The recipe.

    Returns:
        One sentence per problem.
    """
    if url := _address(recipe):
        try:
            return _mismatches(recipe, asyncio.run(_view(url)))
        except FarmError as error:
            return [f"{URL if URL in os.environ else 'desktops.farm'}: {error}"]
    view = asyncio.run(_running_farm())
    if view is None and _listens_elsewhere(recipe):
        return [
            f"this user's farm listens on another address than its socket, where a run does not look for it: set {URL} and DART_API_KEY "
            "to use it, or stop it with dart-farm stop"
        ]
    found = _host_problems(recipe) if view is None else _mismatches(recipe, view)
    return found or _image_problems(recipe)


@asynccontextmanager
async def farm_session(recipe: Recipe, note: Callable[[str], None], clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[None]:
    """Provide a farm that fits the recipe for as long as the context lasts.

    Args:
        recipe: The recipe.
        note: Called with lines for the user.
        clock: Clock of the wait for leases at the end.

    Yields:
        Nothing; environment variables name the farm for the components meanwhile.

    Raises:
        FarmUnusableError: There is no farm, or it has another provider or fewer desktops.
    """
    address = _address(recipe)
    was_running = address is not None or await _running_farm() is not None
    settings = _environment(recipe) | ({} if address is None else {URL: address})
    with _in_environment(settings):
        try:
            view = await _view(None)
        except FarmError as error:
            raise FarmUnusableError(str(error)) from error
        for problem in _mismatches(recipe, view):
            raise FarmUnusableError(problem)
        note(f"farm: {view.provider}, up to {view.max_desktops} desktops{', found running' if was_running else ''}")
        try:
            yield
        finally:
            if not was_running:
                await asyncio.shield(_stop_if_unused(note, clock))


@contextmanager
def _in_environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that are as before afterwards."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _address(recipe: Recipe) -> str | None:
    """Address of a farm that is not this user's own; what the environment says comes first."""
    return os.environ.get(URL) or recipe.desktops.farm


async def _view(url: str | None) -> FarmView:
    async with await AsyncFarmClient.connect(url) as farm:
        return await farm.view()


async def _running_farm() -> FarmView | None:
    """This user's farm where one answers; the socket of one that was killed does not."""
    try:
        return await _view(f"unix://{runtime_dir() / 'farm.sock'}")
    except FarmError:
        return None


def _mismatches(recipe: Recipe, view: FarmView) -> list[str]:
    desktops = recipe.desktops
    far = _address(recipe) is not None
    fix = f"give {URL} or desktops.farm of another farm" if far else "stop it with dart-farm stop and run again"
    found = []
    if view.provider != desktops.provider:
        found.append(f"the farm runs {view.provider} desktops, the recipe asks for {desktops.provider}: {fix}")
    if view.max_desktops < desktops.count:
        found.append(f"the farm has at most {view.max_desktops} desktops, the recipe asks for {desktops.count}: {fix}")
    return found


def _environment(recipe: Recipe) -> dict[str, str]:
    """Settings of an embedded farm that is started for the recipe; those that the user has set come first."""
    wanted = {"DART_PROVIDER": recipe.desktops.provider, "DART_MAX_DESKTOPS": str(recipe.desktops.count)}
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def _host_problems(recipe: Recipe) -> list[str]:
    checks = _ask_farm_command(recipe, "doctor")
    if isinstance(checks, str):
        return [checks]
    return [f"{check['name']}: {check['detail']} {check['fix']}" for check in checks if not check["ok"]]


def _listens_elsewhere(recipe: Recipe) -> bool:
    """Whether a farm of this user runs that only its commands find."""
    told = _ask_farm_command(recipe, "status")
    return isinstance(told, dict) and bool(told.get("running"))


def _image_problems(recipe: Recipe) -> list[str]:
    if recipe.desktops.provider == "sim":
        return []
    images = _ask_farm_command(recipe, "images")
    if isinstance(images, str):
        return [images]
    names = [image["name"] for image in images]
    wanted = recipe.desktops.image
    if wanted in names:
        return []
    there = ", ".join(names) or "none"
    return [f"desktops.image: {wanted} is not installed (there is {there}): run `dart-farm images build {wanted}`"]


def _ask_farm_command(recipe: Recipe, verb: str) -> Any:
    """The JSON that `dart-farm VERB` prints; its complaint as text where it prints none."""
    command = [sys.executable, "-m", "dart_server.cli", verb, "--json"]
    environment = os.environ | _environment(recipe)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"dart-farm {verb} did not answer within {COMMAND_TIMEOUT_S:.0f} s: run it by hand to see where it stops"
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stderr.strip() or f"dart-farm {verb} ended with exit code {done.returncode}"


async def _stop_if_unused(note: Callable[[str], None], clock: Clock) -> None:
    """Stop the farm once nobody leases from it; a component that was killed leaves a lease, which ends by its TTL."""
    give_up_s = clock.monotonic() + LEASE_EXPIRY_TIMEOUT_S
    try:
        async with await AsyncFarmClient.connect() as farm:
            while (active := (await farm.view()).leases_active) and clock.monotonic() < give_up_s:
                await clock.sleep(POLL_S)
    except FarmError as error:
        note(f"farm: not answering any more ({error})")
        return
    if active:
        note(f"farm: still leased {active} times, left running")
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dart_server.cli", "stop", stdout=asyncio.subprocess.DEVNULL
    )
    try:
        stopped = await wait_for(clock, COMMAND_TIMEOUT_S, process.wait()) == 0
    except TimeoutError:
        process.kill()
        stopped = False
    if not stopped:
        note("farm: could not be stopped, see dart-farm status")
