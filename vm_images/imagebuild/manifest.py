"""Digests and manifests: what identifies an image and what it turned out to hold.

Role: hash recipe and guest files; write and read `manifest.json`.
Rule: the digest covers what goes in, never when or where it was built.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from imagebuild.errors import BuildError
from imagebuild.recipe import Application, Recipe

BUILDER_FORMAT = 1
"""Raised when the builder itself makes something different of the same recipe."""

DIGEST_LENGTH = 12
IGNORED_PARTS = frozenset({"__pycache__"})


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was built. Sizes in bytes, `build_s` in seconds, `built_at` ISO 8601 in UTC."""

    name: str
    digest: str
    recipe_digest: str
    guest_digest: str
    guest_version: str
    suite: str
    architecture: str
    size_bytes: int
    files: int
    built_at: str
    build_s: float
    packages: dict[str, str] = field(default_factory=dict)
    """Package name -> version, as installed."""

    package_bytes: dict[str, int] = field(default_factory=dict)
    """Package name -> installed size that the package states."""

    package_sha256: dict[str, str] = field(default_factory=dict)
    """Package name -> sha256 of the file that it was installed from, as the signed lists of the archive state it."""

    applications: list[Application] = field(default_factory=list)
    """What `verify` starts beside the programs that it knows."""

    artefacts: dict[str, dict[str, str | int]] = field(default_factory=dict)
    """Kind (docker, qcow2, kernel, initrd) -> {file, bytes, sha256}; files lie beside the manifest."""


def recipe_digest(recipe: Recipe, files: Path) -> str:
    """64 hex digits over the recipe, the files it adds (the directory `files`, if there is one) and the builder's format."""
    text = f"{BUILDER_FORMAT}\n{recipe.canonical()}"
    if files.is_dir():
        text += f"\n{tree_digest(entries(files, recipe_files(files)))}"
    return hashlib.sha256(text.encode()).hexdigest()


def packages_digest(recipe: Recipe) -> str:
    """The name of the recipe's packages layer."""
    return hashlib.sha256(f"{BUILDER_FORMAT}\n{recipe.packages_canonical()}".encode()).hexdigest()[:DIGEST_LENGTH]


def recipe_files(directory: Path) -> list[Path]:
    """The files that a recipe adds to the system, in a fixed order."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def entries(top: Path, paths: Iterable[Path]) -> Iterator[tuple[str, bytes, bool]]:
    """(name under `top`, content, executable) of files."""
    for path in paths:
        yield str(path.relative_to(top)), path.read_bytes(), bool(path.stat().st_mode & 0o111)


def guest_files(guest_dir: Path) -> list[Path]:
    """The files that go into the image, or are compiled for it, in a fixed order."""
    return sorted(
        path
        for path in guest_dir.rglob("*")
        if path.is_file() and not IGNORED_PARTS & set(path.parts) and path.suffix in (".py", ".c", "")
    )


def guest_digest(guest_dir: Path) -> str:
    """64 hex digits over the guest's files: names, contents, executable bits."""
    return tree_digest(entries(guest_dir, guest_files(guest_dir)))


def tree_digest(entries: Iterable[tuple[str, bytes, bool]]) -> str:
    """Hash (name, content, executable) entries."""
    total = hashlib.sha256()
    for name, content, executable in entries:
        part = hashlib.sha256(content).hexdigest()
        total.update(f"{name}\0{int(executable)}\0{part}\n".encode())
    return total.hexdigest()


def image_digest(of_recipe: str, of_guest: str) -> str:
    """The image's directory name."""
    return hashlib.sha256(f"{of_recipe}\n{of_guest}".encode()).hexdigest()[:DIGEST_LENGTH]


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write as readable JSON."""
    path.write_text(json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(path: Path) -> Manifest:
    """Read; raises BuildError when it is missing or broken."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        applications = [
            Application(tuple(one["command"]), one["role"], one["name"]) for one in told.pop("applications", ())
        ]
        return Manifest(**told, applications=applications)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BuildError(f"{path} is not a readable manifest; build the image again with --force") from error


def installed_packages(status_file: Path) -> dict[str, tuple[str, int]]:
    """Name -> (version, installed size in bytes) of the packages that dpkg's status file calls installed."""
    found: dict[str, tuple[str, int]] = {}
    for paragraph in status_file.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = (fields["Version"], int(fields.get("Installed-Size", "0")) * 1024)
    return dict(sorted(found.items()))


def package_digests(lists: Path, installed: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """Name -> sha256 of the files of installed packages, from apt's lists (`*_Packages`), against which apt checked them."""
    found: dict[str, str] = {}
    for file in sorted(lists.glob("*_Packages")):
        with file.open(encoding="utf-8") as lines:
            fields: dict[str, str] = {}
            for line in itertools.chain(lines, ("\n",)):
                if line != "\n":
                    name, _, value = line.partition(": ")
                    if name in ("Package", "Version", "SHA256"):
                        fields[name] = value.strip()
                    continue
                package = fields.get("Package", "")
                if package in installed and installed[package][0] == fields.get("Version") and "SHA256" in fields:
                    found[package] = fields["SHA256"]
                fields = {}
    return dict(sorted(found.items()))
