"""The container of a desktop, as an OCI runtime configuration.

What the desktop gets: its own pid, ipc, uts, mount and cgroup namespaces, a loopback-only network namespace, a writable
overlay over its image, and nothing of the host's files. sudo works inside; the capability set below is all that root
has there: no module loading, mounting, tracing of others, raw network, clock or device access.
"""

from __future__ import annotations

import platform
import resource
from pathlib import Path
from typing import Any

from dart_server.hostd.linux import cgroups
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

REFUSED_SYSCALLS = (
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module", "fanotify_init",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "ioperm", "iopl", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mount", "mount_setattr",
    "move_mount", "name_to_handle_at", "open_by_handle_at", "open_tree", "perf_event_open", "pivot_root", "quotactl",
    "quotactl_fd", "reboot", "request_key", "setns", "settimeofday", "swapoff", "swapon", "umount", "umount2",
    "unshare", "userfaultfd", "vhangup",
)  # fmt: skip
"""Answered with EPERM: what only a host administrator needs, and what kernel escapes are made of."""

_FAMILIES = (1, 2, 10, 16)
"""Families of sockets that a network namespace confines and programs need: local, IPv4, IPv6, netlink."""

_SECCOMP_ARCHITECTURES = {
    "x86_64": ("SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"),
    "aarch64": ("SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"),
}
_CLONE_NEWUSER = 0x10000000
_EPERM, _ENOSPC, _ENOSYS, _EAFNOSUPPORT = 1, 28, 38, 97
_MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup",
    "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats", "/proc/modules", "/proc/sched_debug", "/proc/scsi",
    "/proc/slabinfo", "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo", "/sys/firmware", "/sys/kernel/debug",
)  # fmt: skip
_READONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_CPU_PERIOD_US = 100_000
SHM_MIB = 256


def runtime_config(
    *,
    rootfs: Path,
    argv: tuple[str, ...],
    env: dict[str, str],
    cgroup: str,
    netns: Path,
    criu_config: Path,
    limits: Limits,
) -> dict[str, Any]:
    """The OCI configuration of one desktop. `cgroup` is `/<prefix>/<name>`."""
    memory_bytes = limits.memory_mib << 20
    files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    granted = list(CAPABILITIES)
    return {
        "ociVersion": "1.0.2",
        "hostname": "desktop",
        "root": {"path": str(rootfs), "readonly": False},
        "annotations": {"org.criu.config": str(criu_config)},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "cwd": "/",
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in sorted(env.items())],
            "noNewPrivileges": False,
            "capabilities": {kind: granted for kind in ("bounding", "effective", "permitted")},
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": min(4096, files), "hard": files},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            ],
        },
        "mounts": [
            _mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
            _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=64k"),
            _mount(
                "/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"
            ),
            _mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", f"size={SHM_MIB}m"),
            _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
            _mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        ],
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [
                *({"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")),
                {"type": "network", "path": str(netns)},
            ],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READONLY),
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                "memory": {"limit": memory_bytes, **({"swap": memory_bytes} if cgroups.limits_swap() else {})},
                "pids": {"limit": limits.pids},
                "cpu": {"quota": int(limits.cpus * _CPU_PERIOD_US), "period": _CPU_PERIOD_US, "shares": 256},
            },
            "seccomp": seccomp(),
        },
    }


def seccomp() -> dict[str, Any]:
    """Everything is allowed but `REFUSED_SYSCALLS`, new user namespaces (clone3 answers ENOSYS: libc uses clone), sockets of a family
    that leads past the network namespace, such as the one between a virtual machine and its host, and protection keys of memory: CRIU
    saves none, and a browser that had one dies in a restored desktop. They are answered as by a processor that has none."""
    highest = max(_FAMILIES)
    families = [{"index": 0, "value": highest, "op": "SCMP_CMP_GT"}]
    families += [{"index": 0, "value": one, "op": "SCMP_CMP_EQ"} for one in range(highest) if one not in _FAMILIES]
    new_user = {"index": 0, "value": _CLONE_NEWUSER, "valueTwo": _CLONE_NEWUSER, "op": "SCMP_CMP_MASKED_EQ"}
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": list(_SECCOMP_ARCHITECTURES[platform.machine()]),
        "syscalls": [
            {"names": list(REFUSED_SYSCALLS), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
            {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM, "args": [new_user]},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
            {"names": ["pkey_alloc"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSPC},
            {"names": ["socketcall"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
            *(
                {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EAFNOSUPPORT, "args": [family]}
                for family in families
            ),
        ],
    }


def _mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}
