"""A bill of materials: what a farm's Python environment and a desktop image are made of, as CycloneDX 1.5.

Role: read the packages that are locked (or installed) and those of an image's manifest and dpkg status, and write them as components.
Rule: from files of this host alone; the same input gives the same document. Non-goals: looking for known vulnerabilities.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

LOCK = Path(__file__).with_name("locked-packages.txt")
SPEC_VERSION = "1.5"
_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Package:
    """One package. sha256: of every file that it may be installed from."""

    kind: str
    name: str
    version: str
    sha256: tuple[str, ...] = ()
    architecture: str = ""

    @property
    def purl(self) -> str:
        """Its package URL."""
        version = self.version.replace("+", "%2B").replace(":", "%3A")
        if self.kind == "deb":
            suffix = f"?arch={self.architecture}" if self.architecture else ""
            return f"pkg:deb/debian/{self.name}@{version}{suffix}"
        return f"pkg:pypi/{re.sub(r'[-_.]+', '-', self.name).lower()}@{version}"

    def component(self) -> dict[str, Any]:
        """As CycloneDX writes it. One file is a hash of the component; several files are listed as properties."""
        made: dict[str, Any] = {
            "type": "library",
            "bom-ref": self.purl,
            "name": self.name,
            "version": self.version,
            "purl": self.purl,
        }
        if len(self.sha256) == 1:
            made["hashes"] = [{"alg": "SHA-256", "content": self.sha256[0]}]
        elif self.sha256:
            made["properties"] = [{"name": "dart:file:sha256", "value": digest} for digest in self.sha256]
        return made


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """How an image's packages compare with its manifest: one sentence for each difference."""

    problems: tuple[str, ...] = ()
    packages: tuple[Package, ...] = field(default=(), repr=False)


def locked_packages(lock: Path = LOCK) -> list[Package]:
    """The packages of a requirement file with hashes, each version once."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        requirement = _REQUIREMENT.match(line)
        if requirement:
            found[(requirement[1], requirement[2])] = tuple(_HASH.findall(line))
    return [Package("pypi", name, version, hashes) for (name, version), hashes in sorted(found.items())]


def installed_packages(lock: Path = LOCK) -> list[Package]:
    """The packages of this Python environment, with the hashes of those that have a locked version."""
    hashes = {(_normal(one.name), one.version): one.sha256 for one in locked_packages(lock)}
    found = {(_normal(one.metadata["Name"]), one.version) for one in metadata.distributions() if one.metadata["Name"]}
    return [Package("pypi", name, version, hashes.get((name, version), ())) for name, version in sorted(found)]


def image_packages(place: Path) -> ImageCheck:
    """The Debian packages of an installed image: what dpkg says inside, compared with what its manifest recorded.

    Args:
        place: The image's directory, with `manifest.json`.

    Raises:
        OSError: The manifest cannot be read.
        ValueError: The manifest is no JSON object.
    """
    told = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    if not isinstance(told, dict):
        raise ValueError("the manifest is no JSON object")
    recorded: Mapping[str, str] = told.get("packages") or {}
    hashes: Mapping[str, str] = told.get("package_sha256") or {}
    status = place / "rootfs" / "var" / "lib" / "dpkg" / "status"
    if not status.is_file():
        packages = [_deb(name, version, "", hashes) for name, version in sorted(recorded.items())]
        return ImageCheck((), tuple(packages))
    inside = {name: (version, architecture) for name, version, architecture in _dpkg_status(status)}
    problems = [f"{name}: recorded as {recorded[name]}, not installed" for name in sorted(set(recorded) - set(inside))]
    problems += [f"{name}: installed, not recorded" for name in sorted(set(inside) - set(recorded))]
    problems += [
        f"{name}: recorded as {recorded[name]}, installed as {inside[name][0]}"
        for name in sorted(set(inside) & set(recorded))
        if inside[name][0] != recorded[name]
    ]
    if hashes:
        problems += [f"{name}: without a recorded sha256" for name in sorted(set(recorded) - set(hashes))]
    packages = [_deb(name, version, architecture, hashes) for name, (version, architecture) in sorted(inside.items())]
    return ImageCheck(tuple(problems), tuple(packages))


def document(subject: str, version: str, packages: Iterable[Package]) -> dict[str, Any]:
    """A CycloneDX document.

    Args:
        subject: What is made of the packages.
        version: Its version or digest.
        packages: The packages.
    """
    components = [one.component() for one in packages]
    serial = uuid.uuid5(_NAMESPACE, json.dumps([subject, version, components], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": subject, "name": subject, "version": version}},
        "components": components,
    }


def _deb(name: str, version: str, architecture: str, hashes: Mapping[str, str]) -> Package:
    return Package("deb", name, version, (hashes[name],) if name in hashes else (), architecture)


def _dpkg_status(status: Path) -> Iterator[tuple[str, str, str]]:
    """(name, version, architecture) of the packages that are installed."""
    for paragraph in status.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" ")
        )
        if fields.get("Status", "").endswith(" installed"):
            yield fields["Package"], fields["Version"], fields.get("Architecture", "")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
