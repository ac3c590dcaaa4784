"""Desktops under the AppArmor profile, on a host whose kernel has AppArmor: `make test-apparmor` boots a virtual machine that is one.

Whether the profile refuses anything is tried outside of desktops: inside, namespaces, capabilities and the system-call filter refuse all of
it before. So root of the host takes the profile on and tries, and the same without it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from provider_cases import SPEC, Case, eventually

from dart_server.hostd import doctor
from dart_server.hostd.linux import cgroups
from dart_server.hostd.runtime import apparmor
from dart_server.providers.runc import hostd_client, provider
from dart_server.providers.runc.hostd_client import HostdClient, HostdPaths

pytestmark = [
    pytest.mark.desktop,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the labels of desktops and may unload a profile"),
    pytest.mark.skipif(apparmor.missing_because() != "", reason=f"AppArmor: {apparmor.missing_because()}"),
]
CONFINED = f"{apparmor.NAME} (enforce)"
UNCONFINED = "unconfined"

ATTEMPTS = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
own, outsider, scratch = sys.argv[1] == "own", int(sys.argv[2]), sys.argv[3]
top = scratch + "/top"
os.mkdir(top)
libc.unshare(0x00020000)
libc.mount(b"none", b"/", None, 0x44000, None)
if own:
    with open("/proc/self/attr/current", "w") as label:
        label.write("changeprofile " + sys.argv[4])

def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")

def write(path, text=""):
    file = os.open(path, os.O_WRONLY)
    if text:
        os.write(file, text.encode())

def mode(path):
    os.chmod(path, os.stat(path).st_mode & 0o7777)

def read(path):
    os.open(path, os.O_RDONLY)

def new_user_namespace():
    check(libc.unshare(0x10000000))
    write("/proc/self/setgroups", "deny")

attempts = {
    "new user namespace": new_user_namespace,
    "mount": lambda: check(libc.mount(b"none", top.encode(), b"tmpfs", 0, None)),
    "bind": lambda: check(libc.mount(b"/", top.encode(), None, 4096, None)),
    "remount": lambda: check(libc.mount(b"none", b"/proc", None, 32, None)),
    "setting of the kernel": lambda: write("/proc/sys/kernel/core_pattern"),
    "sysrq": lambda: write("/proc/sysrq-trigger"),
    "mode in /proc": lambda: mode("/proc/uptime"),
    "addresses of the kernel": lambda: read("/proc/kallsyms"),
    "policy": lambda: write("/sys/kernel/security/apparmor/.replace"),
    "names of profiles": lambda: read("/sys/kernel/security/apparmor/profiles"),
    "sysfs": lambda: write("/sys/kernel/mm/transparent_hugepage/enabled"),
    "kernel log": lambda: read("/dev/kmsg"),
    "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
    "raw network": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close(),
    "kernel cryptography": lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close(),
    "device node": lambda: os.mknod(scratch + "/node", 0o20600, os.makedev(1, 1)),
    "host name": lambda: socket.sethostname(socket.gethostname()),
    "signal": lambda: os.kill(outsider, 18),
    "trace": lambda: check(libc.ptrace(16, outsider, 0, 0)),
    "memory of another": lambda: write(f"/proc/{outsider}/mem"),
    "no profile": lambda: write("/proc/self/attr/current", "changeprofile unconfined"),
    "another profile": lambda: write("/proc/self/attr/exec", "exec unconfined"),
    "umount": lambda: check(libc.umount2(b"/sys/kernel/security", 2)),
}
allowed = {
    "own files": lambda: open(scratch + "/file", "w").close(),
    "own importance": lambda: write("/proc/self/oom_score_adj", "500"),
    "own name": lambda: write("/proc/self/comm", "x"),
    "time": lambda: read("/proc/uptime"),
    "program": lambda: check(-os.spawnv(os.P_WAIT, "/bin/true", ["true"])),
    "child": lambda: os.kill(os.spawnv(os.P_NOWAIT, "/bin/sleep", ["sleep", "9"]), 9),
    "sockets": lambda: [socket.socket(family).close() for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)],
    "routes": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close(),
}
said = {}
for name, attempt in (attempts | allowed).items():
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
            answer = "done"
        except OSError as error:
            answer = f"refused {error.errno}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said[name] = stream.read() or "died"
    os.waitpid(pid, 0)
print(json.dumps([said, list(allowed)]))
"""
"""Arguments: `own` or `none`, a process outside, a directory, the profile. Prints what was said to each, and what must be allowed."""

MAY_FAIL_ANYWAY = {"no profile", "another profile", "packets", "kernel cryptography"}
"""To leave a profile that one is not under; kinds of sockets whose module the kernel does not find."""


def labels(case: Case, desktop_id: str) -> dict[int, str]:
    """The profile of every thread of a desktop, as the host sees it."""
    assert case.layout is not None
    found = {}
    for root in cgroups.existing_groups(case.layout.prefix):
        for place in root.glob(f"{desktop_id}.*"):
            for pid in cgroups.members(place):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found[int(task.name)] = (task / "attr/current").read_text().strip("\0\n")
    assert len(found) > 5, "init, the X server, the session and the agent at least"
    return found


