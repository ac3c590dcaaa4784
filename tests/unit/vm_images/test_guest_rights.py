from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dart_guest import rights

from dart_server.hostd.runtime import oci

SHOWN = "from dart_guest import rights; rights.bound(); import subprocess; subprocess.run(['grep', 'CapBnd', '/proc/self/status'])"


def test_a_machines_root_has_what_a_containers_root_has_and_the_clock() -> None:
    assert {f"CAP_{name.upper()}" for name in rights.KEPT} == {*oci.CAPABILITIES, "CAP_SYS_TIME"}


BECOMES = """
import subprocess
from dart_guest import rights
shown = subprocess.run(['sh', '-c', 'id -u; id -G; grep Cap /proc/self/status'], preexec_fn=lambda: rights.become(1000, 1001, [1001, 27]))
assert shown.returncode == 0
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give capabilities up for its children")


def run(program: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(rights.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    ).stdout.splitlines()


@as_root
def test_a_part_of_the_session_becomes_the_user_and_has_nothing() -> None:
    uid, groups, *shown = run(BECOMES)
    capabilities = {name: int(mask, 16) for name, mask in (line.split() for line in shown)}
    kept = sum(1 << number for number in rights.KEPT.values())
    assert (uid, groups) == ("1000", "1001 27")
    assert capabilities["CapEff:"] == capabilities["CapPrm:"] == 0
    assert 0 < capabilities["CapBnd:"] == capabilities["CapBnd:"] & kept


@as_root
def test_what_is_started_after_it_is_bounded() -> None:
    mine = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    (shown,) = run(SHOWN)
    kept = sum(1 << number for number in rights.KEPT.values())
    assert int(shown.split()[1], 16) == int(mine.split()[1], 16) & kept
