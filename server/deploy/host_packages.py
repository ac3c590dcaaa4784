"""The farm's host setup, importable by scripts that run before anything is installed.

This module re-exports parts of `dart_server.process.host_setup` and adds nothing of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dart_server.process.host_setup import (
    SetupFailed,
    as_root,
    check_host,
    check_sudo,
    default_home,
    in_archive,
    install_novnc,
    install_packages,
    run,
    say,
)

__all__ = [
    "SetupFailed",
    "as_root",
    "check_host",
    "check_sudo",
    "default_home",
    "in_archive",
    "install_novnc",
    "install_packages",
    "run",
    "say",
]
