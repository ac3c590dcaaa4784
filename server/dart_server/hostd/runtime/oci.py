"""The container of a desktop, as an OCI runtime configuration.

What the desktop gets: its own pid, ipc, uts, mount and cgroup namespaces, a loopback-only network namespace, a writable
overlay over its image, and nothing of the host's files. sudo works inside; the capability set below is all that root
has there: no module loading, mounting, tracing of others, raw network, clock or device access.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from dart_server.hostd.linux import cgroups, user_ids
from dart_server.hostd.runtime import call_filter
from dart_server.hostd.verbs import Limits

CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_AUDIT_WRITE",
)
"""Files and users (sudo, package installation), signals, low ports, sudo's audit line; nothing that reaches the host."""

_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup",
    "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/modules", "/proc/sched_debug", "/proc/scsi",
    "/proc/slabinfo", "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo", "/sys/firmware", "/sys/kernel/debug",
)  # fmt: skip
_READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_CPU_PERIOD_US = 100_000
SHM_MIB = 256
TERMINALS = 128
"""Pseudo-terminals of one desktop; the host has 4096 of them for all."""
QUEUED_SIGNALS = 1024
"""Signals and timers that one user of a desktop may have waiting: far more than programs use, few of what the host has for all."""


def runtime_config(
    *,
    rootfs: Path,
    argv: tuple[str, ...],
    env: dict[str, str],
    cgroup: str,
    netns: Path | None,
    criu_config: Path,
    limits: Limits,
    first_id: int = 0,
    hooks: dict[str, Any] | None = None,
    apparmor_profile: str = "",
) -> dict[str, Any]:
    """The OCI configuration of one desktop.

    Args:
        rootfs: Its root, mounted.
        argv: Its first process.
        env: That process's environment.
        cgroup: `/<prefix>/<name>`.
        netns: Its network namespace; None: a new one, which belongs to its user namespace.
        criu_config: CRIU's settings for it.
        limits: What it may use.
        first_id: Where its range of user ids begins on the host; 0: it shares the host's ids.
        hooks: Programs that runc runs on the way, in the form of the OCI.
        apparmor_profile: Name of the loaded profile that its processes run under; empty: none.
    """
    memory_bytes = limits.memory_mib << 20
    files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    granted = list(CAPABILITIES)
    ids = [{"containerID": 0, "hostID": first_id, "size": user_ids.COUNT}]
    return {
        "ociVersion": "1.0.2",
        "hostname": "desktop",
        "root": {"path": str(rootfs), "readonly": False},
        **({"hooks": hooks} if hooks else {}),
        "annotations": {"org.criu.config": str(criu_config)},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in sorted(env.items())],
            "noNewPrivileges": False,
            **({"apparmorProfile": apparmor_profile} if apparmor_profile else {}),
            "capabilities": {kind: granted for kind in ("bounding", "effective", "permitted")},
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": min(4096, files), "hard": files},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
                {"type": "RLIMIT_SIGPENDING", "soft": QUEUED_SIGNALS, "hard": QUEUED_SIGNALS},
            ],
        },
        "mounts": [
            _mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
            _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=64k"),
            _mount(
                "/dev/pts",
                "devpts",
                "devpts",
                "nosuid",
                "noexec",
                "newinstance",
                "ptmxmode=0666",
                "mode=0620",
                "gid=5",
                f"max={TERMINALS}",
            ),
            _mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", f"size={SHM_MIB}m"),
            _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
            _mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        ],
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [
                *({"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")),
                {"type": "network", **({} if netns is None else {"path": str(netns)})},
                *([{"type": "user"}] if first_id else []),
            ],
            **({"uidMappings": ids, "gidMappings": ids} if first_id else {}),
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READONLY),
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                "memory": {"limit": memory_bytes, **({"swap": memory_bytes} if cgroups.limits_swap() else {})},
                "pids": {"limit": limits.pids},
                "cpu": {"quota": int(limits.cpus * _CPU_PERIOD_US), "period": _CPU_PERIOD_US, "shares": 256},
            },
            "seccomp": call_filter.profile(),
        },
    }


def _mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}
