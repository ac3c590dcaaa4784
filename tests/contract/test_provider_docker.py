"""What only real containers of an engine can show: limits, isolation, a control channel that is the host's alone, ownership."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from provider_cases import SPEC, Case, host_pid

from dart_server.hostd import images
from dart_server.providers.base import DesktopSpec, HealthCause, ProviderError
from dart_server.providers.docker import container
from dart_server.providers.docker import engine as docker_engine
from dart_server.providers.docker import images as docker_images
from dart_server.providers.docker.provider import DockerProvider
from dart_server.wire.paths import data_dir

pytestmark = pytest.mark.docker
HOME = data_dir()
CALL_THE_AGENT = (
    "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect('\\0dart-guest')\n"
    "try:\n s.sendall(b'GET /v1/health HTTP/1.1\\r\\nHost: guest\\r\\n\\r\\n'); print('answer', s.recv(100))\n"
    "except OSError as error: print('cut off', error)\n"
)


def traces(pid: int, group: str) -> list[Path]:
    """A container's process and control groups that are there."""
    roots = (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir())
    return [path for path in (Path(f"/proc/{pid}"), *(root / group.lstrip("/") for root in roots)) if path.exists()]


def namespaces_held() -> list[str]:
    """Network namespaces that this process holds open."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [link for link in links if link.startswith("net:")]


async def test_limits_hold_and_are_told(docker_case: Case) -> None:
    case = docker_case
    assert case.provider.capabilities.limits >= {"memory", "pids", "cpus"}
    await case.provider.create("d1", SPEC)
    many = await case.exec("d1", "sh", "-c", "for i in $(seq 400); do sleep 5 & done", user="user")
    assert many["returncode"] != 0 or "fork" in many["stderr"].lower()
    assert (await case.provider.health("d1")).cause is HealthCause.PIDS
    await case.provider.create("d2", SPEC)
    hungry = await case.exec("d2", "python3", "-c", "x = bytearray(2 << 30); print(len(x))", user="user")
    assert hungry["returncode"] != 0
    seen = await case.provider.health("d2")
    assert (seen.cause, seen.oom_kills > 0) == (HealthCause.OOM, True)


async def test_a_full_disk_is_the_policys_where_it_is_bounded(docker_case: Case) -> None:
    case = docker_case
    if "disk" not in case.provider.capabilities.limits:
        pytest.skip("this engine's storage does not bound a container's disk, and the provider says so")
    await case.provider.create("d1", SPEC)
    full = await case.exec("d1", "dd", "if=/dev/zero", "of=/home/user/big", "bs=1M", "count=400", user="user")
    assert "No space left" in full["stderr"]
    assert (await case.provider.health("d1")).cause is HealthCause.DISK_FULL


async def test_nobody_inside_can_call_the_agent(docker_case: Case) -> None:
    case = docker_case
    await case.provider.create("d1", SPEC)
    for user, argv in (
        ("user", ["python3", "-c", CALL_THE_AGENT]),
        ("user", ["sudo", "-S", "python3", "-c", CALL_THE_AGENT]),
        ("root", ["python3", "-c", CALL_THE_AGENT]),
    ):
        said = await case.exec("d1", *argv, user=user, stdin="password\n")
        assert "answer" not in said["stdout"].replace("answer b''", ""), said
        assert said["stdout"], said
    assert (await case.call("d1", "GET", "/v1/health")).status == 200, "the host still can"


async def test_sudo_works_and_root_stays_inside(docker_case: Case) -> None:
    case = docker_case
    await case.provider.create("d1", SPEC)
    whoami = await case.exec("d1", "sudo", "-S", "id", "-u", user="user", stdin="password\n")
    assert whoami["stdout"].strip() == "0", whoami
    refused = (
        "mount -t tmpfs none /mnt",
        "unshare -U true",
        "echo 1 > /proc/sys/kernel/panic",
        "mknod /tmp/disk b 254 0",
        "python3 -c \"import socket; socket.create_connection(('169.254.169.254', 80), 2)\"",
        "python3 -c \"import socket; socket.create_connection(('10.0.0.1', 80), 2)\"",
    )
    for program in refused:
        assert (await case.exec("d1", "sh", "-c", program))["returncode"] != 0, program
    assert (await case.exec("d1", "ls", "/sys/class/net"))["stdout"].split() == ["lo"]
    status = (await case.exec("d1", "cat", "/proc/self/status"))["stdout"]
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Seccomp"].strip() == "2"
    assert int(fields["CapBnd"], 16).bit_count() == 11
    seen = await case.exec("d1", "sh", "-c", "ls -d /proc/[0-9]* | wc -l")
    assert int(seen["stdout"]) < 60, "only its own processes"


async def test_bad_ids_and_images_are_refused(docker_case: Case) -> None:
    for desktop_id, spec in (("../escape", SPEC), ("d1", DesktopSpec("../basic"))):
        with pytest.raises(ProviderError):
            await docker_case.provider.create(desktop_id, spec)


async def test_clean_up_is_the_farms_own(docker_case: Case, tmp_path: Path) -> None:
    other = DockerProvider(home=HOME, runtime_dir=tmp_path / "other")
    await other.start()
    try:
        await docker_case.provider.create("d1", SPEC)
        assert (await other.inventory()).desktops == ()
        assert await other.reap(set()) == []
        await other.destroy("d1")
        assert (await docker_case.provider.health("d1")).alive
    finally:
        await other.aclose()


async def test_a_farm_that_is_started_again_finds_its_desktops(docker_case: Case, tmp_path: Path) -> None:
    await docker_case.provider.create("d1", SPEC)
    await docker_case.put("d1", "kept")
    again = DockerProvider(home=HOME, runtime_dir=tmp_path)
    await again.start()
    try:
        assert (await again.inventory()).desktops == ("d1",)
        found = Case(again, docker_case.kill, docker_case.log_out, docker_case.serve)
        assert await found.get("d1") == "kept"
        assert (await again.health("d1")).alive
        await again.destroy("d1")
        assert (await docker_case.provider.health("d1")).cause is HealthCause.UNKNOWN
    finally:
        await again.aclose()


async def test_a_destroyed_desktop_leaves_nothing(docker_case: Case) -> None:
    provider = docker_case.provider
    assert isinstance(provider, DockerProvider)
    await provider.create("d1", SPEC)
    pid = await asyncio.to_thread(host_pid, provider, "d1")
    group = container.control_group(pid)
    assert len(traces(pid, group)) > 1
    assert len(namespaces_held()) == 1
    await provider.destroy("d1")
    assert traces(pid, group) == []
    assert namespaces_held() == []


async def test_an_image_is_imported_once_and_can_be_removed(tmp_path: Path) -> None:
    rootfs = tmp_path / "rootfs"
    (rootfs / "bin").mkdir(parents=True)
    (rootfs / "bin" / "tool").write_text("x")
    (rootfs / "bin" / "tool").chmod(0o4755)
    os.link(rootfs / "bin" / "tool", rootfs / "bin" / "same")
    (rootfs / "link").symlink_to("bin/tool")
    name = f"test-{os.getpid()}"
    image = images.Image(rootfs, f"sha256:{os.getpid():064x}", ("/bin/tool",))
    client = docker_engine.connect()
    try:
        made = docker_images.ensure(client, name, image)
        assert docker_images.ensure(client, name, image) == made == docker_images.find(client, image.digest)
        assert docker_images.remove(client, name) == [made]
        assert docker_images.find(client, image.digest) is None
        assert docker_images.remove(client, name) == []
    finally:
        docker_images.remove(client, name)
        client.close()
