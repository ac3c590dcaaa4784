"""The agent's shared state: desktop, programs, walker, connections.

Role: one object that the HTTP handlers use; it owns the step thread and the locks.
Rule: everything that touches X runs on the one step thread, so steps and grabs never overlap.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from dart_guest import PROTOCOL, VERSION, machine, session
from dart_guest.a11y import Walker
from dart_guest.clock import DesktopClock
from dart_guest.desktop import Desktop
from dart_guest.events import Frame, Settle, StepRequest
from dart_guest.processes import Runner
from dart_guest.recorder import Recorder
from dart_guest.windows import listed, window_manager_works
from dart_guest.xinput import SessionDown

Result = TypeVar("Result")

HELPER_THREADS = 4
PROBE_LIMIT_S = 1.0
START_POLL_S = 0.02
DISK_ROOM_BYTES = 1024 * 1024
BACKGROUND = 0xDCE4EC
RECORDING = Path("/var/log/dart/recording.mp4")
"""Where only root can write: a link laid by the user must not be followed."""
SESSION_PARTS = ("bus", "x", "wm")
AT_REST = StepRequest(None, (), Settle(quiet_ms=1000, cap_ms=15000), Frame(encoding="none"))
"""A step that waits until the shell has drawn itself."""


class Agent:
    """Everything a request may need."""

    def __init__(self, display: str, package_dir: str, *, drop_privileges: bool, managed: bool) -> None:
        self.desktop = Desktop(display)
        self.runner = Runner(drop_privileges)
        self.walker = Walker(self.runner, package_dir)
        self.recorder = Recorder(
            display, RECORDING if managed else Path(tempfile.gettempdir()) / f"dart-recording-{os.getpid()}.mp4"
        )
        self.clock = DesktopClock()
        self.wallpaper: Path | None = None
        """The picture that the agent itself put on the root window."""
        self.managed = managed
        """Whether dart-init runs the session and writes its status."""
        self.steps = ThreadPoolExecutor(max_workers=1, thread_name_prefix="steps")
        self.transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self.channels: weakref.WeakSet[web.WebSocketResponse] = weakref.WeakSet()
        self.active_steps = 0
        self.restores = 0
        self.ready = False
        self.boot_id = read_boot_id()

    async def hold_threads(self) -> None:
        """Start every thread now: later the desktop may have used up its processes, and health must still answer."""
        helpers = ThreadPoolExecutor(max_workers=HELPER_THREADS, thread_name_prefix="helper")
        loop = asyncio.get_running_loop()
        loop.set_default_executor(helpers)
        meeting = threading.Barrier(HELPER_THREADS)
        await asyncio.gather(
            loop.run_in_executor(self.steps, time.monotonic),
            *(loop.run_in_executor(helpers, meeting.wait) for _ in range(HELPER_THREADS)),
        )

    async def on_desktop(self, work: Callable[[], Result]) -> Result:
        """Run something on the step thread."""
        self.active_steps += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.steps, work)
        finally:
            self.active_steps -= 1

    async def watch_start(self) -> None:
        """Poll until X, the window manager and the session's shell are there and at rest, then write the ready file."""
        shell = frozenset(session.read_plan().windows)
        manager_works = False
        while not self.ready:
            try:
                await self.on_desktop(self.desktop.probe)
                # Asked until it is so and never again: its window makes work for the manager and for a panel that still starts.
                if not manager_works:
                    manager_works = await self.on_desktop(lambda: window_manager_works(self.desktop.connection()))
                    if manager_works:
                        await self.on_desktop(lambda: self.desktop.connection().paint_root(BACKGROUND))
                works = manager_works
                if works and shell:
                    works = await self.on_desktop(
                        lambda: shell <= {one.cls for one in listed(self.desktop.connection())}
                    )
                    if works:
                        await self.on_desktop(lambda: self.desktop.step(AT_REST))
                self.ready = works
            except SessionDown:
                self.ready = manager_works = False
            if not self.ready:
                await asyncio.sleep(START_POLL_S)
        if self.managed:
            with contextlib.suppress(OSError):
                session.READY_FILE.write_text("ready\n", encoding="ascii")

    async def x_alive(self) -> bool:
        """Whether X answers; a step in progress counts as an answer while X's process lives."""
        try:
            await asyncio.wait_for(self.on_desktop(self.desktop.probe), PROBE_LIMIT_S)
        except SessionDown:
            return False
        except TimeoutError:
            return self.active_steps > 0
        return True

    async def health(self) -> dict[str, object]:
        """The body of `/v1/health`."""
        status = await asyncio.to_thread(session.read_status)
        x_alive = await self.x_alive()
        parts = {part: status.alive(part) if self.managed else x_alive for part in SESSION_PARTS}
        if self.ready:
            with contextlib.suppress(SessionDown):
                self.size = self.desktop.size() if x_alive else self.size
        return {
            "version": VERSION,
            "protocol": PROTOCOL,
            "ready": self.ready and x_alive,
            "resolution": list(self.size),
            "boot_id": self.boot_id,
            "session_alive": all(parts.values()) and x_alive,
            "x_alive": x_alive,
            "wm_alive": parts["wm"],
            "bus_alive": parts["bus"],
            "disk_full": await asyncio.to_thread(disk_full),
            "agent_starts": status.agent_starts,
            "processes": await asyncio.to_thread(count_processes),
            "restores": self.restores,
            "realtime_s": self.clock.now_s(),
            "held": self.desktop.held(),
            "oom_kills": machine.oom_kills() if machine.present() else 0,
        }

    size: tuple[int, int] = (0, 0)
    """Last known screen size in pixels."""

    def renew_boot_id(self, entropy: bytes) -> None:
        """A new identity after a restore, different for every fork of one snapshot."""
        self.boot_id = secrets.token_hex(16) if not entropy else mix(entropy)
        if self.managed:
            with contextlib.suppress(OSError):
                session.BOOT_ID_FILE.write_text(self.boot_id, encoding="ascii")


def mix(entropy: bytes) -> str:
    """32 hex digits from the outside's entropy and our own."""
    import hashlib

    return hashlib.sha256(entropy + secrets.token_bytes(32)).hexdigest()[:32]


def read_boot_id() -> str:
    """The boot id that init wrote, or a fresh one outside a desktop."""
    try:
        return session.BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:
        return secrets.token_hex(16)


def disk_full(directories: tuple[str, ...] = (session.HOME, "/tmp")) -> bool:
    """Whether 1 MiB, or one more file, has no room where the user works. Only looks: what it wrote would be seen by file managers."""
    for directory in directories:
        try:
            room = os.statvfs(directory)
        except OSError:
            continue
        no_more_files = room.f_files > 0 and room.f_favail == 0
        if room.f_bavail * room.f_frsize < DISK_ROOM_BYTES or no_more_files:
            return True
    return False


def count_processes() -> int:
    """Number of processes in this pid namespace."""
    return sum(1 for name in os.listdir("/proc") if name.isdecimal())


def zombies() -> list[dict[str, object]]:
    """Processes that ended and were not collected."""
    found: list[dict[str, object]] = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            text = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        if fields and fields[0] == "Z":
            found.append({"pid": int(name), "ppid": int(fields[1]), "name": head.partition("(")[2]})
    return found
