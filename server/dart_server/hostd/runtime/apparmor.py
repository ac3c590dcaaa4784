"""The AppArmor profile that desktops run under where the kernel has AppArmor, and its loading.

Role: a wall behind namespaces, capabilities and the system-call filter. It refuses what would matter if one of them failed: mounts,
settings of the kernel, files of /proc and /sys that belong to the whole host, tracing and signals of what is outside, other profiles.
Rule: files of the desktop, and what the filter and the capabilities allow, stay allowed. The profile's name carries a digest of its rules,
so that helpers of several versions never exchange the rules of one another's desktops, and what is loaded need not be loaded again.
runc takes a new desktop into the profile. CRIU notes the profile of every thread that it saves, and takes the restored one into it again.
Non-goals: profiles of the host's own programs; a host without AppArmor, where desktops run as they would without this module.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
from pathlib import Path

from dart_server.hostd.errors import HostdHostFault
from dart_server.hostd.linux import credentials
from dart_server.hostd.runtime import oci

ENABLED = Path("/sys/module/apparmor/parameters/enabled")
PROFILES = Path("/sys/kernel/security/apparmor/profiles")
"""Every loaded profile, a line each. runc looks for its directory, too."""
PARSERS = (Path("/usr/sbin/apparmor_parser"), Path("/sbin/apparmor_parser"))
LOAD_TIMEOUT_S = 60.0
NOT_HERE = "not on this host"
_PREFIX = "dart-desktop-"
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_log = logging.getLogger(__name__)

_RULES = """
  file,
  {capabilities}
  network unix,
  network netlink,
  network inet stream,
  network inet dgram,
  network inet6 stream,
  network inet6 dgram,
  unix,
  dbus,

  # Others may watch and end a desktop; what is in it reaches nothing but its like.
  signal (receive),
  signal (send) peer={name},
  ptrace (readby, tracedby),
  ptrace (read, trace) peer={name},

  deny mount,
  deny remount,
  deny umount,
  deny pivot_root,

  # /proc: a process may change what is said of processes, but not its profile, nor whom a user namespace is made for.
  deny /proc/* w,
  deny /proc/[^0-9]*/** w,
  deny /proc/[0-9]*/{{,task/[0-9]*/}}attr/** w,
  deny /proc/[0-9]*/{{,task/[0-9]*/}}{{uid_map,gid_map,projid_map,setgroups}} w,
  deny /proc/{{kcore,kmsg,kallsyms,kpagecgroup,kpagecount,kpageflags,sysrq-trigger,vmallocinfo}} rw,

  deny /sys/** w,
  deny /sys/kernel/{{security,debug,tracing}}/{{,**}} rw,
  deny /sys/{{firmware,fs/bpf,devices/virtual/powercap}}/{{,**}} rw,

  deny /dev/{{mem,kmem,port,kmsg}} rw,
"""
"""No rule allows another profile (`change_profile`), so none can be taken on."""


def _text(name: str) -> str:
    capabilities = "\n  ".join(f"capability {one.removeprefix('CAP_').lower()}," for one in oci.CAPABILITIES)
    rules = _RULES.format(name=name, capabilities=capabilities)
    return f"profile {name} flags=(attach_disconnected,mediate_deleted) {{{rules}}}\n"


def _name() -> str:
    return _PREFIX + hashlib.sha256(_text(_PREFIX).encode()).hexdigest()[:8]


NAME = _name()


def profile_text() -> str:
    """The profile as `apparmor_parser` reads it. It includes no file and uses no variable of the host's."""
    return _text(NAME)


def find_parser() -> Path | None:
    """The program that loads profiles, None where it is not installed."""
    return next((path for path in PARSERS if path.exists()), None)


def missing_because() -> str:
    """Look at the host, without trying anything.

    Returns:
        Why desktops cannot run under the profile, as one sentence with the fix; `NOT_HERE` without AppArmor, empty where they can.
    """
    try:
        enabled = ENABLED.read_text(encoding="ascii").strip() == "Y"
    except OSError:
        enabled = False
    if not enabled:
        return NOT_HERE
    parser = find_parser()
    if parser is None:
        return "the parser is missing: `sudo apt install apparmor`"
    if not credentials.lies_with_root(parser):
        return f"{parser} can be changed by others than root: `sudo apt install --reinstall apparmor`"
    if not os.path.isdir(PROFILES.parent):
        return "securityfs is not mounted: `sudo mount -t securityfs securityfs /sys/kernel/security`"
    return ""


class DesktopProfile:
    """The profile in one helper's hands. It is on or off for all of a helper's life, as `load` found the host."""

    def __init__(self) -> None:
        self.missing_because = "it was not loaded"
        """Why desktops run without it, as one sentence with the fix; empty where they run under it."""

    def load(self) -> None:
        """Load the profile where the host has AppArmor. What stands in the way is logged, and desktops run without it."""
        self.missing_because = missing_because() or _load()
        if self.missing_because == NOT_HERE:
            return
        if self.missing_because:
            _log.warning("Desktops run without an AppArmor profile: %s", self.missing_because)
        else:
            _log.info("Desktops run under the AppArmor profile %s", NAME)

    def for_start(self) -> str:
        """Return the profile's name for a desktop that starts now, empty where desktops run without it.

        Somebody may have unloaded all profiles meanwhile, as `aa-teardown` does: then it is loaded again.

        Raises:
            HostdHostFault: It is gone and cannot be loaded again. A desktop that was saved under it could not be restored either.
        """
        if self.missing_because:
            return ""
        refusal = _load()
        if refusal:
            raise HostdHostFault(f"the AppArmor profile {NAME} is gone from the kernel: {refusal}")
        return NAME


def _load() -> str:
    """Load the profile if the kernel does not have it; returns why that failed, empty when the kernel has it."""
    try:
        if _is_loaded():
            return ""
        parser = find_parser()
        if parser is None:
            return "the parser is missing: `sudo apt install apparmor`"
        done = subprocess.run(
            [str(parser), "--replace", "--skip-cache"],
            input=profile_text(),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOAD_TIMEOUT_S,
            check=False,
            cwd="/",
            env=_ENVIRONMENT,
        )
        if done.returncode == 0 and _is_loaded():
            return ""
        said = " ".join((done.stderr.strip() or f"exit code {done.returncode}").split())[-300:]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    return f"it cannot be loaded ({said}): update the package apparmor, or let the farm's root load profiles (CAP_MAC_ADMIN)"


def _is_loaded() -> bool:
    lines = PROFILES.read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.split(" ")[0] == NAME for line in lines)
