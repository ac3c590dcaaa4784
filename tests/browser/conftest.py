"""Fixtures: a farm on a port of its own, and a real headless Chromium that looks at its page; its pictures go to `tests/artifacts`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from browser_page import BrowserPage, PageFarm
from live_host import browser_programs

ARTIFACTS = Path(__file__).resolve().parents[1] / "artifacts"
START_S, END_S, POLL_S = 90.0, 90.0, 0.1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def page_farm(place: Path, provider: str, snapshot_dir: Path, max_desktops: int) -> Iterator[PageFarm]:
    """`dart-farm serve` on a port of the loopback, until the block ends."""
    place.chmod(0o700)
    port = free_port()
    places = {"DART_RUNTIME_DIR": str(place), "DART_STATE_DIR": str(place), "DART_SNAPSHOT_DIR": str(snapshot_dir)}
    command = [sys.executable, "-m", "dart_server.cli", "serve", "--provider", provider]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-desktops", str(max_desktops)]
    with (place / "log").open("w") as log:
        farm = subprocess.Popen(command, env={**os.environ, **places}, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + START_S
        while not _ready(url):
            if farm.poll() is not None or time.monotonic() > deadline_s:
                pytest.fail(f"the farm did not start: {(place / 'log').read_text()[-2000:]}")
            time.sleep(POLL_S)
        yield PageFarm(url, (place / "farm.key").read_text().strip(), farm)
    finally:
        farm.terminate()
        farm.wait(timeout=END_S)


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def private_place() -> Iterator[Path]:
    """A short path: Unix sockets have short names."""
    place = Path(tempfile.mkdtemp(prefix="dart-page-"))
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def sim_farm(private_place: Path) -> Iterator[PageFarm]:
    with page_farm(private_place, "sim", private_place / "snapshots", 4) as farm:
        yield farm


@pytest.fixture
def live_farm(private_place: Path) -> Iterator[PageFarm]:
    snapshots = Path(tempfile.mkdtemp(prefix="dart-page-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        with page_farm(private_place, "runc", snapshots, 2) as farm:
            yield farm
    finally:
        shutil.rmtree(snapshots, ignore_errors=True)


OpenPage = Callable[[PageFarm], BrowserPage]


@pytest.fixture
def open_page(request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """Opens the farm's page in a new browser, which is ended after the test; what a failing test saw is kept."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = (shutil.which(name) for name in browser_programs().values())
    pages: list[BrowserPage] = []
    profiles: list[str] = []

    def opened(farm: PageFarm) -> BrowserPage:
        profiles.append(tempfile.mkdtemp(prefix="dart-browser-"))
        options = webdriver.ChromeOptions()
        options.binary_location = str(program)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio"]
        arguments += ["--window-size=1366,768", f"--user-data-dir={profiles[-1]}", "--no-proxy-server"]
        # The browser's own sandbox needs what containers rarely have; it looks at the page under test only.
        arguments += ["--no-sandbox"]
        for argument in arguments:
            options.add_argument(argument)
        page = BrowserPage(webdriver.Chrome(options=options, service=Service(driver)), farm.url, ARTIFACTS)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.picture(f"last-{request.node.name}")
        page.close()
    for profile in profiles:
        shutil.rmtree(profile, ignore_errors=True)
