"""schemathesis over the whole API: no 5xx but the documented ones, no undocumented status, every check on. A farm of its own on `sim`.

The brief run is seeded; the long one takes another seed every time and says which. All of this directory is `make fuzz`, which shows the
figures of each run: requests, scenarios, findings.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from served_farm import free_port, served_farm

HERE = Path(__file__).parent
BRIEF_S, LONG_S = 25, 480


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URL and admin key."""
    place = tmp_path / "farm"
    place.mkdir()
    with served_farm(place, provider="sim", max_desktops=8, port=free_port()) as url:
        yield url, (place / "farm.key").read_text().strip()


def fuzz(farm: tuple[str, str], place: Path, seed: int, seconds: int, *options: str) -> None:
    """Run schemathesis; a failure shows its report."""
    url, key = farm
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run"]
    command += [f"{url}/openapi.json", "-H", f"Authorization: Bearer {key}", "--checks", "all", "--no-color"]
    command += ["--seed", str(seed), "--max-time", str(seconds), *options]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py"), "FUZZ_URL": url, "FUZZ_KEY": key}
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, timeout=2 * seconds + 60)
    print(done.stdout[-3000:])
    log = (place / "farm" / "log").read_text()
    assert done.returncode == 0, f"seed {seed}\n{done.stdout[-20000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in log, log[-5000:]
    body = {"client_request_id": "after-the-storm", "wait_s": 60}
    reply = httpx.post(f"{url}/v1/leases", json=body, headers={"authorization": f"Bearer {key}"}, timeout=90)
    assert reply.status_code == 200, "the farm serves on"


@pytest.mark.timeout(4 * BRIEF_S)
def test_no_route_breaks_its_word_in_half_a_minute(farm: tuple[str, str], tmp_path: Path) -> None:
    options = ("--phases", "examples,fuzzing,stateful", "--max-examples", "2", "--no-shrink")
    fuzz(farm, tmp_path, 20260301, BRIEF_S, "--generation-deterministic", *options)


@pytest.mark.slow
@pytest.mark.timeout(2 * LONG_S)
def test_no_route_breaks_its_word_for_long(farm: tuple[str, str], tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**31)
    fuzz(farm, tmp_path, seed, LONG_S, "--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "100")
