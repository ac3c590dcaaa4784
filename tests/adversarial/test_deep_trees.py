"""Trees of files as a hostile program makes them: the helper counts and removes each of them whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dart_server.hostd import leftovers
from dart_server.hostd.layout import Layout
from dart_server.hostd.linux import trees

DEPTHS = (1200, 6000)
"""Deeper than Python recurses, and deeper than the kernel takes a path."""


def nest(top: Path, depth: int, name: str = "d") -> None:
    """Directories inside one another, a file in the last one."""
    current = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=current)
        below = os.open(name, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=current))
    os.close(current)


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_deep_tree_is_counted_and_removed(tmp_path: Path, depth: int) -> None:
    top = tmp_path / "top"
    top.mkdir()
    nest(top, depth)
    nest(top, 3, "beside")
    found = trees.usage(top)
    assert found.inodes == depth + 1 + 3 + 1
    assert found.depth == depth + 1
    assert found.longest_path_nbytes == 2 * depth + len("file")
    assert found.nbytes >= found.inodes * (trees.INODE_NBYTES + trees.NAME_NBYTES)
    trees.remove(top)
    assert not top.exists()


def test_empty_files_are_counted(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number}").touch()
    found = trees.usage(tmp_path)
    assert found.inodes == 1000
    assert found.nbytes >= 1000 * 1000


def test_a_file_with_many_names_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"x" * (1 << 20))
    for number in range(1, 100):
        os.link(tmp_path / "0", tmp_path / f"{number}")
    found = trees.usage(tmp_path)
    assert found.inodes == 1
    assert 1 << 20 <= found.nbytes < 1.1 * (1 << 20)


def test_links_are_neither_followed_nor_lost(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    top.mkdir()
    (top / "link").symlink_to(outside)
    (top / "loop").symlink_to("loop")
    (top / "deep").mkdir()
    (top / "deep" / "link").symlink_to(outside)
    assert trees.usage(top).inodes == 4
    trees.remove(top)
    assert (outside / "kept").read_text() == "kept"
    trees.remove(top)
    (tmp_path / "top").symlink_to(outside)
    trees.remove(top)
    assert (outside / "kept").exists()


def test_names_that_the_removal_would_choose_are_no_obstacle(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for number in range(20):
        (top / f"{number:x}" / f"{number:x}" / f"{number:x}").mkdir(parents=True)
        (top / f"{number:x}" / f"{number:x}" / "f").touch()
    trees.remove(top)
    assert not top.exists()


def test_attributes_are_counted(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    before = trees.usage(tmp_path).nbytes
    try:
        os.setxattr(place, "user.big", b"x" * 3000)
    except OSError as error:
        pytest.skip(f"no attributes in {tmp_path}: {error}")
    assert trees.usage(tmp_path).nbytes - before >= 3000


def test_what_a_killed_helper_left_is_removed_however_deep(tmp_path: Path) -> None:
    layout = Layout(0, tmp_path / "state", tmp_path / "run", tmp_path / "images", tmp_path / "store")
    layer = layout.disk / "l" / "1"
    layer.mkdir(parents=True)
    nest(layer, DEPTHS[0])
    assert leftovers.remove_files(layout) == [f"directory {layout.disk}"]
    assert not layout.disk.exists()
