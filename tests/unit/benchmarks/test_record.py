"""The record of a benchmark."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import __main__ as command


def test_a_record_keeps_the_arguments_of_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "modules", lambda: {"fake": "tests.unit.benchmarks.fake_benchmark"})
    file = tmp_path / "record.json"
    monkeypatch.setattr("sys.argv", ["benchmarks", "fake", "--seeds", "3", "--json", str(file)])
    assert command.main() == 0
    assert json.loads(file.read_text())["arguments"] == {"seeds": 3}
    assert json.loads(capsys.readouterr().out)["figures"] == {"seeds": 3}


def test_arguments_are_plain_values() -> None:
    given = argparse.Namespace(name="x", measure=len, json=Path("a"), records=[Path("b")], sizes=(1, 2), only=None)
    assert command.arguments_of(vars(given)) == {"only": None, "sizes": [1, 2]}
