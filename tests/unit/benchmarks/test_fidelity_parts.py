"""Parts of the benchmark `fidelity` that need no desktop: its digest, its census, its slope."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fidelity import bench_fidelity, digest
from benchmarks.fidelity.leaks import Census


def listing(top: Path, form: str) -> str:
    """What the tool that runs inside says of a tree that stands for a whole desktop."""
    program = digest.INSIDE.replace('visit("/", False)', f"visit({str(top)!r}, False)")
    arguments = [json.dumps([str(top / "excluded")]), json.dumps([str(top / "home")]), "changing", form]
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "root"
    for name in ("home/note", "usr/tool", "excluded/x"):
        (top / name).parent.mkdir(parents=True)
        (top / name).write_text("abc", encoding="utf-8")
    return top


def test_the_digest_is_that_of_the_listing(tree: Path) -> None:
    lines = digest.Listing(tuple(listing(tree, "lines").rstrip("\n").split("\n")))
    assert listing(tree, "digest").split()[0] == lines.digest
    assert not any("excluded" in line for line in lines.lines)


@pytest.mark.parametrize("change", ["content", "mode", "removed", "added", "link"])
def test_every_change_is_seen_and_named(tree: Path, change: str) -> None:
    before = digest.Listing(tuple(listing(tree, "lines").rstrip("\n").split("\n")))
    note = tree / "home" / "note"
    if change == "content":
        times = note.stat()
        note.write_text("xyz", encoding="utf-8")
        os.utime(note, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "mode":
        note.chmod(0o600)
    elif change == "removed":
        note.unlink()
    elif change == "added":
        note = tree / "usr" / "more"
        note.touch()
    else:
        note.unlink()
        note.symlink_to("/etc/passwd")
    after = digest.Listing(tuple(listing(tree, "lines").rstrip("\n").split("\n")))
    assert before.differences(after) == [str(note)]
    assert before.digest != after.digest


def test_only_growth_is_a_leak() -> None:
    before, after = Census(*range(10)), Census(*[5] * 10)
    assert after.grown(before) == dict(zip(Census.__slots__[:9], (5, 4, 3, 2, 1, 0, 0, 0, 0), strict=True))
    assert Census.least([before, after]) == Census(0, 1, 2, 3, 4, 5, 5, 5, 5, 5)


def test_a_growing_time_has_a_slope() -> None:
    assert bench_fidelity._slope([0.1, 0.2, 0.3]) == pytest.approx(0.1)
    assert bench_fidelity._slope([0.3]) == 0.0


def test_the_box_holds_every_pixel_that_differs() -> None:
    mine = np.zeros((10, 20, 3), np.uint8)
    theirs = mine.copy()
    assert bench_fidelity._differing(mine, theirs) is None
    theirs[3, 4, 1] = theirs[7, 15, 2] = 9
    assert bench_fidelity._differing(mine, theirs) == [4, 3, 15, 7]
