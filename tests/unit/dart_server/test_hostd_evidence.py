"""What the helper reads of a desktop's files and processes, and what it refuses; on folders and processes of this test."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dart_server.guest.access import PARALLEL_LOOKS
from dart_server.hostd.errors import BadRequest
from dart_server.hostd.evidence import budget, desktop, processes, queries
from dart_server.hostd.evidence import files as evidence_files
from dart_server.hostd.evidence.budget import Refused
from dart_server.hostd.evidence.collect import collect
from dart_server.hostd.evidence.files import DesktopFiles, IdMap
from dart_server.hostd.evidence.layers import ImageLayers
from dart_server.hostd.evidence.queries import HostdFileQuery, HostdStatQuery, HostdTreeQuery
from dart_server.hostd.linux import syscalls
from dart_server.wire.evidence import MAX_EVIDENCE_NBYTES

SAME_IDS = IdMap("0 0 4294967295")
NO_LAYERS = ImageLayers([], [])


@contextmanager
def files_of(root: Path) -> Iterator[DesktopFiles]:
    descriptor = os.open(root, os.O_PATH)
    try:
        yield DesktopFiles(descriptor, NO_LAYERS, SAME_IDS, SAME_IDS)
    finally:
        os.close(descriptor)


def read(files: DesktopFiles, path: str, limit_nbytes: int = 1000) -> bytes:
    return files.read(HostdFileQuery(path, limit_nbytes))[1]


def test_links_stay_inside_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "name").write_text("inside")
    (tmp_path / "name").write_text("outside")
    (root / "absolute").symlink_to("/etc/name")
    (root / "upwards").symlink_to("../../../../etc/name")
    (root / "magic").symlink_to(f"/proc/self/fd/{os.open(tmp_path / 'name', os.O_RDONLY)}")
    with files_of(root) as files:
        assert read(files, "/absolute") == read(files, "/upwards") == read(files, "/../../etc/name") == b"inside"
        for path in ("/magic", "/nowhere", "/etc/name/below", "/" + "a" * 300):
            with pytest.raises(Refused, match="not_found"):
                read(files, path)
        assert files.stat(HostdStatQuery("/absolute", follow=False))["target"] == "/etc/name"
        assert files.stat(HostdStatQuery("/absolute", follow=True))["nbytes"] == 6


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        with files_of(tmp_path) as files:
            for path, kind in (("/pipe", "pipe"), ("/socket", "socket"), ("/", "folder")):
                assert files.stat(HostdStatQuery(path, follow=True))["kind"] == kind
                with pytest.raises(Refused, match="not_regular_file"):
                    read(files, path)
    with files_of(Path("/")) as files:
        with pytest.raises(Refused, match="not_readable"):
            read(files, "/proc/self/status")
        with pytest.raises(Refused, match="not_readable"):
            files.tree(HostdTreeQuery("/proc", 100, 4, digests=True))
        with pytest.raises(Refused, match="not_regular_file"):
            read(files, "/dev/zero")


def test_sizes_are_bounded_whatever_a_file_says(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 2000)
    with open(tmp_path / "sparse", "wb") as sparse:
        sparse.truncate(1 << 40)
    with files_of(tmp_path) as files:
        assert read(files, "/large", 2000) == b"x" * 2000
        for path in ("/large", "/sparse"):
            with pytest.raises(Refused, match="too_large"):
                read(files, path)
        tree = {entry["path"]: entry for entry in files.tree(HostdTreeQuery("/", 10, 4, digests=True))}
        assert "sha256" in tree["large"]
        assert "sha256" not in tree["sparse"]


def test_a_deep_or_wide_tree_is_refused_and_leaves_no_descriptor_open(tmp_path: Path) -> None:
    deep = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=deep)
        inner = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    before = len(os.listdir("/proc/self/fd"))
    with files_of(tmp_path) as files:
        with pytest.raises(Refused, match="too_deep"):
            files.tree(HostdTreeQuery("/", 20_000, 64, digests=False))
        with pytest.raises(Refused, match="too_many_entries"):
            files.tree(HostdTreeQuery("/", 3, 64, digests=False))
        with pytest.raises(Refused, match="not_found"):
            files.tree(HostdTreeQuery("/none", 3, 64, digests=False))
    assert len(os.listdir("/proc/self/fd")) == before
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_tree_tells_links_modes_and_digests(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o750)
    (tmp_path / "a" / "b").write_text("hi\n")
    (tmp_path / "a" / "b").chmod(0o640)
    (tmp_path / "l").symlink_to("a")
    (tmp_path / os.fsdecode(b"\xff")).touch()
    with files_of(tmp_path) as files:
        tree = files.tree(HostdTreeQuery("/", 10, 4, digests=True))
    facts = {entry["path"]: (entry["kind"], entry.get("target"), entry["mode"]) for entry in tree}
    assert facts["a"] == ("folder", None, 0o750)
    assert facts["a/b"] == ("file", None, 0o640)
    assert facts["l"][:2] == ("link", "a")
    assert set(facts) == {"a", "a/b", "l", "\ufffd"}
    assert next(e["sha256"] for e in tree if e["path"] == "a/b").startswith("98ea6e4f")


def test_a_tree_tells_access_lists(tmp_path: Path) -> None:
    for name in ("plain", "shared"):
        (tmp_path / name).touch(mode=0o640)
    user, named, group, mask, other = (0x01, 6), (0x02, 7), (0x04, 4), (0x10, 7), (0x20, 0)
    numbers = {named: 33}
    listed = b"".join(
        struct.pack("<HHI", *one, numbers.get(one, 2**32 - 1)) for one in (user, named, group, mask, other)
    )
    try:
        os.setxattr(tmp_path / "shared", evidence_files.ACCESS_LIST, struct.pack("<I", 2) + listed)
    except OSError as error:
        pytest.skip(f"this file system has no access lists: {error}")
    with files_of(tmp_path) as files:
        tree = files.tree(HostdTreeQuery("/", 10, 4, digests=False))
    assert {entry["path"]: entry.get("access_list") for entry in tree} == {"plain": None, "shared": True}


def test_a_slow_look_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(budget, "DEADLINE_S", -1.0)
    with files_of(tmp_path) as files:
        with pytest.raises(Refused, match="too_slow"):
            files.tree(HostdTreeQuery("/", 10, 4, digests=False))
        with pytest.raises(Refused, match="too_slow"):
            processes.facts([os.getpid()], {}, files, network_of=os.getpid(), code=False)


def test_the_names_of_a_tree_are_bounded_in_bytes(tmp_path: Path) -> None:
    """900 names of 255 bytes that are not UTF-8, 15 folders deep: 21 MB of JSON."""
    deep = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(14):
            os.mkdir(b"\xff" * 255, dir_fd=deep)
            inner = os.open(b"\xff" * 255, os.O_RDONLY, dir_fd=deep)
            os.close(deep)
            deep = inner
        for number in range(900):
            os.close(os.open(b"%d" % number + b"\xff" * 250, os.O_CREAT | os.O_WRONLY, dir_fd=deep))
        with files_of(tmp_path) as files, pytest.raises(Refused, match="too_large"):
            files.tree(HostdTreeQuery("/", 20_000, 64, digests=False))
    finally:
        os.close(deep)
        subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


def test_the_answers_of_a_request_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        (tmp_path / f"{number}").touch()
    monkeypatch.setattr(budget, "ANSWERS_NBYTES", 2_000)
    with files_of(tmp_path) as files:
        assert len(files.tree(HostdTreeQuery("/", 10, 4, digests=False))) == 10
        with pytest.raises(Refused, match="too_large"):
            files.tree(HostdTreeQuery("/", 10, 4, digests=False))
    with files_of(tmp_path) as files, pytest.raises(Refused, match="too_large"):
        processes.facts([os.getpid()] * 20, {}, files, network_of=os.getpid(), code=False)


def test_a_message_is_never_larger_than_the_farm_reads() -> None:
    beside_answers = 1 << 20
    largest = budget.ANSWERS_NBYTES + evidence_files.CONTENTS_NBYTES + beside_answers
    assert largest <= MAX_EVIDENCE_NBYTES
    assert PARALLEL_LOOKS <= desktop.PARALLEL, "who has a turn at the farm waits for nobody at the helper"


def test_a_file_is_the_images_while_nothing_lies_above_it(tmp_path: Path) -> None:
    upper, image = tmp_path / "upper", tmp_path / "image"
    for name in ("usr/bin/kept", "usr/bin/changed", "usr/lib/hidden"):
        (image / name).parent.mkdir(parents=True, exist_ok=True)
        (image / name).touch()
    (upper / "usr" / "bin").mkdir(parents=True)
    (upper / "usr" / "bin" / "changed").touch()
    layers = ImageLayers([upper], [image])
    assert layers.holds("/usr/bin/kept")
    assert layers.holds("/usr/lib/hidden")
    for path in (
        "/usr/bin/changed",
        "/usr/bin/none",
        "/usr/bin",
        "usr/bin/kept",
        "/usr/bin/../bin/kept",
        "/kept (deleted)",
    ):
        assert not layers.holds(path), path
    (upper / "usr" / "lib").mkdir()
    if os.geteuid() == 0:
        os.setxattr(upper / "usr" / "lib", "trusted.overlay.opaque", b"y")
        assert not ImageLayers([upper], [image]).holds("/usr/lib/hidden")


def test_ids_are_those_inside() -> None:
    shifted = IdMap("         0     100000      65536\n")
    assert [shifted.inside(number) for number in (100000, 101000, 0)] == [0, 1000, 65534]


def message(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack(">I", data[:4])[0]
    return json.loads(data[4 : 4 + length]), data[4 + length :]


def test_processes_are_what_they_execute_and_where_they_listen(tmp_path: Path) -> None:
    program = "import socket,sys,time; s=socket.create_server(('127.0.0.1',0)); print(s.getsockname()[1],flush=True); time.sleep(60)"
    (tmp_path / "held").write_text("x")
    argv = ["Thunar", "-c", program]
    with open(tmp_path / "held") as held:
        child = subprocess.Popen(argv, executable=sys.executable, stdout=subprocess.PIPE, pass_fds=[held.fileno()])
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        frozen: list[str] = []

        @contextmanager
        def standing_still() -> Iterator[bool]:
            frozen.append("frozen")
            yield True
            frozen.append("thawed")

        asked = queries.check(
            "queries", [{"kind": "processes", "code": True}, {"kind": "stat", "path": "/", "follow": True}]
        )
        header, _ = message(collect(asked, os.getpid(), lambda: [child.pid, 2**22], NO_LAYERS, standing_still))
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    (one,) = header["answers"][0]["processes"]
    assert one["executable"] == os.path.realpath(sys.executable)
    assert one["argv"][0] == "Thunar"
    assert one["gid"] == os.getgid()
    assert not one["from_image"]
    assert not one["code_from_image"]
    assert one["listening"] == [{"address": "127.0.0.1", "port": port}]
    assert str(tmp_path / "held") in one["open_files"]
    assert header["answers"][1]["facts"]["kind"] == "folder"
    assert frozen == ["frozen", "thawed"]


WATCHER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
inotify = libc.inotify_init()
for name in os.listdir(sys.argv[1]):
    assert libc.inotify_add_watch(inotify, os.path.join(sys.argv[1], name).encode(), 0xFFF) > 0
for _ in range(900):
    os.dup(inotify)
print("up", flush=True)
time.sleep(60)
"""


