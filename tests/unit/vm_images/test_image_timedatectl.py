"""The image's timedatectl: zones are listed, set and refused, without touching this machine's."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[3] / "vm_images/recipes/desktop/usr/local/bin/timedatectl"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program with a machine of its own: two zones, UTC set."""
    loader = importlib.machinery.SourceFileLoader("timedatectl", str(PROGRAM))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader.exec_module(module)
    zones = tmp_path / "zoneinfo"
    (zones / "Asia").mkdir(parents=True)
    (zones / "Asia" / "Tokyo").touch()
    (zones / "tzdata.zi").write_text("# version 1\nZ Asia/Tokyo 9 - JST\nL Asia/Tokyo Japan\n")
    (tmp_path / "localtime").symlink_to(zones / "UTC")
    monkeypatch.setattr(module, "ZONES", zones)
    monkeypatch.setattr(module, "LOCALTIME", tmp_path / "localtime")
    monkeypatch.setattr(module, "TIMEZONE", tmp_path / "timezone")
    return module


def test_a_zone_is_set(program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["set-timezone", "Asia/Tokyo"]) == 0
    assert program.main(["show"]) == 0
    assert capsys.readouterr().out.startswith("Timezone=Asia/Tokyo\n")
    assert (tmp_path / "timezone").read_text() == "Asia/Tokyo\n"


@pytest.mark.parametrize("name", ["", "Mars/Base", "../localtime", "/etc/passwd"])
def test_what_is_no_zone_is_refused(program: ModuleType, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["set-timezone", name]) == 1
    assert "Invalid or not installed" in capsys.readouterr().err
    assert program.zone() == "UTC"


def test_the_zone_stands_in_the_fourth_line_of_the_status(
    program: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main([]) == 0
    assert capsys.readouterr().out.splitlines()[3].strip().startswith("Time zone: UTC (")
    assert program.main(["list-timezones", "--no-pager"]) == 0
    assert capsys.readouterr().out.split() == ["Asia/Tokyo", "Japan", "UTC"]


def test_the_clock_cannot_be_set(program: ModuleType) -> None:
    assert program.main(["set-time", "12:00"]) == 1
    assert program.main(["set-time"]) == 1
