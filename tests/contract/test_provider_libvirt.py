"""What only real machines can show: limits, no network, a control port that is the host's alone, disks that carry snapshots, ownership."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from provider_cases import SPEC, Case, eventually, machine_pid

from dart_server.guest.client import GuestUnreachable
from dart_server.providers.base import OSWORLD_PORT, SELF_INFLICTED, DesktopSpec, HealthCause, ProviderError
from dart_server.providers.libvirt import kvm
from dart_server.providers.libvirt.provider import LibvirtProvider
from dart_server.providers.libvirt.volumes import Volume, Volumes
from dart_server.wire.paths import data_dir

pytestmark = [pytest.mark.libvirt, pytest.mark.timeout(900)]
HOG = "kept = []\nwhile True: kept.append(b'x' * (16 << 20))"
"""Fills memory as fast as an emulated processor can."""
LEAP = 1_000_000
COUNT = (
    "import itertools, os, signal, time\n"
    "leaps = []\n"
    "signal.signal(signal.SIGUSR1, lambda *_: leaps.append(1))\n"
    "for n in itertools.count():\n"
    f" open('/home/user/new', 'w').write(str(n + {LEAP} * len(leaps)))\n"
    " os.replace('/home/user/new', '/home/user/count'); time.sleep(0.02)\n"
)
"""Counts for ever; a signal makes it leap ahead, farther than it gets by itself while a test looks at it."""
LISTEN_ON_THE_PORT = "import glob; [open(path, 'r+b', buffering=0) for path in glob.glob('/dev/vport*')]"
BOUNDS = """
import contextlib, os
for pid in os.listdir('/proc'):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if pid.isdigit() and pid != '1' and open(f'/proc/{pid}/cmdline').read():
            print(next(line for line in open(f'/proc/{pid}/status') if line.startswith('CapBnd:')).split()[1])
"""
"""What the processes of a machine may have at most, its kernel's own and init left out."""
NO_TRACING = 0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 25, 29
"""Numbers of a container's capabilities, and of the clock's."""
SENDS_ITSELF = "echo c > /proc/sysrq-trigger"


async def counted(case: Case, desktop_id: str) -> int:
    reply = await case.call(desktop_id, "GET", "/v1/files?path=/home/user/count")
    return int(reply.content) if reply.status == 200 and reply.content.isdigit() else -1


def started_again(runtime: Path) -> LibvirtProvider:
    """The provider of a farm with this runtime directory."""
    home, uri = data_dir(), os.environ.get("DART_LIBVIRT_URI")
    return LibvirtProvider(home=home, runtime_dir=runtime, snapshot_dir=runtime / "snapshots", uri=uri)


def provider_of(case: Case) -> LibvirtProvider:
    assert isinstance(case.provider, LibvirtProvider)
    return case.provider


async def test_disk_and_memory_come_back_in_place_and_in_a_fork(libvirt_case: Case) -> None:
    """A program's own count, which only lives in memory, goes on from where it was saved; the file beside it is the saved one."""
    case = libvirt_case
    await case.ready("d1")
    counting = await case.exec("d1", "python3", "-c", COUNT, user="user", detach=True)

    async def counts() -> bool:
        return await counted(case, "d1") > 5

    await eventually(counts)
    await case.put("d1", "before")
    await case.exec("d1", "date", "--set=@1000000000")
    at_least = await counted(case, "d1")
    await case.provider.snapshot("d1", "s1")
    await case.put("d1", "after")
    await case.exec("d1", "kill", "-USR1", str(counting["pid"]))

    async def leapt() -> bool:
        return await counted(case, "d1") >= LEAP

    await eventually(leapt)
    pid = machine_pid(provider_of(case), "d1")
    for desktop_id in ("d1", "d2"):
        await case.provider.restore(desktop_id, "s1")
        assert await case.get(desktop_id) == "before"
        now = await counted(case, desktop_id)
        assert at_least <= now < LEAP
        told = await case.exec(desktop_id, "date", "+%s", user="user")
        assert abs(int(told["stdout"]) - time.time()) < 30, (
            "a copy's clock is the host's, whatever it was when it was saved"
        )

        async def goes_on(desktop_id: str = desktop_id, now: int = now) -> bool:
            return await counted(case, desktop_id) > now

        await eventually(goes_on)
    assert machine_pid(provider_of(case), "d1") == pid, "the hypervisor was not started again"


