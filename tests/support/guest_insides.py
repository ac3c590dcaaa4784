"""What a live desktop holds, looked at by root of the host: the memory of its processes, environments included, and its files.

Role: `holding` searches for texts, `spelt` says how one may lie there, `hold_in_memory` plants one that must be found. Rule: looks from
outside, through /proc, so that nothing inside learns what is searched for. Non-goals: snapshots at rest.
"""

from __future__ import annotations

import asyncio
import base64
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from dart_envs.farm.lease import AsyncLease

CHUNK_BYTES = 1 << 24
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CLOCK_GRAIN_S = 1.0
"""Times of files are a little coarser than the clock."""
HOLDER = "import sys, time; word = sys.argv[1] + sys.argv[2]; open('/tmp/up', 'w'); time.sleep(600)"


def spelt(name: str, secret: str) -> dict[str, bytes]:
    """A secret as it may lie in memory or in a file."""
    raw = secret.encode()
    return {
        name: raw,
        f"{name} as UTF-16": secret.encode("utf-16-le"),
        f"{name} as UTF-32": secret.encode("utf-32-le"),
        f"{name} in hex": raw.hex().encode(),
        f"{name} in base64": base64.b64encode(raw)[: len(raw) * 4 // 3 - 3],
    }


async def hold_in_memory(lease: AsyncLease, secret: str, environment: Mapping[str, str] | None = None) -> None:
    """A process of the desktop that has the text in memory and nowhere else, its two halves coming separately."""
    half = len(secret) // 2
    argv = ["python3", "-c", HOLDER, secret[:half], secret[half:]]
    await lease.exec(argv, env=environment, detach=True)
    await read_when_there(lease, "/tmp/up")


async def read_when_there(lease: AsyncLease, path: str) -> bytes:
    """A file's content, as soon as a program of the desktop has written it. Raises TimeoutError after 20 s."""
    async with asyncio.timeout(20):
        while True:
            content = await lease.read_file(path)
            if content is not None:
                return content
            await asyncio.sleep(0.02)


def processes_of(desktop_id: str) -> list[int]:
    """Processes of a desktop that runs as a container, by the host's numbers, its first one first."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and desktop_id in (entry / "cgroup").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def holding(desktop_id: str, needles: Mapping[str, bytes], since_s: float) -> dict[str, str]:
    """Which of the needles are in the memory of the desktop's processes, or in a file or name of it that changed after `since_s` (seconds
    since the epoch), and where. Raises AssertionError where nothing of the desktop can be looked at."""
    processes = processes_of(desktop_id)
    assert processes, f"no process belongs to {desktop_id}"
    found: dict[str, str] = {}
    for where, text in (
        *(part for pid in processes for part in _memory(pid, max(map(len, needles.values())))),
        *_files(Path(f"/proc/{processes[0]}/root"), since_s - CLOCK_GRAIN_S),
    ):
        found |= {name: where for name, needle in needles.items() if needle in text}
    return found


def _memory(pid: int, longest: int) -> Iterator[tuple[str, bytes]]:
    """What a process may write or has to itself, in overlapping pieces; programs and libraries as they are on the disk are left out."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:  # it has ended
        return
    try:
        for line in maps:
            span, rights, _, _, inode, *path = line.split(maxsplit=5)
            file_as_it_is = inode != "0" and "w" not in rights
            if "r" not in rights or file_as_it_is or path[:1] in (["[vvar]"], ["[vvar_vclock]"], ["[vsyscall]"]):
                continue
            place, end = (int(side, 16) for side in span.split("-"))
            while place < end:
                try:
                    piece = os.pread(memory, min(CHUNK_BYTES, end - place), place)
                except OSError:
                    piece = b""
                yield f"{name} ({pid}), {path[0] if path else 'memory'}", piece
                place += max(len(piece) - (longest if place + len(piece) < end else 0), PAGE_BYTES)
    finally:
        os.close(memory)


def _files(root: Path, since_s: float) -> Iterator[tuple[str, bytes]]:
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if name not in ("proc", "sys")]
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            try:
                kept = os.lstat(path)
                if kept.st_ctime < since_s:
                    continue
                content = b""
                if stat.S_ISREG(kept.st_mode):
                    content = Path(path).read_bytes()
                elif stat.S_ISLNK(kept.st_mode):
                    content = os.fsencode(os.readlink(path))
            except FileNotFoundError:  # it has gone meanwhile
                continue
            yield path.removeprefix(str(root)), os.fsencode(name) + b"\n" + content
