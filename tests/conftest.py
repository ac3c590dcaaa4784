"""What all tests share: the one guard of tests that need more than Python (markers are kept by `live_host`, before any fixture starts
something), a database's database of either kind, and that no test uses the farm of whoever runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import live_host
import pytest
from database_urls import fresh_database

OF_A_FARM = ("DART_STATE_DIR", "DART_DB_URL", "DART_FARM_URL", "DART_API_KEY")
"""Settings of a farm that a person works with. A test's own farm would write into its database, or look for its key there."""


def pytest_configure() -> None:
    for name in OF_A_FARM:
        os.environ.pop(name, None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in live_host.LACKING:
        if item.get_closest_marker(marker) is not None:
            live_host.require(marker)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind that a database may lie in."""
    with fresh_database(request.param, tmp_path) as url:
        yield url
