"""The record of the adversarial books, from a report of their tests."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from benchmarks.adversarial import bench_books

REPORT = """<testsuites><testsuite>
<testcase name="test_a_broken_desktop_gives_no_mask[kill]"/>
<testcase name="test_no_way_of_the_book_gives_a_mask[fill]"><failure message="masked"/></testcase>
<testcase name="test_an_untouched_desktop_is_judged"/>
<testcase name="test_a_planted_fault_of_the_host_is_masked[step-host_oom]"><skipped message="no"/></testcase>
<testcase name="test_fourteen_attacks_of_a_user_change_nothing_in_a_neighbour">
<properties><property name="attacks" value="14"/></properties></testcase>
<testcase name="test_no_attempt_becomes_root[sudo]"><error message="no scene"/></testcase>
</testsuite></testsuites>"""


def test_a_record_counts_cases_and_names_what_did_harm_or_never_ran() -> None:
    assert bench_books.figures(ElementTree.fromstring(REPORT), list(bench_books.BOOKS)) == {
        "sabotages": 2,
        "sabotages_failed": ["test_no_way_of_the_book_gives_a_mask[fill]"],
        "sabotages_skipped": [],
        "host_faults": 0,
        "host_faults_failed": [],
        "host_faults_skipped": ["test_a_planted_fault_of_the_host_is_masked[step-host_oom]"],
        "counter_attacks": 14,
        "counter_attacks_failed": [],
        "counter_attacks_skipped": [],
        "escalations": 1,
        "escalations_failed": ["test_no_attempt_becomes_root[sudo]"],
        "escalations_skipped": [],
    }


def test_every_test_of_a_book_exists() -> None:
    written = "".join((bench_books.TESTS / name).read_text(encoding="utf-8") for name in bench_books.FILES)
    assert all(f"def {name}(" in written for names in bench_books.BOOKS.values() for name in names)
