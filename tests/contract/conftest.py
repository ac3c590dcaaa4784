"""Fixtures of the contract suites: one started provider of each kind, and the proof that it left nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from provider_cases import (
    Case,
    boot_for_all,
    boot_on_shelf,
    copies_of,
    host_pid,
    image_home,
    kill_init,
    left_over,
    machine_left_over,
    machine_pid,
)

from dart_server.hostd.layout import Layout
from dart_server.providers.base import Inventory
from dart_server.providers.docker.provider import DockerProvider
from dart_server.providers.libvirt.provider import LibvirtProvider
from dart_server.providers.runc.provider import RuncProvider
from dart_server.providers.sim.provider import ECHO_PORT, SimProvider


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
def wall_clock() -> Callable[[], float]:
    """The time of day that desktops of `runc_case` are told when they are restored; a suite that lets snapshots age overrides this."""
    return time.time


def runc_case_in(
    runtime: Path, egress: tuple[str, ...] = (), wall_clock: Callable[[], float] = time.time
) -> tuple[Case, Layout]:
    """Desktops of a helper of their own in a directory of their own; the provider is not started."""
    home, store = image_home(), Path("/dev/shm")
    layout = Layout(os.getuid(), runtime / "hostd", runtime, home / "images", store)
    case = Case(
        RuncProvider(home=home, runtime_dir=runtime, snapshot_dir=store, egress=egress, wall_clock=wall_clock),
        partial(asyncio.to_thread, kill_init, layout),
        lambda _: asyncio.sleep(0),
        lambda _: asyncio.sleep(0, 0),
        layout,
    )
    case.log_out, case.serve = partial(log_out, case), partial(serve, case)
    return case, layout


@pytest.fixture
async def runc_case(egress: tuple[str, ...], wall_clock: Callable[[], float]) -> AsyncIterator[Case]:
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    case, layout = runc_case_in(runtime, egress, wall_clock)
    await case.provider.start()
    try:
        yield case
    finally:
        await case.provider.aclose()
        assert left_over(layout) == []
        shutil.rmtree(runtime)


@pytest.fixture(scope="session")
def booted_desktop() -> Iterator[Case]:
    """A helper that holds a desktop of `SPEC`, booted once for all tests that need a desktop and no boot."""
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    case, layout = runc_case_in(runtime)
    # Session fixtures of asynchronous tests are made inside a running loop.
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(asyncio.run, boot_on_shelf(case)).result()
            yield case
        finally:
            thread.submit(asyncio.run, case.provider.aclose()).result()
    assert left_over(layout) == []
    shutil.rmtree(runtime)


@pytest.fixture
async def runc_copies(booted_desktop: Case) -> AsyncIterator[Case]:
    """Like `runc_case`, with one helper for all tests; `ready` gives copies of the desktop that was booted for them."""
    case = booted_desktop
    yield case
    await case.provider.reap(case.shelf)
    inventory = await case.provider.inventory()
    assert (inventory.desktops, set(inventory.snapshots)) == ((), case.shelf)


@pytest.fixture
async def docker_case(tmp_path: Path) -> AsyncIterator[Case]:
    home = image_home()
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
        left = await provider.inventory()
        await provider.aclose()
        assert left == Inventory()


@pytest.fixture(scope="session")
def booted_machine() -> Iterator[Path]:
    """The disk of a machine that was booted and saved once for all tests: an emulated one takes a minute to boot."""
    with tempfile.TemporaryDirectory(prefix="dart-test-") as place, ThreadPoolExecutor(1) as thread:
        # Session fixtures of asynchronous tests are made inside a running loop.
        boot = boot_for_all(Path(place), os.environ.get("DART_LIBVIRT_URI"))
        yield thread.submit(asyncio.run, boot).result()


@pytest.fixture
async def libvirt_case(booted_machine: Path) -> AsyncIterator[Case]:
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    uri, snapshots = os.environ.get("DART_LIBVIRT_URI"), runtime / "snapshots"
    provider = LibvirtProvider(home=image_home(), runtime_dir=runtime, snapshot_dir=snapshots, uri=uri)

    async def kill(desktop_id: str) -> None:
        os.kill(machine_pid(provider, desktop_id), signal.SIGKILL)

    case = Case(provider, kill, lambda _: asyncio.sleep(0), lambda _: asyncio.sleep(0, 0), runtime=runtime)
    case.copies = partial(copies_of, provider, snapshots, booted_machine)
    case.log_out, case.serve = partial(log_out, case), partial(serve, case)
    await provider.start()
    try:
        yield case
    finally:
        await provider.reap(set())
        left = await provider.inventory()
        await provider.aclose()
        assert left == Inventory()
        assert machine_left_over(provider, runtime) == []
        shutil.rmtree(runtime)


@pytest.fixture(
    params=[
        "sim",
        pytest.param("runc", marks=pytest.mark.desktop),
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("libvirt", marks=[pytest.mark.libvirt, pytest.mark.timeout(900)]),
    ]
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.getfixturevalue(f"{request.param}_case")
    return found
