"""Starting, watching and stopping the components of a run.

Role: the `Launcher` protocol and its local implementation, one operating-system process per component. Rule: a component ends with
its launcher (parent-death signal) and is stopped as a whole process group; every end that nobody asked for, also one with exit code 0 of a
component that should run until it is stopped, leads to a restart, a limited number of times, then to an error that ends the run. What
follows an end is decided in `decisions.supervision`, without I/O. Non-goals: what a component does, placement in a cluster (another
Launcher).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dart_agent.inference.process_group import set_parent_death_signal
from dart_envs.clock import SYSTEM_CLOCK, wait_first, wait_for
from dart_server.wire import Clock
from dart_train.run.decisions.supervision import (
    AwaitSpace,
    ComponentLost,
    KillGroup,
    ProcessEnded,
    ProcessStarted,
    StartAgain,
    StopAsked,
    SupervisionState,
    decide,
)
from dart_train.run.lock import component_lock

log = logging.getLogger(__name__)

STOP_GRACE_S = 10.0
"""Between SIGTERM and SIGKILL: time to give leases back and to finish a checkpoint."""

KILL_LIMIT_S = 30.0
"""After SIGKILL: a process that is not gone then hangs in the kernel, and nothing here can end it."""


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
        restarts: How often it is started again after unexpected ends in a row (`dart_train.run.decisions.supervision`).
        endless: It runs until it is stopped: an end with exit code 0 is unexpected, too.
        stop_grace_s: Seconds between SIGTERM and SIGKILL.
        optional: The run goes on without it when it has failed for good.
        lock: The lock file that it holds as long as it lives (`dart_train.run.lock`); None: none.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    endless: bool = False
    stop_grace_s: float = STOP_GRACE_S
    optional: bool = False
    lock: Path | None = None


class ProcessHandle(Protocol):
    """A started process."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...

    async def wait(self) -> int:
        """Wait for its end and return the exit code."""
        ...

    def terminate(self) -> None:
        """Send it SIGTERM; nothing happens where it has ended."""
        ...

    def kill_group(self) -> None:
        """Send SIGKILL to it and to whatever is left of its process group."""
        ...


Spawn = Callable[[ComponentSpec], Awaitable[ProcessHandle]]


class DiskSpace(Protocol):
    """The disk of the run."""

    def look(self) -> bool:
        """Say whether the run pauses because it is nearly full."""
        ...

    async def until_space(self) -> None:
        """Wait until it has space."""
        ...


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


