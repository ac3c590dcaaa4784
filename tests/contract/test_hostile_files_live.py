"""A desktop whose programs make files to hurt the host: everything is counted, limited, and gone with its snapshot."""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path

import pytest
from provider_cases import SPEC, Case

from dart_server.hostd import storage
from dart_server.hostd.linux import trees
from dart_server.providers.base import DesktopUnsavable, HealthCause
from dart_server.providers.runc.provider import RuncProvider

pytestmark = pytest.mark.desktop

NEST = """import os, sys
os.chdir("/home/user")
for _ in range(int(sys.argv[1])):
    os.mkdir("d")
    os.chdir("d")
open("file", "w").close()
"""
MANY = """import os, sys
os.mkdir("/home/user/many")
for number in range(int(sys.argv[1])):
    open(f"/home/user/many/{number}", "w").close()
"""


SNAPSHOTS = 1000
"""Of the long proof: half an hour on two cores that have other work."""
LINKS = """import os, sys
os.mkdir("/home/user/links")
open("/home/user/links/file", "w").close()
for number in range(int(sys.argv[1])):
    os.link("/home/user/links/file", f"/home/user/links/{number:0>120}")
"""


def inode_cost() -> float:
    """Bytes that this host's kernel sets aside for one file on a tmpfs: its inode, its name and its security label (read as root)."""
    cost = 0.0
    for line in Path("/proc/slabinfo").read_text().splitlines()[2:]:
        name, _, _, _, objects, pages = line.split()[:6]
        if name in ("shmem_inode_cache", "dentry", "lsm_inode_cache"):
            cost += int(pages) * os.sysconf("SC_PAGE_SIZE") / int(objects)
    return cost


async def live_room(case: Case) -> tuple[int, int]:
    """(bytes of pages, inodes) in the helper's own file system, where layers and process images lie."""
    assert isinstance(case.provider, RuncProvider)
    assert case.layout is not None
    told = await case.provider._hostd.request("ping", timeout_s=10.0)
    room = os.statvfs(Path(f"/proc/{told['pid']}/root{case.layout.live}"))
    return (room.f_blocks - room.f_bfree) * room.f_frsize, room.f_files - room.f_ffree


async def live_bytes(case: Case) -> int:
    """What the helper's own file system costs the host."""
    pages, inodes = await live_room(case)
    return pages + inodes * (trees.INODE_NBYTES + trees.NAME_NBYTES)


async def test_deep_and_many_files_are_counted_and_go_with_their_snapshot(runc_copies: Case) -> None:
    case = runc_copies
    await case.ready("d1")
    made = await case.exec("d1", "python3", "-c", NEST, "900", user="user")
    assert made["returncode"] == 0, made
    made = await case.exec("d1", "python3", "-c", MANY, "5000", user="user")
    assert made["returncode"] == 0, made
    before = await live_bytes(case)
    saved = await case.provider.snapshot("d1", "hostile")
    grown = await live_bytes(case) - before
    assert saved.files_bytes >= 5900 * 1000
    assert saved.bytes == pytest.approx(grown, rel=0.02)
    await case.provider.restore("d2", "hostile")
    there = await case.exec("d2", "sh", "-c", "ls /home/user/many | wc -l")
    assert there["stdout"].strip() == "5000"
    await case.provider.destroy("d2")
    await case.provider.delete_snapshot("hostile")
    assert abs(await live_bytes(case) - before) < 1 << 16


@pytest.mark.parametrize("depth", [1200, 3000])
async def test_a_desktop_too_deep_to_save_is_to_blame_and_leaves_nothing(runc_copies: Case, depth: int) -> None:
    case = runc_copies
    await case.ready("d1")
    made = await case.exec("d1", "python3", "-c", NEST, f"{depth}", user="user")
    assert made["returncode"] == 0, made
    before = await live_bytes(case)
    for number in range(3):
        with pytest.raises(DesktopUnsavable, match=f"{depth + 3} directories deep"):
            await case.provider.snapshot("d1", f"deep-{number}")
    assert abs(await live_bytes(case) - before) < 1 << 16
    assert "deep-0" not in (await case.provider.inventory()).snapshots
    assert (await case.exec("d1", "true"))["returncode"] == 0
    began_s = time.monotonic()
    await case.provider.destroy("d1")
    assert time.monotonic() - began_s < 10.0


async def test_files_are_limited_beside_bytes(runc_copies: Case) -> None:
    case = runc_copies
    await case.ready("d1")
    made = await case.exec("d1", "python3", "-c", MANY, f"{SPEC.disk_mib * storage.INODES_PER_MIB}", user="user")
    assert made["returncode"] != 0
    assert "No space left" in made["stderr"]
    assert (await case.provider.health("d1")).cause is HealthCause.DISK_FULL


@pytest.mark.slow
@pytest.mark.timeout(5400)
async def test_host_memory_is_what_a_thousand_hostile_snapshots_report(runc_copies: Case) -> None:
    """The file system of the helper tells pages and inodes exactly; the kernel's own table what an inode costs."""
    case = runc_copies
    cost = inode_cost()
    await case.ready("d1", "d2")
    for desktop, programs in {"d1": ((NEST, "950"), (MANY, "3000")), "d2": ((NEST, "1200"), (LINKS, "5000"))}.items():
        for program, number in programs:
            made = await case.exec(desktop, "python3", "-c", program, number, user="user")
            assert made["returncode"] == 0, made
    pages, inodes = await live_room(case)
    kept: deque[tuple[str, int]] = deque()
    refused = 0
    for number in range(SNAPSHOTS):
        try:
            saved = await case.provider.snapshot(("d1", "d2")[number % 10 == 0], f"hostile-{number}")
        except DesktopUnsavable:
            refused += 1
            continue
        kept.append((saved.snapshot_id, saved.bytes))
        if len(kept) > 20:
            await case.provider.delete_snapshot(kept.popleft()[0])
    assert refused == SNAPSHOTS // 10
    pages_now, inodes_now = await live_room(case)
    host_bytes = pages_now - pages + (inodes_now - inodes) * cost
    reported_bytes = sum(nbytes for _, nbytes in kept)
    print(
        f"inode {cost:.0f} B, host memory {host_bytes:.0f}, reported {reported_bytes}, {reported_bytes / host_bytes:.4f}"
    )
    assert reported_bytes == pytest.approx(host_bytes, rel=0.02)
