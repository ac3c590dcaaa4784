"""Client of dart-hostd: one request per connection over its Unix socket, without threads; starts the helper on demand.

Rule: unprivileged. Root's farm starts the installed helper (`hostd.installation`) itself. An ordinary user's farm runs one command through
sudo, once: the installed starter, without arguments, with a socket as its standard input, over which it says what it wants. That socket is
the first connection to the helper. When it closes, the helper has died, and the starter brings up the next one at the same address.
Non-goals: knowing what the verbs mean (`runc` does).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_server.hostd import installation
from dart_server.hostd.layout import Layout, layout_of_user
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
_POLL_S = 0.05
_DOCTOR_HINT = "see `dart-farm doctor`"
_STARTER_FIX = "run `dart-farm setup` as a user who may use sudo, or run the farm as root"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostdPaths:
    """Directories of one farm; `store` is memory-backed or on disk, as it lies."""

    runtime: Path
    images: Path
    store: Path

    @property
    def layout(self) -> Layout:
        """Where the helper of this process's user keeps its things."""
        return layout_of_user(os.geteuid(), self.runtime.resolve(), self.images.resolve(), self.store.resolve())

    @property
    def socket(self) -> Path:
        """Where the helper listens."""
        return self.layout.socket

    @property
    def log(self) -> Path:
        """What the helper says."""
        return self.runtime / "hostd.log"


class HostdClient:
    """Requests to one helper. `attach` finds or starts it and holds it; `detach` lets it go.

    `idle_timeout_s`: a helper that is started here ends when nobody was attached to it for this long.
    """

    def __init__(self, paths: HostdPaths, *, idle_timeout_s: float) -> None:
        self._paths = paths
        self._idle_timeout_s = idle_timeout_s
        self._socket = paths.socket
        self._process: subprocess.Popen[bytes] | None = None
        self._attachment: socket.socket | None = None
        self._following: asyncio.Task[None] | None = None

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
            await asyncio.get_running_loop().sock_connect(connection, str(self._socket))
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
        if self._following is None and os.geteuid() != 0:
            self._following = asyncio.get_running_loop().create_task(self._follow())
        answer: dict[str, Any] = await self.request("ping", timeout_s=10.0)
        return answer

    async def detach(self) -> None:
        """Let go; a helper that this client started is told to remove everything and end."""
        started, self._process = self._process, None
        following, self._following = self._following, None
        if following is not None and not following.done():
            following.cancel()
            await asyncio.wait({following})
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
                raise ConnectionRefusedError("the helper serves another user, or ends")
        except BaseException:  # cancelled, too, no descriptor may stay; raised again
            connection.close()
            raise
        self._attachment = connection

    async def _follow(self) -> None:
        """Attach again whenever the helper has died and the starter has brought up the next one; give up when none comes."""
        loop = asyncio.get_running_loop()
        while self._attachment is not None:
            await _wait_readable(self._attachment)
            try:
                if self._attachment.recv(4096):
                    continue
            except BlockingIOError:
                continue
            except ConnectionError as error:
                log.info("the connection to the root helper broke: %s", error)
            log.warning("the root helper has ended: its desktops and snapshots are gone; waiting for the next one")
            self._attachment.close()
            self._attachment = None
            deadline = loop.time() + START_TIMEOUT_S
            while self._attachment is None and loop.time() < deadline:
                with suppress(OSError):
                    await self._attach()
                if self._attachment is None:
                    await asyncio.sleep(_POLL_S)
            if self._attachment is None:
                log.error("no root helper came up again in %.0f s: start the farm again", START_TIMEOUT_S)
            else:
                log.warning("attached to the next root helper")

    async def _launch(self) -> None:
        if os.geteuid() == 0:
            await self._launch_as_root()
        else:
            await self._launch_by_starter()

    async def _launch_as_root(self) -> None:
        paths = self._paths
        process, offset = await asyncio.to_thread(
            _spawn, paths, _root_command(paths, self._idle_timeout_s), subprocess.DEVNULL
        )
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

    async def _launch_by_starter(self) -> None:
        paths, command = self._paths, starter_command()
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                process, offset = await asyncio.to_thread(_spawn, paths, command, theirs.fileno())
            channel.setblocking(False)
            request = {
                "runtime_dir": str(paths.runtime.resolve()),
                "images_dir": str(paths.images.resolve()),
                "store_dir": str(paths.store.resolve()),
                "idle_timeout_s": self._idle_timeout_s,
            }
            loop = asyncio.get_running_loop()
            try:
                with suppress(ConnectionError):
                    await loop.sock_sendall(channel, json.dumps(request).encode() + b"\n")
                reply = await asyncio.wait_for(_read_line(channel), START_TIMEOUT_S)
            except (TimeoutError, ConnectionError) as error:
                raise HostFault(
                    f"the starter of dart-hostd did not answer in {START_TIMEOUT_S:.0f} s", hint=f"see {paths.log}"
                ) from error
            if not reply:
                said = await asyncio.to_thread(_last_log_line, paths.log, offset)
                raise CapabilityMissing(f"the root helper was not started: {said}", hint=_STARTER_FIX)
            answer = json.loads(reply.splitlines()[0])
            if "error" in answer:
                raise CapabilityMissing(answer["error"], hint=_DOCTOR_HINT)
        except BaseException:  # cancelled, too, no descriptor may stay; raised again
            channel.close()
            raise
        self._attachment, self._process = channel, process


def starter_command() -> list[str]:
    """Return the one command that an ordinary user's farm runs through sudo. Raises `CapabilityMissing` where it cannot be run."""
    try:
        start = installation.command(installation.STARTER)
    except (installation.HelperNotInstalled, OSError) as error:
        raise CapabilityMissing(str(error), hint="run `dart-farm setup`") from error
    sudo = shutil.which("sudo")
    if sudo is None:
        raise CapabilityMissing("live desktops need root, and there is no sudo here", hint=_STARTER_FIX)
    return [sudo, "-n", *start]


def _root_command(paths: HostdPaths, idle_timeout_s: float) -> list[str]:
    layout = paths.layout
    arguments = {
        "--state-dir": str(layout.state_dir),
        "--runtime-dir": str(layout.runtime_dir),
        "--images-dir": str(layout.images_dir),
        "--store-dir": str(layout.store_dir),
        "--idle-timeout-s": str(idle_timeout_s),
    }
    try:
        installation.install()
        start = installation.command()
    except (installation.HelperNotInstalled, OSError) as error:
        raise CapabilityMissing(str(error), hint="run `dart-farm setup`") from error
    return [*start, *(word for pair in arguments.items() for word in pair)]


def _spawn(paths: HostdPaths, command: list[str], stdin: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program that says what it does in the helper's log; returns it and where its words begin there."""
    paths.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_file = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        offset = os.fstat(log_file).st_size
        process = subprocess.Popen(
            command, cwd="/", stdin=stdin, stdout=log_file, stderr=log_file, start_new_session=True
        )
    finally:
        os.close(log_file)
    return process, offset


async def _read_line(connection: socket.socket) -> bytes:
    """Read until the end of the first line; empty when the other side closed first."""
    received = bytearray()
    while b"\n" not in received:
        data = await asyncio.get_running_loop().sock_recv(connection, 65536)
        if not data:
            return b""
        received += data
    return bytes(received)


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