async def works(case: Case, desktop_id: str) -> None:
    """A desktop acts, runs programs as its user and as root, and a window comes up."""
    header, pixels = await case.step(desktop_id, {"type": "move", "x": 12, "y": 34}, {"type": "text", "text": "a"})
    assert header["cursor"] == [12, 34]
    assert len(pixels) == 640 * 400 * 3
    own = await case.exec(desktop_id, "cat", "/proc/self/attr/current", user="user")
    assert own["stdout"].strip("\0\n") == CONFINED
    root = await case.exec(desktop_id, "sudo", "-S", "id", "-u", user="user", stdin="password\n", timeout_s=60.0)
    assert root["stdout"].strip() == "0", root


async def opens_a_window(case: Case, desktop_id: str) -> None:
    """A program is started as a policy would, and changes the screen."""
    _, before = await case.step(desktop_id)
    await case.exec(desktop_id, "mousepad", user="user", detach=True)

    async def changed() -> bool:
        return (await case.step(desktop_id))[1] != before

    await eventually(changed, 120.0)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be emulated."""
    monkeypatch.setattr(hostd_client, "START_TIMEOUT_S", 300.0)
    monkeypatch.setattr(hostd_client, "STOP_TIMEOUT_S", 300.0)
    monkeypatch.setattr(provider, "BOOT_TIMEOUT_S", 600.0)
    monkeypatch.setattr(provider, "RESTORED_TIMEOUT_S", 200.0)
    monkeypatch.setattr(provider, "QUIESCE_TIMEOUT_S", 50.0)
    monkeypatch.setattr(provider, "HEALTH_TIMEOUT_S", 60.0)
    monkeypatch.setattr(provider, "_VERB_TIMEOUT_S", 900.0)


@pytest.fixture
async def case(runc_case: Case) -> Case:
    await runc_case.provider.create("d1", SPEC)
    return runc_case


@pytest.mark.timeout(1800)
async def test_every_thread_is_under_the_profile_after_boot_exec_and_two_generations_of_restores(case: Case) -> None:
    await works(case, "d1")
    await opens_a_window(case, "d1")
    assert set(labels(case, "d1").values()) == {CONFINED}
    await case.provider.snapshot("d1", "s1")
    assert set(labels(case, "d1").values()) == {CONFINED}
    for copy in ("d2", "d3"):
        await case.provider.restore(copy, "s1")
        assert set(labels(case, copy).values()) == {CONFINED}
        await works(case, copy)
    await case.provider.snapshot("d2", "s2")
    await case.provider.restore("d3", "s2")
    await works(case, "d3")
    assert set(labels(case, "d3").values()) == {CONFINED}


@pytest.mark.timeout(600)
async def test_desktops_cannot_reach_other_profiles_or_policy(case: Case) -> None:
    script = """
    for f in current exec; do echo changeprofile unconfined >/proc/self/attr/$f; echo $?; done
    ls /sys/kernel/security; echo $?
    """
    tried = await case.exec("d1", "sh", "-c", script)
    assert tried["stdout"].split() == ["2", "2", "2"], tried


@pytest.mark.timeout(1800)
async def test_a_profile_that_was_unloaded_is_back_at_the_next_start_and_old_snapshots_restore(case: Case) -> None:
    await case.provider.snapshot("d1", "under")
    parser = apparmor.find_parser()
    assert parser is not None
    unload = [str(parser), "--remove"]
    await asyncio.to_thread(subprocess.run, unload, input=apparmor.profile_text(), text=True, check=True)
    assert set(labels(case, "d1").values()) == {UNCONFINED}
    await case.provider.snapshot("d1", "without")
    await case.provider.restore("d2", "under")
    assert set(labels(case, "d2").values()) == {CONFINED}
    await works(case, "d2")
    await case.provider.restore("d3", "without")
    assert set(labels(case, "d3").values()) == {UNCONFINED}, "CRIU brings back what it saved"
    assert (await case.exec("d3", "true"))["returncode"] == 0


@pytest.mark.timeout(600)
async def test_the_doctor_of_the_helper_says_so(runc_case: Case) -> None:
    assert runc_case.layout is not None
    paths = HostdPaths(runc_case.layout.runtime_dir, runc_case.layout.images_dir, runc_case.layout.store_dir)
    checks: list[dict[str, Any]] = await HostdClient(paths, idle_timeout_s=1.0).request("doctor", timeout_s=60.0)
    (check,) = [check for check in checks if check["name"] == "AppArmor"]
    assert check == doctor.apparmor_check("").as_dict()


def attempted(profile: str, place: Path) -> tuple[dict[str, str], list[str]]:
    """What root of the host could do under the profile, or under none."""
    place.mkdir()
    with subprocess.Popen(["sleep", "600"]) as outsider:
        arguments = [profile, str(outsider.pid), str(place), apparmor.NAME]
        done = subprocess.run([sys.executable, "-c", ATTEMPTS, *arguments], capture_output=True, text=True, check=False)
        outsider.kill()
    assert done.returncode == 0, done.stderr
    said, allowed = json.loads(done.stdout)
    return said, allowed


@pytest.mark.timeout(600)
def test_the_profile_itself_refuses_what_the_other_walls_refuse(tmp_path: Path) -> None:
    profile = apparmor.DesktopProfile()
    profile.load()
    assert profile.missing_because == ""
    free, _ = attempted("none", tmp_path / "none")
    assert {name: said for name, said in free.items() if said != "done" and name not in MAY_FAIL_ANYWAY} == {}
    confined, allowed = attempted("own", tmp_path / "own")
    assert {name: said for name, said in confined.items() if name in allowed and said != "done"} == {}
    refused = {name: said for name, said in confined.items() if name not in allowed}
    assert {name: said for name, said in refused.items() if said not in ("refused 1", "refused 13")} == {}
