"""Metrics files: whoever reads one gets every whole line once, whatever a kill or a full disk left."""

from __future__ import annotations

from pathlib import Path

from dart_agent.metrics_file import MetricsReader, append_metrics


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    reader = MetricsReader(file)
    assert reader.read_new() == []
    file.write_text('{"a": 1}\n{"a"', encoding="utf-8")
    assert reader.read_new() == [{"a": 1}]
    with file.open("a", encoding="utf-8") as rest:
        rest.write(": 2}\n")
    assert reader.read_new() == [{"a": 2}]
    assert MetricsReader(file, from_end=True).read_new() == []


def test_a_line_that_a_full_disk_cut_off_spoils_no_other_one(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"a": 1}\n{"a": 2, "b', encoding="utf-8")
    append_metrics(file, {"a": 3})
    assert MetricsReader(file).read_new() == [{"a": 1}, {"a": 3}]
