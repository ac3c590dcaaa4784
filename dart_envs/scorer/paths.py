"""Where the osworld scorer is, and what is installed there.

Role: paths, pins and the record of an installation. Rule: reading only; an installation counts once its record is written, which is the
last thing an install does. Non-goals: installing (`dart_envs.scorer.install`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from dart_server.wire.paths import data_dir

RELEASE = "1.0.2"
DISTRIBUTION = f"desktop-env=={RELEASE}"
DIRECTORY_VARIABLE = "DART_SCORER_DIR"
PINS = Path(__file__).parent / "pins"
WORKER_PACKAGE = Path(__file__).parent / "worker_process"
EXTRAS = ("audio", "googledrive", "ocr")
PACKAGE_EXTRAS = {
    "easyocr": "ocr",
    "fastdtw": "audio",
    "librosa": "audio",
    "pyacoustid": "audio",
    "pydrive": "googledrive",
}
"""The extra that brings a package which a metric may find missing."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The record of a finished installation."""

    release: str
    python: str
    extras: tuple[str, ...]
    pins: str
    """sha256 (hex) of the pins it was made from."""


def scorer_folder() -> Path:
    """The scorer's directory: `DART_SCORER_DIR`, else `scorer` in the user's data directory of DART."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named:
        return Path(named).expanduser()
    return data_dir() / "scorer"


def interpreter(folder: Path) -> Path:
    """The Python of the environment in `folder`."""
    return folder / "venv" / "bin" / "python"


def record_path(folder: Path) -> Path:
    """Where an installation's record is."""
    return folder / "scorer.json"


def pin_files(extras: Iterable[str]) -> list[Path]:
    """The requirement files in their order: what builds others, the release, the base, and those of `extras`."""
    return [
        PINS / "build.txt",
        PINS / "release.txt",
        PINS / "base.txt",
        *(PINS / f"{extra}.txt" for extra in sorted(extras)),
    ]


def is_hash_locked(file: Path) -> bool:
    """Whether a requirement file names the sha256 of every file that may be installed; that of OCR cannot, because of torch."""
    return file.stem != "ocr"


def pins_digest(extras: Iterable[str]) -> str:
    """sha256 (hex) of what `extras` installs."""
    digest = hashlib.sha256()
    for file in pin_files(extras):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def read_installation(folder: Path | None = None) -> Installation | None:
    """What is installed, None where nothing is, or not to its end."""
    folder = folder or scorer_folder()
    try:
        said = json.loads(record_path(folder).read_text(encoding="utf-8"))
        record = Installation(str(said["release"]), str(said["python"]), tuple(said["extras"]), str(said["pins"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if interpreter(folder).exists() else None


def write_record(folder: Path, record: Installation) -> None:
    """Write the record, whole or not at all."""
    written = record_path(folder).with_suffix(".new")
    written.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    written.replace(record_path(folder))
