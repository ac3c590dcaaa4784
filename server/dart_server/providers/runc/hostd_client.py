"""Client of dart-hostd: one request per connection over its Unix socket, without threads; starts the helper on demand.

Rule: unprivileged; the only thing run as root is the installed helper (`hostd.installation`), through `sudo -n`
when this process is not root.
Non-goals: knowing what the verbs mean (`runc` does).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_server.hostd import installation
from dart_server.providers.base import (
    CapabilityMissing,
    DesktopGone,
    DesktopUnsavable,
    HostFault,
    ImageMissing,
    ProviderError,
    SnapshotBroken,
)

_ERRORS: dict[str, type[ProviderError]] = {
    "capability_missing": CapabilityMissing,
    "desktop_gone": DesktopGone,
    "desktop_unsavable": DesktopUnsavable,
    "image_missing": ImageMissing,
    "snapshot_broken": SnapshotBroken,
}
START_TIMEOUT_S = 40.0
"""More than a helper waits for an earlier one that ends."""
STOP_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 15.0
_POLL_S = 0.05
_DOCTOR_HINT = "see `dart-farm doctor`"


@dataclass(frozen=True, slots=True)
class HostdPaths:
    """Directories of one helper; `store` is memory-backed or on disk, as it lies."""

    state: Path
    runtime: Path
    images: Path
    store: Path

    @property
    def socket(self) -> Path:
        """Where the helper listens."""
        return self.runtime / "hostd.sock"

    @property
    def log(self) -> Path:
        """What the helper says."""
        return self.runtime / "hostd.log"


class HostdClient:
    """Requests to one helper. `attach` finds or starts it and holds it; `detach` lets it go."""

    def __init__(self, paths: HostdPaths) -> None:
        self._paths = paths
        self._process: subprocess.Popen[bytes] | None = None
        self._attachment: socket.socket | None = None

    async def request(self, verb: str, *, timeout_s: float, **arguments: Any) -> Any:
        """The verb's answer; of `dial` and `listen` a socket, of `evidence` the descriptor of a file in memory, the caller's to close.

        Raises the provider error that the helper named, or HostFault when it is not there.
        """
        try:
            reply, passed = await asyncio.wait_for(self._exchange(verb, arguments), timeout_s)
        except TimeoutError as error:
            raise HostFault(f"dart-hostd did not answer {verb} in {timeout_s:.0f} s", hint=_DOCTOR_HINT) from error
        except OSError as error:
            raise HostFault(f"dart-hostd is not reachable ({error})", hint="start the farm again") from error
        if "error" in reply:
            if passed is not None:
                os.close(passed)
            if reply["error"] == "refused":
                raise ConnectionRefusedError(reply["detail"])
            raise _ERRORS.get(reply["error"], HostFault)(reply["detail"], hint=reply.get("hint", ""))
        if passed is None:
            return reply["ok"]
        return socket.socket(fileno=passed) if verb in ("dial", "listen") else passed

    async def _exchange(self, verb: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        connection = await self._connect()
        with connection:
            request = json.dumps({"verb": verb, **arguments}).encode() + b"\n"
            await asyncio.get_running_loop().sock_sendall(connection, request)
            received, passed = bytearray(), None
            try:
                while not received.endswith(b"\n"):
                    await _wait_readable(connection)
                    data, descriptors, _, _ = socket.recv_fds(connection, 65536, 1)
                    if descriptors:
                        passed = descriptors[0]
                    if not data:
                        raise ConnectionResetError("closed without an answer")
                    received += data
                return json.loads(received), passed
            except BaseException:  # cancelled, too, no descriptor may stay; raised again
                if passed is not None:
                    os.close(passed)
                raise

    async def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            await asyncio.get_running_loop().sock_connect(connection, str(self._paths.socket))
        except BaseException:  # cancelled, too, no descriptor may stay; raised again
            connection.close()
            raise
        return connection

    async def attach(self) -> dict[str, Any]:
        """Find the helper or start it, and hold it for as long as this process lives; returns its `ping` answer."""
        if self._attachment is None:
            try:
                await self._attach()
            except OSError:
                await self._launch()
        answer: dict[str, Any] = await self.request("ping", timeout_s=10.0)
        return answer

    async def detach(self) -> None:
        """Let go; a helper that this client started is told to remove everything and end."""
        started, self._process = self._process, None
        if started is not None:
            with suppress(HostFault):
                await self.request("stop", timeout_s=10.0)
        if self._attachment is not None:
            self._attachment.close()
            self._attachment = None
        if started is not None:
            await asyncio.to_thread(started.wait, STOP_TIMEOUT_S)

    async def _attach(self) -> None:
        connection = await self._connect()
        try:
            await asyncio.get_running_loop().sock_sendall(connection, b'{"verb": "attach"}\n')
            await asyncio.wait_for(_wait_readable(connection), 10.0)
            if not connection.recv(4096):
                raise ConnectionRefusedError("the helper serves another user")
        except BaseException:  # cancelled, too, no descriptor may stay; raised again
            connection.close()
            raise
        self._attachment = connection

    async def _launch(self) -> None:
        paths = self._paths
        process, offset = await asyncio.to_thread(_spawn, paths)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while True:
            try:
                await self._attach()
                self._process = process
                return
            except OSError as error:
                if process.poll() is not None:
                    raise CapabilityMissing(_last_log_line(paths.log, offset), hint=_DOCTOR_HINT) from error
                if loop.time() > deadline:
                    process.terminate()
                    raise HostFault(
                        f"dart-hostd did not start in {START_TIMEOUT_S:.0f} s", hint=f"see {paths.log}"
                    ) from error
            await asyncio.sleep(_POLL_S)


def _spawn(paths: HostdPaths) -> tuple[subprocess.Popen[bytes], int]:
    """Start the helper; returns it and where its words begin in the log."""
    command = _command(paths)
    paths.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        offset = os.fstat(log).st_size
        process = subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    finally:
        os.close(log)
    return process, offset


def _command(paths: HostdPaths) -> list[str]:
    arguments = {
        "--state-dir": str(paths.state),
        "--runtime-dir": str(paths.runtime),
        "--images-dir": str(paths.images),
        "--store-dir": str(paths.store),
        "--idle-timeout-s": str(IDLE_TIMEOUT_S),
    }
    try:
        if os.geteuid() == 0:
            installation.install()
        start = installation.command()
    except (installation.HelperNotInstalled, OSError) as error:
        raise CapabilityMissing(str(error), hint="run `dart-farm setup`") from error
    command = [*start, *(word for pair in arguments.items() for word in pair)]
    if os.geteuid() == 0:
        return command
    sudo = shutil.which("sudo")
    fix = "run as root, or allow this user to sudo without a password"
    if sudo is None:
        raise CapabilityMissing("live desktops need root, and there is no sudo here", hint=fix)
    asked = subprocess.run(
        [sudo, "-n", "true"], capture_output=True, stdin=subprocess.DEVNULL, start_new_session=True, check=False
    )
    if asked.returncode != 0:
        raise CapabilityMissing("live desktops need root, and sudo asks for a password", hint=fix)
    return [sudo, "-n", *command]


def _last_log_line(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "dart-hostd ended without a word"


async def _wait_readable(connection: socket.socket) -> None:
    """Wait until the socket has something to read (a message with descriptors must not be read by the loop)."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, wake)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
