"""Fixtures of the end-to-end tests: a runtime directory of their own, so that no other farm of this user is touched."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short private directory (Unix sockets) that DART_RUNTIME_DIR points to; what is left there is reaped at the end."""
    path = Path(tempfile.mkdtemp(prefix="dart-e2e-"))
    monkeypatch.setenv("DART_RUNTIME_DIR", str(path))
    for name in ("DART_FARM_URL", "DART_PROVIDER", "DART_MAX_DESKTOPS"):
        monkeypatch.delenv(name, raising=False)
    yield path
    subprocess.run([sys.executable, "-m", "dart_server.cli", "reap", "--force"], check=False, capture_output=True)
    shutil.rmtree(path, ignore_errors=True)
