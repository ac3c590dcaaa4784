"""Makes the osworld scorer's environment.

Role: `install(folder, extras)`. Rule: from PyPI alone (or the index that pip is configured with), pinned by version and sha256, without
the release's own dependencies; what is there already is not fetched again; the record is written last, so that an interrupted run is gone
on with.
Non-goals: running the scorer.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dart_envs.errors import DartEnvError
from dart_envs.scorer import paths
from dart_envs.scorer.paths import DISTRIBUTION, EXTRAS, Installation
from dart_envs.scorer.workers import ScorerWorker

SUPPORTED_PYTHONS = ((3, 11), (3, 12))
"""Versions that the pinned packages have wheels for."""
MIN_FREE_BYTES = 1_500_000_000
TAIL_CHARS = 1_500


class InstallError(DartEnvError):
    """The osworld scorer could not be installed."""


def check_prerequisites(extras: Sequence[str], python: str) -> None:
    """Raise InstallError for an unknown extra, or an interpreter that the pins do not fit."""
    unknown = sorted(set(extras) - set(EXTRAS))
    if unknown:
        raise InstallError(f"There is no extra {unknown[0]!r}; extras are {', '.join(EXTRAS)}.")
    command = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(f"{python} cannot be run: {error}") from error
    if (int(said[0]), int(said[1])) not in SUPPORTED_PYTHONS:
        raise InstallError(
            f"The osworld scorer's packages need Python 3.11 or 3.12, not {'.'.join(said)}; name one with --python."
        )


def install(
    folder: Path, extras: Sequence[str] = (), *, python: str = sys.executable, on_message: Callable[[str], None] = print
) -> Installation:
    """Make or complete the environment in `folder`; what was installed with other extras keeps them. Raises InstallError."""
    check_prerequisites(extras, python)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "install.lock").open("w")
    except OSError as error:
        raise InstallError(f"{folder} cannot be written: {error.strerror}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallError(f"Another process is installing the scorer in {folder}; wait for it.") from None
        return _install(folder, tuple(extras), python, on_message)


def _install(folder: Path, extras: tuple[str, ...], python: str, on_message: Callable[[str], None]) -> Installation:
    before = paths.read_installation(folder)
    wanted = tuple(sorted({*extras, *(before.extras if before else ())}))
    digest = paths.pins_digest(wanted)
    if before is not None and before.pins == digest:
        on_message(f"OSWorld's scorer {before.release} is in {folder} ({', '.join(('base', *wanted))}); nothing to do.")
        return before
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < MIN_FREE_BYTES:
        raise InstallError(
            f"{folder} has {free_bytes / 1e9:.1f} GB free and the scorer needs {MIN_FREE_BYTES / 1e9:.1f} GB;"
            f" make room, or name another folder with {paths.DIRECTORY_VARIABLE}."
        )
    paths.record_path(folder).unlink(missing_ok=True)
    environment = folder / "venv"
    inner = paths.interpreter(folder)
    if not _environment_works(inner):
        on_message(f"Making a Python environment in {environment}.")
        _run([python, "-m", "venv", "--clear", str(environment)], "the environment")
    on_message(f"Installing {DISTRIBUTION}.")
    for file in paths.pin_files(wanted):
        on_message(f"Installing the packages of {file.stem}.")
        _run(pip_command(inner, file), f"the packages of {file.stem}")
    on_message("Starting it once.")
    with ScorerWorker(folder) as worker:
        hello = worker.request({"op": "hello"}, timeout_s=120.0)
    record = Installation(release=str(hello["release"]), python=str(hello["python"]), extras=wanted, pins=digest)
    paths.write_record(folder, record)
    on_message(f"OSWorld's scorer {record.release} is in {folder}.")
    return record


def pip_command(inner: Path, file: Path) -> list[str]:
    """How the packages of a requirement file are installed: nothing beside them, each checked by its sha256, and built by locked tools.

    What cannot be locked needs its dependencies too.
    """
    locked = ["--no-deps", "--require-hashes", "--no-build-isolation"] if paths.is_hash_locked(file) else []
    pip = [str(inner), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    return [*pip, *locked, "-r", str(file)]


def _environment_works(inner: Path) -> bool:
    """Whether an environment's Python and pip run."""
    try:
        ended = subprocess.run([str(inner), "-m", "pip", "--version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return ended.returncode == 0


def _run(command: list[str], what: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise InstallError(f"Cannot install {what}: {error}") from error
    if ended.returncode != 0:
        raise InstallError(
            f"Installing {what} failed; the same command goes on from here. {(ended.stderr or ended.stdout)[-TAIL_CHARS:].strip()}"
        )
