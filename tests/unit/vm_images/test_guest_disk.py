"""Whether the disk is full is found out by looking only."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from dart_guest import agent


@pytest.mark.parametrize(
    ("blocks", "files", "free_files", "full"),
    [(255, 100, 50, True), (256, 100, 50, False), (256, 100, 0, True), (256, 0, 0, False)],
)
def test_no_room_for_a_mebibyte_or_for_a_file_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, files: int, free_files: int, full: bool
) -> None:
    room = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_files=files, f_favail=free_files)
    monkeypatch.setattr(os, "statvfs", lambda _directory: room)
    assert agent.disk_full((str(tmp_path),)) is full
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_passed_by(tmp_path: Path) -> None:
    assert agent.disk_full((str(tmp_path / "missing"),)) is False
