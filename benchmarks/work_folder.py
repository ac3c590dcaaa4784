"""The folder in which a benchmark keeps what is done, so that the same command goes on where it was stopped.

Role: `work_folder` opens one, `kept_or_temporary` one that need not be named, `write_json` writes a record into it. Rule: one process works
on a folder at a time; what decides results is noted with the first call, and a call with other settings is refused before anything starts;
a record is there completely or not at all. Non-goals: what is kept (`benchmarks.ablation.session`, `benchmarks.grounding.arms`,
`benchmarks.training.bench_trainer`).
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dart_envs.errors import UnsupportedCapabilityError

SETTINGS, LOCK = "settings.json", "work.lock"


@contextmanager
def work_folder(folder: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Hold a work folder, which is made where it is not there.

    Args:
        folder: The folder.
        settings: What every call on it must agree on, as JSON values.

    Yields:
        Nothing; no other process works on the folder as long as the context lasts.

    Raises:
        UnsupportedCapabilityError: Another process works on it, it was made with other settings, or it holds files of something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with this process, however that ends
        except BlockingIOError:
            raise UnsupportedCapabilityError(
                f"another process works on {folder}: wait for it, or give another --work"
            ) from None
        _agree(folder, json.loads(json.dumps(settings)))
        yield


@contextmanager
def kept_or_temporary(folder: Path | None, settings: Mapping[str, Any], prefix: str) -> Iterator[Path]:
    """Hold a work folder, or a temporary folder where none is named.

    Args:
        folder: The work folder; None: a temporary one, from which no call goes on.
        settings: As in `work_folder`.
        prefix: Begin of the name of a temporary folder.

    Yields:
        The folder.

    Raises:
        UnsupportedCapabilityError: As in `work_folder`.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix=prefix) as made:
            yield Path(made)
        return
    with work_folder(folder, settings):
        yield folder


def write_json(file: Path, content: object) -> None:
    """Write a file at once or not at all.

    Args:
        file: The file.
        content: What JSON can hold.
    """
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, file)


def _agree(folder: Path, settings: dict[str, Any]) -> None:
    """Note the settings, or compare those of an earlier call. Raises UnsupportedCapabilityError."""
    file = folder / SETTINGS
    if not file.exists():
        if any(entry.name != LOCK for entry in folder.iterdir()):
            raise UnsupportedCapabilityError(f"{folder} holds files of something else: give another --work")
        write_json(file, settings)
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    changed = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
    if changed:
        raise UnsupportedCapabilityError(
            f"{folder} holds work with other settings ({', '.join(changed)}): give the same ones, or another --work"
        )
