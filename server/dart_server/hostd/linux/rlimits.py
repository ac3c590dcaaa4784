"""Resource limits of processes as CRIU asks for them, on hosts whose root lacks CAP_SYS_RESOURCE (some VMs and containers).

There the kernel refuses prlimit(2) on a process of another user, although /proc/PID/limits shows the same numbers.
"""

from __future__ import annotations

import resource
import struct
from contextlib import suppress
from pathlib import Path

_CAP_SYS_RESOURCE = 24
_INFINITY = (1 << 64) - 1

_RLIMIT_SIGPENDING = 11
LimitCache = dict[int, list[tuple[int, int]]]
"""(soft, hard) by resource number, by process: what was read already."""


def has_capability(number: int) -> bool:
    """Whether this process has a capability in effect."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


def is_needed() -> bool:
    """Whether this (root) process lacks CAP_SYS_RESOURCE."""
    return not has_capability(_CAP_SYS_RESOURCE)


def lift_signal_limit() -> None:
    """Let this process queue any number of signals, where it may: what it was allowed when it made a user namespace bounds what the users
    of all such namespaces queue together."""
    with suppress(OSError, ValueError):
        resource.setrlimit(_RLIMIT_SIGPENDING, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def read_limits(text: str) -> list[tuple[int, int]]:
    """(soft, hard) by resource number, from the text of /proc/PID/limits."""
    limits = []
    for line in text.splitlines()[1:]:
        soft, hard = line[26:].split()[:2]
        limits.append((_limit(soft), _limit(hard)))
    return limits


def _limit(word: str) -> int:
    return _INFINITY if word == "unlimited" else int(word)


def answer(caller: int, target: int, kind: int, new: int, old: int, known: LimitCache) -> int | None:
    """What the prlimit call of `caller` returns, the limit written where it asked; None: let the kernel answer."""
    if new or not target or not old:
        return None
    try:
        if target not in known:
            known[target] = read_limits(Path(f"/proc/{target}/limits").read_text(encoding="ascii"))
        soft, hard = known[target][kind]
        with open(f"/proc/{caller}/mem", "r+b", buffering=0) as memory:
            memory.seek(old)
            memory.write(struct.pack("=QQ", soft, hard))
    except (OSError, IndexError):
        return None
    return 0
