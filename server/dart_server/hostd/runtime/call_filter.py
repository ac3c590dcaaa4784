"""The system calls that a desktop may make, as a seccomp profile of the OCI form.

Rule: what is not allowed here is refused. A call that nobody thought of answers ENOSYS, as an older kernel would, so that libraries take
the way that they know for one. `REFUSED` answers EPERM: calls that need a right which root inside does not have. The list holds what
desktop programs need and what one desktop cannot use against another; CRIU's code inside the desktop's processes runs under it, too.
Non-goals: rights that capabilities decide; filters that a program adds for itself.
"""

from __future__ import annotations

import platform
from typing import Any

ALLOWED = (
    # Files and what is mounted.
    "access", "chdir", "chmod", "chown", "chroot", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3",
    "faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl",
    "fdatasync", "fgetxattr", "flistxattr", "flock", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat",
    "getcwd", "getdents", "getdents64", "getxattr", "ioctl", "lchown", "lgetxattr", "link", "linkat", "listxattr",
    "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "mkdir", "mkdirat", "mknod", "mknodat", "newfstatat", "open", "openat",
    "openat2", "readahead", "readlink", "readlinkat", "removexattr", "rename", "renameat", "renameat2", "rmdir", "setxattr", "stat",
    "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs", "truncate", "umask", "unlink", "unlinkat", "utime",
    "utimensat", "utimes",
    # Reading and writing.
    "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readv", "sendfile", "splice", "tee", "vmsplice",
    "write", "writev",
    # Waiting, pipes, messages between processes.
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2",
    "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "msgctl", "msgget", "msgrcv", "msgsnd", "pipe", "pipe2",
    "poll", "ppoll", "pselect6", "select", "semctl", "semget", "semop", "semtimedop", "shmat", "shmdt", "shmget", "signalfd",
    "signalfd4",
    # Sockets (`socket` and `socketpair` have rules of their own).
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom", "recvmmsg", "recvmsg",
    "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
    # Memory.
    "brk", "madvise", "membarrier", "memfd_create", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mremap", "msync",
    "munlock", "munlockall", "munmap", "pkey_free", "pkey_mprotect", "remap_file_pages",
    # Processes and threads (`clone` and `personality` have rules of their own).
    "arch_prctl", "capget", "capset", "execve", "execveat", "exit", "exit_group", "fork", "futex", "futex_requeue", "futex_wait",
    "futex_waitv", "futex_wake", "get_robust_list", "get_thread_area", "getcpu", "getegid", "geteuid", "getgid", "getgroups", "getpgid",
    "getpgrp", "getpid", "getppid", "getpriority", "getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "gettid", "getuid",
    "ioprio_get", "ioprio_set", "kill", "pause", "pidfd_open", "pidfd_send_signal", "prctl", "prlimit64", "process_mrelease",
    "process_vm_readv", "process_vm_writev", "ptrace", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask",
    "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max",
    "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval",
    "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "set_robust_list",
    "set_thread_area", "set_tid_address", "setfsgid", "setfsuid", "setgid", "setgroups", "setpgid", "setpriority", "setregid",
    "setresgid", "setresuid", "setreuid", "setrlimit", "setsid", "setuid", "sigaltstack", "sysinfo", "tgkill", "times", "tkill",
    "uname", "vfork", "wait4", "waitid",
    # Clocks, timers, random numbers.
    "adjtimex", "alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "getrandom", "gettimeofday", "nanosleep",
    "setitimer", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create",
    "timerfd_gettime", "timerfd_settime",
)  # fmt: skip
"""Allowed with any arguments."""

