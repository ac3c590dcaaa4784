"""Where OSWorld's own data is. Role: `data()` for tests that read it. Rule: it lies beside this checkout, or `DART_OSWORLD_TASKS` names the
directory of its `examples`; a test that needs it is skipped with the reason where it is not. Non-goals: what is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "osworld" / "examples"


def data() -> Path:
    """The folder that holds `examples` and the lists beside it; skips the test where it is not there."""
    examples = Path(os.environ.get("DART_OSWORLD_TASKS") or BESIDE)
    if not examples.is_dir():
        pytest.skip(
            "OSWorld's data is not beside this checkout; DART_OSWORLD_TASKS names the directory of its `examples`"
        )
    return examples.parent
