"""The installed root helper: complete, found by its digest, refused where somebody other than root may change it."""

import os
import subprocess
from pathlib import Path

import pytest

from dart_server.hostd import installation

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root installs the root helper")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_mode & 0o022 and not path.stat().st_mode & 0o1000:
            path.chmod(path.stat().st_mode & ~0o022)
    return tmp_path / "dart-hostd"


def test_the_installed_helper_runs_isolated_from_every_users_environment(directory: Path) -> None:
    version = installation.install(directory)
    assert installation.install(directory) == version
    command = installation.command(directory=directory)
    assert command == ["/usr/bin/python3", "-IS", str(version / "dart-hostd")]
    usage = subprocess.run(
        [*command, "--help"], capture_output=True, text=True, env={"PYTHONPATH": "/nonexistent"}, check=True
    )
    assert "--state-dir" in usage.stdout
    criu = installation.command("dart-criu", directory)
    assert "install" in subprocess.run([*criu, "--help"], capture_output=True, text=True, check=True).stdout
    assert not [path for path in version.rglob("*") if path.stat().st_uid != 0 or path.stat().st_mode & 0o022]


def test_another_version_is_not_taken(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation.install(directory)
    monkeypatch.setattr(installation, "source_digest", lambda: "0" * 16)
    with pytest.raises(installation.HelperNotInstalled, match="this version is not installed"):
        installation.command(directory=directory)


@pytest.mark.parametrize("part", ["dart-hostd", "dart_server/hostd", "."])
def test_files_that_others_may_change_are_refused(directory: Path, part: str) -> None:
    version = installation.install(directory)
    (version / part).chmod(0o777)
    with pytest.raises(installation.HelperNotInstalled, match="others than root"):
        installation.command(directory=directory)


def test_the_digest_names_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = installation.source_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert installation.source_digest(tmp_path) != first
