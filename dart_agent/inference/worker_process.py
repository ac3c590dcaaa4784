"""One inference worker as a child process: start, wait until it answers, stop, leave nothing behind.

Role: `WorkerProcess`. Rule: a worker lives in a directory of its own (socket, key, temporary files) and in a process group of its
own; `stop` ends the group and removes the directory, whatever state they are in. The worker watches its parent, so a launcher that is
killed takes its workers with it. Non-goals: restarting (`dart_agent.inference.supervisor`), routing (`pool`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
from pathlib import Path

from dart_agent.errors import ConfigError, WorkerError
from dart_agent.inference.client import WorkerClient
from dart_agent.inference.process_group import group_members, kill_members
from dart_agent.inference.settings import KEY_NAME, PublishedWeights, WorkerSettings
from dart_envs.clock import SystemClock
from dart_server.wire import Clock

_MAX_DIRECTORY_CHARS = 64
"""A Unix socket's path may have 107 bytes, and vLLM appends its own names of up to 40."""


class WorkerProcess:
    """One vLLM worker. `directory` is made at each start and removed at each stop; its path stays the same."""

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        *,
        directory: Path,
        log_path: Path,
        clock: Clock | None = None,
    ) -> None:
        """Raises ConfigError when `directory` is too long for a Unix socket, or the model is not there."""
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
        self.published: PublishedWeights | None = None
        """What the next start serves; None: the weights of `settings.model`, as version 0."""
        self._clock = clock or SystemClock()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None when it was not started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process; `wait_until_ready` waits for it."""
        await self.stop()
        temporary = self.directory / "tmp"
        temporary.mkdir(mode=0o700, parents=True)
        self.directory.chmod(0o700)
        key_path = self.directory / KEY_NAME
        key_path.touch(mode=0o600, exist_ok=False)
        key_path.write_text(secrets.token_urlsafe(32))
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "dart_agent.inference.engine.server",
                "--settings",
                self.settings.model_dump_json(),
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
        """Wait until the worker answers. Raises WorkerError when it ends or does not answer in `start_timeout_s`."""
        assert self._process is not None, "start() first"
        deadline_s = self._clock.monotonic() + self.settings.start_timeout_s
        async with WorkerClient(self.name, self.directory) as client:
            while self._process.returncode is None:
                with contextlib.suppress(WorkerError):
                    await client.health(timeout_s=5.0)
                    return
                if self._clock.monotonic() > deadline_s:
                    raise WorkerError(
                        f"{self.name} did not answer within {self.settings.start_timeout_s:.0f} s: see {self.log_path}"
                    )
                await self._clock.sleep(0.25)
        raise WorkerError(f"{self.name} ended with code {self._process.returncode} while starting: see {self.log_path}")

    async def wait(self) -> int:
        """Wait until the process ends, or hangs: one that misses three health checks in a row is ended. Its exit code."""
        assert self._process is not None, "start() first"
        process = self._process
        ended = asyncio.ensure_future(process.wait())
        missed = 0
        try:
            async with WorkerClient(self.name, self.directory) as client:
                while not ended.done():
                    await asyncio.wait({ended}, timeout=self.settings.probe_interval_s)
                    if ended.done():
                        break
                    try:
                        await client.health(timeout_s=self.settings.probe_interval_s)
                        missed = 0
                    except WorkerError:
                        missed += 1
                    if missed == 3:
                        process.kill()
            return await ended
        finally:
            ended.cancel()

    async def stop(self) -> None:
        """End the whole process group and remove the directory; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            await asyncio.shield(self._end_group(process))
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _end_group(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), self.settings.stop_timeout_s)
        for spare_trackers in (True, False):
            kill_members(process.pid, spare_trackers=spare_trackers)
            for _ in range(40):
                if not group_members(process.pid):
                    break
                await asyncio.sleep(0.05)
        await process.wait()

    def _published_arguments(self) -> list[str]:
        if self.published is None:
            return []
        return ["--weights", str(self.published.path), "--version", str(self.published.version)]

    def _environment(self, temporary: Path) -> dict[str, str]:
        settings = self.settings
        environment = {key: value for key, value in os.environ.items() if key != "DART_API_KEY"}
        environment |= {
            "TMPDIR": str(temporary),
            "VLLM_RPC_BASE_PATH": str(temporary),
            "OMP_NUM_THREADS": str(settings.threads),
            "MKL_NUM_THREADS": str(settings.threads),
            "OMP_WAIT_POLICY": "passive",
            "KMP_BLOCKTIME": "0",
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_DO_NOT_TRACK": "1",
            "PYTHONUNBUFFERED": "1",
        }
        if settings.tensor_parallel == 1:
            # One process fewer: the engine computes in its own process instead of a worker's.
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if settings.eager:
            environment |= {"TORCH_COMPILE_DISABLE": "1", "VLLM_CACHE_ROOT": str(temporary / "cache")}
        if settings.device_ids is not None:
            environment["CUDA_VISIBLE_DEVICES"] = settings.device_ids
        return environment
