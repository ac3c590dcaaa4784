"""The examples of docs/clients.md, run as they stand against a farm of simulated desktops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_farm import served_farm

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def farm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("farm")
    with served_farm(place, provider="sim", environment={"DART_STATE_DIR": str(place)}) as url:
        yield url


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 7


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(farm_url: str, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[number]],
        env={**os.environ, "DART_FARM_URL": farm_url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{EXAMPLES[number]}\n{done.stderr}"
