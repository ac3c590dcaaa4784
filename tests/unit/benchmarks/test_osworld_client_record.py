"""The record of OSWorld's client counts only what passed tests showed."""

from __future__ import annotations

import argparse
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks.environments.bench_osworld_client import figures, measure

REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="step_types" value="open sleep"/></properties></testcase>
<testcase name="b"><properties><property name="step_types" value="sleep launch"/>
<property name="actions" value="CLICK"/></properties></testcase>
<testcase name="c"><properties><property name="actions" value="PRESS"/></properties><failure message="no"/></testcase>
<testcase name="d"><skipped message="not here"/></testcase>
</testsuite></testsuites>"""


def test_only_what_passed_counts() -> None:
    found = figures(ElementTree.fromstring(REPORT))
    assert (found["step_types_passed"], found["step_types"]) == (3, ["launch", "open", "sleep"])
    assert (found["actions_passed"], found["actions"]) == (1, ["CLICK"])
    assert (found["tests_passed"], found["tests_failed"], found["tests_skipped"]) == (2, ["c"], ["d"])


def test_where_every_test_was_skipped_there_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip_all(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        (report,) = (Path(word.partition("=")[2]) for word in command if word.startswith("--junit-xml="))
        report.write_text('<testsuites><testsuite><testcase name="d"><skipped/></testcase></testsuite></testsuites>')
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", skip_all)
    with pytest.raises(SystemExit, match="every test was skipped"):
        measure(argparse.Namespace(provider="runc"))
