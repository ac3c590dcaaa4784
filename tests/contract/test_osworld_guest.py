"""A machine in which only OSWorld's protocol answers, on port 5000 of its own network: found out, driven, saved, cut off from all else.

The guest is the disk of `basic` with its agent cut down to OSWorld's paths over TCP, as OSWorld's own images have them; nothing of the
control port answers there.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import tempfile
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from provider_cases import SPEC, Case

from dart_server.providers import libvirt_domain
from dart_server.providers.base import OSWORLD_PORT, HealthCause, HostFault
from dart_server.providers.libvirt import LibvirtProvider
from dart_server.settings import default_home

pytestmark = [pytest.mark.libvirt, pytest.mark.timeout(900)]
INSIDE = """
import fcntl, os, socket, struct, subprocess, sys
sys.path.insert(0, '/usr/lib/dart')
from dart_guest import init, machine
machine.mount_all()
machine.grow_disk()
os.environ.update(DART_RESOLUTION='640x400', DART_GUEST_ALLOW_LOCAL='1')
for m in ('virtio_net', 'af_packet'):
    subprocess.run(['/sbin/modprobe', m])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
a = lambda ip: struct.pack('16sH2s4s8s', b'eth0', 2, b'', socket.inet_aton(ip), b'')
fcntl.ioctl(s, 0x8916, a('10.0.2.15'))
fcntl.ioctl(s, 0x891C, a('255.255.255.0'))
fcntl.ioctl(s, 0x8914, struct.pack('16sH14s', b'eth0', 0x41, b''))
P = 'from dart_guest import __main__ as m; m.ALL_PARTS = m.OSWORLD_PARTS; m.main()'
def start(self):
    self.agent_starts += 1
    self.agent_due_s = None
    self.spawn('agent', ['/usr/bin/python3', '-c', P, '--listen', 'tcp:0.0.0.0:5000'], as_user=False)
init.Init.start_agent = start
sys.exit(init.main())
"""
REACHES = "import socket; socket.create_connection(('{}', {}), 3)"


def command_line(_spec: object, _accelerator: str) -> str:
    packed = base64.b64encode(zlib.compress(INSIDE.encode(), 9)).decode()
    program = f"exec(__import__('zlib').decompress(__import__('base64').b64decode('{packed}')))"
    words = (
        "root=/dev/vda rw rootfstype=ext4 console=ttyS0 panic=-1 mitigations=off net.ifnames=0 init=/usr/bin/python3"
    )
    return f"{words} -- -c {program}"


@pytest.fixture
async def osworld_case(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    monkeypatch.setattr(libvirt_domain, "command_line", command_line)
    runtime = Path(tempfile.mkdtemp(prefix="dart-test-"))
    image = Path(os.environ.get("DART_HOME") or default_home()) / "images" / "basic" / "current"
    theirs = runtime / "images" / "theirs" / "current"
    theirs.mkdir(parents=True)
    artefacts = json.loads((image / "manifest.json").read_text())["artefacts"]
    for facts in artefacts.values():
        (theirs / facts["file"]).symlink_to((image / facts["file"]).resolve())
    (theirs / "manifest.json").write_text(json.dumps({"digest": "f" * 64, "artefacts": artefacts}))
    provider = LibvirtProvider(
        home=runtime, runtime_dir=runtime, snapshot_dir=runtime / "snapshots", uri=os.environ.get("DART_LIBVIRT_URI")
    )

    async def unused(_desktop_id: str) -> None:
        raise AssertionError("these tests neither kill a machine from outside nor serve inside one")

    async def no_port(_desktop_id: str) -> int:
        raise AssertionError("these tests neither kill a machine from outside nor serve inside one")

    await provider.start()
    try:
        yield Case(provider, unused, unused, no_port)
    finally:
        await provider.reap(set())
        await provider.aclose()
        shutil.rmtree(runtime)


async def test_a_guest_with_osworlds_server_only_is_driven_by_it(osworld_case: Case) -> None:
    case = osworld_case
    await case.provider.create("d1", replace(SPEC, image="theirs"))
    seen = await case.provider.health("d1")
    assert (seen.alive, seen.cause) == (True, HealthCause.OK)
    assert "OSWorld's own server only" in seen.detail, "what it lacks is told"

    header, pixels = await case.step("d1", {"type": "move", "x": 31, "y": 47})
    assert (header["width"], header["height"], header["cursor"]) == (640, 400, [31, 47])
    assert len(pixels) == 640 * 400 * 3
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


@pytest.mark.slow
async def test_a_screen_of_another_size_is_refused_with_its_own(osworld_case: Case) -> None:
    with pytest.raises(HostFault, match=r"640, 400"):
        await osworld_case.provider.create("d1", replace(SPEC, image="theirs", resolution=(800, 600)))