def test_many_descriptors_of_many_watches_end_a_look_and_not_the_helper(tmp_path: Path) -> None:
    """900 descriptors of 4,000 watches: hundreds of megabytes of tables."""
    for number in range(4_000):
        (tmp_path / f"{number}").touch()
    child = subprocess.Popen([sys.executable, "-c", WATCHER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"

        @contextmanager
        def standing_still() -> Iterator[bool]:
            yield True

        asked = queries.check("queries", [{"kind": "processes", "code": True}])
        header, _ = message(collect(asked, os.getpid(), lambda: [child.pid], NO_LAYERS, standing_still))
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    assert header["answers"] == [{"error": "too_slow"}]
    assert header["pause_s"] < budget.DEADLINE_S + 2


def test_the_descriptors_of_a_request_are_counted_over_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "DESCRIPTORS", len(os.listdir("/proc/self/fd")) * 3)
    with files_of(tmp_path) as files:
        assert processes.facts([os.getpid()], {}, files, network_of=os.getpid(), code=False)
        with pytest.raises(Refused, match="too_slow"):
            processes.facts([os.getpid()] * 5, {}, files, network_of=os.getpid(), code=False)


def test_a_desktop_goes_on_when_looking_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[str] = []

    @contextmanager
    def standing_still() -> Iterator[bool]:
        try:
            yield True
        finally:
            frozen.append("thawed")

    def broken(*_args: object, **_more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(processes, "facts", broken)
    asked = queries.check("queries", [{"kind": "processes", "code": False}])
    with pytest.raises(RuntimeError):
        collect(asked, os.getpid(), list, NO_LAYERS, standing_still)
    assert frozen == ["thawed"]


@pytest.mark.parametrize(
    "query",
    [
        "file",
        {"kind": "file", "path": "/a"},
        {"kind": "file", "path": "a", "limit_nbytes": 1},
        {"kind": "file", "path": "/a\0", "limit_nbytes": 1},
        {"kind": "file", "path": "/a", "limit_nbytes": 0},
        {"kind": "file", "path": "/a", "limit_nbytes": True},
        {"kind": "file", "path": "/a", "limit_nbytes": 1 << 40},
        {"kind": "stat", "path": "/a", "follow": 1},
        {"kind": "tree", "path": "/a", "max_entries": 1, "max_depth": 10_000, "digests": True},
        {"kind": "processes", "code": False, "pid": 1},
        {"kind": "exec", "path": "/bin/sh"},
        {"kind": ["file"], "path": "/a", "limit_nbytes": 1},
    ],
)
def test_bad_queries_are_refused(query: Any) -> None:
    with pytest.raises(BadRequest):
        queries.check("queries", [query])


def test_the_number_of_queries_is_bounded() -> None:
    for value in ([], [{"kind": "processes", "code": False}] * 65, {"kind": "processes"}):
        with pytest.raises(BadRequest):
            queries.check("queries", value)


def test_a_pidfd_leads_to_its_process() -> None:
    descriptor = os.pidfd_open(os.getpid())
    try:
        assert syscalls.process_of(descriptor) == os.getpid()
    finally:
        os.close(descriptor)
