"""Directories of a farm of this user: its data, its socket, and the state that outlives it.

Rule: farm and clients look here, so that they agree; a farm with a runtime directory of its own shares its state with no other farm.
Non-goals: making directories, reading what is in them.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

KEY_FILE = "farm.key"
LOCK_FILE = "farm.lock"
"""Process and address of the farm that holds a runtime directory, as JSON."""


def data_dir() -> Path:
    """Return the directory of images, assets and the scorer: `DART_HOME`, else `$XDG_DATA_HOME/dart` or `~/.local/share/dart`."""
    if home := os.environ.get("DART_HOME"):
        return Path(home).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "dart"


def default_runtime_dir() -> Path:
    """`$XDG_RUNTIME_DIR/dart`, else `dart-<uid>` in the directory for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "dart" if runtime else Path(tempfile.gettempdir()) / f"dart-{os.getuid()}"


def runtime_dir() -> Path:
    """`DART_RUNTIME_DIR`, else the default: socket, lock and log of the farm."""
    named = os.environ.get("DART_RUNTIME_DIR")
    return Path(named) if named else default_runtime_dir()


def default_state_dir(runtime: Path) -> Path:
    """`$XDG_STATE_HOME/dart`, else `~/.local/state/dart`; of a farm with another runtime directory than the default: that directory."""
    if runtime != default_runtime_dir():
        return runtime
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "dart"


def state_dir(runtime: Path) -> Path:
    """The database, the admin key and the root of the tokens of the farm of a runtime directory: `DART_STATE_DIR`, else the default."""
    named = os.environ.get("DART_STATE_DIR")
    return Path(named) if named and runtime == runtime_dir() else default_state_dir(runtime)
