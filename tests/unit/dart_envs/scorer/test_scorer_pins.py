"""What the scorer's environment is made from: every file is known by its sha256 before it is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dart_envs.scorer import install, paths

FILES = paths.pin_files(paths.EXTRAS)
LOCKED = [file for file in FILES if paths.is_hash_locked(file)]


def requirements(file: Path) -> list[str]:
    """Each requirement with its options, on one line."""
    text = "\n".join(line for line in file.read_text().splitlines() if not line.startswith("#"))
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("file", LOCKED, ids=lambda file: file.stem)
def test_every_package_is_locked_by_version_and_hash(file: Path) -> None:
    for line in requirements(file):
        assert re.match(r"[A-Za-z0-9._-]+==[^ ]+( ;[^\\]*)? +--hash=sha256:[0-9a-f]{64}", line), line


def test_the_release_itself_is_locked() -> None:
    assert requirements(paths.PINS / "release.txt")[0].split()[0] == paths.DISTRIBUTION
    assert {file.stem for file in FILES} - {file.stem for file in LOCKED} == {"ocr"}


def test_locked_packages_are_installed_with_hashes_only(tmp_path: Path) -> None:
    for file in FILES:
        command = install.pip_command(Path("python"), file)
        for option in ("--require-hashes", "--no-deps", "--no-build-isolation"):
            assert (option in command) == (file in LOCKED)
    assert FILES[0].stem == "build"


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    """pip itself refuses a package whose sha256 is not the pinned one."""
    package = tmp_path / "idna-3.10-py3-none-any.whl"
    package.write_bytes(b"not what was pinned")
    pins = tmp_path / "pins.txt"
    pins.write_text("idna==3.10 --hash=sha256:" + "0" * 64 + "\n")
    command = [
        *install.pip_command(Path(sys.executable), pins),
        "--dry-run",
        "--no-index",
        "--find-links",
        str(tmp_path),
    ]
    done = subprocess.run([*command, "--target", str(tmp_path / "t")], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
