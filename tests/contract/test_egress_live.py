"""A pool that names a destination: desktops reach it through the proxy of their own, and nothing else, also after a restore."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from local_server import LocalHandler, LocalServer, serving
from provider_cases import SPEC, Case

pytestmark = pytest.mark.desktop


class Reached(LocalHandler):
    """Answers every request with `reached`."""

    def do_GET(self) -> None:
        self.answer(200, b"reached")


@pytest.fixture
def places() -> Iterator[list[str]]:
    """`HOST:PORT` of two servers on this host's own address, which is outside for a desktop."""
    address = next(
        iter(subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()), ""
    )
    if not address:
        pytest.skip("this host has no address but loopback")
    with serving(LocalServer(Reached, address)) as one, serving(LocalServer(Reached, address)) as other:
        yield [one.place, other.place]


@pytest.fixture
def egress(places: list[str]) -> tuple[str, ...]:
    return (places[0],)


async def fetched(case: Case, place: str) -> str:
    """What a program in the desktop gets that knows of the proxy by its environment, or its last word."""
    program = f"import urllib.request as u; print(u.urlopen('http://{place}/', timeout=10).read().decode())"
    done = await case.exec("d1", "python3", "-c", program, user="user")
    return str((done["stdout"] or done["stderr"]).strip().splitlines()[-1])


async def test_only_what_is_named_is_reached(runc_case: Case, places: list[str]) -> None:
    named, other = places
    await runc_case.provider.create("d1", SPEC)
    assert await fetched(runc_case, named) == "reached"
    await runc_case.provider.snapshot("d1", "s1")
    assert await fetched(runc_case, named) == "reached", "the desktop goes on after a snapshot"
    await runc_case.provider.restore("d1", "s1")
    assert await fetched(runc_case, named) == "reached"
    assert "403" in await fetched(runc_case, other)
    assert "403" in await fetched(runc_case, "169.254.169.254")
    address, _, port = named.rpartition(":")
    past = f"import socket; socket.create_connection(({address!r}, {port}), 3)"
    done = await runc_case.exec("d1", "python3", "-c", past, user="user")
    assert "unreachable" in done["stderr"], "past the proxy there is no way"
