"""A request whose caller has gone away is not worth finishing. Non-goals: timeouts."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

Answer = TypeVar("Answer")


async def unless_disconnected(request: Any, task: asyncio.Future[Answer]) -> Answer:
    """Result of `task`; cancels it when the caller of the Starlette `request` goes away.

    Raises CancelledError in that case. The body of the request must have been read.
    """

    async def watch() -> None:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                return

    watcher = asyncio.ensure_future(watch())
    try:
        racers: set[asyncio.Future[Any]] = {task, watcher}
        await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        return await task
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
