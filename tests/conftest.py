"""What all tests share: the one guard of tests that need more than Python (markers are kept by `live_host`, before any fixture starts
something), and a ledger's database of either kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import live_host
import pytest
from ledger_database import fresh_database


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in live_host.LACKING:
        if item.get_closest_marker(marker) is not None:
            live_host.require(marker)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind that a ledger may lie in."""
    with fresh_database(request.param, tmp_path) as url:
        yield url
