"""What pictures are taken of: a farm with used desktops, and a browser.

Role: context managers that start them and end them, and how a page is waited for. Rule: a farm is one of its own, with its files in a
temporary folder. Non-goals: the pictures (`make_pictures`).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

FARM_START_TIMEOUT_S = 300.0
PAGE_TIMEOUT_S = 120.0


@contextmanager
def farm(desktops: int) -> Iterator[tuple[str, str]]:
    """A farm of its own. Gives its address and its admin key."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="dart-pictures-") as folder:
        settings = {"DART_RUNTIME_DIR": folder, "DART_STATE_DIR": folder, "DART_MAX_DESKTOPS": str(desktops)}
        command = [sys.executable, "-m", "dart_server.cli", "serve", "--port", str(port)]
        server = subprocess.Popen(command, env={**os.environ, **settings})
        try:
            _wait_ready(url)
            yield url, (Path(folder) / "farm.key").read_text(encoding="ascii").strip()
        finally:
            server.terminate()
            server.wait()


@contextmanager
def used_desktops(url: str, key: str, programs: tuple[list[str], ...]) -> Iterator[None]:
    """Lease desktops, and open one program on each."""
    from dart_envs import DesktopShape, FarmClient

    shape = DesktopShape(image="basic", resolution=(960, 600))
    with FarmClient.connect(url, key) as client, ExitStack() as leases:
        for number, program in enumerate(programs):
            lease = leases.enter_context(client.lease(shape, labels={"task": program[0], "rollout": str(number)}))
            lease.exec(program, detach=True)
        yield


@contextmanager
def browser(width: int, height: int) -> Iterator[Chrome]:
    """A browser whose page has this size."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(word)
    options.binary_location = os.environ.get("DART_BROWSER") or shutil.which("chromium") or ""
    program = os.environ.get("DART_BROWSER_DRIVER") or shutil.which("chromedriver")
    # Without the program's path Selenium looks for one on the Internet.
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(program))
    try:
        set_page_size(driver, width, height)
        yield driver
    finally:
        driver.quit()


def set_page_size(driver: Chrome, width: int, height: int) -> None:
    """Give the page a size in pixels."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def log_in(driver: Chrome, url: str, key: str) -> None:
    """Open the dashboard of a farm with a key."""
    driver.get(f"{url}/dashboard")
    wait(driver, "input").send_keys(key + "\n")


def wait(driver: Chrome, selector: str) -> WebElement:
    """The first visible element of a selector."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    def visible(page: Chrome) -> list[WebElement]:
        return [one for one in page.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]

    return WebDriverWait(driver, PAGE_TIMEOUT_S).until(visible, f"{selector} shows")[0]


def _wait_ready(url: str) -> None:
    deadline_s = time.monotonic() + FARM_START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"The farm did not start on {url} within {FARM_START_TIMEOUT_S:.0f} s; run dart-farm doctor.")
