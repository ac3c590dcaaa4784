"""One inference worker as a child process: start, wait until it answers, stop, leave nothing behind.

Role: `WorkerProcess`. Rule: a worker lives in a directory of its own (socket, key, temporary files) and in a process group of its
own; `stop` ends the group and removes the directory, whatever state they are in. The worker watches its parent, so a launcher that is
killed takes its workers with it. The first start has the seed of the settings, every later one another that follows from it: an engine
that starts with a seed again repeats its random numbers. The log counts the starts, also those by earlier launchers. Weights that a start
serves are held until it is over: newer versions may come meanwhile. Non-goals: restarting (`dart_agent.inference.supervisor`), routing
(`pool`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import shutil
import signal
import sys
from pathlib import Path
from typing import BinaryIO

from dart_agent.errors import ConfigError, WeightUpdateError, WorkerError, WorkerKilledError
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.decisions import health
from dart_agent.inference.decisions.health import HealthAction, HealthEvent, HealthSettings, HealthState
from dart_agent.inference.engine.arguments import engine_environment
from dart_agent.inference.process_group import group_members, kill_members
from dart_agent.inference.settings import KEY_NAME, PublishedWeights, WorkerSettings
from dart_agent.inference.weights.leases import WeightLease, hold
from dart_envs.clock import SystemClock, wait_first, wait_for
from dart_server.wire import Clock

_MAX_DIRECTORY_CHARS = 64
"""A Unix socket's path may have 107 bytes, and vLLM appends its own names of up to 40."""
_DRAIN_POLL_S = 0.05
_START_LINE = b"--- start "
"""What a line of the log begins with where a process starts."""
ENGINE_MODULE = "dart_agent.inference.engine.server"
"""The program of a worker's process, as `python -m` takes it."""


def start_seed(seed: int, starts: int) -> int:
    """Derive the seed of a start.

    Args:
        seed: Seed of the worker.
        starts: How often it was started before.

    Returns:
        The seed itself for the first start, another one below 2**31 for each other.
    """
    return seed if starts == 0 else random.Random(f"{seed}/start {starts}").getrandbits(31)


