"""What of OSWorld's own client passes on live desktops of one provider: controller methods, actions, types of setup steps.

Role: runs `tests/integration/test_osworld_client.py` for the provider in a process of its own and makes the record from what its tests
tell. Rule: only what a passed test showed counts; a failed test is named; where none could run there is no record. The container engine or
libvirtd must run already (`server/deploy`), and the client be installed (`make osworld-client`). Non-goals: judging anything itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
SUITE = "tests/integration/test_osworld_client.py"
MARKERS = {"runc": "desktop", "docker": "docker", "libvirt": "libvirt"}
PROPERTIES = ("controller_methods", "actions", "step_types")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--provider", choices=tuple(MARKERS), default="runc")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the suite and read its report."""
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", SUITE, "-q", "-m", MARKERS[args.provider], f"--junit-xml={report}"]
        command += ["-o", "junit_family=xunit1"]
        ended = subprocess.run(
            command, cwd=HERE, check=False, stdout=sys.stderr, env={**os.environ, "DART_REQUIRE_LIVE": "1"}
        )
        if not report.exists():
            raise SystemExit(f"bench osworld_client: the tests did not run (exit code {ended.returncode})")
        found = figures(ElementTree.parse(report).getroot())
        if not found["tests_passed"] and not found["tests_failed"]:
            raise SystemExit("bench osworld_client: every test was skipped, for the reasons above")
        return {"provider": args.provider} | found


def figures(report: ElementTree.Element) -> dict[str, Any]:
    """`*_passed` (counts) and the names behind them, `tests_passed`, and the names of what was skipped or failed."""
    shown: dict[str, set[str]] = {name: set() for name in PROPERTIES}
    passed, skipped, failed = 0, [], []
    for case in report.iter("testcase"):
        name = case.get("name", "")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is not None:
            skipped.append(name)
        else:
            passed += 1
            for one in case.iter("property"):
                shown.setdefault(one.get("name", ""), set()).update((one.get("value") or "").split())
    counts = {f"{name}_passed": len(shown[name]) for name in PROPERTIES}
    names = {name: sorted(shown[name]) for name in PROPERTIES}
    return counts | names | {"tests_passed": passed, "tests_skipped": skipped, "tests_failed": failed}
