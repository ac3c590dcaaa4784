"""What the books of sabotages, host faults, attacks on shared counters, and escalations did to live desktops and to their helper.

Role: runs the tests of the books in a process of its own and makes the record from what they tell. Rule: only a test that ran counts; a
failed and a skipped one is named. Non-goals: judging anything itself; the attack book (`bench_attacks`).
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
TESTS = HERE / "tests" / "adversarial"
BOOKS = {
    "sabotages": ("test_a_broken_desktop_gives_no_mask", "test_no_way_of_the_book_gives_a_mask"),
    "host_faults": ("test_a_planted_fault_of_the_host_is_masked",),
    "counter_attacks": (
        "test_fourteen_attacks_of_a_user_change_nothing_in_a_neighbour",
        "test_fourteen_attacks_of_root_change_nothing_in_a_neighbour",
    ),
    "escalations": ("test_no_attempt_becomes_root",),
}
"""Book -> the tests that each try one of its cases, or as many as their property `attacks` says."""
FILES = ("test_sabotage_live.py", "test_host_faults.py", "test_shared_counters_live.py", "test_escalation.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of this benchmark."""
    parser.add_argument("--books", nargs="+", choices=tuple(BOOKS), default=list(BOOKS), help="which are tried")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Try every case and read the report."""
    names = " or ".join(name for book in args.books for name in BOOKS[book])
    with tempfile.TemporaryDirectory(prefix="dart-bench-") as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", *(str(TESTS / name) for name in FILES), "-q", "-n0", "-k", names]
        command += ["-m", "not docker and not libvirt", f"--junit-xml={report}", "-o", "junit_family=xunit1"]
        ended = subprocess.run(
            command, cwd=HERE, check=False, stdout=sys.stderr, env={**os.environ, "DART_REQUIRE_LIVE": "1"}
        )
        if not report.exists():
            raise SystemExit(f"bench books: the tests did not run (exit code {ended.returncode})")
        return figures(ElementTree.parse(report).getroot(), args.books)


def figures(report: ElementTree.Element, books: list[str]) -> dict[str, Any]:
    """By book: how many cases were tried (`NAME`), and the names of those that did harm (`NAME_failed`) or never ran (`NAME_skipped`).

    A sabotage does harm when its episode is masked or rewarded, a host's fault when its episode is not masked, an attack on a counter when
    the neighbour can do less than before, and an escalation when it leaves a trace of root.
    """
    found: dict[str, Any] = {}
    for book in books:
        found |= {book: 0, f"{book}_failed": [], f"{book}_skipped": []}
    for case in report.iter("testcase"):
        name = case.get("name", "")
        tried = [book for book in books if name.partition("[")[0] in BOOKS[book]]
        if not tried:
            continue
        (book,) = tried
        if case.find("skipped") is not None:
            found[f"{book}_skipped"].append(name)
            continue
        told = [one.get("value") for one in case.iter("property") if one.get("name") == "attacks"]
        found[book] += int(told[0] or 0) if told else 1
        if case.find("failure") is not None or case.find("error") is not None:
            found[f"{book}_failed"].append(name)
    return found
