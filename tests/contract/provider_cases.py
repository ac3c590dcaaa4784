"""What the provider suites share: a started provider with the means to look at and to break its desktops."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dart_server.guest import limits
from dart_server.guest.client import GuestClient, GuestReply
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups
from dart_server.providers.base import DesktopSpec, Provider
from dart_server.providers.docker import container, engine
from dart_server.providers.docker.provider import DockerProvider
from dart_server.providers.libvirt.provider import LibvirtProvider
from dart_server.wire.paths import data_dir

SPEC = DesktopSpec("basic", (640, 400), memory_mib=768, pids=256, cpus=2.0, disk_mib=128)
BOOTED = "booted"


@dataclass
class Case:
    """A started provider with what only its kind can do."""

    provider: Provider
    kill: Callable[[str], Awaitable[None]]
    log_out: Callable[[str], Awaitable[None]]
    serve: Callable[[str], Awaitable[int]]
    layout: Layout | None = None
    runtime: Path | None = None
    copies: Callable[[Sequence[str]], Awaitable[None]] | None = None
    shelf: set[str] = field(default_factory=set)
    """Snapshots that outlive a test, where tests share a provider."""

    async def ready(self, *desktop_ids: str) -> None:
        """Desktops of `SPEC` as a boot leaves them: booted, or copies of one that was booted for all tests where that takes long."""
        if self.copies is not None:
            await self.copies(desktop_ids)
            return
        await asyncio.gather(*(self.provider.create(desktop_id, SPEC) for desktop_id in desktop_ids))

    async def call(
        self,
        desktop_id: str,
        method: str,
        path: str,
        body: Any = None,
        raw: bytes | None = None,
        timeout_s: float = 30.0,
    ) -> GuestReply:
        guest = GuestClient(lambda port: self.provider.dial(desktop_id, port))
        content = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        try:
            return await guest.request(method, path, limits.PASSED_THROUGH, timeout_s=timeout_s, content=content)
        finally:
            await guest.close_connections()

    async def exec(self, desktop_id: str, *argv: str, user: str = "root", **more: Any) -> dict[str, Any]:
        body = {"argv": list(argv), "user": user, **more}
        limit_s = max(30.0, more.get("timeout_s", 0.0) + 10.0)
        reply = await self.call(desktop_id, "POST", "/v1/exec", body, timeout_s=limit_s)
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


async def not_here(_desktop_id: str) -> None:
    """For a case whose tests neither kill a desktop from outside nor log out."""
    raise AssertionError("these tests neither kill a desktop from outside nor log out inside one")


async def no_port_here(_desktop_id: str) -> int:
    """For a case whose tests serve nothing inside."""
    raise AssertionError("these tests serve nothing inside a desktop")


def kill_init(layout: Layout, desktop_id: str) -> None:
    """SIGKILL the desktop's process 1 from the host."""
    for root in cgroups.existing_groups(layout.prefix):
        for place in root.glob(f"{desktop_id}.*"):
            for pid in cgroups.members(place):
                status = Path(f"/proc/{pid}/status").read_text()
                if next(line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")) == "1":
                    os.kill(pid, signal.SIGKILL)
                    return
    raise AssertionError("no init found")


def host_pid(provider: DockerProvider, desktop_id: str) -> int:
    """The host's id of a container's process 1."""
    client = engine.connect()
    try:
        entry = client.api.inspect_container(container.container_name(provider.farm, desktop_id))
    finally:
        client.close()
    return int(entry["State"]["Pid"])


def processes_with(word: str) -> list[int]:
    """Ids of this host's processes with a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in words:
                found.append(int(entry.name))
    return found


def machine_pid(provider: LibvirtProvider, desktop_id: str) -> int:
    """The process of a desktop's machine."""
    (found,) = processes_with(f"guest={provider.prefix}-{desktop_id},")
    return found


async def boot_for_all(runtime: Path, uri: str | None) -> Path:
    """Boot a machine of `SPEC`, save it as `BOOTED`, end it; the directory in which its disk is left with what is known of it."""
    provider = LibvirtProvider(home=image_home(), runtime_dir=runtime, snapshot_dir=runtime, uri=uri)
    await provider.start()
    try:
        await provider.create("first", SPEC)
        await provider.snapshot("first", BOOTED)
    finally:
        await provider.destroy("first")
        await provider.aclose()
    return runtime / f"{provider.prefix}-disks"


async def boot_on_shelf(case: Case) -> None:
    """Boot a desktop of `SPEC`, save it as `BOOTED`, and end it; from then on `ready` gives copies of it."""
    provider = case.provider
    await provider.start()
    await provider.create("first", SPEC)
    await provider.snapshot("first", BOOTED)
    await provider.destroy("first")
    case.shelf.add(BOOTED)

    async def copies(desktop_ids: Sequence[str]) -> None:
        await asyncio.gather(*(provider.restore(desktop_id, BOOTED) for desktop_id in desktop_ids))

    case.copies = copies


async def copies_of(provider: LibvirtProvider, snapshots: Path, booted: Path, desktop_ids: Sequence[str]) -> None:
    """Machines that go on where the one of `boot_for_all` was saved, on copies of its disk; they hold no snapshot."""
    await asyncio.to_thread(place_copy, booted, snapshots / f"{provider.prefix}-disks")
    await provider.start()
    for desktop_id in desktop_ids:
        await provider.restore(desktop_id, BOOTED)
    await provider.delete_snapshot(BOOTED)


def place_copy(booted: Path, place: Path) -> None:
    """Put a copy of the one disk in a directory, and what is known of it, into another one, under a name of its own."""
    (record,) = booted.glob("*.json")
    known = json.loads(record.read_text())
    name = secrets.token_hex(6)
    shutil.copy(booted / known["path"], place / f"{name}.qcow2")
    (place / f"{name}.json").write_text(json.dumps(known | {"path": f"{name}.qcow2"}))


def dart_farm(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program, with a home directory of its own."""
    own = {"DART_HOME": str(home), "DART_RUNTIME_DIR": str(home / "run")}
    argv = [sys.executable, "-m", "dart_server.cli", *arguments, "--json"]
    return subprocess.run(argv, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=300)


def well(ended: subprocess.CompletedProcess[str]) -> Any:
    """The document of a program that ended well."""
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def image_home() -> Path:
    """Where the images of this host are."""
    return data_dir()


def machine_left_over(provider: LibvirtProvider, runtime: Path) -> list[str]:
    """Every trace of machines that have ended: processes, sockets, consoles, disks."""
    found = [f"process {pid}" for pid in processes_with(f"guest={provider.prefix}-")]
    return found + [str(path) for path in runtime.rglob("*") if not path.is_dir()]


def left_over(layout: Layout) -> list[str]:
    """Every trace of a helper that ended: control groups, mounts, directories, processes."""
    found = [str(path) for path in cgroups.existing_groups(layout.prefix)]
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


def needs(case: Case, capability: str) -> None:
    """Skip the running test where the provider does not declare a capability."""
    if not getattr(case.provider.capabilities, capability):
        pytest.skip(f"the provider {case.provider.name} declares no {capability}")


async def eventually(look: Callable[[], Awaitable[bool]], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await look():  # noqa: ASYNC110 - what is waited for is outside this process
            await asyncio.sleep(0.02)
