"""Ways out of a desktop, each tried on a live one and refused; the host and the neighbours keep working, and the policy is to blame.

Role: written against the provider contract, so that every provider's desktops can be put into `pair`. What is tried from the inside is
in `escapes_inside`; what breaks a desktop, and what comes in and goes out as files, is here. After every test the neighbour must answer
and act, and the host must have its memory, processes and disk back.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from provider_cases import SPEC, Case, eventually

from dart_server.providers.base import SELF_INFLICTED, DesktopSpec, HealthCause
from dart_server.wire.paths import data_dir

EVIL = replace(SPEC, memory_mib=512, disk_mib=64)
START = "start"
"""The snapshot of the desktop that misbehaves, booted."""
RUNC = pytest.param("runc_copies", marks=pytest.mark.desktop, id="runc")
DOCKER = pytest.param("docker_case", marks=pytest.mark.docker, id="docker")
LIBVIRT = pytest.param(
    "libvirt_case", marks=[pytest.mark.libvirt, pytest.mark.slow, pytest.mark.timeout(900)], id="libvirt"
)
on_the_hosts_kernel = pytest.mark.parametrize("live", [RUNC, DOCKER], indirect=True)
"""For what only desktops that share a kernel with the host must not do."""
MEMORY_SLACK_KIB, DISK_SLACK_BYTES, PROCESS_SLACK = 2 << 20, 4 << 30, 1000
"""What else goes on on this host while a test runs; each is less than what an unlimited attempt would take."""
NEIGHBOUR_PORT = 7007
HARMLESS = {"docker": {"mode of a masked file"}}
"""What gets through and leads nowhere: an engine covers files of /proc with the container's own /dev/null, not with the host's."""
MACHINE_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True)
class Host:
    """Counters of the host."""

    memory_kib: int
    processes: int
    disk_bytes: int

    @staticmethod
    def now() -> Host:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        processes = sum(1 for name in os.listdir("/proc") if name.isdigit())
        return Host(int(lines["MemAvailable"].split()[0]), processes, shutil.disk_usage("/").free)


@dataclass(frozen=True)
class Pair:
    """The desktop that misbehaves, and its neighbour."""

    case: Case
    spec: DesktopSpec
    evil: str = "evil"
    neighbour: str = "neighbour"

    async def fresh(self, desktop_id: str) -> None:
        """A desktop as every desktop of an episode is: restored from a snapshot, or made anew where there are none."""
        provider = self.case.provider
        if provider.capabilities.memory_snapshot:
            await provider.restore(desktop_id, START)
        else:
            await provider.destroy(desktop_id)
            await provider.create(desktop_id, self.spec)

    async def run(self, *argv: str, user: str = "user", **more: Any) -> dict[str, Any]:
        """Run a program in the desktop that misbehaves."""
        return await self.case.exec(self.evil, *argv, user=user, **more)

    async def attempt(self, *argv: str, user: str = "user", timeout_s: float = 20.0) -> None:
        """Do damage; the desktop need not live to answer."""
        try:
            await self.run(*argv, user=user, timeout_s=timeout_s)
        except (OSError, AssertionError, Exception):  # noqa: BLE001 - whatever becomes of the call, the desktop is looked at afterwards
            return

    async def cause(self) -> HealthCause:
        """What the provider says about the desktop that misbehaves."""
        return (await self.case.provider.health(self.evil)).cause


@pytest.fixture(params=[RUNC, DOCKER, LIBVIRT])
def live(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def pair(live: Case) -> AsyncIterator[Pair]:
    """A desktop to misbehave in, and a neighbour."""
    made = Pair(live, SPEC if own_kernel(live) else EVIL)
    if live.provider.capabilities.memory_snapshot and START not in live.shelf:
        # A machine that is emulated takes a minute to boot: there is one booted for all tests.
        await (live.ready("origin") if own_kernel(live) else live.provider.create("origin", EVIL))
        await live.provider.snapshot("origin", START)
        await live.provider.destroy("origin")
        live.shelf.add(START)
    neighbour = made.fresh("neighbour") if own_kernel(live) else live.ready("neighbour")
    await asyncio.gather(neighbour, made.fresh("evil"))
    before = Host.now()
    yield made
    await works(live, "neighbour")
    await made.fresh("evil")
    await works(live, "evil")
    await eventually(lambda: within_bounds(before), 20.0)


def own_kernel(case: Case) -> bool:
    """Whether its desktops are machines."""
    return case.provider.name == "libvirt"


async def works(case: Case, desktop_id: str) -> None:
    """A desktop answers and acts."""
    assert (await case.provider.health(desktop_id)).cause is HealthCause.OK
    header, pixels = await case.step(desktop_id, {"type": "move", "x": 12, "y": 34})
    assert header["cursor"] == [12, 34]
    assert len(pixels) == 640 * 400 * 3
    assert (await case.exec(desktop_id, "sh", "-c", "echo works > ~/w && cat ~/w", user="user"))["stdout"] == "works\n"


async def within_bounds(before: Host) -> bool:
    now = Host.now()
    return (
        now.memory_kib > before.memory_kib - MEMORY_SLACK_KIB
        and now.processes < before.processes + PROCESS_SLACK
        and now.disk_bytes > before.disk_bytes - DISK_SLACK_BYTES
    )


def addresses() -> list[str]:
    """Addresses of this host that are not loopback."""
    listed = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return [word for word in listed if not ipaddress.ip_address(word).is_link_local]


@dataclass(frozen=True)
class Planted:
    """What the host holds out to a desktop that gets through."""

    listeners: tuple[socket.socket, ...]
    told: dict[str, Any]

    def reached(self) -> bool:
        """Whether anybody connected."""
        for listener in self.listeners:
            listener.setblocking(False)
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                continue
            return True
        return False


@contextmanager
def planted(directory: Path, layout_directories: list[str], *, machine: bool) -> Iterator[Planted]:
    secret = directory / "secret-of-the-host"
    secret.write_text("host only")
    abstract = f"dart-test-{os.getpid()}"
    with socket.create_server(("0.0.0.0", 0)) as listener, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0" + abstract)
        local.listen()
        told = {
            "port": listener.getsockname()[1],
            "neighbour_port": NEIGHBOUR_PORT,
            "addresses": addresses(),
            "abstract": abstract,
            "path": str(secret),
            "directories": layout_directories,
            "own_kernel": machine,
        }
        yield Planted((listener, local), told)


@pytest.mark.timeout(600)
async def test_every_door_is_shut_for_the_user_and_for_root(pair: Pair, tmp_path: Path) -> None:
    assert await pair.case.serve(pair.neighbour) == NEIGHBOUR_PORT
    probe = Path(__file__).with_name("escapes_inside.py").read_bytes()
    await pair.case.call(pair.evil, "PUT", "/v1/files?path=/home/user/escapes.py", raw=probe)
    layout = pair.case.layout
    directories = [str(data_dir() / "images")]
    if layout is not None:
        directories += [str(layout.state_dir), str(layout.store_dir) + "/"]
    if pair.case.runtime is not None:
        directories.append(str(pair.case.runtime))
    with planted(tmp_path, directories, machine=own_kernel(pair.case)) as held:
        for who in (["python3"], ["sudo", "-S", "python3"]):
            command = [*who, "/home/user/escapes.py", json.dumps(held.told)]
            ended = await pair.run(*command, stdin="password\n", timeout_s=100)
            assert ended["returncode"] == 0, ended
            answers: dict[str, str] = json.loads(ended["stdout"])
            assert len(answers) >= (19 if own_kernel(pair.case) else 91)
            open_doors = {name: said for name, said in answers.items() if not said.startswith("refused")}
            open_doors = {
                name: open_doors[name] for name in open_doors.keys() - HARMLESS.get(pair.case.provider.name, set())
            }
            assert open_doors == {}, who
        assert not held.reached()
    assert await pair.cause() is HealthCause.OK


@on_the_hosts_kernel
async def test_the_filter_and_the_capabilities_are_there_for_every_process_also_after_a_restore(pair: Pair) -> None:
    script = "grep -h -E '^(Seccomp|CapBnd|CapEff):' /proc/[0-9]*/status | sort | uniq"
    lines = (await pair.run("sh", "-c", script, user="root"))["stdout"].split("\n")
    assert [line.split() for line in lines if line.startswith("Seccomp:")] == [["Seccomp:", "2"]]
    (bounding,) = [int(line.split()[1], 16) for line in lines if line.startswith("CapBnd:")]
    names = {
        1: "DAC_OVERRIDE",
        12: "NET_ADMIN",
        13: "NET_RAW",
        16: "SYS_MODULE",
        19: "SYS_PTRACE",
        21: "SYS_ADMIN",
        27: "MKNOD",
    }
    assert [name for number, name in names.items() if bounding >> number & 1] == ["DAC_OVERRIDE"]


async def test_sudo_does_what_tasks_need(pair: Pair) -> None:
    script = """
    set -e
    useradd -m guest2 && echo guest2:secret | chpasswd && su guest2 -c 'test "$(id -un)" = guest2'
    echo 'value = 1' > /etc/some.conf && chown user:user /etc/some.conf && chmod 640 /etc/some.conf
    sleep 50 & kill $!
    mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin && echo '#!/bin/sh' > /tmp/p/usr/bin/fresh && chmod 755 /tmp/p/usr/bin/fresh
    printf 'Package: fresh\\nVersion: 1\\nArchitecture: all\\nMaintainer: a <a@b.c>\\nDescription: x\\n' > /tmp/p/DEBIAN/control
    dpkg-deb --build /tmp/p /tmp/p.deb > /dev/null && dpkg -i /tmp/p.deb > /dev/null && fresh
    dpkg -r fresh > /dev/null
    """
    done = await pair.run("sudo", "-S", "sh", "-c", script, stdin="password\n", timeout_s=60)
    assert done["returncode"] == 0, done["stderr"]
    clock = await pair.run("sudo", "-S", "date", "-s", "2001-01-01", stdin="password\n")
    assert (clock["returncode"] == 0) is own_kernel(pair.case), "the clock is the host's, but for a machine"


async def test_paths_and_links_of_files_end_inside(pair: Pair, tmp_path: Path) -> None:
    case = pair.case
    secret = tmp_path / "secret-of-the-host"
    secret.write_text("host only")
    ways = [
        f"{top}{secret}"
        for top in ("", "/..", "/home/user/../../..", "/proc/1/root", "/proc/self/root/..", "/proc/1/cwd")
    ]
    await pair.run(
        "sh", "-c", f"ln -s / /home/user/top; ln -s {secret} /home/user/straight; ln -s /proc/1/root /home/user/init"
    )
    ways += [
        f"/home/user/top{secret}",
        "/home/user/straight",
        f"/home/user/init/..{secret}",
        f"/home/user/%2e%2e/%2e%2e{secret}",
    ]
    for way in ways:
        for path in (way, urllib.parse.quote(way, safe="")):
            reply = await case.call(pair.evil, "GET", f"/v1/files?path={path}")
            assert reply.status in (400, 404), (path, reply.status)
    for bad in ("etc/passwd", "../etc/passwd", "", "/etc/passwd%00"):
        assert (await case.call(pair.evil, "GET", f"/v1/files?path={bad}")).status == 400, bad
    for way in ways[:5]:
        await case.call(pair.evil, "PUT", f"/v1/files?path={urllib.parse.quote(way)}", raw=b"overwritten")
    assert secret.read_text() == "host only"


async def test_a_link_where_a_file_goes_is_replaced_and_what_is_no_file_is_not_sent(pair: Pair) -> None:
    case = pair.case
    script = "ln -s /etc/passwd up; mkfifo pipe; ln -s /dev/zero endless; ln -s loop loop; ln -s /dev/tty tty"
    await pair.run("sh", "-c", f"cd /home/user; {script}")
    before = (await pair.run("cat", "/etc/passwd"))["stdout"]
    assert (
        await case.call(pair.evil, "PUT", "/v1/files?path=/home/user/up", raw=b"root::0:0::/:/bin/sh")
    ).status == 200
    assert (await pair.run("cat", "/etc/passwd"))["stdout"] == before
    for name in ("pipe", "endless", "loop", "tty"):
        reply = await case.call(pair.evil, "GET", f"/v1/files?path=/home/user/{name}")
        assert reply.status in (400, 404), name
    assert await pair.cause() is HealthCause.OK


async def test_a_fork_bomb_ends_at_the_desktops_own_limit(pair: Pair) -> None:
    await pair.attempt("bash", "-c", "b() { b | b & }; b; sleep 3", timeout_s=6)
    await works(pair.case, pair.neighbour)
    if "pids" in pair.case.provider.capabilities.limits:
        assert await pair.cause() is HealthCause.PIDS
    assert await pair.cause() in {HealthCause.OK, *SELF_INFLICTED}


HOGS = {
    "memory": "b = []\nwhile True: b.append(b'x' * (16 << 20))",
    "shared memory": "import itertools\nfor n in itertools.count():\n open(f'/dev/shm/{n}', 'wb').write(b'x' * (32 << 20))",
    "socket buffers": (
        "import socket\nkept = []\nwhile True:\n a, b = socket.socketpair()\n a.setblocking(False); kept.append((a, b))\n"
        " try:\n  while True: a.send(b'x' * 65536)\n except BlockingIOError: pass"
    ),
}


@pytest.mark.parametrize("what", ["memory"])
async def test_a_memory_hog_dies_of_the_desktops_own_limit(pair: Pair, what: str) -> None:
    await pair.attempt("python3", "-c", HOGS[what], timeout_s=60)
    await works(pair.case, pair.neighbour)

    async def killed() -> bool:
        return await pair.cause() is HealthCause.OOM

    await eventually(killed, 300.0 if own_kernel(pair.case) else 5.0)


@pytest.mark.parametrize("what", ["shared memory", "socket buffers"])
async def test_memory_of_the_kernel_is_the_desktops_own_too(pair: Pair, what: str) -> None:
    before = Host.now()
    await pair.attempt("python3", "-c", HOGS[what], timeout_s=20)
    await works(pair.case, pair.neighbour)
    assert Host.now().memory_kib > before.memory_kib - (pair.spec.memory_mib << 10) - MEMORY_SLACK_KIB


async def test_a_full_disk_is_the_desktops_own(pair: Pair) -> None:
    await pair.attempt(
        "dd", "if=/dev/zero", "of=/home/user/big", "bs=1M", f"count={4 * pair.spec.disk_mib}", timeout_s=60
    )
    await works(pair.case, pair.neighbour)
    # A provider whose host cannot limit disks says so in its capabilities.
    limited = "disk" in pair.case.provider.capabilities.limits
    assert await pair.cause() is (HealthCause.DISK_FULL if limited else HealthCause.OK)


async def test_a_million_empty_files_are_bounded(pair: Pair) -> None:
    before = Host.now()
    code = (
        "import os\nos.makedirs('/home/user/many')\nfor n in range(1000000): open(f'/home/user/many/{n}', 'w').close()"
    )
    await pair.attempt("python3", "-c", code, timeout_s=15)
    await works(pair.case, pair.neighbour)
    assert Host.now().memory_kib > before.memory_kib - (pair.spec.memory_mib << 10) - MEMORY_SLACK_KIB
    assert await pair.cause() in (HealthCause.OK, HealthCause.OOM, HealthCause.DISK_FULL)


async def test_a_killed_session_is_the_policys_doing(pair: Pair) -> None:
    await pair.attempt("sudo", "-S", "killall", "-9", "Xvfb")
    await pair.attempt("sh", "-c", "kill -9 -1")

    async def dead() -> bool:
        return await pair.cause() is HealthCause.SESSION_DEAD

    await eventually(dead, 10.0)
    await works(pair.case, pair.neighbour)


async def test_two_copies_of_a_snapshot_are_two_machines(pair: Pair) -> None:
    provider = pair.case.provider
    await asyncio.gather(pair.fresh("c1"), pair.fresh("c2"))
    script = f"cat {' '.join(MACHINE_FILES)} | sort -u; python3 -c 'import random, uuid; print(random.random(), uuid.uuid4())'; mktemp -u"
    said = [
        (await pair.case.exec(name, "sh", "-c", script))["stdout"].split("\n")[:-1] for name in ("evil", "c1", "c2")
    ]
    for lines in said:
        assert len(lines) == 3, "one machine id at every place"
        assert len(lines[0]) == 32
    for column in zip(*said, strict=True):
        assert len(set(column)) == 3, column
    await asyncio.gather(provider.destroy("c1"), provider.destroy("c2"))
