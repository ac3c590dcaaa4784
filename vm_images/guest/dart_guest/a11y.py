"""Keeps one accessibility walker ready and asks it.

Role: run each walk in a process of its own, as `user`, one at a time, killed when it takes too long.
Rule: none is started until the first walk (rollouts never ask), then the one for the next walk stands ready; `stop`
leaves none (before a checkpoint). One that stood ready may have ended meanwhile: then a new one is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from dart_guest.processes import Runner

GRACE_S = 1.0


class WalkFailed(Exception):
    """No tree: the walker died or took too long; `timed_out` tells which."""

    def __init__(self, message: str, *, timed_out: bool) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class Walker:
    """Hands out walks."""

    def __init__(self, runner: Runner, package_dir: str) -> None:
        self.runner = runner
        self.package_dir = package_dir
        self.ready: asyncio.subprocess.Process | None = None
        self.turn = asyncio.Lock()

    async def prepare(self) -> asyncio.subprocess.Process:
        """Start a walker that waits for its order; raises WalkFailed."""
        try:
            return await self.runner.start(
                ["/usr/bin/python3", "-m", "dart_guest.a11y_walk"], env={"PYTHONPATH": self.package_dir}
            )
        except OSError as error:
            raise WalkFailed(f"the accessibility walker could not be started: {error}", timed_out=False) from error

    async def warm_up(self) -> None:
        """Have a walker ready; a desktop that has no process left gets one with the next walk, or an error then."""
        with contextlib.suppress(WalkFailed):
            self.ready = await self.prepare()

    async def walk(self, form: str, timeout_s: float) -> dict[str, Any]:
        """One walk; `form` is json or xml; raises WalkFailed."""
        async with self.turn:
            ready, self.ready = self.ready, None
            out, err, code = b"", b"", None
            if ready is not None:
                out, err, code = await self._ask(ready, form, timeout_s)
            if not (out or err):
                out, err, code = await self._ask(await self.prepare(), form, timeout_s)
            await self.warm_up()
        try:
            tree: dict[str, Any] = json.loads(out)
        except ValueError as error:
            (reason,) = err.decode(errors="replace").strip().splitlines()[-1:] or [f"it ended with {code} and no word"]
            raise WalkFailed(f"the accessibility walker failed: {reason}", timed_out=False) from error
        return tree

    async def _ask(
        self, walker: asyncio.subprocess.Process, form: str, timeout_s: float
    ) -> tuple[bytes, bytes, int | None]:
        """What a walker says, what it complains about, and its exit code; nothing is left of it. Raises WalkFailed."""
        try:
            order = f"{form} {timeout_s}\n".encode()
            out, err = await asyncio.wait_for(walker.communicate(order), timeout_s + GRACE_S)
        except TimeoutError as error:
            raise WalkFailed(f"no answer within {timeout_s:g} s", timed_out=True) from error
        finally:
            await end(walker)
        return out, err, walker.returncode

    async def stop(self) -> None:
        """End the waiting walker."""
        async with self.turn:
            walker, self.ready = self.ready, None
            if walker is not None:
                await end(walker)


async def end(walker: asyncio.subprocess.Process) -> None:
    """Kill a walker if it still runs, and collect it."""
    if walker.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            walker.kill()
        await walker.wait()
