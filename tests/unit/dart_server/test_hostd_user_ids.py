"""Ranges of user ids: each for one desktop of the host, in the images of its processes, and a network that is up before them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dart_server.hostd.linux import netns, user_ids
from dart_server.hostd.runtime import oci, process_images, restored_network
from dart_server.hostd.verbs import Limits

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a user namespace these ids")
OTHER_HELPER = """
import sys
from pathlib import Path
from dart_server.hostd.linux.user_ids import UserIds
ids = UserIds(Path(sys.argv[1]))
print(*(ids.take() for _ in range(100)), flush=True)
sys.stdin.read()
"""


def test_no_two_helpers_give_the_same_range(tmp_path: Path) -> None:
    lock = tmp_path / "ids"
    argv = [sys.executable, "-c", OTHER_HELPER, str(lock)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = {int(word) for word in other.stdout.readline().split()}
        ids = user_ids.UserIds(lock)
        ours = [ids.take() for _ in range(user_ids.RANGES - len(theirs))]
        assert len(theirs) == 100
        assert not theirs & {*ours}
        assert len({*ours}) == len(ours)
        with pytest.raises(OSError, match="every range"):
            ids.take()
        other.communicate("")
    ids.give_back(ours[0])
    assert ids.take() == ours[0]
    assert min(ours) >= user_ids.LOWEST
    assert max(ours) + user_ids.COUNT <= 1 << 31


@as_root
def test_a_namespace_has_the_ranges_ids(tmp_path: Path) -> None:
    ids = user_ids.UserIds(tmp_path / "ids")
    first = ids.take()
    fd = ids.namespace(first)
    assert ids.namespace(first) == fd
    argv = ["nsenter", f"--user=/proc/{os.getpid()}/fd/{fd}", "cat", "/proc/self/uid_map"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert shown.split() == user_ids.mapping(first).split()


def test_images_for_another_range_differ_in_the_user_namespace_only(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    magic = struct.pack("=II", 0x54564319, 0x55474906)
    (images / "userns-14.img").write_bytes(magic + struct.pack("=I", 4) + b"old!")
    (images / "pages-1.img").write_bytes(b"x" * 4096)
    first = user_ids.LOWEST + 3 * user_ids.COUNT
    process_images.for_range(images, ("userns-14.img", "pages-1.img"), tmp_path / "copy", first)
    assert (tmp_path / "copy" / "pages-1.img").samefile(images / "pages-1.img")
    written = (tmp_path / "copy" / "userns-14.img").read_bytes()
    # Numbers in protobuf's form: the first id inside, the first one outside, how many.
    extent = bytes.fromhex("0800 10 80808c8007 18 808004")
    assert written[:8] == magic
    (length,) = struct.unpack("=I", written[8:12])
    assert written[12:] == b"\x0a" + bytes([len(extent)]) + extent + b"\x12" + bytes([len(extent)]) + extent
    assert length == len(written) - 12
    assert (images / "userns-14.img").read_bytes() == magic + struct.pack("=I", 4) + b"old!"


def test_a_copy_that_was_kept_is_taken_over_with_the_next_range(tmp_path: Path) -> None:
    images, names = tmp_path / "images", ("userns-14.img", "pages-1.img")
    images.mkdir()
    for name in names:
        (images / name).write_bytes(b"12345678....old!")
    ranges = [user_ids.LOWEST + number * user_ids.COUNT for number in range(3)]
    copies = [tmp_path / f"for-{number}" for number in range(3)]
    process_images.for_range(images, names, copies[0], ranges[0])
    process_images.for_range(images, names, copies[1], ranges[1])
    first_inode, first_written = copies[0].stat().st_ino, (copies[0] / "userns-14.img").read_bytes()
    process_images.keep(copies[0])
    assert not copies[0].exists()
    process_images.for_range(images, names, copies[2], ranges[2])
    assert copies[2].stat().st_ino == first_inode
    assert (copies[2] / "userns-14.img").read_bytes() not in (first_written, (copies[1] / "userns-14.img").read_bytes())
    assert (copies[2] / "pages-1.img").samefile(images / "pages-1.img")
    assert {entry.name for entry in copies[2].iterdir()} == {*names}


def test_a_snapshot_keeps_few_copies_and_one_that_was_deleted_none(tmp_path: Path) -> None:
    for number in range(process_images.MAX_SPARES + 1):
        (tmp_path / f"for-{number}").mkdir()
        process_images.keep(tmp_path / f"for-{number}")
    assert len(list(tmp_path.glob("spare-*"))) == process_images.MAX_SPARES
    process_images.keep(tmp_path / "deleted" / "for-1")


@pytest.mark.parametrize("works", [True, False])
def test_a_restore_waits_for_its_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool) -> None:
    asked = []

    def raise_loopback_of(pid: int) -> None:
        asked.append(pid)
        if not works:
            raise OSError(1, "no such namespace")

    monkeypatch.setattr(netns, "raise_loopback_of", raise_loopback_of)
    (hook,) = restored_network.hooks(tmp_path)["prestart"]
    with restored_network.ready_when_asked(tmp_path):
        for pid in (7, 8):
            state = json.dumps({"ociVersion": "1.0.2", "id": "a", "pid": pid, "bundle": str(tmp_path)})
            done = subprocess.run([hook["path"], *hook["args"][1:]], input=state, text=True, timeout=10, check=False)
            assert (done.returncode == 0) == works
    assert asked == [7, 8]
    assert list(tmp_path.iterdir()) == []


def test_a_desktop_with_ids_of_its_own_has_a_namespace_of_users_and_a_new_network() -> None:
    def made(first_id: int) -> dict[str, dict[str, str]]:
        limits = Limits(512, 100, 1.5, 64)
        netns_of_ours = None if first_id else Path("/n")
        config = oci.runtime_config(
            rootfs=Path("/r"), argv=("/i",), env={}, cgroup="/p/d", netns=netns_of_ours, criu_config=Path("/c"), limits=limits,
            first_id=first_id,
        )  # fmt: skip
        ids = config["linux"].get("uidMappings")
        assert ids == config["linux"].get("gidMappings")
        assert (ids is None) == (first_id == 0)
        if ids:
            assert ids == [{"containerID": 0, "hostID": first_id, "size": 65536}]
        return {entry["type"]: entry for entry in config["linux"]["namespaces"]}

    assert made(user_ids.LOWEST)["network"] == {"type": "network"}
    assert "user" in made(user_ids.LOWEST)
    assert made(0)["network"] == {"type": "network", "path": "/n"}
    assert "user" not in made(0)
