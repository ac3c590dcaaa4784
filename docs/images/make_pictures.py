#!/usr/bin/env python3
"""Make the pictures of the documentation, each from something real.

`.venv/bin/python docs/images/make_pictures.py [NAME ...]`, on a host that runs live desktops, with Chromium and its driver
(`make test-browser` installs them). `dashboard` and `live-view` use desktops of a farm of their own. `demo` is drawn from
`benchmarks/results/demo.json`. `report` and `watch` show a finished run (`--run FOLDER`).

Rule: a picture has at most 256 colours and `LIMIT_KIB`; a larger one is an error. Non-goals: how the pages look (`tests/browser`).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = (["galculator"], ["mousepad", "/etc/os-release"], ["thunar", "/usr/share"], ["lxterminal"])
"""What is open on the leased desktops of the dashboard."""
FARM_START_TIMEOUT_S = 300.0
PAGE_TIMEOUT_S = 120.0
SHOWN_S = 12.0
"""How long the page is open before its picture is taken."""
LIMIT_KIB = 200
COLUMNS = 110


def dashboard(options: argparse.Namespace) -> None:
    """The dashboard while four desktops are in use."""
    with _farm(len(PROGRAMS) + 1) as (url, key), _used_desktops(url, key, PROGRAMS), _browser(1366, 768) as driver:
        _log_in(driver, url, key)
        time.sleep(SHOWN_S)
        _save(driver.get_screenshot_as_png(), "dashboard")


def live_view(options: argparse.Namespace) -> None:
    """The live view of one desktop, watched."""
    with _farm(1) as (url, key), _used_desktops(url, key, PROGRAMS[1:2]), _browser(1366, 768) as driver:
        _log_in(driver, url, key)
        _wait(driver, ".tile:has(.chip.leased)").click()
        _wait(driver, ".screen canvas")
        time.sleep(SHOWN_S)
        _save(driver.get_screenshot_as_png(), "live-view")


def report(options: argparse.Namespace) -> None:
    """The head of a run's report."""
    page = _needed(options.run, "--run") / "report" / "index.html"
    with _browser(1100, 1100) as driver:
        driver.get(page.resolve().as_uri())
        _save(driver.get_screenshot_as_png(), "report")


def watch(options: argparse.Namespace) -> None:
    """What `dart-train watch` prints of a run."""
    from rich.console import Console
    from rich.text import Text

    run = _needed(options.run, "--run")
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "dart_train.cli", "watch", str(run), "--once"]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(printed.rstrip()))
    with tempfile.TemporaryDirectory(prefix="dart-pictures-") as folder, _browser(1100, 800) as driver:
        drawn = Path(folder) / "watch.svg"
        drawn.write_text(console.export_svg(title=f"dart-train watch {run.name} --once"), encoding="utf-8")
        page = Path(folder) / "watch.html"
        page.write_text('<body style="margin:0"><img id="drawn" src="watch.svg" width="1100"></body>', encoding="utf-8")
        driver.get(page.as_uri())
        _save(_wait(driver, "#drawn").screenshot_as_png, "watch")


def demo(options: argparse.Namespace) -> None:
    """Success before and after the demo, for each of its three seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = json.loads((ROOT / "benchmarks" / "results" / "demo.json").read_text(encoding="utf-8"))["figures"]["runs"]
    seeds = [name for name in sorted(runs) if name.startswith("seed-")]
    figure, axes = pyplot.subplots(figsize=(7.2, 2.6), dpi=150)
    for offset, key, color, label in (
        (-0.2, "before_percent", "#b9c2d0", "after the warm start"),
        (0.2, "after_percent", "#3b5bdb", "after GRPO"),
    ):
        values = [runs[name][key] for name in seeds]
        bars = axes.bar([index + offset for index in range(len(seeds))], values, 0.38, color=color, label=label)
        axes.bar_label(bars, fmt="%.0f %%", fontsize=8, padding=2)
    axes.set_xticks(range(len(seeds)), [name.replace("-", " ") for name in seeds])
    axes.set_ylim(0, 112)
    axes.set_ylabel("success, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=2, fontsize=8)
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    _save(drawn.getvalue(), "demo")


@contextmanager
def _farm(desktops: int) -> Iterator[tuple[str, str]]:
    """A farm of its own. Gives its address and its admin key."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="dart-pictures-") as folder:
        settings = {"DART_RUNTIME_DIR": folder, "DART_STATE_DIR": folder, "DART_MAX_DESKTOPS": str(desktops)}
        command = [sys.executable, "-m", "dart_server.cli", "serve", "--port", str(port)]
        farm = subprocess.Popen(command, env={**os.environ, **settings})
        try:
            _wait_ready(url)
            yield url, (Path(folder) / "farm.key").read_text(encoding="ascii").strip()
        finally:
            farm.terminate()
            farm.wait()


@contextmanager
def _used_desktops(url: str, key: str, programs: tuple[list[str], ...]) -> Iterator[None]:
    """Lease desktops, and open one program on each."""
    from dart_envs import DesktopShape, FarmClient

    shape = DesktopShape(image="basic", resolution=(960, 600))
    with FarmClient.connect(url, key) as client, ExitStack() as leases:
        for number, program in enumerate(programs):
            lease = leases.enter_context(client.lease(shape, labels={"task": program[0], "rollout": str(number)}))
            lease.exec(program, detach=True)
        yield


@contextmanager
def _browser(width: int, height: int) -> Iterator[Chrome]:
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
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield driver
    finally:
        driver.quit()


def _log_in(driver: Chrome, url: str, key: str) -> None:
    driver.get(f"{url}/dashboard")
    _wait(driver, "input").send_keys(key + "\n")


def _wait(driver: Chrome, selector: str) -> WebElement:
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


def _save(png: bytes, name: str) -> None:
    """Write a picture with few colours. Raises SystemExit for one that is too large for the repository."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    path = HERE / f"{name}.png"
    small.save(path, optimize=True)
    size_kib = path.stat().st_size / 1024
    if size_kib > LIMIT_KIB:
        raise SystemExit(f"{path} has {size_kib:.0f} KiB, more than {LIMIT_KIB}: show less of the page.")
    print(f"{path}: {size_kib:.0f} KiB")


def _needed(folder: Path | None, option: str) -> Path:
    if folder is None or not folder.is_dir():
        raise SystemExit(f"This picture needs {option} FOLDER; `--help` says what it has to hold.")
    return folder


PICTURES: dict[str, Callable[[argparse.Namespace], None]] = {
    "dashboard": dashboard,
    "live-view": live_view,
    "demo": demo,
    "report": report,
    "watch": watch,
}


def main() -> None:
    """Make the pictures that are named, or all."""
    parser = argparse.ArgumentParser(description="Make the pictures of the documentation.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(PICTURES)}; default: all")
    parser.add_argument("--run", type=Path, help="folder of a finished run, for report and watch")
    options = parser.parse_args()
    for name in options.names:
        if name not in PICTURES:
            parser.error(f"there is no picture {name!r}; choose from {', '.join(PICTURES)}")
    for name in options.names or PICTURES:
        PICTURES[name](options)


if __name__ == "__main__":
    main()
