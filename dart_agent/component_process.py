"""A component of a run as a process: it runs until it ends or a signal stops it. Non-goals: what the component does."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from dart_agent.errors import AgentError
from dart_envs.errors import DartEnvError

logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")


async def run_together(*bodies: Coroutine[Any, Any, None]) -> None:
    """Run bodies until all end, or the first one raises; the others are cancelled then."""
    tasks = [asyncio.create_task(body) for body in bodies]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_to_its_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Let work end, also where the caller is cancelled meanwhile; it is cancelled then, but not before."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def run_until_signal(body: Awaitable[None]) -> int:
    """Run a component's body until it ends, or SIGTERM or SIGINT cancels it.

    Returns the exit code: 0, or 1 (and one sentence in the log) for an error of the agent or the environment package.
    """
    task = asyncio.ensure_future(body)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    except (AgentError, DartEnvError) as error:
        logger.error("%s", error)
        return 1
    return 0
