"""What the desktop session is: its user, its environment, its run-time files.

Role: the one place with names and paths that init, the agent and the walker share.
Rule: pure values and tiny readers; importing it starts nothing.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

USER = "user"
UID = 1000
GID = 1000
HOME = "/home/user"
DISPLAY = ":0"
RUN_DIR = Path("/run/dart")
USER_RUN_DIR = Path("/run/user/1000")
STATUS_FILE = RUN_DIR / "status.json"
READY_FILE = RUN_DIR / "ready"
BOOT_ID_FILE = RUN_DIR / "boot_id"
PLAN_FILE = Path("/etc/dart/session.toml")
BUS_ADDRESS = "unix:path=/run/user/1000/bus"
PATH_VARIABLE = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games:/usr/local/sbin:/usr/sbin:/sbin"

DEFAULT_RESOLUTION = (1920, 1080)
DEFAULT_FONT_SIZE = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What this image's session is made of; the defaults are a bare window manager.

    `shell` are the programs beside the window manager, started in this order; `windows` the classes of the windows
    that must be on the screen before the desktop counts as ready; `environment` is added to every program's.
    """

    desktop: str = "Openbox"
    window_manager: tuple[str, ...] = ("openbox", "--sm-disable")
    shell: tuple[tuple[str, ...], ...] = ()
    windows: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@functools.cache
def read_plan(path: Path = PLAN_FILE) -> Plan:
    """The plan that the image's recipe lays down, or the defaults."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Plan()
    return Plan(
        desktop=raw["desktop"],
        window_manager=tuple(raw["window_manager"]),
        shell=tuple(tuple(argv) for argv in raw["shell"]),
        windows=tuple(raw["windows"]),
        environment=dict(raw["environment"]),
    )


class BadSetting(ValueError):
    """An environment variable of the image has a value that cannot be used."""


def parse_resolution(text: str) -> tuple[int, int]:
    """`"640x400"` -> (640, 400), in pixels; raises BadSetting outside 160x120 .. 7680x4320."""
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise BadSetting(f"DART_RESOLUTION must look like 1920x1080, not {text!r}")
    size = (int(width), int(height))
    if not (160 <= size[0] <= 7680 and 120 <= size[1] <= 4320):
        raise BadSetting(f"DART_RESOLUTION must be between 160x120 and 7680x4320, not {text}")
    return size


def parse_font_size(text: str) -> int:
    """GTK font size in points; raises BadSetting outside 6 .. 48."""
    if not (text.isdecimal() and 6 <= int(text) <= 48):
        raise BadSetting(f"DART_FONT_SIZE must be a number from 6 to 48, not {text!r}")
    return int(text)


def shut_out_tracers() -> None:
    """Let nobody in the desktop trace the calling process or write to its memory, root there included."""
    set_dumpable = 4
    ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)


def proxy_environment(port: str) -> dict[str, str]:
    """What programs read to find the way out of the desktop; nothing where there is none."""
    if not port.isdecimal():
        return {}
    proxy = f"http://127.0.0.1:{port}"
    names = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": "localhost,127.0.0.1,::1"}
    return names | {name.upper(): value for name, value in names.items()}


def session_environment() -> dict[str, str]:
    """Environment of every process that runs in the session as `user`."""
    return {
        "HOME": HOME,
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/bash",
        "PATH": PATH_VARIABLE,
        "LANG": "C.UTF-8",
        "DISPLAY": DISPLAY,
        "DBUS_SESSION_BUS_ADDRESS": BUS_ADDRESS,
        "XDG_RUNTIME_DIR": str(USER_RUN_DIR),
        "XDG_SESSION_TYPE": "x11",
        "XDG_CURRENT_DESKTOP": read_plan().desktop,
        "QT_ACCESSIBILITY": "1",
        "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1",
        "GNOME_ACCESSIBILITY": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **proxy_environment(os.environ.get("DART_PROXY_PORT", "")),
    } | read_plan().environment


def root_environment() -> dict[str, str]:
    """The same for a process that the outside asks to run as root."""
    return session_environment() | {"HOME": "/root", "USER": "root", "LOGNAME": "root"}


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """What init knows: pids of the parts of the session, which of them have died, and agent starts."""

    pids: dict[str, int]
    dead: tuple[str, ...]
    agent_starts: int

    def alive(self, part: str) -> bool:
        """Whether this part was started and has not died."""
        return part in self.pids and part not in self.dead


def write_status(status: SessionStatus, path: Path = STATUS_FILE) -> None:
    """Replace the status file in one step."""
    text = json.dumps({"pids": status.pids, "dead": status.dead, "agent_starts": status.agent_starts})
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


def read_status(path: Path = STATUS_FILE) -> SessionStatus:
    """Read the status file; a missing or broken one reads as a session of which nothing is alive."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return SessionStatus(dict(raw["pids"]), tuple(raw["dead"]), int(raw["agent_starts"]))
    except (OSError, ValueError, KeyError, TypeError):
        return SessionStatus({}, (), 0)
