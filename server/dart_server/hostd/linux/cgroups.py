"""Control groups of desktops, version 1 and 2: use, limits hit, freezing, kill, removal, and what is left under a prefix.

runc creates the groups at `/<prefix>/<name>`; this module only reads, freezes, kills and removes them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
FREEZE_TIMEOUT_S = 2.0
_FREEZE_POLL_S = 0.002
_RELEASE_AFTER_S = 0.5
"""Version 1 can leave a process that was being made while the group was stopping; a release between two requests frees it
(runc's pull request 2791). Each wait for the next release is twice as long, so that what is only slow has the time to stop."""
_UNLIMITED = 1 << 60
_LIMIT_SLACK = 1 << 20
"""Bytes: a group whose use came this near to its limit was at it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes and counts of one desktop's control groups, zero where the host does not count."""

    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    oom_kills: int = 0
    """Processes killed while the group was at its own limit."""
    host_oom_kills: int = 0
    """Processes killed although the group was below its own limit: the host had run out of memory."""
    pids: int = 0
    pids_refused: int = 0


def is_unified() -> bool:
    """Whether this host uses control groups version 2 only."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Every directory that is the root of a hierarchy."""
    if is_unified():
        return [ROOT]
    return [path for path in sorted(ROOT.iterdir()) if path.is_dir() and not path.is_symlink()]


def _number(path: Path, key: str | None = None) -> int:
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return 0
    if key is not None:
        text = next((line.split()[1] for line in text.splitlines() if line.split()[:1] == [key]), "0")
    text = text.strip()
    value = int(text) if text.isdigit() else 0
    return 0 if value >= _UNLIMITED else value


def usage(group: str) -> Usage:
    """Read one group, given as `/<prefix>/<name>`; a missing group reads as zeros."""
    relative = group.lstrip("/")
    if is_unified():
        base = ROOT / relative
        kills, at_limit = _number(base / "memory.events", "oom_kill"), bool(_number(base / "memory.events", "oom"))
        return Usage(
            memory_bytes=_number(base / "memory.current"),
            memory_limit_bytes=_number(base / "memory.max"),
            oom_kills=kills if at_limit else 0,
            host_oom_kills=0 if at_limit else kills,
            pids=_number(base / "pids.current"),
            pids_refused=_number(base / "pids.events", "max"),
        )
    memory, pids = ROOT / "memory" / relative, ROOT / "pids" / relative
    # Where memory with swap has the same limit it is hit first, and newer kernels count no failures of it.
    most, limit = _number(memory / "memory.max_usage_in_bytes"), _number(memory / "memory.limit_in_bytes")
    at_limit = bool(_number(memory / "memory.failcnt")) or 0 < limit - _LIMIT_SLACK <= most
    kills = _number(memory / "memory.oom_control", "oom_kill")
    return Usage(
        memory_bytes=_number(memory / "memory.usage_in_bytes"),
        memory_limit_bytes=_number(memory / "memory.limit_in_bytes"),
        oom_kills=kills if at_limit else 0,
        host_oom_kills=0 if at_limit else kills,
        pids=_number(pids / "pids.current"),
        pids_refused=_number(pids / "pids.events", "max"),
    )


def limits_swap() -> bool:
    """Whether there is swap and the host can bound a desktop's share of it."""
    if len(Path("/proc/swaps").read_text(encoding="ascii").splitlines()) < 2:
        return False
    return is_unified() or (ROOT / "memory" / "memory.memsw.limit_in_bytes").exists()


def members(directory: Path) -> set[int]:
    """Process ids in a group directory and below."""
    found: set[int] = set()
    for path, _, _ in os.walk(directory):
        try:
            found.update(int(line) for line in (Path(path) / "cgroup.procs").read_text(encoding="ascii").split())
        except OSError:
            continue
    return found


def group_members(group: str) -> set[int]:
    """Process ids of `/<prefix>/<name>`."""
    return {pid for root in hierarchies() for pid in members(root / group.lstrip("/"))}


def processes(group: str) -> int:
    """How many processes `/<prefix>/<name>` has."""
    return len(group_members(group))


def existing_groups(prefix: str) -> list[Path]:
    """Top directories of groups that carry an ownership prefix, over all hierarchies."""
    return [root / prefix for root in hierarchies() if (root / prefix).is_dir()]


def freeze(group: str, timeout_s: float = FREEZE_TIMEOUT_S) -> bool:
    """Stop every process of `/<prefix>/<name>`; True once all stand still, else they go on again."""
    directory = _freezer(group)
    began_s = time.monotonic()
    deadline, wait_s = began_s + timeout_s, _RELEASE_AFTER_S
    release_s = began_s + wait_s
    while True:
        try:
            # Version 1 gives up on a process that was busy in the kernel; asking again takes it up.
            _write_freeze(directory, frozen=True)
        except OSError:
            return False
        if is_frozen(group):
            return True
        now_s = time.monotonic()
        if now_s > deadline:
            _thaw(directory)
            return False
        if now_s > release_s and not is_unified():
            _thaw(directory)
            wait_s *= 2
            release_s = now_s + wait_s
        time.sleep(_FREEZE_POLL_S)


def thaw(group: str, timeout_s: float = FREEZE_TIMEOUT_S) -> bool:
    """Let the processes of `/<prefix>/<name>` go on; True once they do."""
    directory = _freezer(group)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            _write_freeze(directory, frozen=False)
        except OSError:
            return False
        if not is_frozen(group):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_FREEZE_POLL_S)


