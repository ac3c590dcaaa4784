"""The backup program of the guide, run as it is printed there."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import read_page

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "how-to" / "upgrade-and-backup.md").read_text(encoding="utf-8")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    place = tmp_path / "state"
    place.mkdir()
    with sqlite3.connect(place / "farm.db") as database:
        database.execute("create table one (name text)")
    for secret in ("farm.key", "farm.secret"):
        (place / secret).write_text("secret")
        (place / secret).chmod(0o600)
    return place


def backed_up(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (program,) = (block.text for block in read_page(GUIDE) if block.file == "backup.py")
    command = ["sh", "-c", 'umask 022; exec "$@"', "sh", sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_only_the_user_reads_a_backup(state: Path) -> None:
    done = backed_up("state", "backup", folder=state.parent)
    assert (done.returncode, done.stderr) == (0, "")
    backup = state.parent / "backup"
    assert backup.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in backup.iterdir()} == dict.fromkeys(
        ("farm.db", "farm.key", "farm.secret"), 0o600
    )


@pytest.mark.parametrize("backup", ["state", "nowhere/backup"])
def test_a_backup_that_cannot_be_made_is_one_sentence(state: Path, backup: str) -> None:
    done = backed_up("state", backup, folder=state.parent)
    assert done.returncode == 1
    assert done.stderr.startswith(f"cannot make the folder {backup}: ")
    assert len(done.stderr.splitlines()) == 1
