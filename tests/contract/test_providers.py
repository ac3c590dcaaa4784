"""One suite for every provider: what `providers.base` promises, by declared capability."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dart_server.guest.client import GuestClient, GuestReply
from dart_server.hostd import cgroups, doctor
from dart_server.hostd.layout import Layout
from dart_server.providers.base import (
    SELF_INFLICTED,
    CapabilityMissing,
    DesktopGone,
    DesktopSpec,
    HealthCause,
    HostFault,
    ImageMissing,
    Provider,
    ProviderError,
    SnapshotBroken,
)
from dart_server.providers.runc import RuncProvider
from dart_server.providers.sim import ECHO_PORT, SimProvider
from dart_server.settings import default_home

SPEC = DesktopSpec("basic", (640, 400), memory_mib=768, pids=256, cpus=2.0, disk_mib=128)


@dataclass
class Case:
    """A started provider with what only its kind can do."""

    provider: Provider
    kill: Callable[[str], Awaitable[None]]
    log_out: Callable[[str], Awaitable[None]]
    serve: Callable[[str], Awaitable[int]]
    layout: Layout | None = None

    async def call(
        self, desktop_id: str, method: str, path: str, body: Any = None, raw: bytes | None = None
    ) -> GuestReply:
        guest = GuestClient(lambda port: self.provider.dial(desktop_id, port))
        content = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        try:
            return await guest.request(method, path, timeout_s=30.0, content=content)
        finally:
            await guest.hang_up()

    async def exec(self, desktop_id: str, *argv: str, user: str = "root", **more: Any) -> dict[str, Any]:
        reply = await self.call(desktop_id, "POST", "/v1/exec", {"argv": list(argv), "user": user, **more})
        assert reply.status == 200, reply.content
        answer: dict[str, Any] = json.loads(reply.content)
        return answer

    async def step(self, desktop_id: str, *events: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        reply = await self.call(
            desktop_id, "POST", "/v1/step", {"seq": 3, "events": list(events), "frame": {"encoding": "raw"}}
        )
        assert reply.status == 200, reply.content
        (size,) = struct.unpack(">I", reply.content[:4])
        return json.loads(reply.content[4 : 4 + size]), reply.content[4 + size :]

    async def put(self, desktop_id: str, text: str) -> None:
        assert (await self.call(desktop_id, "PUT", "/v1/files?path=/home/user/note", raw=text.encode())).status == 200

    async def get(self, desktop_id: str) -> str:
        reply = await self.call(desktop_id, "GET", "/v1/files?path=/home/user/note")
        return reply.content.decode() if reply.status == 200 else f"status {reply.status}"


@pytest.fixture
async def sim_case() -> AsyncIterator[Case]:
    provider = SimProvider(images=["basic"])

    async def log_out(desktop_id: str) -> None:
        provider.log_out(desktop_id)

    async def serve(desktop_id: str) -> int:
        return ECHO_PORT

    await provider.start()
    yield Case(provider, provider.crash, log_out, serve)
    await provider.aclose()


def need_live_desktops(home: Path) -> None:
    """Skip with the reason when this host cannot run live desktops."""
    lacking = [check for check in doctor.examine(Path(tempfile.gettempdir()), home) if not check.ok]
    if lacking:
        pytest.skip(f"{lacking[0].name}: {lacking[0].detail}; {lacking[0].cure}")
    if not (home / "images" / "basic" / "current").exists():
        pytest.skip(f"no image `basic` in {home}: run `make setup`")


@pytest.fixture
async def runc_case() -> AsyncIterator[Case]:
    home = Path(os.environ.get("DART_HOME") or default_home())
    need_live_desktops(home)
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    store = Path("/dev/shm")
    provider = RuncProvider(home=home, runtime_dir=runtime, snapshot_dir=store)
    layout = Layout(os.getuid(), runtime / "hostd", runtime, home / "images", store)
    case = Case(
        provider,
        partial(asyncio.to_thread, kill_init, layout),
        lambda _: asyncio.sleep(0),
        lambda _: asyncio.sleep(0, 0),
        layout,
    )

    async def log_out(desktop_id: str) -> None:
        await case.exec(desktop_id, "pkill", "-KILL", "Xvfb|Xvnc|Xtigervnc")

    async def serve(desktop_id: str) -> int:
        program = (
            "import socket; s = socket.create_server(('127.0.0.1', 7007))\n"
            "while True:\n c, _ = s.accept(); c.sendall(c.recv(100)); c.close()"
        )
        await case.exec(desktop_id, "python3", "-c", program, user="user", detach=True)
        return 7007

    case.log_out, case.serve = log_out, serve
    await provider.start()
    try:
        yield case
    finally:
        await provider.aclose()
        assert left_over(layout) == []
        shutil.rmtree(runtime)


@pytest.fixture(params=["sim", pytest.param("runc", marks=pytest.mark.desktop)])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(f"{request.param}_case")
    return found


def kill_init(layout: Layout, desktop_id: str) -> None:
    """SIGKILL the desktop's process 1 from the host."""
    for root in cgroups.left_over(layout.prefix):
        for place in root.glob(f"{desktop_id}.*"):
            for pid in cgroups.members(place):
                status = Path(f"/proc/{pid}/status").read_text()
                if next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")) == "1":
                    os.kill(pid, signal.SIGKILL)
                    return
    raise AssertionError("no init found")


