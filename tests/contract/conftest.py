"""Fixtures of the contract suites: one started provider of each kind, and the proof that it left nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from provider_cases import Case, host_pid, kill_init, left_over, machine_left_over, machine_pid

from dart_server.hostd.layout import Layout
from dart_server.providers.base import Owned
from dart_server.providers.docker import DockerProvider
from dart_server.providers.libvirt import LibvirtProvider
from dart_server.providers.runc import RuncProvider
from dart_server.providers.sim import ECHO_PORT, SimProvider
from dart_server.settings import default_home


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


async def log_out(case: Case, desktop_id: str) -> None:
    """End the session of a live desktop from the inside."""
    await case.exec(desktop_id, "pkill", "-KILL", "Xvfb|Xvnc|Xtigervnc")


async def serve(case: Case, desktop_id: str) -> int:
    """Start an echo service in a live desktop; its port."""
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 7007))\n"
        "while True:\n c, _ = s.accept(); c.sendall(c.recv(100)); c.close()"
    )
    await case.exec(desktop_id, "python3", "-c", program, user="user", detach=True)
    return 7007


@pytest.fixture
def egress() -> tuple[str, ...]:
    """Destinations that desktops may reach; a suite that names some overrides this."""
    return ()


@pytest.fixture
async def runc_case(egress: tuple[str, ...]) -> AsyncIterator[Case]:
    home = Path(os.environ.get("DART_HOME") or default_home())
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    store = Path("/dev/shm")
    provider = RuncProvider(home=home, runtime_dir=runtime, snapshot_dir=store, egress=egress)
    layout = Layout(os.getuid(), runtime / "hostd", runtime, home / "images", store)
    case = Case(
        provider,
        partial(asyncio.to_thread, kill_init, layout),
        lambda _: asyncio.sleep(0),
        lambda _: asyncio.sleep(0, 0),
        layout,
    )

    case.log_out, case.serve = partial(log_out, case), partial(serve, case)
    await provider.start()
    try:
        yield case
    finally:
        await provider.aclose()
        assert left_over(layout) == []
        shutil.rmtree(runtime)


@pytest.fixture
async def docker_case(tmp_path: Path) -> AsyncIterator[Case]:
    home = Path(os.environ.get("DART_HOME") or default_home())
    provider = DockerProvider(home=home, runtime_dir=tmp_path)

    async def kill(desktop_id: str) -> None:
        os.kill(host_pid(provider, desktop_id), signal.SIGKILL)

    case = Case(provider, kill, lambda _: asyncio.sleep(0), lambda _: asyncio.sleep(0, 0))
    case.log_out, case.serve = partial(log_out, case), partial(serve, case)
    await provider.start()
    try:
        yield case
    finally:
        await provider.reap(set())
        left = await provider.owned()
        await provider.aclose()
        assert left == Owned()


@pytest.fixture
async def libvirt_case() -> AsyncIterator[Case]:
    home = Path(os.environ.get("DART_HOME") or default_home())
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    uri = os.environ.get("DART_LIBVIRT_URI")
    provider = LibvirtProvider(home=home, runtime_dir=runtime, snapshot_dir=runtime / "snapshots", uri=uri)

    async def kill(desktop_id: str) -> None:
        os.kill(machine_pid(provider, desktop_id), signal.SIGKILL)

    case = Case(provider, kill, lambda _: asyncio.sleep(0), lambda _: asyncio.sleep(0, 0), runtime=runtime)
    case.log_out, case.serve = partial(log_out, case), partial(serve, case)
    await provider.start()
    try:
        yield case
    finally:
        await provider.reap(set())
        left = await provider.owned()
        await provider.aclose()
        assert left == Owned()
        assert machine_left_over(provider, runtime) == []
        shutil.rmtree(runtime)


@pytest.fixture(
    params=[
        "sim",
        pytest.param("runc", marks=pytest.mark.desktop),
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("libvirt", marks=pytest.mark.libvirt),
    ]
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(f"{request.param}_case")
    return found