@contextmanager
def standing_still(group: str) -> Iterator[bool]:
    """Freeze `/<prefix>/<name>` for the time of a context, unless it is frozen already; the value is whether it stands still."""
    already = is_frozen(group)
    try:
        yield already or freeze(group)
    finally:
        if not already:
            thaw(group)


def is_frozen(group: str) -> bool:
    """Whether all processes of a group stand still; False for a group that is not there."""
    directory = _freezer(group)
    try:
        if is_unified():
            return "frozen 1" in (directory / "cgroup.events").read_text(encoding="ascii").splitlines()
        return (directory / "freezer.state").read_text(encoding="ascii").strip() == "FROZEN"
    except OSError:
        return False


def _freezer(group: str) -> Path:
    """The directory that freezes `/<prefix>/<name>`."""
    return (ROOT if is_unified() else ROOT / "freezer") / group.lstrip("/")


def _write_freeze(directory: Path, *, frozen: bool) -> None:
    if is_unified():
        (directory / "cgroup.freeze").write_text("1" if frozen else "0", encoding="ascii")
    else:
        (directory / "freezer.state").write_text("FROZEN" if frozen else "THAWED", encoding="ascii")


def kill(group: str, timeout_s: float = 5.0) -> bool:
    """SIGKILL every process of `/<prefix>/<name>`, thawing it first; True when none is left."""
    deadline = time.monotonic() + timeout_s
    while True:
        alive: set[int] = set()
        for root in hierarchies():
            directory = root / group.lstrip("/")
            if directory.is_dir():
                _thaw(directory)
                alive |= members(directory)
        alive = {pid for pid in alive if pid != os.getpid()}
        if not alive:
            return True
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def _thaw(directory: Path) -> None:
    for name, value in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
        try:
            (directory / name).write_text(value, encoding="ascii")
        except OSError:
            continue


def remove(group: str, timeout_s: float = 2.0) -> bool:
    """Remove `/<prefix>` or `/<prefix>/<name>` with all below it; True when nothing is left. Processes must be gone."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = False
        for root in hierarchies():
            for path, _, _ in os.walk(root / group.lstrip("/"), topdown=False):
                try:
                    os.rmdir(path)
                except FileNotFoundError:
                    continue
                except OSError:
                    left = True
        if not left:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
