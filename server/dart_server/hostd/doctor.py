"""What the host has and lacks for live desktops, as data: one `HostCheck` per need, each with its fix.

Runs unprivileged; what only root can try is tried by the helper itself (verb `doctor`).
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dart_server.hostd import installation
from dart_server.hostd.installation import INSTALL_DIR
from dart_server.hostd.linux import cgroups, inotify, rlimits
from dart_server.hostd.runtime import apparmor, criu_installation

_SEARCH = os.pathsep.join(("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))
MIN_MEMORY_MIB = 4096
MIN_DISK_MIB = 6144
_MIN_KERNEL = (5, 13)
_CAP_SYS_ADMIN = 21
_ACTIONS = Path("/proc/sys/kernel/seccomp/actions_avail")


@dataclass(frozen=True, slots=True)
class HostCheck:
    """One need of the host; `fix` is empty when `ok`."""

    name: str
    ok: bool
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The check as JSON data."""
        return asdict(self)


def setup_by_administrator(user: str) -> str:
    """Name the command that sets a host up for a user who has no rights of root.

    Args:
        user: Name of the user.

    Returns:
        The command; `dart-farm` has its whole path where it is installed, because sudo does not search the virtual environment.
    """
    program = Path(sys.executable).with_name("dart-farm")
    return f"sudo {shlex.quote(str(program)) if program.exists() else 'dart-farm'} setup --user {user} --no-image"


def find_program(name: str) -> Path | None:
    """A program in the system's own directories (never in the caller's PATH)."""
    found = shutil.which(name, path=_SEARCH)
    return Path(found) if found else None


def run_checks(
    state_dir: Path, home: Path | None = None, tools_dir: Path = INSTALL_DIR, *, no_profile_because: str | None = None
) -> list[HostCheck]:
    """Look at everything that live desktops need.

    Args:
        state_dir: Where the farm keeps its things; it need not exist.
        home: Where the images are; None: in `state_dir`.
        tools_dir: Where helper and CRIU are installed.
        no_profile_because: What a running helper knows (`DesktopProfile.missing_because`); None: the host is looked at.

    Returns:
        All checks, in the order in which to fix them.
    """
    return [
        _kernel(),
        _overlay(),
        _privilege(tools_dir),
        _program("runc", "install the package runc"),
        _helper(tools_dir),
        _criu(tools_dir),
        _filter(),
        apparmor_check(apparmor.missing_because() if no_profile_because is None else no_profile_because),
        _cgroups(),
        _watches(),
        _memory(),
        _disk(home if home is not None else state_dir),
    ]


def _check(name: str, ok: bool, detail: str, fix: str) -> HostCheck:
    return HostCheck(name, ok, detail, "" if ok else fix)


def _kernel() -> HostCheck:
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    ok = platform.system() == "Linux" and numbers >= _MIN_KERNEL
    return _check("kernel", ok, f"{platform.system()} {release}", "live desktops need Linux 5.13 or newer")


def _overlay() -> HostCheck:
    known = "overlay" in Path("/proc/filesystems").read_text(encoding="ascii").split()
    if not known and (modprobe := find_program("modprobe")) and os.geteuid() == 0:
        known = subprocess.run([str(modprobe), "overlay"], capture_output=True, check=False).returncode == 0
    return _check("overlayfs", known, "known to the kernel" if known else "not loaded", "run `sudo modprobe overlay`")


def _privilege(tools_dir: Path) -> HostCheck:
    if os.geteuid() == 0:
        able = rlimits.has_capability(_CAP_SYS_ADMIN)
        detail = "running as root" if able else "running as a root that may not mount"
        return _check("root", able, detail, "run outside this container, or start it with --privileged")
    sudo = find_program("sudo")
    if sudo is None:
        return HostCheck(
            "root", False, "not root, and no sudo", "run as root, or install sudo and run `dart-farm setup`"
        )
    try:
        starter = installation.command(installation.STARTER, tools_dir)
    except (installation.HelperNotInstalled, OSError) as error:
        return HostCheck("root", False, str(error), "run `dart-farm setup`")
    asked = subprocess.run(
        [str(sudo), "-n", "-l", *starter],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )
    ok = asked.returncode == 0
    detail = "sudo starts the root helper" if ok else "sudo does not start the root helper for this user"
    return _check("root", ok, detail, f"let an administrator run `{setup_by_administrator('NAME')}`")


