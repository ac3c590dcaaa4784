"""One root helper per state directory; the next one waits for one that is ending."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from dart_server.hostd import __main__ as helper
from dart_server.hostd.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(os.getuid(), tmp_path, tmp_path, images_dir=tmp_path, store_dir=tmp_path)
    layout.lock.parent.mkdir(parents=True, exist_ok=True)
    return layout


def test_one_that_is_ending_is_waited_for(layout: Layout) -> None:
    with layout.lock.open("a") as first, layout.lock.open("a") as second:
        helper.acquire_lock(first, layout)
        ends = threading.Timer(0.2, fcntl.flock, (first, fcntl.LOCK_UN))
        ends.start()
        helper.acquire_lock(second, layout)
        ends.join()
        with layout.lock.open("a") as third, pytest.raises(BlockingIOError):
            fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_one_that_serves_is_not(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "SHUTDOWN_TIMEOUT_S", 3600.0)
    layout.socket.touch()
    with layout.lock.open("a") as first, layout.lock.open("a") as second:
        helper.acquire_lock(first, layout)
        with pytest.raises(helper.StartupError, match="another helper already works"):
            helper.acquire_lock(second, layout)


def test_one_that_does_not_end_is_given_up(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "SHUTDOWN_TIMEOUT_S", 0.1)
    with layout.lock.open("a") as first, layout.lock.open("a") as second:
        helper.acquire_lock(first, layout)
        with pytest.raises(helper.StartupError):
            helper.acquire_lock(second, layout)
