"""A disk from elsewhere that starts itself, and in which only OSWorld's protocol answers, on port 5000 of its own network: added by the
program, found out, driven, saved, cut off from all else, removed."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import foreign_disk
import live_host
import pytest
from provider_cases import SPEC, Case, dart_farm, image_home, machine_left_over, no_port_here, not_here, well

from dart_server.providers.base import OSWORLD_PORT, HealthCause, HostFault, ImageMissing
from dart_server.providers.libvirt.provider import LibvirtProvider

pytestmark = [pytest.mark.libvirt, pytest.mark.timeout(900)]
REACHES = "import socket; socket.create_connection(('{}', {}), 3)"


@pytest.fixture(scope="module")
def disk() -> Iterator[Callable[[str], Path]]:
    """The disk that a firmware starts, made when it is first asked for."""
    image = image_home() / "images" / "basic" / "current"
    with tempfile.TemporaryDirectory(prefix="dart-test-") as place:

        @functools.cache
        def made(firmware: str) -> Path:
            live_host.require_programs(*foreign_disk.NEEDED[firmware])
            return foreign_disk.make(firmware, image, Path(place))

        yield made


@pytest.fixture
async def osworld_case() -> AsyncIterator[Case]:
    """Machines of the images that are added to a home directory of their own: `case.runtime`."""
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    provider = LibvirtProvider(
        home=runtime,
        runtime_dir=runtime / "run",
        snapshot_dir=runtime / "snapshots",
        uri=os.environ.get("DART_LIBVIRT_URI"),
    )

    await provider.start()
    try:
        yield Case(provider, not_here, not_here, no_port_here, runtime=runtime)
    finally:
        await provider.reap(set())
        await provider.aclose()
        assert machine_left_over(provider, runtime / "snapshots") == []
        shutil.rmtree(runtime)


async def add(case: Case, disk: Path) -> None:
    """Install a disk as the image `theirs`."""
    assert case.runtime is not None
    ended = await asyncio.to_thread(dart_farm, case.runtime, "images", "add", "theirs", str(disk))
    assert well(ended) == {"added": "theirs"}


async def test_a_guest_with_osworlds_server_only_is_driven_by_it(
    osworld_case: Case, disk: Callable[[str], Path]
) -> None:
    """Its disk starts by UEFI, as OSWorld's own does."""
    case = osworld_case
    await add(case, disk("uefi"))
    await case.provider.create("d1", replace(SPEC, image="theirs"))
    seen = await case.provider.health("d1")
    assert (seen.alive, seen.cause) == (True, HealthCause.OK)
    assert "OSWorld's own server only" in seen.detail, "what it lacks is told"
    assert (await case.exec("d1", "cat", "/sys/firmware/efi/fw_platform_size", user="user"))["stdout"] == "64\n"

    header, pixels = await case.step("d1", {"type": "move", "x": 31, "y": 47})
    assert (header["width"], header["height"], header["cursor"]) == (640, 400, [31, 47])
    assert len(pixels) == 640 * 400 * 3
    unknown = [{"type": "move", "x": 1, "y": 1}, {"type": "key_down", "key": "no-such-key"}]
    refused = await case.call("d1", "POST", "/v1/step", {"seq": 1, "events": unknown})
    assert (refused.status, json.loads(refused.content)["error"]) == (400, "unknown_key")
    assert (await case.step("d1"))[0]["cursor"] == [31, 47], "nothing was performed"
    settled = await case.call("d1", "POST", "/v1/step", {"seq": 1, "settle": {"quiet_ms": 100, "cap_ms": 20000}})
    (size,) = struct.unpack(">I", settled.content[:4])
    assert json.loads(settled.content[4 : 4 + size])["settled"] is True

    await case.put("d1", "before ü")
    assert await case.get("d1") == "before ü"
    assert (await case.call("d1", "GET", "/v1/files?path=/home/user/none")).status == 404
    said = await case.exec("d1", "sh", "-c", "cat; id -un; exit 3", user="user", stdin="in\n")
    assert (said["returncode"], said["stdout"], said["timed_out"]) == (3, "in\nuser\n", False)
    assert (await case.exec("d1", "no-such-program", user="user"))["returncode"] == 127
    assert (await case.exec("d1", "sleep", "60", user="user", timeout_s=1))["timed_out"]
    refused = await case.call("d1", "POST", "/v1/exec", {"argv": ["id"], "user": "root"})
    assert (refused.status, json.loads(refused.content)["error"]) == (501, "not_supported")
    assert (await case.call("d1", "GET", "/platform")).content == b"Linux"
    assert (await case.call("d1", "POST", "/screen_size")).status == 200

    await case.exec("d1", "zenity", "--entry", "--text=Type", user="user", detach=True)
    for _ in range(20):
        tree = json.loads((await case.call("d1", "GET", "/v1/a11y")).content)["elements"]
        if any(element["name"] == "OK" for element in tree):
            break
    assert any(element["name"] == "OK" and element["w"] > 0 for element in tree), tree
    windows = json.loads((await case.call("d1", "GET", "/v1/windows")).content)["windows"]
    assert any(window["class"].lower() == "zenity" for window in windows), windows

    with await case.provider.dial("d1", OSWORLD_PORT) as connection:
        assert connection.getpeername()[0] == "127.0.0.1", "the host dials from its loopback"
    with socket.create_server(("127.0.0.1", 0)) as service:
        for host, port in (("10.0.2.2", service.getsockname()[1]), ("169.254.169.254", 80)):
            reached = await case.exec("d1", "python3", "-c", REACHES.format(host, port), user="user")
            assert reached["returncode"] != 0, (host, port)

    await case.provider.snapshot("d1", "s1")
    await case.put("d1", "after")
    await case.provider.restore("d1", "s1")
    assert await case.get("d1") == "before ü"
    assert (await case.provider.health("d1")).alive
    await case.provider.restore("d2", "s1")
    assert await case.get("d2") == "before ü"


