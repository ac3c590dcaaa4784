"""The one guard of tests that need more than Python: markers are kept by `live_host`, before any fixture starts something."""

from __future__ import annotations

import live_host
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in live_host.LACKING:
        if item.get_closest_marker(marker) is not None:
            live_host.require(marker)
