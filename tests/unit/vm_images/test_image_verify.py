"""What `verify` starts: the programs that it knows where the image has them, and those of the recipe, which must be there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import verify


class FakeFarm(verify.Farm):
    """A desktop with some programs, of which each shows one element when it is started."""

    def __init__(self, programs: dict[str, tuple[str, str]]) -> None:
        self.programs = programs
        self.size = (1920, 1080)
        self.started: list[str] = []

    def lease(self, image: str, size: tuple[int, int], font_size: int) -> None: ...
    def release(self) -> None: ...
    def beat(self) -> None: ...
    def takes_snapshots(self) -> bool:
        return False

    def execute(self, *argv: str, detach: bool = False) -> dict[str, Any]:
        if argv[0] == "which":
            return {"returncode": int(argv[1] not in self.programs), "stdout": ""}
        self.started.append(argv[0])
        return {"returncode": 0, "stdout": ""}

    def elements(self) -> list[dict[str, Any]]:
        shown = [self.programs[name] for name in self.started]
        return [{"role": role, "name": name, "x": 1, "y": 1, "w": 5, "h": 5} for role, name in shown]

    def frame(self, *events: dict[str, Any]) -> bytes:
        return bytes([len(self.started)])

    def still(self) -> bytes:
        return self.frame()

    def reset(self) -> None:
        self.started = []


@pytest.fixture(autouse=True)
def programs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "check_rest", lambda farm: "")
    monkeypatch.setattr(verify, "check_typing", lambda farm: "")


def manifest(folder: Path, *applications: tuple[str, str, str]) -> Path:
    told = [{"command": [program], "role": role, "name": name} for program, role, name in applications]
    (folder / "manifest.json").write_text(json.dumps({"applications": told}), encoding="utf-8")
    return folder / "manifest.json"


def test_the_recipes_programs_are_started_and_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = verify.recipe_applications(
        manifest(tmp_path, ("xpad", "push button", "New"), ("absent", "menu", "File"), ("gimp", "menu", "Nothing"))
    )
    farm = FakeFarm({"mousepad": ("menu", "File"), "xpad": ("push button", "New"), "gimp": ("menu", "Filters")})
    assert verify.verify(farm, "kiosk", 0.05, own) == 2
    said = capsys.readouterr().out
    for line in (
        "ok     mousepad", "ok     xpad", "FAILED absent: it is not in the image", "ok     gimp", "FAILED gimp: no menu 'Nothing'",
        "within 0.15 s, 3 times the limit of 0.05 s; the desktop shows menu 'Filters'",
    ):  # fmt: skip
        assert line in said


def test_a_program_that_shows_other_elements_is_told_with_those_of_its_role_first() -> None:
    menus = [{"role": "menu", "name": f"Menu {number}"} for number in range(60)]
    shown = [
        {"role": "label", "name": "x" * 100},
        {"role": "filler", "name": ""},
        *[{"role": "frame", "name": "GtkHash"}] * 20,
        *menus,
        {"role": "push button", "name": "CRC32:"},
        {"role": "push button", "name": "Hash"},
    ]
    said = verify.describe(shown, "push button")
    assert said.startswith("the desktop shows push button 'CRC32:', push button 'Hash', label 'xxx")
    assert "filler" not in said
    assert said.count("frame 'GtkHash'") == 1
    assert said.endswith("menu 'Menu 35', and 24 more")
    assert "no accessibility" in verify.describe([], "push button")


def test_a_manifest_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"applications": [{}]}', encoding="utf-8")
    for path in (tmp_path / "manifest.json", tmp_path / "absent.json"):
        with pytest.raises(verify.FarmFailure, match="not a readable manifest"):
            verify.recipe_applications(path)