async def test_a_disk_that_starts_by_bios_is_listed_used_and_removed(
    osworld_case: Case, disk: Callable[[str], Path]
) -> None:
    case, home = osworld_case, osworld_case.runtime
    assert home is not None
    await add(case, disk("bios"))
    (row,) = well(await asyncio.to_thread(dart_farm, home, "images", "list"))
    assert (row["name"], row["artefacts"], row["packages"]) == ("theirs", ["qcow2"], 0)
    assert await case.provider.image_digest("theirs") == f"sha256:{row['digest']}"

    await case.provider.create("d1", replace(SPEC, image="theirs"))
    assert (await case.provider.health("d1")).alive
    assert (await case.call("d1", "GET", "/platform")).content == b"Linux"
    said = await case.exec("d1", "cat", "/sys/firmware/efi/fw_platform_size", "/proc/1/cmdline", user="user")
    assert foreign_disk.INIT in said["stdout"]
    assert said["returncode"] == 1, "there is no UEFI in this one"

    refused = await asyncio.to_thread(dart_farm, home, "images", "rm", "theirs")
    assert (refused.returncode, "used by running desktops" in refused.stderr) == (1, True), refused.stderr
    assert (await case.call("d1", "GET", "/platform")).status == 200
    await case.provider.destroy("d1")
    assert well(await asyncio.to_thread(dart_farm, home, "images", "rm", "theirs")) == {"removed": "theirs"}
    assert well(await asyncio.to_thread(dart_farm, home, "images", "list")) == []
    with pytest.raises(ImageMissing):
        await case.provider.create("d2", replace(SPEC, image="theirs"))


@pytest.mark.slow
async def test_a_screen_of_another_size_is_refused_with_its_own(
    osworld_case: Case, disk: Callable[[str], Path]
) -> None:
    await add(osworld_case, disk("uefi"))
    with pytest.raises(HostFault, match=r"640, 400"):
        await osworld_case.provider.create("d1", replace(SPEC, image="theirs", resolution=(800, 600)))