class _LocalProcess:
    """A process of this host, the leader of a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


async def spawn_locally(spec: ComponentSpec) -> ProcessHandle:
    """Start a process of this host, in a process group of its own; its output goes to the log of the component.

    Args:
        spec: How to start it.

    Returns:
        The process.
    """
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    with spec.log.open("ab") as output, _inherited_lock(spec.lock) as inherited:
        process = await asyncio.create_subprocess_exec(
            *spec.argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **spec.env},
            start_new_session=True,
            preexec_fn=_die_with_parent,
            pass_fds=inherited,
        )
    return _LocalProcess(process)


@contextlib.contextmanager
def _inherited_lock(file: Path | None) -> Iterator[tuple[int, ...]]:
    if file is None:
        yield ()
        return
    with component_lock(file) as descriptor:
        yield (descriptor,)


class SupervisedComponent:
    """One supervised process.

    Args:
        spec: How to start it.
        on_restart: Called with its name and exit code before it is started again.
        clock: Clock of the grace period.
        spawn: Starts a process.
        on_loss: Called with the reason when an optional component has failed for good.
        disk: The disk that it writes to; None: it is never full.
    """

    def __init__(
        self,
        spec: ComponentSpec,
        on_restart: Callable[[str, int], None],
        clock: Clock,
        spawn: Spawn,
        on_loss: Callable[[str], None] = lambda cause: None,
        disk: DiskSpace | None = None,
    ) -> None:
        self._spec = spec
        self._disk = disk
        self._stop_asked = asyncio.Event()
        self._on_loss = on_loss
        self._clock = clock
        self._spawn = spawn
        self._on_restart = on_restart
        self._process: ProcessHandle | None = None
        self._started_s = 0.0
        self._state = SupervisionState(spec.name, spec.restarts, spec.endless)
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
        await self._spawn_process()
        self._supervisor = asyncio.create_task(self._supervise(), name=f"supervise-{self._spec.name}")

    async def _spawn_process(self) -> None:
        self._process, self._started_s = await self._spawn(self._spec), self._clock.monotonic()

    async def _supervise(self) -> int:
        spec = self._spec
        while True:
            assert self._process is not None
            code = await self._process.wait()
            lived_s = self._clock.monotonic() - self._started_s
            ended = ProcessEnded(code, disk_full=self._disk is not None and self._disk.look(), lived_s=lived_s)
            for command in decide(self._state, ended):
                if isinstance(command, KillGroup):
                    self._process.kill_group()
                elif isinstance(command, AwaitSpace):
                    await self._await_space()
                    if self._state.stopping:
                        return 0
                elif isinstance(command, ComponentLost):
                    if spec.optional:
                        self._on_loss(f"{command.cause}: {log_tail(spec.log, lines=1)}")
                        return 0
                    if command.refused:
                        raise ComponentFailed(f"{command.cause}: {log_tail(spec.log, lines=1)}")
                    raise ComponentFailed(f"{command.cause}; the end of {spec.log}:\n{log_tail(spec.log)}")
                elif isinstance(command, StartAgain):
                    self._on_restart(spec.name, command.code)
                    await self._spawn_process()
                    if decide(self._state, ProcessStarted()):
                        self._process.kill_group()
                else:
                    return 0

    async def _await_space(self) -> None:
        assert self._disk is not None, "only a disk can be full"
        waits = [asyncio.ensure_future(self._disk.until_space()), asyncio.ensure_future(self._stop_asked.wait())]
        try:
            await wait_first(self._clock, None, waits)
        finally:
            for each in waits:
                each.cancel()

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
        decide(self._state, StopAsked())
        self._stop_asked.set()
        if self._process is None or self._supervisor is None:
            return
        if self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await wait_for(self._clock, self._spec.stop_grace_s, self._process.wait())
        self._process.kill_group()
        try:
            await wait_for(self._clock, KILL_LIMIT_S, asyncio.shield(self._supervisor))
        except TimeoutError:
            log.error("%s (process %d) is still there after SIGKILL", self._spec.name, self._process.pid)
            self._supervisor.cancel()
        except ComponentFailed:
            log.info("%s had failed before it was stopped", self._spec.name)


class LocalLauncher:
    """Components as processes of this host.

    Args:
        on_restart: Called with name and exit code before a component is started again.
        clock: Clock of what is waited for with a limit.
        spawn: Starts a process.
        on_loss: Called with the reason when an optional component has failed for good.
        disk: The disk that components write to; None: it is never full.
    """

    def __init__(
        self,
        on_restart: Callable[[str, int], None] = lambda name, code: None,
        clock: Clock = SYSTEM_CLOCK,
        spawn: Spawn = spawn_locally,
        on_loss: Callable[[str], None] = lambda cause: None,
        disk: DiskSpace | None = None,
    ) -> None:
        self._disk = disk
        self._on_loss = on_loss
        self._on_restart = on_restart
        self._clock = clock
        self._spawn = spawn
        self._components: list[SupervisedComponent] = []
        self._changed = asyncio.Event()

    async def start(self, spec: ComponentSpec) -> SupervisedComponent:
        """Start one component.

        Args:
            spec: How to start it.

        Returns:
            The component.
        """
        component = SupervisedComponent(spec, self._on_restart, self._clock, self._spawn, self._on_loss, self._disk)
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
