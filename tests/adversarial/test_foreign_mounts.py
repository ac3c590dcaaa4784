"""Directories of an ordinary user's that lie in a mount namespace of his own: root's helper does not work with them.

In such a namespace a user puts root's own files under names that he chooses. The kernel refuses to mount what is there, too; the helper
does not rely on that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_server.hostd import images
from dart_server.hostd.errors import HostdHostFault, HostdImageMissing
from dart_server.hostd.layout import layout_of_user
from dart_server.hostd.linux.credentials import HostUser, is_mounted_here
from dart_server.hostd.users import starter, store

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
READER = HostUser(0, 0, ())


def _image(top: Path) -> Path:
    place = top / "basic" / "current"
    (place / "rootfs").mkdir(parents=True)
    (place / "log").touch()
    (place / "manifest.json").write_text('{"digest": "0123456789abcdef"}')
    return top


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Path]:
    """A directory as a program with mounts of its own has it: the same names, and other mounts on them."""
    top = _image(tmp_path / "images")
    script = f"mount --bind {top} {top} && mount --bind /usr {top}/basic/current/rootfs && echo up && exec sleep 60"
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield Path(f"/proc/{process.pid}/root{top}")
        process.kill()


def test_an_image_on_the_hosts_own_mounts_is_taken(tmp_path: Path) -> None:
    assert images.find(_image(tmp_path), "basic", READER).digest == "sha256:0123456789abcdef"


def test_an_image_on_somebodys_own_mounts_is_refused(foreign: Path) -> None:
    with pytest.raises(HostdImageMissing, match="can be changed by others than root"):
        images.find(foreign, "basic", READER)


def test_a_store_on_somebodys_own_mounts_is_refused(foreign: Path, tmp_path: Path) -> None:
    layout = layout_of_user(1, tmp_path / "run", tmp_path, foreign, READER)
    with pytest.raises(HostdHostFault, match="mounted for some programs only"):
        store.mount(layout)
    assert not (foreign / layout.prefix).exists()


def test_what_is_open_tells_whose_mount_it_lies_on(foreign: Path, tmp_path: Path) -> None:
    for place, here in ((tmp_path, True), (Path("/proc"), True), (foreign, False)):
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert is_mounted_here(descriptor) is here
        finally:
            os.close(descriptor)


@pytest.mark.parametrize(
    ("path", "good"), [("/dev/null", True), ("/proc/self/oom_score_adj", False), ("/proc/self/coredump_filter", False)]
)
def test_root_writes_to_no_file_of_the_kernels(path: str, good: bool) -> None:
    with open(path, "r+b", buffering=0) as file:
        assert starter.takes_output(file.fileno()) is good


def test_root_writes_to_logs_and_pipes_of_its_caller_but_not_through_his_own_mounts(
    foreign: Path, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    with open(tmp_path / "log", "wb") as log, open(foreign / "basic" / "current" / "log", "wb") as odd:
        found = [starter.takes_output(descriptor) for descriptor in (writer, log.fileno(), odd.fileno())]
    os.close(reader)
    os.close(writer)
    assert found == [True, True, False]
    assert not starter.takes_output(writer)