class WorkerProcess:
    """One inference worker. `directory` is made at each start and removed at each stop; its path stays the same."""

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        *,
        directory: Path,
        log_path: Path,
        clock: Clock | None = None,
        module: str = ENGINE_MODULE,
    ) -> None:
        """`module` is the program of the process (`engine.server`, or one that gives it another engine).

        Raises ConfigError when `directory` is too long for a Unix socket, or the model is not there.
        """
        if len(str(directory)) > _MAX_DIRECTORY_CHARS:
            raise ConfigError(
                f"{directory} is too long for Unix sockets: set DART_RUNTIME_DIR to a path of at most "
                f"{_MAX_DIRECTORY_CHARS - len(directory.name) - 1} characters"
            )
        settings.check()
        self.name = name
        self.settings = settings
        self.directory = directory
        self.log_path = log_path
        self._module = module
        self.published: PublishedWeights | None = None
        """What the next start serves; None: the weights of `settings.model`, as version 0."""
        self._clock = clock or SystemClock()
        self._process: asyncio.subprocess.Process | None = None
        self._lease: WeightLease | None = None
        self._starts: int | None = None  # as the log tells it at the first start

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None when it was not started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process; `wait_until_ready` waits for it.

        Raises:
            WorkerError: The weights that it is to serve were removed.
        """
        await self.stop()
        if self.published is not None:
            try:
                self._lease = hold(self.published.path)
            except WeightUpdateError as error:
                raise WorkerError(f"{self.name} cannot start: {error}") from error
        temporary = self.directory / "tmp"
        temporary.mkdir(mode=0o700, parents=True)
        self.directory.chmod(0o700)
        key_path = self.directory / KEY_NAME
        key_path.touch(mode=0o600, exist_ok=False)
        key_path.write_text(secrets.token_urlsafe(32))
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("a+b") as log:
            settings = self._begin_log(log)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                "--settings",
                settings.model_dump_json(),
                "--directory",
                str(self.directory),
                "--parent",
                str(os.getpid()),
                *self._published_arguments(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(temporary),
                start_new_session=True,
            )

    async def wait_until_ready(self) -> None:
        """Wait until the worker answers.

        Raises:
            WorkerKilledError: A signal ended it.
            WorkerError: It ended by itself, or does not answer in time (`WorkerSettings.start_limit_s`).
        """
        assert self._process is not None, "start() first"
        try:
            await self._wait_until_ready(self._process)
        finally:
            self._release_weights()

    async def _wait_until_ready(self, process: asyncio.subprocess.Process) -> None:
        limit_s = self.settings.start_limit_s
        deadline_s = self._clock.monotonic() + limit_s
        async with WorkerClient(self.name, self.directory) as client:
            while process.returncode is None:
                with contextlib.suppress(WorkerError):
                    await client.health(timeout_s=5.0)
                    return
                if self._clock.monotonic() > deadline_s:
                    raise WorkerError(
                        f"{self.name} did not answer within {limit_s:.0f} s of its start: see {self.log_path}; where it was still loading, "
                        "give it longer with start_timeout_s (in a recipe: inference.start_timeout_s)"
                    )
                await self._clock.sleep(0.25)
        code = process.returncode
        kind = WorkerKilledError if code < 0 else WorkerError
        raise kind(f"{self.name} ended with code {code} while starting: see {self.log_path}")

    async def wait(self) -> int:
        """Wait until the process ends, or hangs: one that `decisions.health` says to replace is ended. Its exit code."""
        assert self._process is not None, "start() first"
        process = self._process
        ended = asyncio.ensure_future(process.wait())
        state = HealthState(in_service=True)
        try:
            async with WorkerClient(self.name, self.directory) as client:
                while not await wait_first(self._clock, self.settings.probe_interval_s, [ended]):
                    try:
                        await client.health(timeout_s=self.settings.probe_interval_s)
                        event = HealthEvent.ANSWERED
                    except WorkerError:
                        event = HealthEvent.MISSED
                    state, actions = health.decide(state, event, HealthSettings())
                    if HealthAction.REPLACE in actions and process.returncode is None:
                        process.kill()
            return await ended
        finally:
            ended.cancel()

    async def drain(self) -> None:
        """Let the worker finish what runs and take nothing new, for at most `drain_timeout_s`.

        One that does not answer has nothing to finish.
        """
        if self._process is None or self._process.returncode is not None:
            return
        deadline_s = self._clock.monotonic() + self.settings.drain_timeout_s
        async with WorkerClient(self.name, self.directory) as client:
            with contextlib.suppress(WorkerError):
                while await client.drain() and self._clock.monotonic() < deadline_s:
                    await self._clock.sleep(_DRAIN_POLL_S)

    async def stop(self) -> None:
        """End the whole process group and remove the directory; idempotent."""
        self._release_weights()
        process, self._process = self._process, None
        if process is not None:
            await asyncio.shield(self._end_group(process))
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self) -> None:
        """End the process at once; whoever waits for it (`wait`) starts it again."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _release_weights(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    async def _end_group(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await wait_for(self._clock, self.settings.stop_timeout_s, process.wait())
        for spare_trackers in (True, False):
            kill_members(process.pid, spare_trackers=spare_trackers)
            for _ in range(40):
                if not group_members(process.pid):
                    break
                await self._clock.sleep(0.05)
        await process.wait()

    def _begin_log(self, log: BinaryIO) -> WorkerSettings:
        """Write a line about this start. Returns the settings with its seed."""
        if self._starts is None:
            log.seek(0)
            self._starts = sum(line.startswith(_START_LINE) for line in log)
        seed = start_seed(self.settings.seed, self._starts)
        self._starts += 1
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - 1))
        told = f"{self._starts} of {self.name}, seed {seed}\n".encode()
        log.write((b"" if log.read() in (b"", b"\n") else b"\n") + _START_LINE + told)
        log.flush()
        return self.settings.model_copy(update={"seed": seed})

    def _published_arguments(self) -> list[str]:
        if self.published is None:
            return []
        arguments = ["--weights", str(self.published.path), "--version", str(self.published.version)]
        return arguments if self.published.digest is None else [*arguments, "--digest", self.published.digest]

    def _environment(self, temporary: Path) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key != "DART_API_KEY"}
        return inherited | engine_environment(self.settings, temporary, inherited)