async def test_limits_hold_and_are_told(libvirt_case: Case) -> None:
    case = libvirt_case
    assert case.provider.capabilities.limits == {"memory", "cpus", "disk"}
    assert case.provider.capabilities.accelerator in ("kvm", "tcg")
    await case.ready("d1")
    processors = "1" if case.provider.capabilities.accelerator == "tcg" else "2"
    assert (await case.exec("d1", "nproc"))["stdout"].strip() == processors
    memory = (await case.exec("d1", "sh", "-c", "grep MemTotal /proc/meminfo"))["stdout"]
    assert int(memory.split()[1]) <= SPEC.memory_mib * 1024
    free = (await case.exec("d1", "df", "--output=avail", "-m", "/"))["stdout"]
    assert SPEC.disk_mib * 0.8 < int(free.split()[1]) <= SPEC.disk_mib + 32
    await case.provider.snapshot("d1", "s1")
    full = await case.exec("d1", "dd", "if=/dev/zero", "of=/home/user/big", "bs=1M", "count=400", user="user")
    assert "No space left" in full["stderr"]
    assert (await case.provider.health("d1")).cause is HealthCause.DISK_FULL
    await case.provider.restore("d1", "s1")
    assert (await case.provider.health("d1")).alive
    hungry = await case.exec("d1", "python3", "-c", "x = bytearray(2 << 30); print(len(x))", user="user")
    assert hungry["returncode"] != 0
    await case.exec("d1", "python3", "-c", HOG, user="user", detach=True)

    async def hungry_is_killed() -> bool:
        return (await case.provider.health("d1")).cause is HealthCause.OOM

    await eventually(hungry_is_killed, 300.0)
    assert (await case.provider.health("d1")).oom_kills > 0


async def test_nobody_inside_can_call_the_agent_or_anybody_else(libvirt_case: Case) -> None:
    case = libvirt_case
    await case.ready("d1")
    whoami = await case.exec("d1", "sudo", "-S", "id", "-u", user="user", stdin="password\n")
    assert whoami["stdout"].strip() == "0", whoami
    assert (await case.exec("d1", "ls", "/sys/class/net"))["stdout"].split() == ["lo"]
    listening = await case.exec("d1", "sh", "-c", "cat /proc/net/unix /proc/net/tcp")
    assert "dart" not in listening["stdout"]
    for user, argv in (
        ("user", ["python3", "-c", LISTEN_ON_THE_PORT]),
        ("user", ["sudo", "-S", "python3", "-c", LISTEN_ON_THE_PORT]),
        ("root", ["python3", "-c", LISTEN_ON_THE_PORT]),
    ):
        said = await case.exec("d1", *argv, user=user, stdin="password\n")
        assert "Error" in said["stderr"], said
    bounds = await case.exec("d1", "python3", "-c", BOUNDS)
    assert len(bounds["stdout"].split()) >= 6, "bus, screen, window manager, accessibility, agent and this one"
    assert {int(word, 16) for word in bounds["stdout"].split()} == {sum(1 << number for number in NO_TRACING)}
    for address in ("169.254.169.254", "10.0.2.2", "10.0.0.1"):
        program = f"import socket; socket.create_connection(('{address}', 80), 2)"
        assert (await case.exec("d1", "python3", "-c", program))["returncode"] != 0, address
    assert (await case.call("d1", "GET", "/v1/health")).status == 200, "the host still can"


async def test_the_agent_comes_back_when_it_is_killed_from_inside(libvirt_case: Case) -> None:
    case = libvirt_case
    await case.ready("d1")
    starts = (await case.call("d1", "GET", "/v1/health")).content
    killing = "sudo -S killall -9 python3 </home/user/password"
    assert (await case.call("d1", "PUT", "/v1/files?path=/home/user/password", raw=b"password\n")).status == 200
    await case.exec("d1", "sh", "-c", killing, user="user", detach=True)

    async def back() -> bool:
        try:
            return b'"agent_starts": 2' in (await case.call("d1", "GET", "/v1/health")).content
        except GuestUnreachable:
            return False

    assert b'"agent_starts": 1' in starts
    await eventually(back, 40.0)
    assert (await case.provider.health("d1")).alive
    await case.put("d1", "still mine")
    assert await case.get("d1") == "still mine"


async def test_a_machine_that_ends_itself_is_its_own_fault_and_comes_back(libvirt_case: Case) -> None:
    case = libvirt_case
    await case.ready("d1")
    await case.put("d1", "kept")
    await case.provider.snapshot("d1", "s1")
    await case.exec("d1", "sh", "-c", SENDS_ITSELF, user="root", detach=True)

    async def dead() -> bool:
        return (await case.provider.health("d1")).cause in SELF_INFLICTED

    await eventually(dead, 30.0)
    await case.provider.restore("d1", "s1")
    assert await case.get("d1") == "kept"


