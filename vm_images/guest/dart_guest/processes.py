"""Running programs in the session.

Role: start a program as `user` or `root` with the session's environment, with time-out and output limits.
Rule: a time-out ends the whole process group; a program that ends by itself may leave children in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dart_guest import session

STREAM_LIMIT = 8 * 1024 * 1024
START_FAILED = 127
KILLED = -signal.SIGKILL
RAISED_OOM_SCORE = "200"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended; `returncode` None when detached."""

    returncode: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    pid: int | None = None


def shielded(argv: Sequence[str]) -> list[str]:
    """Give up the agent's own protection from the out-of-memory killer, where it has any."""
    try:
        protected = int(Path("/proc/self/oom_score_adj").read_text(encoding="ascii")) < 0
    except (OSError, ValueError):
        protected = False
    return ["choom", "-n", RAISED_OOM_SCORE, "--", *argv] if protected else list(argv)


class Runner:
    """Starts programs; knows which of the waited-for ones still run."""

    def __init__(self, drop_privileges: bool) -> None:
        self.drop_privileges = drop_privileges
        self.running = 0

    async def start(
        self,
        argv: Sequence[str],
        *,
        user: str = session.USER,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        streams: int = asyncio.subprocess.PIPE,
    ) -> asyncio.subprocess.Process:
        """Start a program in a process group of its own (not a session: see init); raises OSError when it cannot be started."""
        as_user = user == session.USER
        base = session.session_environment() if as_user else session.root_environment()
        if not self.drop_privileges:
            base = dict(os.environ) | {"DISPLAY": os.environ.get("DISPLAY", session.DISPLAY)}
        drop = as_user and self.drop_privileges
        home = session.HOME if drop else base.get("HOME", "/")
        if not await asyncio.to_thread(Path(home).is_dir):
            home = "/"
        return await asyncio.create_subprocess_exec(
            *shielded(argv),
            stdin=streams,
            stdout=streams,
            stderr=streams,
            env=base | dict(env or {}),
            cwd=cwd or home,
            process_group=0,
            user=session.UID if drop else None,
            group=session.GID if drop else None,
            extra_groups=os.getgrouplist(session.USER, session.GID) if drop else None,
        )

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        user: str = session.USER,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        merge: bool = False,
    ) -> Finished:
        """Run to the end or to the time-out; `merge` puts stderr into stdout."""
        try:
            child = await self.start(argv, user=user, env=env, cwd=cwd)
        except (OSError, ValueError, RuntimeError) as error:
            return Finished(START_FAILED, b"", str(error).encode())
        self.running += 1
        try:
            return await self.collect(child, stdin, timeout_s, merge)
        finally:
            self.running -= 1

    async def collect(
        self, child: asyncio.subprocess.Process, stdin: bytes | None, timeout_s: float, merge: bool
    ) -> Finished:
        """Feed, read and wait; a program whose children keep its pipes open ends with the program itself."""
        out, err = Capture(), Capture()
        if merge:
            err = out
        readers = [
            asyncio.create_task(out.read(child.stdout)),
            asyncio.create_task(err.read(child.stderr)),
            asyncio.create_task(feed(child.stdin, stdin)),
        ]
        timed_out = False
        try:
            await asyncio.wait_for(child.wait(), timeout_s)
            await asyncio.wait(readers, timeout=0.5)
        except TimeoutError:
            timed_out = True
            kill_group(child.pid)
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        returncode = KILLED if timed_out else child.returncode
        stderr = b"" if merge else bytes(err.data)
        return Finished(returncode, bytes(out.data), stderr, timed_out, out.cut or err.cut, child.pid)

    async def launch(
        self,
        argv: Sequence[str],
        *,
        user: str = session.USER,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> int:
        """Start and leave running; returns the pid, raises OSError when it cannot be started."""
        child = await self.start(argv, user=user, env=env, cwd=cwd, streams=asyncio.subprocess.DEVNULL)
        return child.pid


class Capture:
    """A stream's first bytes, up to the limit; the rest is read and dropped."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.cut = False

    async def read(self, stream: asyncio.StreamReader | None) -> None:
        """Read until the end of the stream."""
        if stream is None:
            return
        while chunk := await stream.read(65536):
            room = STREAM_LIMIT - len(self.data)
            self.data += chunk[:room]
            self.cut = self.cut or len(chunk) > room


async def feed(stream: asyncio.StreamWriter | None, content: bytes | None) -> None:
    """Write a program's standard input and close it; a program that does not read is no error."""
    if stream is None:
        return
    with contextlib.suppress(ConnectionError, BrokenPipeError):
        if content:
            stream.write(content)
            await stream.drain()
    stream.close()


def kill_group(pid: int) -> None:
    """End what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
