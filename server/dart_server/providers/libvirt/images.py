"""Disks of images: `<images>/<name>/current` holds `manifest.json`, and the files that it names under `artefacts`.

Rule: an image is named, never a path. What has our agent says so in its manifest; all others are from elsewhere. A disk without a kernel
beside it starts itself.
Non-goals: making them (`vm_images`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from dart_server.providers.base import IMAGE_PATTERN, ImageMissing


@dataclass(frozen=True, slots=True)
class VmImage:
    """A disk that is never written to, how it is started, and the image's digest."""

    disk: Path
    kernel: Path | None
    initrd: Path | None
    digest: str
    has_agent: bool
    """Whether our agent is inside, so that no network is needed to reach it."""


def find(images_dir: Path, name: str) -> VmImage:
    """Look an image up by name. Raises ImageMissing with the fix."""
    fix = f"make its disk: `dart-farm images build {name} --artefact qcow2`, or add one: `dart-farm images add {name} FILE`"
    place = (images_dir / name / "current").resolve()
    if not IMAGE_PATTERN.fullmatch(name) or not place.is_relative_to(images_dir.resolve()):
        raise ImageMissing(f"there is no image {name!r} in {images_dir}", hint=fix)
    try:
        manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        digest, has_agent = str(manifest["digest"]), bool(manifest.get("guest_digest"))
        files = {kind: place / Path(str(facts["file"])).name for kind, facts in manifest.get("artefacts", {}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImageMissing(f"there is no image {name!r} in {images_dir} ({error})", hint=fix) from error
    if not re.fullmatch(r"(sha256:)?[0-9a-f]{12,64}", digest):
        raise ImageMissing(f"the manifest of image {name!r} has a malformed digest", hint=fix)
    disk = files.get("qcow2")
    if disk is None or not disk.is_file():
        raise ImageMissing(f"the image {name!r} has no disk for virtual machines", hint=fix)
    told = digest if digest.startswith("sha256:") else f"sha256:{digest}"
    return VmImage(disk, files.get("kernel"), files.get("initrd"), told, has_agent)
