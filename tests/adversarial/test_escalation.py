"""The escalation book: no attempt of the farm server's uid, an ordinary user, makes anything as root.

What an attempt has reached is looked for from outside, as root, and the same look finds the holes that the test plants.
"""

from __future__ import annotations

import platform
import shutil

import escalation_attempts
import pytest
from escalation_scene import Scene

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(120)]
ATTEMPTS = escalation_attempts.BOOK
PLANTED = sorted(name for name in ATTEMPTS if name.startswith("planted_"))
REAL = sorted(set(ATTEMPTS) - set(PLANTED))
QUICK = {
    "fields_said_twice",
    "helper_of_another_user",
    "image_assembled_in_a_mount_namespace",
    "image_is_the_host",
    "image_link_leads_to_roots",
    "image_manifest_is_a_secret",
    "request_for_directories_of_roots",
    "request_with_other_fields",
    "squats_in_run",
    "sudo_another_program",
    "sudo_helper_instead_of_starter",
    "sudo_more_arguments",
    "sudo_path_of_the_script",
    "verbs_with_paths",
}
"""The guard in the default targets; the whole book is slow."""
SHARED_IDS = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) < (6, 3)
OPEN = (
    "directory_handed_to_root_inside",
    "directory_handed_through_a_shared_socket",
    "directory_handed_to_a_restored_copy",
    "ids_shared_for_a_directory_of_his",
    "ids_shared_for_want_of_processes",
)
"""Attempts that succeed where desktops share the user ids of the host: root of a desktop is root of the host there."""


def param(name: str) -> object:
    """An attempt as a case of the test."""
    marks = [] if name in QUICK else [pytest.mark.slow]
    if name in OPEN and SHARED_IDS:
        marks.append(pytest.mark.xfail(reason="this kernel gives desktops no user ids of their own"))
    return pytest.param(name, marks=marks)


def test_the_book_is_long_enough() -> None:
    assert len(REAL) >= 25
    assert len(escalation_attempts.BY_OTHERS) >= 15
    assert all(function.__doc__ for function in ATTEMPTS.values())


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_hole_is_seen(scene: Scene, name: str) -> None:
    hole = scene.place / "hole"
    shutil.copy("/usr/bin/install", hole)
    hole.chmod(0o4755)
    try:
        output = scene.run(name, hole)
        hole.unlink()
        assert scene.traces(output), output
    finally:
        hole.unlink(missing_ok=True)


@pytest.mark.parametrize("name", [param(name) for name in REAL])
def test_no_attempt_becomes_root(scene: Scene, name: str) -> None:
    output = scene.run(name)
    print(output)
    assert scene.traces(output) == [], f"{ATTEMPTS[name].__doc__}\n{output}"