def left_over(layout: Layout) -> list[str]:
    """Every trace of a helper that ended: control groups, mounts, directories, processes."""
    found = [str(path) for path in cgroups.left_over(layout.prefix)]
    found += [
        line
        for line in Path("/proc/mounts").read_text().splitlines()
        if layout.prefix in line or str(layout.state_dir) in line
    ]
    found += [str(path) for path in (layout.live, layout.disk, layout.socket) if path.exists()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(layout.state_dir).encode() in words:
                found.append(f"process {entry.name}: {words!r}")
    return found


async def eventually(look: Callable[[], Awaitable[bool]], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await look():  # noqa: ASYNC110 - what is waited for is outside this process
            await asyncio.sleep(0.02)


async def test_created_desktop_is_ready_and_shows_its_screen(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    seen = await case.provider.health("d1")
    assert (seen.alive, seen.cause) == (True, HealthCause.OK)
    assert 0 < seen.memory_bytes <= seen.memory_limit_bytes == SPEC.memory_mib << 20
    header, pixels = await case.step("d1", {"type": "move", "x": 31, "y": 47})
    assert (header["seq"], header["width"], header["height"], header["cursor"]) == (3, 640, 400, [31, 47])
    assert len(pixels) == 640 * 400 * 3


async def test_unknown_image_is_named_with_a_cure(case: Case) -> None:
    with pytest.raises(ImageMissing) as caught:
        await case.provider.create("d1", DesktopSpec("nothing-like-it"))
    assert "nothing-like-it" in str(caught.value)
    assert caught.value.hint
    with pytest.raises(ImageMissing):
        await case.provider.image_digest("nothing-like-it")
    assert (await case.provider.image_digest("basic")).startswith("sha256:")


async def test_an_id_in_use_is_refused(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    with pytest.raises(HostFault):
        await case.provider.create("d1", SPEC)
    assert (await case.provider.health("d1")).alive


async def test_restore_brings_back_memory_and_files(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    await case.put("d1", "before")
    await case.step("d1", {"type": "move", "x": 100, "y": 50})
    info = await case.provider.snapshot("d1", "s1")
    assert info.snapshot_id == "s1"
    assert info.bytes > 0
    assert info.image_digest == await case.provider.image_digest("basic")

    header, _ = await case.step("d1")
    assert header["cursor"] == [100, 50], "the desktop goes on after a snapshot"
    await case.put("d1", "after")
    await case.step("d1", {"type": "move", "x": 3, "y": 4})
    before = json.loads((await case.call("d1", "GET", "/v1/health")).content)

    await case.provider.restore("d1", "s1")
    header, _ = await case.step("d1")
    assert header["cursor"] == [100, 50]
    assert await case.get("d1") == "before"
    after = json.loads((await case.call("d1", "GET", "/v1/health")).content)
    assert after["restores"] == 1
    assert after["boot_id"] != before["boot_id"]


async def test_forks_are_independent_copies(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    await case.put("d1", "common")
    await case.provider.snapshot("d1", "s1")
    forks = [f"f{i}" for i in range(4)]
    await asyncio.gather(*(case.provider.restore(fork, "s1") for fork in forks))
    await asyncio.gather(*(case.put(fork, fork) for fork in forks[1:]))
    assert [await case.get(fork) for fork in forks] == ["common", "f1", "f2", "f3"]
    assert await case.get("d1") == "common"
    assert set((await case.provider.owned()).desktops) == {"d1", *forks}


async def test_a_restored_desktop_can_be_saved_again(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    await case.put("d1", "one")
    await case.provider.snapshot("d1", "s1")
    await case.provider.restore("d2", "s1")
    await case.put("d2", "two")
    await case.provider.snapshot("d2", "s2")
    await case.provider.delete_snapshot("s1")
    await case.provider.destroy("d2")
    await case.provider.restore("d3", "s2")
    assert await case.get("d3") == "two"
    with pytest.raises(SnapshotBroken):
        await case.provider.restore("d4", "s1")
    assert not (await case.provider.health("d4")).alive


async def test_a_desktop_outlives_its_snapshot(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    await case.put("d1", "kept")
    await case.provider.snapshot("d1", "s1")
    await case.provider.restore("d2", "s1")
    await case.provider.destroy("d1")
    await case.provider.delete_snapshot("s1")
    await case.provider.delete_snapshot("s1")
    assert await case.get("d2") == "kept"


async def test_a_snapshot_closes_dialled_connections(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    with await case.provider.dial("d1", "control") as dialled:
        await case.provider.snapshot("d1", "s1")
        async with asyncio.timeout(5.0):
            assert await asyncio.get_running_loop().sock_recv(dialled, 1) == b""


async def test_destroy_is_idempotent_and_final(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    await case.provider.destroy("d1")
    await case.provider.destroy("d1")
    await case.provider.destroy("never-was")
    with pytest.raises(DesktopGone):
        await case.provider.dial("d1", "control")
    with pytest.raises(DesktopGone):
        await case.provider.snapshot("d1", "s1")
    seen = await case.provider.health("d1")
    assert not seen.alive
    await case.provider.create("d1", SPEC)
    assert (await case.provider.health("d1")).alive


async def test_a_desktop_killed_by_the_host_is_not_to_blame(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    await case.kill("d1")

    async def dead() -> bool:
        return not (await case.provider.health("d1")).alive

    await eventually(dead)
    assert (await case.provider.health("d1")).cause is HealthCause.KILLED_FROM_OUTSIDE
    assert HealthCause.KILLED_FROM_OUTSIDE not in SELF_INFLICTED


async def test_a_session_ended_from_inside_is_self_inflicted_and_restore_heals_it(case: Case) -> None:
    await case.provider.create("d1", SPEC)
    await case.provider.snapshot("d1", "s1")
    await case.log_out("d1")

    async def dead() -> bool:
        return (await case.provider.health("d1")).cause is HealthCause.SESSION_DEAD

    await eventually(dead)
    await case.provider.restore("d1", "s1")
    assert (await case.provider.health("d1")).cause is HealthCause.OK


async def test_tunnels_reach_ports_inside(case: Case) -> None:
    if not case.provider.capabilities.tunnel:
        pytest.skip("the provider declares no tunnels")
    await case.provider.create("d1", SPEC)
    port = await case.serve("d1")
    loop = asyncio.get_running_loop()

    async def echoed() -> bool:
        try:
            connection = await case.provider.dial("d1", port)
        except ConnectionRefusedError:
            return False
        with connection:
            await loop.sock_sendall(connection, b"hello")
            return await loop.sock_recv(connection, 5) == b"hello"

    await eventually(echoed)
    with pytest.raises(ConnectionRefusedError):
        await case.provider.dial("d1", 65001)


async def test_reap_removes_all_but_what_is_kept(case: Case) -> None:
    await asyncio.gather(*(case.provider.create(name, SPEC) for name in ("d1", "d2")))
    await case.provider.snapshot("d1", "s1")
    await case.provider.snapshot("d1", "s2")
    assert set(await case.provider.reap({"d2", "s2", "unknown"})) == {"d1", "s1"}
    owned = await case.provider.owned()
    assert (owned.desktops, owned.snapshots) == (("d2",), ("s2",))
    assert (await case.provider.health("d2")).alive
    await case.provider.restore("d3", "s2")


@pytest.mark.desktop
class TestRunc:
    """What only real containers can show."""

    async def test_limits_hold(self, runc_case: Case) -> None:
        case = runc_case
        await case.provider.create("d1", SPEC)
        full = await case.exec("d1", "dd", "if=/dev/zero", "of=/home/user/big", "bs=1M", "count=400", user="user")
        assert full["returncode"] == 1
        assert "No space left" in full["stderr"]
        await case.exec("d1", "rm", "/home/user/big")
        hungry = await case.exec("d1", "python3", "-c", "x = bytearray(2 << 30); print(len(x))", user="user")
        assert hungry["returncode"] != 0
        assert (await case.provider.health("d1")).oom_kills > 0
        many = await case.exec("d1", "sh", "-c", "for i in $(seq 400); do sleep 5 & done", user="user")
        assert many["returncode"] != 0 or "fork" in many["stderr"].lower()

    async def test_sudo_works_and_root_stays_inside(self, runc_case: Case) -> None:
        case = runc_case
        await case.provider.create("d1", SPEC)
        whoami = await case.exec("d1", "sudo", "-S", "id", "-u", user="user", stdin="password\n")
        assert whoami["stdout"].strip() == "0", whoami
        assert (await case.exec("d1", "mount", "-t", "tmpfs", "none", "/mnt"))["returncode"] != 0
        assert (await case.exec("d1", "sh", "-c", "echo 1 > /proc/sys/kernel/panic"))["returncode"] != 0
        assert (await case.exec("d1", "ls", "/sys/class/net"))["stdout"].split() == ["lo"]
        assert (await case.exec("d1", "sh", "-c", "ls -d /proc/[0-9]* | wc -l"))["stdout"].strip() < "60"

    async def test_bad_requests_are_refused_by_the_helper(self, runc_case: Case) -> None:
        with pytest.raises(ProviderError):
            await runc_case.provider.create("../escape", SPEC)
        with pytest.raises(ProviderError):
            await runc_case.provider.create("d1", DesktopSpec("../basic"))

    async def test_a_killed_helper_leaves_nothing_after_reap(self, runc_case: Case) -> None:
        import subprocess
        import sys

        case, layout = runc_case, runc_case.layout
        assert layout is not None
        await case.provider.create("d1", SPEC)
        await case.provider.snapshot("d1", "s1")
        helpers = [line for line in left_over(layout) if line.startswith("process")]
        for line in helpers:
            os.kill(int(line.split()[1].rstrip(":")), signal.SIGKILL)
        with pytest.raises(HostFault):
            await case.provider.owned()
        command = [sys.executable, "-m", "dart_server.hostd", "--reap", "--state-dir", str(layout.state_dir)]
        command += ["--runtime-dir", str(layout.runtime_dir), "--images-dir", str(layout.images_dir)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "control group" in done.stdout
        assert left_over(layout) == []

    async def test_a_helper_that_cannot_start_says_why(self, tmp_path: Path) -> None:
        if os.geteuid() == 0:
            pytest.skip("root can always start it")
        provider = RuncProvider(home=tmp_path, runtime_dir=tmp_path / "run", snapshot_dir=tmp_path)
        with pytest.raises(CapabilityMissing) as caught:
            await provider.start()
        assert caught.value.hint