async def test_a_machine_that_ends_between_the_look_and_the_restore_comes_back(
    libvirt_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = libvirt_case
    await case.ready("d1")
    await case.put("d1", "kept")
    await case.provider.snapshot("d1", "s1")
    await case.kill("d1")

    async def ended() -> bool:
        return (await case.provider.health("d1")).alive is False

    await eventually(ended, 30.0)

    async def seen_running(_desktop_id: str) -> str:
        monkeypatch.undo()
        return "running"

    monkeypatch.setattr(case.provider, "_state", seen_running)
    await case.provider.restore("d1", "s1")
    assert await case.get("d1") == "kept"


async def test_osworlds_door_has_no_control_behind_it(libvirt_case: Case) -> None:
    case = libvirt_case
    await case.ready("d1")
    loop = asyncio.get_running_loop()
    for path, status in (("/platform", b"200"), ("/v1/health", b"404")):
        with await case.provider.dial("d1", OSWORLD_PORT) as connection:
            await loop.sock_sendall(connection, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert (await loop.sock_recv(connection, 100)).split()[1] == status


def test_a_machine_that_runs_comes_through_the_boot_sector() -> None:
    """Emulated: were the sector wrong, no KVM would ever count."""
    assert kvm.boot("qemu-system-x86_64", "tcg", 30.0) == kvm.SUCCESS_EXIT_CODE


async def test_bad_ids_and_images_are_refused(libvirt_case: Case) -> None:
    for desktop_id, spec in (("../escape", SPEC), ("d1", DesktopSpec("../basic"))):
        with pytest.raises(ProviderError):
            await libvirt_case.provider.create(desktop_id, spec)


async def test_a_farm_that_is_started_again_finds_its_desktops_and_snapshots(libvirt_case: Case) -> None:
    first, runtime = provider_of(libvirt_case), libvirt_case.runtime
    assert runtime is not None
    await libvirt_case.ready("d1")
    await libvirt_case.put("d1", "kept")
    await first.snapshot("d1", "s1")
    await first.aclose()
    again, other = started_again(runtime), started_again(runtime / "other")
    await again.start()
    await other.start()
    try:
        assert (await again.inventory()).desktops == ("d1",)
        assert (await again.inventory()).snapshots == ("s1",)
        assert (await other.inventory()).desktops == ()
        assert await other.reap(set()) == []
        found = replace(libvirt_case, provider=again)
        assert await found.get("d1") == "kept"
        assert (await again.health("d1")).alive
        await again.restore("d1", "s1")
        await again.destroy("d1")
        assert (await again.inventory()).snapshots == ("s1",), "a snapshot outlives its desktop"
        await again.restore("d2", "s1")
        assert await found.get("d2") == "kept"
        assert set(await again.reap(set())) == {"d2", "s1"}
    finally:
        await again.aclose()
        await other.aclose()
        await first.start()


TICK_S = 0.05
TICKING = (
    "import socket, time\n"
    "s = socket.create_server(('127.0.0.1', 7008)); c, _ = s.accept()\n"
    f"while True: c.sendall(b'.'); time.sleep({TICK_S})\n"
)


class Ticks:
    """Hears what a program inside a desktop sends in regular intervals; `silence_s` is the longest that nothing came."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.count, self.silence_s, self.last_s = 0, 0.0, time.monotonic()

    async def hear(self) -> None:
        loop = asyncio.get_running_loop()
        while heard := await loop.sock_recv(self.connection, 4096):
            now_s = time.monotonic()
            self.silence_s, self.last_s = max(self.silence_s, now_s - self.last_s), now_s
            self.count += len(heard)

    async def some(self, more: int) -> bool:
        """Whether that many have come since the first look; for `eventually`."""
        return self.count >= more


async def test_a_desktop_stands_still_no_longer_than_its_disk_is_copied(
    libvirt_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are made of a desktop while it works: to whoever listens to it, it is silent while its disk is copied, not while the copies
    start (which slows it down: two more machines want the host's processors), and the connection into it does not break."""
    case = libvirt_case
    await case.ready("d1")
    await case.provider.snapshot("d1", "s1")
    await case.exec("d1", "python3", "-c", TICKING, user="user", detach=True)
    connection: socket.socket | None = None

    async def dialled() -> bool:
        nonlocal connection
        with suppress(ConnectionRefusedError):
            connection = await case.provider.dial("d1", 7008)
        return connection is not None

    await eventually(dialled)
    assert connection is not None
    copies_s: list[float] = []
    copy = Volumes.copy

    def timed(self: Volumes, source: Volume, desktop_id: str, snapshot_id: str) -> Volume:
        begun_s = time.monotonic()
        try:
            return copy(self, source, desktop_id, snapshot_id)
        finally:
            copies_s.append(time.monotonic() - begun_s)

    monkeypatch.setattr(Volumes, "copy", timed)
    with connection:
        ticks = Ticks(connection)
        hearing = asyncio.create_task(ticks.hear())
        await eventually(lambda: ticks.some(20))
        ticks.silence_s = 0.0
        begun_s = time.monotonic()
        await asyncio.gather(*(case.provider.restore(name, "s1") for name in ("d2", "d3")))
        restores_s = time.monotonic() - begun_s
        heard = ticks.count
        await eventually(lambda: ticks.some(heard + 20))
        assert not hearing.done(), "the connection lasts"
        hearing.cancel()
    assert len(copies_s) == 2
    starting_s = restores_s - sum(copies_s)
    assert ticks.silence_s < sum(copies_s) + starting_s / 2, (ticks.silence_s, copies_s, restores_s)
    assert case.runtime is not None
    disks = list(case.runtime.rglob("*.qcow2"))
    assert len(disks) == 3
    assert all(oct(os.stat(path).st_mode & 0o777) == "0o600" for path in disks)
