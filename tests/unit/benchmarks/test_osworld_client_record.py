"""The record of OSWorld's client counts only what passed tests showed."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from benchmarks.bench_osworld_client import figures

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
