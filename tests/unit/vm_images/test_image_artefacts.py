"""Other forms of an image, and images from elsewhere."""

import hashlib
import json
import sys
import tarfile
from pathlib import Path

import build
import pytest
from imagebuild import artefacts, foreign
from imagebuild.errors import UsageError
from imagebuild.manifest import Manifest, read_manifest, write_manifest


def image(place: Path) -> Manifest:
    """A finished image with one file."""
    (place / "rootfs/etc").mkdir(parents=True)
    (place / "rootfs/etc/hostname").write_text("desktop\n", encoding="utf-8")
    made = Manifest("small", "0123456789ab", "r", "g", "1", "bookworm", "amd64", 5, 1, "2026-01-01T00:00:00+00:00", 1.0)
    write_manifest(made, place / "manifest.json")
    return made


def test_the_docker_tar_holds_the_root_file_system_and_is_recorded(tmp_path: Path) -> None:
    manifest = image(tmp_path)
    told = artefacts.make("docker", manifest, tmp_path, tmp_path / "log", lambda _: None)
    with tarfile.open(tmp_path / "docker.tar") as tar:
        assert "./etc/hostname" in tar.getnames()
    assert told.artefacts["docker"]["sha256"] == hashlib.sha256((tmp_path / "docker.tar").read_bytes()).hexdigest()
    assert read_manifest(tmp_path / "manifest.json") == told
    facts = json.loads((tmp_path / "docker.json").read_text(encoding="utf-8"))
    assert facts["tag"] == "dart/small:0123456789ab"
    assert 'ENTRYPOINT ["/usr/sbin/dart-init"]' in facts["import"]


def test_an_artefact_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    told = artefacts.make("docker", image(tmp_path), tmp_path, tmp_path / "log", lambda _: None)
    before = (tmp_path / "docker.tar").stat().st_mtime_ns
    artefacts.make("docker", told, tmp_path, tmp_path / "log", lambda _: None)
    assert (tmp_path / "docker.tar").stat().st_mtime_ns == before
    (tmp_path / "docker.tar").unlink()
    artefacts.make("docker", told, tmp_path, tmp_path / "log", lambda _: None)
    assert (tmp_path / "docker.tar").is_file()


def test_a_missing_tool_of_a_disk_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "CLEAN_PATH", str(tmp_path))
    with pytest.raises(UsageError, match="apt-get install -y e2fsprogs qemu-utils"):
        artefacts.check_tools("qcow2")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["build.py", *arguments])
    return build.main()


def test_an_added_disk_is_recorded_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "become_root", lambda *_: None)
    disk = tmp_path / "from-elsewhere.qcow2"
    disk.write_bytes(foreign.QCOW2_MAGIC + b"rest")
    home = tmp_path / "home"
    assert run(monkeypatch, "add", "theirs", str(disk), "--home", str(home)) == 0
    manifest = read_manifest(home / "images/theirs/current/manifest.json")
    assert manifest.artefacts["qcow2"]["bytes"] == 8
    assert (home / "images/theirs/current/disk.qcow2").read_bytes() == disk.read_bytes()
    assert not (home / "images/theirs/current/rootfs").exists()


@pytest.mark.parametrize(
    ("name", "what", "said"),
    [
        ("theirs", "missing", "there is no"),
        ("theirs", "text", "neither a directory nor a tar nor a qcow2"),
        ("theirs", "empty", "no root file system"),
        ("theirs", "stranger", "no account 'user'"),
        ("basic", "empty", "a name of its own"),
        ("../up", "empty", "a name of its own"),
    ],
)
def test_what_is_no_image_is_refused_before_anything_starts(
    name: str, what: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("words", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for file, text in (("usr/bin/python3", ""), ("etc/passwd", "root:x:0:0::/root:/bin/sh\n")):
        path = tmp_path / "stranger" / file
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    home = tmp_path / "home"
    assert run(monkeypatch, "add", name, str(tmp_path / what), "--home", str(home)) == 2
    assert said in capsys.readouterr().err
    assert not home.exists()


def test_the_digest_of_a_tree_follows_its_listing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x", encoding="utf-8")
    before = foreign.listing_digest(tmp_path)
    assert foreign.listing_digest(tmp_path) == before
    (tmp_path / "a").chmod(0o700)
    assert foreign.listing_digest(tmp_path) != before
