"""Parts of dart-hostd that need no root: configuration of containers, images, limits, tools, leftovers, judgement."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dart_server.hostd import doctor, images, leftovers
from dart_server.hostd.errors import HostdImageMissing
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import cgroups, rlimits
from dart_server.hostd.linux import syscalls as kernel
from dart_server.hostd.runtime import call_filter, criu_installation, oci
from dart_server.hostd.storage import is_memory_backed
from dart_server.hostd.verbs import Limits
from dart_server.providers.base import HealthCause
from dart_server.providers.health import diagnose


def config(**changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "rootfs": Path("/r"),
        "argv": ("/sbin/init",),
        "env": {"B": "2", "A": "1"},
        "cgroup": "/p/d",
        "netns": Path("/n"),
        "criu_config": Path("/c"),
        "limits": Limits(512, 100, 1.5, 64),
    }
    return oci.runtime_config(**{**settings, **changes})


def test_a_desktop_is_confined() -> None:
    made = config()
    kinds = {entry["type"] for entry in made["linux"]["namespaces"]}
    assert {"pid", "ipc", "uts", "mount", "cgroup", "network"} <= kinds
    granted = set(made["process"]["capabilities"]["bounding"])
    refused = {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_SYS_MODULE", "CAP_MKNOD", "CAP_NET_RAW"}
    assert not granted & refused
    assert {"CAP_SETUID", "CAP_SETGID", "CAP_AUDIT_WRITE"} <= granted, "sudo needs these"
    assert all(mount["type"] != "bind" for mount in made["mounts"]), "nothing of the host's files"
    assert made["linux"]["resources"]["memory"]["limit"] == 512 << 20
    assert made["linux"]["resources"]["pids"]["limit"] == 100
    cpu = made["linux"]["resources"]["cpu"]
    assert cpu["quota"] / cpu["period"] == pytest.approx(1.5)
    assert made["process"]["env"] == ["A=1", "B=2"]
    assert made["linux"]["seccomp"] == call_filter.profile()


def test_no_program_gets_what_a_restore_does_not_bring_back() -> None:
    (rule,) = [rule for rule in call_filter.profile()["syscalls"] if "pkey_alloc" in rule["names"]]
    assert rule == {"names": ["pkey_alloc"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSPC}


def test_only_listed_system_calls_are_allowed() -> None:
    made = call_filter.profile()
    assert (made["defaultAction"], made["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", errno.ENOSYS)
    allowed = {name for rule in made["syscalls"] for name in rule["names"] if rule["action"] == "SCMP_ACT_ALLOW"}
    assert {"openat", "clone", "socket", "ptrace", "rseq"} <= allowed
    whatever = {name for rule in made["syscalls"] if "args" not in rule for name in rule["names"]} - {
        "clone3",
        "pkey_alloc",
    }
    assert whatever == {*call_filter.ALLOWED, *call_filter.REFUSED}, "what has rules of its own is in no list"
    assert not {*call_filter.ALLOWED} & {*call_filter.REFUSED}
    never = {
        "mount",
        "unshare",
        "setns",
        "bpf",
        "keyctl",
        "memfd_secret",
        "modify_ldt",
        "move_pages",
        "statmount",
        "pidfd_getfd",
    }
    assert not allowed & never
    (clone3,) = (rule for rule in made["syscalls"] if "clone3" in rule["names"])
    assert clone3["errnoRet"] == errno.ENOSYS, "an engine that does not read defaultErrnoRet would answer EPERM"
    assert len(made["architectures"]) == 1, "no second entrance with numbers of its own"


def image_at(top: Path, name: str, manifest: Any) -> Path:
    place = top / name / "abc"
    (place / "rootfs").mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps(manifest))
    (top / name / "current").symlink_to("abc")
    return place


def test_images_are_found_by_name_only(tmp_path: Path) -> None:
    place = image_at(tmp_path, "basic", {"digest": "ab" * 6})
    found = images.find(tmp_path, "basic")
    assert found == images.Image(place / "rootfs", "sha256:" + "ab" * 6, images.DEFAULT_INIT)
    image_at(tmp_path, "own", {"digest": "sha256:" + "ab" * 32, "init": ["/bin/init", "-x"]})
    assert images.find(tmp_path, "own").init == ("/bin/init", "-x")


def test_an_image_is_locked_for_as_long_as_somebody_keeps_it(tmp_path: Path) -> None:
    place = image_at(tmp_path, "basic", {"digest": "ab" * 6})
    with contextlib.ExitStack() as held:
        remover = os.open(place, os.O_RDONLY)
        held.callback(os.close, remover)
        first = images.find(tmp_path, "basic")
        second = images.find(tmp_path, "basic")
        del first
        with pytest.raises(BlockingIOError):
            fcntl.flock(remover, fcntl.LOCK_EX | fcntl.LOCK_NB)
        del second
        fcntl.flock(remover, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(HostdImageMissing):
            images.find(tmp_path, "basic")


@pytest.mark.parametrize("manifest", [[], {}, {"digest": 5}, {"digest": "../.."}, {"digest": "ab" * 6, "init": []}])
def test_a_bad_manifest_is_a_missing_image(tmp_path: Path, manifest: Any) -> None:
    image_at(tmp_path, "basic", manifest)
    with pytest.raises(HostdImageMissing) as caught:
        images.find(tmp_path, "basic")
    assert caught.value.hint


def test_an_image_outside_the_directory_is_refused(tmp_path: Path) -> None:
    outside = image_at(tmp_path / "elsewhere", "evil", {"digest": "ab" * 6})
    inside = tmp_path / "images"
    (inside / "evil").mkdir(parents=True)
    (inside / "evil" / "current").symlink_to(outside)
    with pytest.raises(HostdImageMissing):
        images.find(inside, "evil")


def test_limits_are_read_as_the_kernel_writes_them() -> None:
    read = rlimits.read_limits(Path("/proc/self/limits").read_text())
    import resource

    for number in range(len(read)):
        soft, hard = resource.getrlimit(number)
        assert read[number] == (soft % (1 << 64), hard % (1 << 64)), number


def test_library_dependencies_follow_libraries_alone() -> None:
    fields = "Depends: libc6 (>= 2.38), python3:any, libnl-3-200 (>= 3.2), libgnutls30t64 | libgnutls30, iptables\nPre-Depends: libx\n"
    assert criu_installation.library_dependencies(fields) == ["libc6", "libnl-3-200", "libgnutls30t64", "libx"]


@pytest.mark.parametrize(
    ("kernel", "minimum"), [("6.1.0-18-amd64", (4, 0)), ("6.15.9", (4, 0)), ("6.16.0", (4, 2)), ("7.0-rc1", (4, 2))]
)
def test_a_newer_kernel_needs_a_newer_criu(
    monkeypatch: pytest.MonkeyPatch, kernel: str, minimum: tuple[int, int]
) -> None:
    monkeypatch.setattr(platform, "release", lambda: kernel)
    assert criu_installation.required_version()[0] == minimum


def test_only_a_new_enough_criu_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "6.1.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    program = criu_installation.installed_criu(tmp_path)
    program.parent.mkdir(parents=True)
    for version, found in (("3.17.1", False), ("4.1.1", True)):
        program.write_text(f"#!/bin/sh\necho 'Version: {version}'\n")
        program.chmod(0o755)
        assert (criu_installation.find_criu(tmp_path) == program) is found


def test_prefixes_differ_by_user_and_directory(tmp_path: Path) -> None:
    def prefix(uid: int, state: str) -> str:
        return Layout(uid, tmp_path / state, tmp_path, tmp_path, tmp_path).prefix

    assert len({prefix(0, "a"), prefix(1, "a"), prefix(0, "b")}) == 3
    assert prefix(0, "a") == prefix(0, "a")


def test_leftover_files_are_removed_and_nothing_else(tmp_path: Path) -> None:
    layout = Layout(os.getuid(), tmp_path / "state", tmp_path / "run", tmp_path / "images", tmp_path / "store")
    keep = [layout.images_dir / "basic", layout.runtime_dir / "farm.db", layout.store_dir / "others"]
    for path in (*keep, layout.live / "d", layout.disk / "l"):
        path.mkdir(parents=True)
    removed = leftovers.remove(layout)
    assert len(removed) == 2
    assert not layout.live.exists()
    assert not layout.disk.exists()
    assert all(path.exists() for path in keep)
    assert leftovers.remove(layout) == []


def test_memory_backed_places_are_known() -> None:
    assert is_memory_backed(Path("/dev/shm")) in (True, False)
    assert not is_memory_backed(Path("/proc"))


def test_a_missing_group_reads_as_zero() -> None:
    assert cgroups.usage("/dart-no-such-prefix/none") == cgroups.Usage()
    assert cgroups.existing_groups("dart-no-such-prefix") == []
    assert cgroups.kill("/dart-no-such-prefix/none")
    assert cgroups.remove("/dart-no-such-prefix/none")


@pytest.mark.parametrize(("unified", "hits", "kills"), [(True, 0, 0), (True, 2, 3), (False, 0, 0), (False, 2, 3)])
def test_only_a_group_at_its_own_limit_is_blamed_for_its_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unified: bool, hits: int, kills: int
) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    group = tmp_path / ("p/d" if unified else "memory/p/d")
    group.mkdir(parents=True)
    if unified:
        (tmp_path / "cgroup.controllers").touch()
        (group / "memory.events").write_text(f"low 0\noom {hits}\noom_kill 3\n")
    else:
        (group / "memory.failcnt").write_text(f"{hits}\n")
        (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    usage = cgroups.usage("/p/d")
    assert (usage.oom_kills, usage.host_oom_kills) == (kills, 3 - kills)


def test_the_doctor_gives_every_failure_a_cure(tmp_path: Path) -> None:
    checks = doctor.run_checks(tmp_path / "not-yet", tmp_path)
    assert [check.name for check in checks][:3] == ["kernel", "overlayfs", "root"]
    assert all(bool(check.fix) is not check.ok for check in checks)
    assert all(json.dumps(check.as_dict()) for check in checks)


@pytest.mark.parametrize("able", [True, False])
def test_a_root_that_may_not_mount_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(rlimits, "has_capability", lambda _number: able)
    (root,) = [check for check in doctor.run_checks(tmp_path, tmp_path) if check.name == "root"]
    assert root.ok is able


COUNTERS = {"state": "running", "exit_status": None, "oom_kills": 0, "pids_refused": 0, "disk_free_bytes": 1 << 30}
WELL = {"session_alive": True}
DOWN = {"session_alive": False}


@pytest.mark.parametrize(
    ("changes", "agent", "cause"),
    [
        ({}, WELL, HealthCause.OK),
        ({"oom_kills": 3}, WELL, HealthCause.OOM),
        ({"pids_refused": 1}, WELL, HealthCause.PIDS),
        ({}, DOWN, HealthCause.SESSION_DEAD),
        ({}, None, HealthCause.AGENT_DEAD),
        ({"oom_kills": 1}, None, HealthCause.OOM),
        ({"pids_refused": 1}, DOWN, HealthCause.PIDS),
        ({"disk_free_bytes": 0}, DOWN, HealthCause.DISK_FULL),
        ({"disk_free_bytes": 0}, WELL, HealthCause.DISK_FULL),
        ({"state": "ended", "exit_status": "signal 9"}, None, HealthCause.KILLED_FROM_OUTSIDE),
        ({"state": "ended", "exit_status": "signal 9", "oom_kills": 1}, None, HealthCause.OOM),
        ({"state": "ended", "exit_status": "exit 0"}, None, HealthCause.SESSION_DEAD),
        ({"host_oom_kills": 1}, DOWN, HealthCause.HOST_OOM),
        ({"host_oom_kills": 1}, WELL, HealthCause.HOST_OOM),
        ({"host_oom_kills": 1, "state": "ended", "exit_status": "exit 0"}, None, HealthCause.HOST_OOM),
        ({"frozen": True}, None, HealthCause.OK),
        ({"frozen": True, "oom_kills": 1}, None, HealthCause.OOM),
        ({"frozen": True, "kill_pending": True}, None, HealthCause.KILLED_FROM_OUTSIDE),
    ],
)
def test_failures_have_owners(changes: dict[str, Any], agent: dict[str, Any] | None, cause: HealthCause) -> None:
    assert diagnose({**COUNTERS, **changes}, agent, "silent")[0] is cause


def freezer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, unified: bool) -> Path:
    """A pretended control group `/p/d` of either version; nothing in it reacts."""
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    if unified:
        (tmp_path / "cgroup.controllers").write_text("")
        group = tmp_path / "p" / "d"
        group.mkdir(parents=True)
        (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    else:
        group = tmp_path / "freezer" / "p" / "d"
        group.mkdir(parents=True)
        (group / "freezer.state").write_text("THAWED\n")
    return group


@pytest.mark.parametrize("unified", [True, False])
def test_freezing_waits_for_the_kernel_and_gives_up_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unified: bool
) -> None:
    group = freezer(tmp_path, monkeypatch, unified=unified)
    if unified:
        assert not cgroups.freeze("/p/d", timeout_s=0.01), "it was asked for but did not happen"
        assert (group / "cgroup.freeze").read_text() == "0", "and is taken back"
        (group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
        assert cgroups.freeze("/p/d", timeout_s=0.01)
        assert (group / "cgroup.freeze").read_text() == "1"
        assert not cgroups.thaw("/p/d", timeout_s=0.01)
    else:
        assert cgroups.freeze("/p/d", timeout_s=0.01)
        assert cgroups.is_frozen("/p/d")
        assert cgroups.thaw("/p/d", timeout_s=0.01)
        assert (group / "freezer.state").read_text() == "THAWED"
    assert not cgroups.freeze("/p/other", timeout_s=0.01)
    assert not cgroups.is_frozen("/p/other")


def test_freezing_lets_go_now_and_then_what_the_kernel_left_half_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 leaves a process that is being made; asking again without a release never stops it."""
    state = freezer(tmp_path, monkeypatch, unified=False) / "freezer.state"
    written: list[str] = []
    write = cgroups._write_freeze

    def write_and_stay_half_frozen(directory: Path, *, frozen: bool) -> None:
        written.append(state.read_text().strip())
        write(directory, frozen=frozen)
        if written.count("THAWED") < 2:
            state.write_text("FREEZING\n")

    monkeypatch.setattr(cgroups, "_write_freeze", write_and_stay_half_frozen)
    monkeypatch.setattr(cgroups, "_RELEASE_AFTER_S", 0.02)
    assert cgroups.freeze("/p/d", timeout_s=10.0)
    assert written[0] == "THAWED"
    assert written[-1] == "THAWED"
    assert set(written[1:-1]) <= {"FREEZING"}


def test_a_process_that_will_be_killed_is_known() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            assert not kernel.has_pending_kill(pidfd)
        finally:
            process.kill()
            process.wait()
            assert not kernel.has_pending_kill(pidfd), "one that has ended is not waiting"
            os.close(pidfd)


def test_the_end_of_a_process_is_seen_at_any_descriptor() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    try:
        with subprocess.Popen(["sleep", "60"]) as process:
            first = os.pidfd_open(process.pid)
            high = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 1100)
            assert not kernel.has_ended(high)
            process.kill()
            assert kernel.has_ended(high, wait_s=5.0)
        os.close(first)
        os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