REFUSED = (
    "acct", "add_key", "bpf", "clock_adjtime", "clock_settime", "create_module", "delete_module", "fanotify_init", "fanotify_mark",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_mempolicy", "init_module", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "memfd_secret",
    "migrate_pages", "modify_ldt", "mount", "mount_setattr", "move_mount", "move_pages", "name_to_handle_at", "open_by_handle_at",
    "open_tree", "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise", "quotactl", "quotactl_fd", "reboot", "request_key",
    "set_mempolicy", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon", "syslog", "umount", "umount2",
    "unshare", "userfaultfd", "vhangup",
)  # fmt: skip
"""Answered with EPERM: what only a host administrator needs, what kernel escapes are made of, and what takes another process's files."""

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
"""The machine's own form of calls only. The kernel's second entrance, for 32-bit programs, ends a program that uses it."""
_LOCAL, _IPV4, _NETLINK, _IPV6 = 1, 2, 16, 10
_FAMILIES = (_LOCAL, _IPV4, _IPV6, _NETLINK)
"""Families of sockets that a network namespace confines and programs need."""
_INTERNET_PROTOCOLS = (0, 1, 6, 17, 58)
"""Any, ICMP, TCP, UDP and ICMP for IPv6: no MPTCP, and none for which the kernel would load a module."""
_MPTCP = 262
_NETLINK_PROTOCOLS = (0, 15)
"""Routes and addresses of the network namespace; announcements of devices, for which browsers and media players ask."""
_LAST_NETLINK_PROTOCOL = 31
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
"""Linux, 32-bit, the name of an old kernel, no random addresses (debuggers), and the question which one it is."""
_NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_SHM_COMMANDS, _SHM_LOCKS = (0, 1, 2, 3, 13, 14, 15), (11, 12)
_EPERM, _ENOSPC, _ENOSYS, _EPROTONOSUPPORT, _EAFNOSUPPORT = 1, 28, 38, 93, 97


def profile() -> dict[str, Any]:
    """The profile for this machine, as runc and container engines read it.

    clone3 hides its flags from a filter: it answers ENOSYS, so that libc uses clone. It has a rule of its own, because engines such as
    Docker 20.10 do not read `defaultErrnoRet` and answer what is on no list with EPERM. Protection keys of memory are answered as by a
    processor that has none: CRIU saves none, and a browser that had one dies in a restored desktop. Locked shared memory counts against a
    limit that desktops share, so nobody locks it.
    """
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        "architectures": [_ARCHITECTURES[platform.machine()]],
        "syscalls": [
            {"names": list(REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
            {"names": list(ALLOWED), "action": "SCMP_ACT_ALLOW"},
            *(_allow("personality", (0, "EQ", one)) for one in _PERSONALITIES),
            _allow("clone", (0, "MASKED_EQ", sum(_NEW_NAMESPACES), 0)),
            *(_refuse("clone", _EPERM, (0, "MASKED_EQ", one, one)) for one in _NEW_NAMESPACES),
            _refuse("clone3", _ENOSYS),
            _refuse("pkey_alloc", _ENOSPC),
            *(_allow("shmctl", (1, "EQ", one)) for one in _SHM_COMMANDS),
            *(_refuse("shmctl", _EPERM, (1, "EQ", one)) for one in _SHM_LOCKS),
            _allow("socketpair", (0, "EQ", _LOCAL)),
            *_socket_rules(),
        ],
    }


def _socket_rules() -> list[dict[str, Any]]:
    """Sockets that do not lead past the network namespace, such as the one between a virtual machine and its host would."""
    highest = max(_FAMILIES)
    closed = [one for one in range(_LAST_NETLINK_PROTOCOL + 1) if one not in _NETLINK_PROTOCOLS]
    return [
        _refuse("socket", _EAFNOSUPPORT, (0, "GT", highest)),
        *(_refuse("socket", _EAFNOSUPPORT, (0, "EQ", one)) for one in range(highest) if one not in _FAMILIES),
        _allow("socket", (0, "EQ", _LOCAL)),
        *(
            _allow("socket", (0, "EQ", family), (2, "EQ", one))
            for family in (_IPV4, _IPV6)
            for one in _INTERNET_PROTOCOLS
        ),
        *(_refuse("socket", _EPROTONOSUPPORT, (0, "EQ", family), (2, "EQ", _MPTCP)) for family in (_IPV4, _IPV6)),
        *(_allow("socket", (0, "EQ", _NETLINK), (2, "EQ", one)) for one in _NETLINK_PROTOCOLS),
        *(_refuse("socket", _EPROTONOSUPPORT, (0, "EQ", _NETLINK), (2, "EQ", one)) for one in closed),
    ]


def _allow(name: str, *conditions: tuple[Any, ...]) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [_condition(*one) for one in conditions]}


def _refuse(name: str, number: int, *conditions: tuple[Any, ...]) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return {**rule, "args": [_condition(*one) for one in conditions]} if conditions else rule


def _condition(index: int, comparison: str, value: int, masked: int | None = None) -> dict[str, Any]:
    """One condition on an argument; `masked`: what is left of the argument under the mask `value`."""
    made = {"index": index, "value": value, "op": f"SCMP_CMP_{comparison}"}
    return made if masked is None else {**made, "valueTwo": masked}
