"""Typed text arrives exactly in fields of four toolkits: the benchmark `typing`, short.

The long run, ten thousand characters per field, is kept in `benchmarks/results/`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import live_host
import pytest

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(600)]

CHARACTERS = {"gtk": 500, "tk": 500, "writer": 150, "chromium": 500}


@pytest.mark.parametrize(
    "field",
    [pytest.param(field, marks=[pytest.mark.slow] if field in ("tk", "writer") else []) for field in CHARACTERS],
)
def test_text_of_many_scripts_arrives_exactly(field: str, tmp_path: Path) -> None:
    live_host.require_image("desktop")
    record = tmp_path / "typing.json"
    command = [sys.executable, "-m", "benchmarks", "typing", "--fields", field, "--json", str(record)]
    command += ["--characters", str(CHARACTERS[field]), "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    figures = json.loads(record.read_text(encoding="utf-8"))["figures"]
    assert figures["scripts"] >= 12
    assert figures[f"{field}_exact"] == CHARACTERS[field], figures[f"{field}_differences"]
