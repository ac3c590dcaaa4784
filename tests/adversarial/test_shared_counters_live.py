"""What the kernel counts per user is each desktop's own: fourteen attacks that use a counter up change nothing in a neighbour.

Two copies of one snapshot on `runc`. After each attack, while its process holds what it took, the neighbour does with every counter what it
could do before. Attacks are played as the desktop's user and, in the long form, as root inside.
"""

from __future__ import annotations

import asyncio
import json
import platform
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from counters_inside import ATTACKS

from dart_server.guest import limits
from dart_server.guest.client import GuestClient
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups, rlimits, user_ids
from dart_server.providers.base import DesktopSpec, HealthCause
from dart_server.providers.runc.provider import RuncProvider
from dart_server.wire.paths import data_dir

KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
pytestmark = [
    pytest.mark.desktop,
    pytest.mark.skipif(KERNEL < (6, 3), reason="mounts of a tmpfs with translated owners take Linux 6.3"),
]
SPEC = DesktopSpec("basic", (640, 400), memory_mib=768, pids=256, cpus=2.0, disk_mib=128)
PROGRAM = "/home/user/counters.py"
Told = Callable[[str, object], None]
REFUSED = {"message queues", "keys", "fanotify", "locked memory"}
"""What the system-call filter keeps from every desktop."""
WITH_THE_HOSTS_LEAVE = {"signals", "timers"}
"""Root inside is many users, and all queue within what the helper was allowed: a host whose root may raise its limits allows any number."""


@dataclass(frozen=True)
class Desktops:
    """Two desktops of one helper, and how to run programs in them."""

    provider: RuncProvider
    layout: Layout

    async def call(self, desktop_id: str, method: str, path: str, content: bytes) -> bytes:
        guest = GuestClient(lambda port: self.provider.dial(desktop_id, port))
        try:
            reply = await guest.request(method, path, limits.PASSED_THROUGH, timeout_s=90.0, content=content)
        finally:
            await guest.close_connections()
        assert reply.status == 200, reply.content
        return reply.content

    async def run(self, desktop_id: str, *argv: str, user: str = "user") -> Any:
        body = {"argv": ["python3", PROGRAM, *argv], "user": user, "timeout_s": 80}
        answer = json.loads(await self.call(desktop_id, "POST", "/v1/exec", json.dumps(body).encode()))
        assert answer["returncode"] == 0, answer
        return json.loads(answer["stdout"])

    async def fresh(self, *desktop_ids: str) -> None:
        await asyncio.gather(*(self.provider.restore(one, "start") for one in desktop_ids))

    def users(self, desktop_id: str) -> set[int]:
        """Users of the host that a desktop's processes are."""
        found: set[int] = set()
        for top in cgroups.existing_groups(self.layout.prefix):
            for place in top.glob(f"{desktop_id}.*"):
                for pid in cgroups.members(place):
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    found.update(int(word) for line in lines if line.startswith("Uid:") for word in line.split()[1:])
        return found


@pytest.fixture
async def desktops() -> AsyncIterator[Desktops]:
    runtime, store = Path(tempfile.mkdtemp(prefix="dart-test-")), Path("/dev/shm")
    provider = RuncProvider(home=data_dir(), runtime_dir=runtime, snapshot_dir=store)
    made = Desktops(provider, Layout(0, runtime / "hostd", runtime, data_dir() / "images", store))
    await provider.start()
    try:
        await provider.create("origin", SPEC)
        program = Path(__file__).with_name("counters_inside.py").read_bytes()
        await made.call("origin", "PUT", f"/v1/files?path={PROGRAM}", program)
        await provider.snapshot("origin", "start")
        await provider.destroy("origin")
        await made.fresh("evil", "neighbour")
        yield made
    finally:
        await provider.aclose()
        shutil.rmtree(runtime)


async def test_every_desktop_has_users_of_its_own_and_none_is_the_hosts(desktops: Desktops) -> None:
    provider = desktops.provider
    await provider.snapshot("evil", "later")
    await provider.restore("copy", "later")
    ranges = []
    for one in ("evil", "neighbour", "copy"):
        users = desktops.users(one)
        first = min(users)
        assert first >= user_ids.LOWEST
        assert users == {first, first + 1000}, "root and user inside"
        ranges.append(first)
    assert len({*ranges}) == 3
    assert min(abs(a - b) for a in ranges for b in ranges if a != b) >= user_ids.COUNT


async def play(desktops: Desktops, names: list[str], user: str) -> None:
    before = await desktops.run("neighbour", "use")
    assert {name for name, said in before.items() if said != "works"} == REFUSED, before
    taken = {}
    for name in names:
        taken[name] = await desktops.run("evil", "attack", name, user=user)
        assert await desktops.run("neighbour", "use") == before, (name, taken[name])
        await desktops.fresh("evil")
    assert {name for name in names if taken[name][0] == 0} == REFUSED & set(names), taken
    assert (await desktops.provider.health("neighbour")).cause is HealthCause.OK


async def test_fourteen_attacks_of_a_user_change_nothing_in_a_neighbour(
    desktops: Desktops, record_property: Told
) -> None:
    assert len(ATTACKS) == 14
    record_property("attacks", len(ATTACKS))
    await play(desktops, list(ATTACKS), "user")


@pytest.mark.slow
async def test_fourteen_attacks_of_root_change_nothing_in_a_neighbour(
    desktops: Desktops, record_property: Told
) -> None:
    names = [name for name in ATTACKS if name not in WITH_THE_HOSTS_LEAVE or not rlimits.is_needed()]
    record_property("attacks", len(names))
    await play(desktops, names, "root")