def _program(name: str, fix: str) -> HostCheck:
    found = find_program(name)
    return _check(name, found is not None, str(found or "not found"), fix)


def _helper(directory: Path) -> HostCheck:
    if os.geteuid() == 0:
        return HostCheck("root helper", True, f"the farm runs as root and installs it in {directory}")
    try:
        start = installation.command(directory=directory)
    except installation.HelperNotInstalled as error:
        return HostCheck("root helper", False, str(error), "run `dart-farm setup`")
    return HostCheck("root helper", True, start[-1])


def _criu(tools_dir: Path) -> HostCheck:
    found = criu_installation.find_criu(tools_dir)
    version = criu_installation.criu_version(found) if found else None
    wanted = ".".join(map(str, criu_installation.required_version()[0]))
    detail = f"{found}, version {version[0]}.{version[1]}" if version else f"no CRIU {wanted} or newer for this kernel"
    fix = "run `dart-farm setup`"
    return _check("criu", version is not None, detail, fix)


def _filter() -> HostCheck:
    try:
        actions = _ACTIONS.read_text(encoding="ascii").split()
    except OSError:
        actions = []
    needed = "user_notif" if os.geteuid() == 0 and rlimits.is_needed() else "errno"
    detail = "on for every desktop" if needed in actions else f"the kernel lacks the seccomp action {needed}"
    return _check("system-call filter", needed in actions, detail, "use a kernel with CONFIG_SECCOMP_FILTER")


def apparmor_check(missing_because: str) -> HostCheck:
    """Whether desktops are under AppArmor's profile; it is one wall of several, so that a host without it is no fault."""
    if missing_because == apparmor.NOT_HERE:
        detail = apparmor.NOT_HERE
    elif missing_because:
        detail = f"on, but desktops run without a profile: {missing_because}"
    else:
        detail = f"on, desktops are under {apparmor.NAME}"
    return HostCheck("AppArmor", True, detail)


def _cgroups() -> HostCheck:
    if cgroups.is_unified():
        have = set((cgroups.ROOT / "cgroup.controllers").read_text(encoding="ascii").split())
        needed, kind = {"memory", "pids", "cpu"}, "version 2"
    else:
        have = {path.name for path in cgroups.hierarchies()} if cgroups.ROOT.is_dir() else set()
        needed, kind = {"memory", "pids", "cpu", "freezer", "devices"}, "version 1"
    missing = sorted(needed - have)
    detail = f"{kind}, missing {', '.join(missing)}" if missing else kind
    return _check("cgroups", not missing, detail, f"enable the controllers {', '.join(missing)} (kernel command line)")


def _watches() -> HostCheck:
    have = inotify.instance_limit()
    detail = f"{have} inotify instances, enough for about {inotify.desktop_capacity()} desktops at once"
    more = (
        f"; the farm's helper raises them at its start, else `{inotify.FIX_COMMAND}`"
        if have < inotify.TARGET_INSTANCES
        else ""
    )
    return HostCheck("inotify instances", True, detail + more)


def user_ids_check(shares_because: str) -> HostCheck:
    """Whether desktops have user ids of their own; what they share otherwise is no fault, but worth knowing."""
    own = "every desktop has a range of its own"
    detail = (
        f"shared by all desktops, with what the kernel counts per user: {shares_because}" if shares_because else own
    )
    return HostCheck("user ids", True, detail)


def _memory() -> HostCheck:
    have_mib = (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20
    return _check("memory", have_mib >= MIN_MEMORY_MIB, f"{have_mib} MiB", f"at least {MIN_MEMORY_MIB} MiB are needed")


def _disk(place: Path) -> HostCheck:
    while not place.exists():
        place = place.parent
    free_mib = shutil.disk_usage(place).free >> 20
    return _check("disk", free_mib >= MIN_DISK_MIB, f"{free_mib} MiB free at {place}", f"free {MIN_DISK_MIB} MiB there")
