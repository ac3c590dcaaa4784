#!/usr/bin/env python3
"""Make the pictures of the README: the dashboard of a farm in use, and the gain of the demo.

`.venv/bin/python docs/images/make_pictures.py [dashboard|demo]`, on a host that runs live desktops, with Chromium and its driver
(`make test-browser` installs them). The dashboard shows a farm of its own; the plot is drawn from `benchmarks/results/demo.json`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAMS = (["galculator"], ["mousepad", "/etc/os-release"], ["thunar", "/usr/share"], ["lxterminal"])
"""What is open on the leased desktops."""
FARM_START_TIMEOUT_S = 90.0
SHOWN_S = 12.0
"""How long the page is open before its picture is taken."""


def dashboard() -> None:
    """Take a picture of the dashboard while four desktops are in use."""
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="dart-pictures-") as folder:
        settings = {"DART_RUNTIME_DIR": folder, "DART_STATE_DIR": folder, "DART_MAX_DESKTOPS": str(len(PROGRAMS) + 1)}
        environment = {**os.environ, **settings}
        farm = subprocess.Popen(
            [sys.executable, "-m", "dart_server.cli", "serve", "--port", str(port)], env=environment
        )
        stack = ExitStack()
        try:
            _wait_ready(url)
            key = (Path(folder) / "farm.key").read_text(encoding="ascii").strip()
            stack.enter_context(_used_desktops(url, key))
            options = webdriver.ChromeOptions()
            for word in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
                options.add_argument(word)
            driver = webdriver.Chrome(options=options)
            try:
                size = {"width": 1366, "height": 768, "deviceScaleFactor": 1, "mobile": False}
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                driver.get(f"{url}/dashboard")
                fields = WebDriverWait(driver, 30).until(
                    lambda page: [one for one in page.find_elements(By.CSS_SELECTOR, "input") if one.is_displayed()]
                )
                fields[0].send_keys(key + "\n")
                time.sleep(SHOWN_S)
                driver.save_screenshot(str(HERE / "dashboard.png"))
            finally:
                driver.quit()
        finally:
            stack.close()
            farm.terminate()
            farm.wait()


@contextmanager
def _used_desktops(url: str, key: str) -> Iterator[None]:
    """Lease desktops, and open one program on each."""
    from dart_envs import DesktopShape, FarmClient

    shape = DesktopShape(image="basic", resolution=(960, 600))
    with FarmClient.connect(url, key) as client, ExitStack() as leases:
        for number, program in enumerate(PROGRAMS):
            lease = leases.enter_context(client.lease(shape, labels={"task": program[0], "rollout": str(number)}))
            lease.exec(program, detach=True)
        yield


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


def demo() -> None:
    """Plot success before and after the demo, for each of its three seeds."""
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
    figure.savefig(HERE / "demo.png")


def main() -> None:
    """Make the pictures that are named, or all."""
    known = {"dashboard": dashboard, "demo": demo}
    for name in sys.argv[1:] or known:
        if name not in known:
            raise SystemExit(f"There is no picture {name!r}; choose from {', '.join(known)}.")
        known[name]()


if __name__ == "__main__":
    main()
