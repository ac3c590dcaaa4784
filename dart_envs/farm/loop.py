"""An event loop in a thread, for code that is not async.

There is one loop thread for each process, made on first use and again after a fork. This module does not know what
runs on it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from dart_envs.errors import DartEnvError

_T = TypeVar("_T")


class EventLoopThread:
    """An event loop in a daemon thread.

    Attributes:
        pid: The process that made it.
    """

    _shared: EventLoopThread | None = None
    _shared_lock = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dart-loop", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> EventLoopThread:
        """Return the loop thread of this process."""
        with cls._shared_lock:
            if cls._shared is None or cls._shared.pid != os.getpid():
                cls._shared = cls()
            return cls._shared

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop and wait for it; an interrupt while waiting cancels it.

        Args:
            work: The coroutine.

        Returns:
            Its result.

        Raises:
            RuntimeError: If it is called from the loop itself.
            DartEnvError: If this process is a fork of the one that made the loop, whose thread does not exist here.
        """
        if self.pid != os.getpid():
            work.close()
            raise DartEnvError(
                f"What process {self.pid} connected does not work in its fork {os.getpid()}; make the environment in this "
                "process, or call its reset() here, which leases a desktop of its own."
            )
        if self.is_current():
            work.close()
            raise RuntimeError("The synchronous API cannot be called from its own event loop; use the async one there.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C ends the work on the loop as well; raised again
            future.cancel()
            raise

    def is_current(self) -> bool:
        """True when called from the loop itself."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a coroutine without waiting for it.

        Args:
            work: The coroutine.
        """
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Stop the loop and its thread, for loops that are not shared."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
