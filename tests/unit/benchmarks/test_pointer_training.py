"""GRPO through an action head against text: how the arms are compared."""

from __future__ import annotations

import argparse
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runs.bench_pointer_training import RECIPE, compare, read_earlier, run_settings, solved_tasks
from dart_envs.errors import UnsupportedCapabilityError
from dart_train.config import load_recipe
from dart_train.model.tokenizer import END_OF_TURN, build_tokenizer
from dart_train.presets.tiny import TINY

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "last")
PLACES = [
    f"{ordinal} {role}{side}"
    for ordinal in ORDINALS
    for role in ("button", "row", "box")
    for side in ("", " above", " below")
]


def _record(solved: int) -> dict[str, Any]:
    tasks = {f"basics/press_nth/{number:04d}": number < solved for number in range(20)}
    return {"before": dict.fromkeys(tasks, False), "after": tasks}


def test_the_difference_is_in_points_over_the_seeds_that_both_arms_finished() -> None:
    head = {1: _record(15), 2: _record(13), 3: _record(20)}
    found = compare(head, {1: _record(10), 2: _record(10)})
    assert found["seeds"] == [1, 2]
    assert found["grpo_head_minus_text_points"] == 20.0
    low, high = found["grpo_head_minus_text_points_interval"]
    assert 0 < low < 20 < high
    assert found["success_after"] == {"head": 0.7, "text": 0.5}
    assert found["head_minus_text_points_before"] == 0.0
    assert set(found["runs"]) == {"head-1", "text-1", "head-2", "text-2"}


def test_nothing_is_compared_before_both_arms_are_done() -> None:
    assert compare({1: _record(15)}, {}) == {"seeds": [], "runs": {}}


def test_seeds_of_an_earlier_record_count_as_if_they_had_been_run_here(tmp_path: Path) -> None:
    head, text = {1: _record(15), 2: _record(13)}, {1: _record(10), 2: _record(10)}
    together, settings = compare(head, text), {"episodes": 20}
    record = tmp_path / "one.json"
    record.write_text(
        json.dumps({"benchmark": "pointer_training", "figures": {**settings, **compare({1: head[1]}, {1: text[1]})}}),
        encoding="utf-8",
    )
    earlier = read_earlier([record], settings)
    assert compare({2: head[2], **earlier["head"]}, {2: text[2], **earlier["text"]}) == together
    with pytest.raises(UnsupportedCapabilityError, match="other settings"):
        read_earlier([record], {"episodes": 30})
    with pytest.raises(UnsupportedCapabilityError, match="cannot be read"):
        read_earlier([tmp_path / "none.json"], settings)


def test_the_same_tasks_of_several_seeds_are_no_more_evidence_about_tasks() -> None:
    def width(seeds: int) -> float:
        found = compare(dict.fromkeys(range(seeds), _record(15)), dict.fromkeys(range(seeds), _record(10)))
        low, high = found["grpo_head_minus_text_points_interval"]
        return float(high - low)

    assert width(3) == pytest.approx(width(1), rel=0.1)


@pytest.mark.parametrize("place", [*PLACES, "OK", "Cancel"])
def test_an_answer_in_words_is_not_cut_off(place: str) -> None:
    arguments = argparse.Namespace(warm_minutes=8.0, train_minutes=17.0, episodes=300, overrides=[])
    limit = load_recipe(RECIPE, tuple(run_settings(arguments, 1, "head"))).rollout.max_tokens
    answer = f"Action: click(start_box='{place}'){END_OF_TURN}"
    assert len(build_tokenizer(TINY.words)(answer).input_ids) <= limit


def test_a_masked_episode_is_no_success(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "data.db")) as store:
        store.execute("create table trajectories (task_id, phase, reward)")
        store.execute("create table rollouts (task_id, phase)")
        store.executemany("insert into rollouts values (?, 'eval-after')", [("a",), ("b",), ("c",), ("lost",)])
        rows = [("a", "eval-after", 1.0), ("b", "eval-after", 0.5), ("c", "eval-after", None), ("d", "train", 1.0)]
        store.executemany("insert into trajectories values (?, ?, ?)", rows)
        store.commit()
    assert solved_tasks(tmp_path / "data.db", "eval-after") == {"a": True, "b": False, "c": False, "lost": False}
