"""`dart-farm serve --json`: whoever starts a farm as a process learns from its output where it serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx

SERVE = [sys.executable, "-m", "dart_server.cli", "serve", "--provider", "sim", "--port", "0", "--json"]


def test_a_farm_tells_where_it_serves_and_a_second_one_why_it_does_not(tmp_path: Path) -> None:
    place = tmp_path / "farm"
    place.mkdir(mode=0o700)
    environment = {**os.environ, "DART_RUNTIME_DIR": str(place), "DART_SNAPSHOT_DIR": str(place / "snapshots")}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(SERVE, env=environment, stdout=subprocess.PIPE, stderr=log) as farm,
    ):
        try:
            assert farm.stdout is not None
            told = json.loads(farm.stdout.readline())
            assert (told["pid"], told["provider"]) == (farm.pid, "sim")
            assert httpx.get(f"{told['url']}/readyz", trust_env=False).status_code == 200
            second = subprocess.run(SERVE, env=environment, capture_output=True, text=True, check=False)
        finally:
            farm.terminate()
    assert (second.returncode, second.stdout) == (2, "")
    refusal = json.loads(second.stderr.splitlines()[-1])
    assert refusal["error"] == "invalid"
    assert "dart-farm stop" in refusal["detail"]
