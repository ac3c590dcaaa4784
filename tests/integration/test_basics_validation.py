"""The bundled suite on live desktops: oracle 1, nothing 0, near miss 0, for families of several applications."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import live_host
import pytest

from dart_envs import tasks

FAMILIES = ("press_nth", "press_two", "choose_nth", "tick_nth", "write_line", "rename_file", "shell_write", "calculate")

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(600)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, str]]:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "DART_RUNTIME_DIR": str(runtime), "DART_PROVIDER": "runc"}
    environment.pop("DART_FARM_URL", None)
    yield environment
    subprocess.run([sys.executable, "-m", "dart_server.cli", "stop"], env=environment, check=False, timeout=60)


def _tasks(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dart_envs.cli.main", "tasks", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


def test_evaluators_tell_right_from_wrong(place: dict[str, str], tmp_path: Path) -> None:
    record = tmp_path / "validations.json"
    checked = _tasks(place, "check", "basics", "--families", ",".join(FAMILIES), "--json", str(record))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    validations = json.loads(record.read_text(encoding="utf-8"))["validations"]
    assert {(validation["family"], validation["kind"]) for validation in validations} == {
        (family, kind) for family in FAMILIES for kind in ("oracle", "noop", "near_miss")
    }
    assert all(validation["reward"] == (1.0 if validation["kind"] == "oracle" else 0.0) for validation in validations)


def test_windows_are_placed_between_the_panels_of_the_full_desktop(place: dict[str, str], tmp_path: Path) -> None:
    live_host.require_image("desktop")
    (step,) = (step for step in tasks.load("basics/tick_two/0000").config if step.type == "place_window")
    assert step.parameters["y"] < 0.03, "this one would lie under the panel"
    checked = _tasks(place, "check", "basics", "--families", "tick_two", "--image", "desktop")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_solution_is_played_with_screenshots(place: dict[str, str], tmp_path: Path) -> None:
    played = _tasks(place, "run", "basics/tick_nth/0002", "--save", str(tmp_path / "shots"))
    assert played.returncode == 0, played.stderr
    assert "reward 1" in played.stdout
    assert len(list((tmp_path / "shots").glob("*.png"))) == 3
