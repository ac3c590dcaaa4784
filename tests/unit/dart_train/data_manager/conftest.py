"""Fixtures of the data manager's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dm_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, batch={"min_groups": 2, "max_groups": 3, "max_staleness": 2})
    yield made
    made.store.close()
