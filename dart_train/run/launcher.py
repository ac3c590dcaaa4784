"""Starting, watching and stopping the components of a run.

Role: the `Launcher` protocol and its local implementation, one operating-system process per component. Rule: a component ends with
its launcher (parent-death signal) and is stopped as a whole process group; a component that must not end is restarted a limited number of
times, then its end is an error that ends the run. Non-goals: what a component does, placement in a cluster (another Launcher).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dart_agent.inference.process_group import set_parent_death_signal
from dart_envs.clock import SYSTEM_CLOCK, wait_first, wait_for
from dart_server.wire import Clock

STOP_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL: time to give leases back and to finish a checkpoint."""

EXIT_REFUSED = 2
"""Exit code of a component that refuses its configuration or its files: it would refuse them again."""


class ComponentFailed(Exception):
    """A component ended and may not be restarted again; the message names its log."""


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """How to start one component.

    Attributes:
        name: Its name.
        argv: Its command line.
        log: The file that gets its output.
        env: Environment variables on top of those of this process.
        restarts: How often it is started again after an unexpected end, over the whole run.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0


class Component(Protocol):
    """A started component."""

    @property
    def name(self) -> str:
        """The spec's name."""
        ...

    @property
    def pid(self) -> int:
        """Process id of the present process instance."""
        ...

    async def wait(self) -> int:
        """Wait for a deliberate end.

        Returns:
            0.

        Raises:
            ComponentFailed: It ended otherwise more often than it may be restarted.
        """
        ...

    async def stop(self) -> None:
        """Stop it: SIGTERM, a grace period, SIGKILL to the whole group; idempotent."""
        ...


class Launcher(Protocol):
    """Where components run."""

    async def start(self, spec: ComponentSpec) -> Component:
        """Start one component.

        Args:
            spec: How to start it.

        Returns:
            The component.
        """
        ...

    async def stop(self, component: Component) -> None:
        """Stop one component.

        Args:
            component: The component.
        """
        ...

    async def stop_all(self) -> None:
        """Stop every component, last started first."""
        ...

    async def watch(self, task: asyncio.Future[Any]) -> None:
        """Wait for a task while the components run.

        Args:
            task: The task.

        Raises:
            ComponentFailed: A component has failed and may not be restarted.
        """
        ...


def _die_with_parent() -> None:
    set_parent_death_signal(signal.SIGTERM)


def log_tail(path: Path, lines: int = 12) -> str:
    """Read the last lines of a log file, for an error message.

    Args:
        path: The file.
        lines: How many lines at most.

    Returns:
        The lines.
    """
    if not path.exists():
        return "(no log)"
    with path.open(encoding="utf-8", errors="replace") as handle:
        return "".join(deque(handle, maxlen=lines)).rstrip()


class LocalComponent:
    """One supervised local process.

    Args:
        spec: How to start it.
        on_restart: Called with its name and exit code before it is started again.
        clock: Clock of the grace period.
    """

    def __init__(self, spec: ComponentSpec, on_restart: Callable[[str, int], None], clock: Clock) -> None:
        self._spec = spec
        self._clock = clock
        self._on_restart = on_restart
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._supervisor: asyncio.Task[int] | None = None

    @property
    def name(self) -> str:
        """The spec's name."""
        return self._spec.name

    @property
    def pid(self) -> int:
        """Process id of the present process instance."""
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> bool:
        """True once its supervisor has seen its last end."""
        return self._supervisor is not None and self._supervisor.done()

    async def start(self) -> None:
        """Start the first process instance and its supervisor."""
        await self._spawn()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise-{self._spec.name}")

    async def _spawn(self) -> None:
        self._spec.log.parent.mkdir(parents=True, exist_ok=True)
        with self._spec.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._spec.env},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    async def _supervise(self) -> int:
        restarts_left = self._spec.restarts
        while True:
            assert self._process is not None
            code = await self._process.wait()
            if self._stopping or code == 0:
                return 0
            _kill_group(self._process.pid, signal.SIGKILL)
            if restarts_left == 0 or code == EXIT_REFUSED:
                raise ComponentFailed(
                    f"{self._spec.name} ended with exit code {code}; the end of {self._spec.log}:\n{log_tail(self._spec.log)}"
                )
            restarts_left -= 1
            self._on_restart(self._spec.name, code)
            await self._spawn()
            if self._stopping:  # stop() saw the process that had ended: it could not stop the new one
                _kill_group(self._process.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for a deliberate end.

        Returns:
            0.

        Raises:
            ComponentFailed: It ended otherwise more often than it may be restarted.
        """
        assert self._supervisor is not None
        return await asyncio.shield(self._supervisor)

    async def stop(self) -> None:
        """Stop it: SIGTERM, a grace period, SIGKILL to the whole group; idempotent."""
        self._stopping = True
        if self._process is None or self._supervisor is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await wait_for(self._clock, STOP_GRACE_S, self._process.wait())
        _kill_group(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.gather(self._supervisor, return_exceptions=True)


def _kill_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


class LocalLauncher:
    """Components as processes of this host.

    Args:
        on_restart: Called with name and exit code before a component is started again.
        clock: Clock of what is waited for with a limit.
    """

    def __init__(
        self, on_restart: Callable[[str, int], None] = lambda name, code: None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._on_restart = on_restart
        self._clock = clock
        self._components: list[LocalComponent] = []
        self._changed = asyncio.Event()

    async def start(self, spec: ComponentSpec) -> LocalComponent:
        """Start one component.

        Args:
            spec: How to start it.

        Returns:
            The component.
        """
        component = LocalComponent(spec, self._on_restart, self._clock)
        await component.start()
        self._components.append(component)
        self._changed.set()
        return component

    async def stop(self, component: Component) -> None:
        """Stop one component.

        Args:
            component: The component.
        """
        await component.stop()
        self._components = [other for other in self._components if other is not component]

    async def stop_all(self) -> None:
        """Stop every component, last started first."""
        while self._components:
            await self._components.pop().stop()

    async def watch(self, task: asyncio.Future[Any]) -> None:
        """Wait for a task while the components run; components that are started meanwhile are watched, too.

        Args:
            task: The task.

        Raises:
            ComponentFailed: A component has failed and may not be restarted.
        """
        while not task.done():
            waiters = [asyncio.ensure_future(component.wait()) for component in self._components]
            changed = asyncio.ensure_future(self._changed.wait())
            watched: list[asyncio.Future[Any]] = [task, changed, *waiters]
            try:
                await wait_first(self._clock, None, watched)
            finally:
                changed.cancel()
                for waiter in waiters:
                    waiter.cancel()
            self._changed.clear()
            for waiter in waiters:
                if waiter.done() and not waiter.cancelled() and waiter.exception() is not None:
                    waiter.result()
            self._components = [component for component in self._components if not component.ended]
        await task
