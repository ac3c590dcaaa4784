"""The starter: what it takes from an ordinary user, where root's files lie, whose rights open a user's paths, and sudo's one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dart_server.hostd import images, installation, layout
from dart_server.hostd.__main__ import StartupError
from dart_server.hostd.errors import HostdImageMissing
from dart_server.hostd.layout import layout_of_user
from dart_server.hostd.linux.credentials import NEEDLESS_CAPABILITIES, HostUser, as_user, lies_with_root, open_directory
from dart_server.hostd.users import starter

REQUEST = {
    "runtime_dir": "/tmp/dart-1000",
    "images_dir": "/home/u/images",
    "store_dir": "/dev/shm/dart-1000",
    "idle_timeout_s": 15.0,
}
NOBODY = HostUser(65534, 65534, (65534,))
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root takes on another user's rights")


def ask(**changed: object) -> starter.StartRequest:
    return starter.parse(json.dumps({**REQUEST, **changed}).encode())


def test_a_request_names_directories_and_nothing_else() -> None:
    assert ask().images_dir == Path("/home/u/images")
    for field, wrong in (
        ("runtime_dir", "relative"),
        ("images_dir", "/home/u/../../etc"),
        ("images_dir", ["/etc"]),
        ("store_dir", "/a\0b"),
        ("store_dir", "/" + "a" * 5000),
        ("idle_timeout_s", True),
        ("idle_timeout_s", 1e9),
        ("idle_timeout_s", float("nan")),
        ("tools_dir", "/home/u/criu"),
    ):
        with pytest.raises(StartupError, match="other fields" if field == "tools_dir" else field):
            ask(**{field: wrong})
    for line in (b"nonsense\n", b"[]\n", b"{}\n", b"[" * 100_000 + b"\n"):
        with pytest.raises(StartupError):
            starter.parse(line)


def test_it_refuses_arguments_and_whoever_is_not_started_by_sudo() -> None:
    program = [
        sys.executable,
        "-c",
        "import sys; from dart_server.hostd.users import starter; sys.exit(starter.main())",
    ]
    for arguments, uid, words in (
        (["--tools-dir", "/tmp"], "1000", "it takes no arguments"),
        ([], None, "started through sudo"),
        ([], "0", "started through sudo"),
        ([], "-1", "started through sudo"),
    ):
        environment = {**os.environ, "SUDO_UID": uid or ""}
        done = subprocess.run([*program, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_what_root_makes_for_a_user_lies_among_roots_own(tmp_path: Path) -> None:
    ours = layout_of_user(1000, tmp_path, tmp_path / "images", tmp_path / "store")
    assert ours.socket.parent.parent == layout.RUN_DIR
    for path in (ours.lock, ours.live, ours.disk, ours.failure_log, ours.state_dir):
        assert path.is_relative_to(layout.RUN_DIR)
    roots = layout_of_user(0, tmp_path, tmp_path / "images", tmp_path / "store")
    assert (roots.socket, roots.state_dir) == (tmp_path / "hostd.sock", tmp_path / "hostd")
    assert re.fullmatch(r"dart-1000-[0-9a-f]{8}", ours.prefix)


@root_only
def test_a_directory_that_another_user_put_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "RUN_DIR", tmp_path / "run")
    monkeypatch.setattr(layout, "RUN_DIR", tmp_path / "run")
    ours = layout_of_user(1000, tmp_path, tmp_path, tmp_path)
    starter.make_directories(ours)
    assert stat.S_IMODE(ours.state_dir.stat().st_mode) == 0o700
    os.chown(ours.state_dir, 65534, -1)
    with pytest.raises(StartupError, match=r"not a directory of root's"):
        starter.make_directories(ours)
    shutil.rmtree(ours.state_dir)
    ours.state_dir.symlink_to("/etc")
    with pytest.raises(StartupError, match=r"not a directory of root's"):
        starter.make_directories(ours)


@root_only
def test_a_users_paths_are_opened_with_his_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for place in tmp_path.parents:
        if place.stat().st_mode & 0o001 == 0:
            place.chmod(place.stat().st_mode | 0o011)
    closed, opened = tmp_path / "closed", tmp_path / "open"
    closed.mkdir(mode=0o700)
    opened.mkdir(mode=0o755)
    os.close(open_directory(NOBODY, opened))
    with pytest.raises(PermissionError):
        open_directory(NOBODY, closed)
    with pytest.raises(PermissionError):
        as_user(NOBODY, (opened / "new").mkdir)
    os.close(os.open(closed, os.O_RDONLY))  # this process kept its own rights


def image(top: Path, owner: int) -> Path:
    place = top / "basic" / "0123456789ab"
    (place / "rootfs").mkdir(parents=True)
    (place / "manifest.json").write_text('{"digest": "0123456789ab"}')
    for path in (place, place / "rootfs", place / "manifest.json"):
        os.chown(path, owner, -1)
    (top / "basic" / "current").symlink_to("0123456789ab")
    for path in (top, *top.parents):
        if path.stat().st_mode & 0o001 == 0:
            path.chmod(path.stat().st_mode | 0o011)
    return place


@root_only
def test_an_image_for_a_user_must_be_roots_and_stays_what_was_opened(tmp_path: Path) -> None:
    place = image(tmp_path / "images", 0)
    found = images.find(tmp_path / "images", "basic", NOBODY)
    (place / "rootfs" / "mark").touch()
    os.rename(place, place.with_name("moved"))
    assert (found.rootfs / "mark").exists()
    os.rename(place.with_name("moved"), place)
    os.rename(place / "rootfs", place / "other")
    (place / "rootfs").symlink_to("/etc")
    with pytest.raises(HostdImageMissing, match="others than root"):
        images.find(tmp_path / "images", "basic", NOBODY)
    image(tmp_path / "theirs", 65534)
    with pytest.raises(HostdImageMissing, match="others than root"):
        images.find(tmp_path / "theirs", "basic", NOBODY)


@root_only
def test_a_manifest_that_is_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    place = image(tmp_path / "images", 0)
    (place / "manifest.json").unlink()
    (place / "manifest.json").symlink_to("/etc/shadow")
    with pytest.raises(HostdImageMissing, match=r"manifest\.json"):
        images.find(tmp_path / "images", "basic", NOBODY)
    (place / "manifest.json").unlink()
    os.mkfifo(place / "manifest.json")
    with pytest.raises(HostdImageMissing, match=r"manifest\.json"):
        images.find(tmp_path / "images", "basic", NOBODY)


@root_only
def test_a_program_that_others_may_exchange_is_not_trusted(tmp_path: Path) -> None:
    assert lies_with_root(Path("/usr/bin/python3"))
    program = tmp_path / "criu"
    program.touch(mode=0o755)
    os.chown(tmp_path, 65534, -1)
    assert not lies_with_root(program)


@root_only
def test_sudo_is_told_one_exact_line_for_each_user(tmp_path: Path) -> None:
    if not Path("/usr/sbin/visudo").exists():
        pytest.skip("this host has no sudo")
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o022 and not path.stat().st_mode & 0o1000:
            path.chmod(path.stat().st_mode & ~0o022)
    directory, sudoers = tmp_path / "dart-hostd", tmp_path / "dart"
    version = installation.install(directory)
    for uid in (1000, 1001, 1000):
        installation.allow(uid, directory, sudoers)
    lines = [line for line in sudoers.read_text().splitlines() if not line.startswith("# ")]
    command = f"/usr/bin/python3 -IS {version}/dart-starter"
    assert lines == [f"#{uid} ALL=(root) NOPASSWD:NOSETENV: {command}" for uid in (1001, 1000)]
    assert stat.S_IMODE(sudoers.stat().st_mode) == 0o440
    assert sorted(os.listdir(tmp_path)) == ["dart", "dart-hostd"]
    sudoers.chmod(0o640)
    sudoers.write_text("#1002 ALL = (((\n")
    with pytest.raises(ValueError, match="visudo refuses"):
        installation.allow(1000, directory, sudoers)
    assert sudoers.read_text() == "#1002 ALL = (((\n"


GIVE_UP = """
import threading
from dart_server.process import privileges
stay = threading.Event()
threads = [threading.Thread(target=stay.wait, daemon=True) for _ in range(4)]
[thread.start() for thread in threads]
print(len(privileges.have_new_privileges()))
privileges.give_up_new_privileges()
print(len(privileges.have_new_privileges()))
late = threading.Thread(target=lambda: print(len(privileges.have_new_privileges())))
late.start(); late.join()
"""


def test_every_thread_of_the_server_gives_up_new_privileges() -> None:
    done = subprocess.run([sys.executable, "-c", GIVE_UP], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "0", "0"]


DROP = """
import subprocess
from dart_server.hostd.linux.credentials import drop_capabilities
drop_capabilities()
print(open("/proc/self/status").read())
print(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout)
"""


@root_only
def test_what_the_helper_starts_has_no_capability_that_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", DROP], capture_output=True, text=True, check=True)
    held = [int(word, 16) for word in re.findall(r"Cap(?:Prm|Eff|Bnd):\s*([0-9a-f]+)", done.stdout)]
    assert len(held) == 6
    for mask in held:
        assert not [number for number in NEEDLESS_CAPABILITIES if mask >> number & 1]
        assert mask >> 21 & 1, "runc and CRIU need SYS_ADMIN"
