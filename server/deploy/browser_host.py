#!/usr/bin/env python3
"""Run a command with a real browser at hand: Chromium with its driver, and the dashboard's viewer.

Role: the browser behind `make test-browser`. Rule: what the host has is used, else Debian's packages are installed; nothing else is
downloaded but the viewer, which is checked by its sha512. Standard library only. Non-goals: starting the browser (the tests do).
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from host_packages import SetupFailed, check_sudo, default_home, install_novnc, install_packages, say
from supervised_command import run_supervised

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
DRIVER = "chromedriver"
PACKAGES = ["chromium", "chromium-driver", "fonts-dejavu-core"]


def find_browser() -> tuple[str, str] | None:
    """(browser, driver) of this host, None where one is missing."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)
    driver = shutil.which(DRIVER)
    return (browser, driver) if browser is not None and driver is not None else None


def ensure_browser() -> tuple[str, str]:
    """The same, installed from the distribution when one is missing. Raises `SetupFailed`."""
    there = find_browser()
    if there is None:
        if shutil.which("apt-get") is None:
            raise SetupFailed("There is no Chromium with its driver and no apt-get: install both.")
        check_sudo()
        install_packages(PACKAGES)
        there = find_browser()
    if there is None:
        raise SetupFailed(f"The packages {' '.join(PACKAGES)} were installed, but there is no browser with its driver.")
    return there


def main() -> int:
    """The command's exit code; 2 with one sentence when there is no browser to be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND [ARGUMENT ...]")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command was given")
    try:
        program, driver = ensure_browser()
        install_novnc(Path(sys.executable), default_home())
    except SetupFailed as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 2
    say(f"browser: {program}")
    environment = {**os.environ, "DART_BROWSER": program, "DART_BROWSER_DRIVER": driver}
    return run_supervised(command, environment)


if __name__ == "__main__":
    sys.exit(main())
