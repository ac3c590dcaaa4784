"""Inotify instances of the host: raised when the helper starts, and a restore that found none is the host's fault, not the snapshot's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dart_server.hostd import doctor
from dart_server.hostd.errors import HostdHostFault, HostdSnapshotBroken
from dart_server.hostd.linux import inotify
from dart_server.hostd.runtime.runc import Runc

LOG_INOTIFY_EXHAUSTED = """\
(00.080356)     12: Error (criu/fsnotify.c:664): fsnotify: Can't create inotify for 0x00012e: Too many open files
(00.080359)     12: Error (criu/files.c:1221): Unable to open fd=11 id=0x12e
(00.081824)      1: Error (criu/cr-restore.c:1265): 12 exited, status=1
"""
LOG_OTHER_FAILURE = """\
(00.070000)     12: Opening /home/user/Can't create inotify for 0x1: Too many open files
(00.081824)      1: Error (criu/cr-restore.c:1265): 12 exited, status=1
"""


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the kernel's number."""
    file = tmp_path / "max_user_instances"
    file.write_text("128\n")
    monkeypatch.setattr(inotify, "INSTANCES", file)
    (tmp_path / "max_user_watches").write_text("8192\n")
    monkeypatch.setattr(inotify, "WATCHES", tmp_path / "max_user_watches")
    return file


def test_the_limit_is_raised_and_never_lowered(limit: Path) -> None:
    assert inotify.desktop_capacity() == 10
    inotify.raise_limit()
    assert inotify.instance_limit() == int(inotify.WATCHES.read_text()) == inotify.TARGET_INSTANCES
    limit.unlink()
    inotify.raise_limit()
    assert not limit.exists()
    limit.write_text("2000000000\n")
    inotify.raise_limit()
    assert inotify.instance_limit() == 2_000_000_000


def test_a_host_that_does_not_let_us_is_told_of_with_the_cure(
    limit: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    with caplog.at_level(logging.WARNING):
        inotify.raise_limit()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "enough for about 10 desktops" in said
    assert said.endswith("sudo sysctl fs.inotify.max_user_instances=134217728")


def test_the_doctor_says_for_how_many_desktops_they_are_enough(limit: Path, tmp_path: Path) -> None:
    (check,) = [check for check in doctor.run_checks(tmp_path, None) if check.name == "inotify instances"]
    assert "128 inotify instances, enough for about 10 desktops" in check.detail
    assert inotify.FIX_COMMAND in check.detail
    limit.write_text("134217728\n")
    (check,) = [check for check in doctor.run_checks(tmp_path, None) if check.name == "inotify instances"]
    assert inotify.FIX_COMMAND not in check.detail


def fake_runc(tmp_path: Path, said: str) -> Runc:
    """A runc whose restores fail, and what CRIU then says of it."""
    (tmp_path / "said").write_text(said)
    program = tmp_path / "fake-runc"
    program.write_text(f"#!/bin/sh\ncp {tmp_path}/said {tmp_path}/restore.log\nexit 1\n")
    program.chmod(0o755)
    return Runc(program, tmp_path / "criu", tmp_path, tmp_path / "failure.log")


def test_a_restore_that_found_none_is_the_hosts_fault(limit: Path, tmp_path: Path) -> None:
    runc = fake_runc(tmp_path, LOG_INOTIFY_EXHAUSTED)
    with pytest.raises(HostdHostFault, match=r"no inotify instances left .* \(128 for each user\)") as raised:
        runc.restore("desk", tmp_path, tmp_path, tmp_path, "/p/desk")
    assert inotify.FIX_COMMAND in raised.value.hint
    assert (tmp_path / "failure.log").read_text() == LOG_INOTIFY_EXHAUSTED


def test_any_other_failure_is_the_snapshots(limit: Path, tmp_path: Path) -> None:
    with pytest.raises(HostdSnapshotBroken, match="12 exited, status=1"):
        fake_runc(tmp_path, LOG_OTHER_FAILURE).restore("desk", tmp_path, tmp_path, tmp_path, "/p/desk")
