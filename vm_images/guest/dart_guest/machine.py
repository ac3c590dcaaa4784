"""What a virtual machine lacks of a container: file systems, modules, host name, a disk that fills its device, power off.

Role: make a machine that the kernel has just started look to init as a container looks; read the settings that the host put on the
kernel's command line (`dart.port=NAME dart.resolution=1920x1080 dart.font_size=10`).
Rule: what is mounted already is left alone; nothing here talks to a network, for there is none.
Non-goals: services, log-in, hardware other than what the provider `libvirt` gives.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import time
from pathlib import Path

COMMAND_LINE = Path("/proc/cmdline")
PORTS = Path("/sys/class/virtio-ports")
MOUNTS = (
    ("proc", "/proc", "proc", 0, ""),
    ("sysfs", "/sys", "sysfs", 0, ""),
    ("devtmpfs", "/dev", "devtmpfs", 0, "mode=0755"),
    ("tmpfs", "/run", "tmpfs", 0, "mode=0755"),
    ("devpts", "/dev/pts", "devpts", 0, "ptmxmode=0666,mode=0620,gid=5"),
    ("tmpfs", "/dev/shm", "tmpfs", 0, "mode=1777"),
)
MODULES = ("virtio_console", "virtio_rng", "virtio_net", "af_packet")
PORT_LIMIT_S = 20.0
GENERATIONS = Path("/sys/kernel/mm/lru_gen")
WORKING_SET_MS = 1000
SETTINGS = {"resolution": "DART_RESOLUTION", "font_size": "DART_FONT_SIZE", "port": "DART_PORT"}
POWER_OFF = 0x4321FEDC


def settings(command_line: str) -> dict[str, str]:
    """`dart.NAME=VALUE` words of a kernel's command line as init's environment; others are ignored."""
    words = (word.partition("=") for word in command_line.split() if word.startswith("dart."))
    return {SETTINGS[name[5:]]: value for name, _, value in words if name[5:] in SETTINGS}


def prepare() -> bool:
    """Take the machine over; False, and nothing done, where this is a container."""
    if "DART_RESOLUTION" in os.environ:
        return False
    mount_all()
    found = settings(COMMAND_LINE.read_text(encoding="ascii", errors="replace"))
    if "DART_PORT" not in found:
        return False
    os.environ.update(found)
    grow_disk()
    with contextlib.suppress(OSError):
        socket.sethostname(Path("/etc/hostname").read_text(encoding="ascii").strip())
    for module in MODULES:
        subprocess.run(["/sbin/modprobe", "-q", module], check=False, stdin=subprocess.DEVNULL)
    end_thrashing()
    return True


def present() -> bool:
    """Whether this process runs in a machine of its own, as `prepare` has told init's children."""
    return "DART_PORT" in os.environ


def mount_all() -> None:
    """Mount what is not there yet."""
    libc = ctypes.CDLL(None, use_errno=True)
    for source, target, kind, flags, options in MOUNTS:
        Path(target).mkdir(parents=True, exist_ok=True)
        if not os.path.ismount(target):
            libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())


def grow_disk() -> None:
    """Let the root file system fill its device: what the device has beyond the image is the desktop's disk limit."""
    with Path("/proc/mounts").open(encoding="ascii", errors="replace") as mounts:
        roots = [line.split()[0] for line in mounts if line.split()[1] == "/" and line.startswith("/dev/")]
    for device in roots:
        subprocess.run(["/sbin/resize2fs", device], check=False, capture_output=True, stdin=subprocess.DEVNULL)


def end_thrashing(place: Path = GENERATIONS) -> None:
    """Have the kernel end a program once what was used within the last second no longer fits; without this, and without swap, a desktop
    that is out of memory reads its programs from the disk over and over, for minutes, before anything is ended."""
    with contextlib.suppress(OSError):
        (place / "enabled").write_text("y", encoding="ascii")
        (place / "min_ttl_ms").write_text(str(WORKING_SET_MS), encoding="ascii")


def find_port(name: str) -> Path:
    """The device of a virtio port by its name; it appears while its module starts. Raises FileNotFoundError."""
    limit_s = time.monotonic() + PORT_LIMIT_S
    while time.monotonic() < limit_s:
        for entry in PORTS.glob("vport*"):
            with contextlib.suppress(OSError):
                if (entry / "name").read_text(encoding="ascii").strip() == name:
                    return Path("/dev") / entry.name
        time.sleep(0.05)
    raise FileNotFoundError(f"the machine has no port {name!r}")


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory; in a machine they are all the desktop's."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def power_off() -> None:
    """End the machine."""
    os.sync()
    ctypes.CDLL(None).reboot(POWER_OFF)
