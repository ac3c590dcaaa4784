"""Digests follow what goes into an image and nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from imagebuild.errors import BuildError
from imagebuild.manifest import (
    Manifest,
    guest_digest,
    guest_files,
    image_digest,
    installed_packages,
    package_digests,
    read_manifest,
    recipe_digest,
    write_manifest,
)
from imagebuild.recipe import Application, Recipe, User


def guest(tmp_path: Path) -> Path:
    package = tmp_path / "guest" / "dart_guest"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('VERSION = "1"\n', encoding="utf-8")
    (package / "agent.py").write_text("x = 1\n", encoding="utf-8")
    return tmp_path / "guest"


def test_caches_and_documents_are_not_part_of_the_guest(tmp_path: Path) -> None:
    directory = guest(tmp_path)
    before = guest_digest(directory)
    (directory / "dart_guest" / "__pycache__").mkdir()
    (directory / "dart_guest" / "__pycache__" / "agent.cpython-311.pyc").write_bytes(b"\0")
    (directory / "protocol.md").write_text("words", encoding="utf-8")
    assert guest_digest(directory) == before
    assert [path.name for path in guest_files(directory)] == ["__init__.py", "agent.py"]


@pytest.mark.parametrize("change", ["content", "name", "mode", "more"])
def test_every_change_of_the_guest_changes_the_digest(tmp_path: Path, change: str) -> None:
    directory = guest(tmp_path)
    before = guest_digest(directory)
    agent = directory / "dart_guest" / "agent.py"
    match change:
        case "content":
            agent.write_text("x = 2\n", encoding="utf-8")
        case "name":
            agent.rename(agent.with_name("agent2.py"))
        case "mode":
            agent.chmod(0o755)
        case _:
            agent.with_name("more.py").write_text("", encoding="utf-8")
    assert guest_digest(directory) != before


def test_image_digest_needs_both_halves() -> None:
    assert len(image_digest("a", "b")) == 12
    assert len({image_digest("a", "b"), image_digest("a", "c"), image_digest("b", "a")}) == 3


def test_manifest_survives_the_disk(tmp_path: Path) -> None:
    made = Manifest("n", "d", "r", "g", "1", "bookworm", "amd64", 5, 2, "2026-01-01T00:00:00+00:00", 1.5, {"a": "1"})
    made = replace(made, applications=[Application(("xpad", "--new"), "push button", "New")])
    write_manifest(made, tmp_path / "manifest.json")
    assert read_manifest(tmp_path / "manifest.json") == made
    told = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    del told["applications"]
    (tmp_path / "manifest.json").write_text(json.dumps(told), encoding="utf-8")
    assert read_manifest(tmp_path / "manifest.json") == replace(made, applications=[]), "an image of an earlier builder"


def test_a_broken_manifest_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(BuildError, match="--force"):
        read_manifest(tmp_path / "manifest.json")


def test_only_installed_packages_are_listed(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(
        "Package: b\nStatus: install ok installed\nVersion: 2:1.0-1\nDescription: words\n more: words\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        "Package: a\nStatus: install ok installed\nVersion: 0.1\n",
        encoding="utf-8",
    )
    assert installed_packages(status) == {"a": ("0.1", 0), "b": ("2:1.0-1", 0)}


def test_the_files_of_a_recipe_are_part_of_its_digest(tmp_path: Path) -> None:
    recipe = Recipe("n", "bookworm", "m", "s", (), (), (), User("user", 1000, "p", ()))
    bare = recipe_digest(recipe, tmp_path / "none")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a").write_text("1", encoding="utf-8")
    one = recipe_digest(recipe, tmp_path / "files")
    (tmp_path / "files" / "a").write_text("2", encoding="utf-8")
    assert len({bare, one, recipe_digest(recipe, tmp_path / "files")}) == 3


def test_the_digests_of_packages_are_those_of_the_installed_versions(tmp_path: Path) -> None:
    main = "Package: a\nVersion: 0.1\nFilename: pool/a\nSHA256: {}\n\nPackage: b\nVersion: 1\nSHA256: {}\n\n"
    (tmp_path / "archive_main_binary-amd64_Packages").write_text(main.format("1" * 64, "2" * 64), encoding="utf-8")
    newer = f"Package: b\nVersion: 2\nDescription: words\n more: words\nSHA256: {'3' * 64}\n"
    (tmp_path / "security_main_binary-amd64_Packages").write_text(newer, encoding="utf-8")
    installed = {"a": ("0.1", 0), "b": ("2", 0), "c": ("1", 0)}
    assert package_digests(tmp_path, installed) == {"a": "1" * 64, "b": "3" * 64}
    assert package_digests(tmp_path / "none", installed) == {}
