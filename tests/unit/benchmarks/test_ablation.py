"""The ablation: its tasks, what its arms differ in, its figures, and that a work folder is never run twice."""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ablation import bench_ablation
from benchmarks.ablation.arms import ARMS, FULL, HARD_ARMS, PARTS, arm_overrides, sampling_overrides
from benchmarks.ablation.curves import CurvePoint, RunCurve, read_curve, steps_to_reach
from benchmarks.ablation.dialogs import HARD, HELD_OUT, SUITE, TRAINED
from benchmarks.ablation.earlier import read_earlier
from benchmarks.ablation.figures import summarize
from benchmarks.ablation.process import Job
from benchmarks.ablation.runs import run_arm
from benchmarks.ablation.session import Session
from benchmarks.work_folder import work_folder
from dart_envs.errors import UnsupportedCapabilityError
from dart_envs.tasks import Task
from dart_server.providers.sim.dialog import read_dialog
from dart_train.evaluation.results import HELD_OUT as HELD_OUT_ROW
from dart_train.evaluation.results import TRAINED as TRAINED_ROW


def _solves(task: Task, script: str) -> bool:
    dialog = read_dialog(task.config[0].parameters["content"].encode())
    for move in task.scripts[script]:
        if move.target is not None and dialog.open:
            dialog.click(str(move.target.name))
    expected = task.evaluator.expected
    assert isinstance(expected, dict)
    return bool(dialog.answer == expected["rules"]["expected"])


@pytest.mark.parametrize("family", [*TRAINED, *HELD_OUT, *HARD])
def test_solutions_solve_near_misses_do_not_and_dialogs_are_on_the_screen(family: str) -> None:
    for variation in range(20):
        task = SUITE.family(family).task(SUITE.name, variation)
        left, top, right, bottom = read_dialog(task.config[0].parameters["content"].encode()).box
        assert 0 <= left < right <= 640
        assert 0 <= top < bottom <= 400
        assert _solves(task, "oracle")
        assert not _solves(task, "near_miss")
        assert len(task.oracle_script) < task.max_steps


def test_held_out_families_are_tests_only_and_hard_ones_are_not_trained_on() -> None:
    assert not SUITE.tasks("train", HELD_OUT)
    assert set(SUITE.families) == {*TRAINED, *HELD_OUT, *HARD}


def _session(work: Path, **settings: Any) -> Session:
    return Session(work, settings, minutes=1.0, noise=0.02, every_s=10.0)


def test_each_arm_has_a_valid_recipe_and_lacks_exactly_one_part(tmp_path: Path) -> None:
    session = _session(tmp_path)

    def recipe(name: str) -> dict[str, Any]:
        overrides = arm_overrides(ARMS[name], seed=1, minutes=1.0, model=str(tmp_path), hard_families=HARD)
        if "train.sft_coefficient" in overrides:
            overrides["demos.path"] = str(tmp_path)
        plain = session.recipe(overrides).model_dump()
        return {f"{section}.{key}": value for section, keys in plain.items() for key, value in keys.items()}

    recipes = {name: recipe(name) for name in ARMS}
    full = recipes["full"]
    for part, removed in PARTS.items():
        without = recipes[f"no_{part}"]
        assert {key for key in full if full[key] != without[key]} == {"run.name", *removed}
    assert recipes["plain"]["train.tis_cap"] is None
    assert not any(recipes["plain"][f"curation.{key}"] for key in ("dynamic_rollout_number", "experience_pool"))
    stale, uncorrected = recipes["stale"], recipes["stale_uncorrected"]
    assert {key for key in stale if stale[key] != uncorrected[key]} == {"run.name", "train.tis_cap"}
    assert {tuple(values["tasks.families"]) for name, values in recipes.items() if not ARMS[name].hard} == {TRAINED}
    assert FULL["curation.preset"] == "adaptive"
    hard = [recipes[name] for name in HARD_ARMS]
    assert {values["curation.pool_max_age"] for values in hard} == {None}, "imported successes have version 0"
    assert {(values["eval.every_updates"], values["eval.every_minutes"]) for values in recipes.values()} == {(0, 1.0)}


def test_an_arm_is_judged_on_a_single_hard_family_too(tmp_path: Path) -> None:
    session = _session(tmp_path)
    hard = HARD[:1]
    overrides = arm_overrides(ARMS["hard_pool"], seed=1, minutes=1.0, model=str(tmp_path), hard_families=hard)
    run, judged = session.recipe(overrides), session.recipe(sampling_overrides(overrides, hard))
    assert run.eval.during_training
    assert len(SUITE.tasks("validation", hard)) < run.eval.during_tasks, "more than the family has"
    assert not judged.eval.during_training
    assert judged.tasks.families == hard


def test_shares_of_evaluations_and_of_failed_workers_are_read_from_the_run(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "data.db")) as store, store:
        columns = "phase, purpose, reward, started_at_s, stored_s, n_steps, version_min, version_max, duration_s"
        store.execute(f"create table trajectories ({columns})")
        store.execute("create table groups (state, phase)")
        rows = [("train", "train", 1.0, 0, 1, 3, 0, 0, 30.0), ("eval-during-1", "eval", 1.0, 2, 3, 2, 1, 1, 10.0)]
        store.executemany("insert into trajectories values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    assert read_curve(tmp_path).workers_down_share is None
    step = {"kind": "update", "time_s": 10.0, "version": 1, "update": 1, "step_s": 1.0, "publish_s": 0.0, "wait_s": 9.0}
    worked = {
        "kind": "workers",
        "time_s": 10.0,
        "window_s": 10.0,
        "workers": {"policy-0": {"serving": 6.0, "down": 2.5}},
    }
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(step)}\n{json.dumps(worked)}\n")
    curve = read_curve(tmp_path)
    assert (curve.evaluation_share, len(curve.points), curve.workers_down_share) == (0.25, 1, 0.25)


def _curve(*successes: float) -> RunCurve:
    points = [CurvePoint(100 * number, 1.0, 60, value) for number, value in enumerate(successes, 1)]
    return RunCurve(points, 1000, 100, 0, 10, 0.0, {})


def test_a_level_is_reached_by_evaluations_in_a_row_and_not_by_a_lucky_one() -> None:
    assert steps_to_reach(_curve(0.2, 0.9, 0.2, 0.2, 0.6, 0.7, 0.8), 0.6, 0.8) == 700
    assert steps_to_reach(_curve(0.2, 0.9, 0.2), 0.6, 0.7) == 1000
    assert steps_to_reach(_curve(0.2, 0.9, 0.2), 0.6, 0.5) is None


def _record(validation: float, held_out: float, *successes: float) -> dict[str, Any]:
    return {
        "curve": _curve(*successes).as_dict(),
        "validation": {
            TRAINED_ROW: {"episodes": 60, "success": validation},
            **{family: {"episodes": 10, "success": validation} for family in TRAINED},
        },
        "test": {HELD_OUT_ROW: {"episodes": 60, "success": held_out}},
    }


def test_figures_compare_arms_by_seed() -> None:
    full = {seed: _record(0.8, 0.6, 0.5, 0.6, 0.7, 0.8) for seed in (1, 2)}
    plain = {1: _record(0.6, 0.5, 0.3, 0.4), 2: _record(0.5, 0.5, 0.3, 0.4)}
    figures = summarize({"full": full, "plain": plain, "no_task_sampling": {1: _record(0.7, 0.6, 0.5)}})
    assert figures["steps_share_to_plain"] == pytest.approx(0.3)
    assert figures["steps_to_plain"]["own_by_seed"] == {"1": 1.0, "2": 1.0}
    assert figures["full_minus_plain"]["validation"]["mean"] == pytest.approx(0.25)
    assert figures["worth_of_parts"]["task_sampling"]["validation"] == {
        "mean": pytest.approx(0.1),
        "lower": None,
        "upper": None,
        "seeds": 1,
    }
    assert set(figures["arms"]) == {"full", "plain", "no_task_sampling"}


def test_an_arm_saves_no_steps_against_itself() -> None:
    same = {seed: _record(0.5, 0.5, 0.3, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6) for seed in (1, 2)}
    found = summarize({"full": same, "plain": same})["steps_to_plain"]
    assert found["by_seed"] == {"1": 0.4, "2": 0.4}, "the first crossing comes before the end"
    assert found["own_by_seed"] == found["by_seed"]
    assert (found["crossings"]["mean"], found["crossings_by_seed"]) == (1.0, {"1": 1.0, "2": 1.0})


def test_the_level_has_the_families_in_equal_parts_as_the_curves_have() -> None:
    plain = _record(0.9, 0.5, 0.3, 0.4)
    plain["validation"] |= {family: {"episodes": 10, "success": 0.5} for family in TRAINED}
    figures = summarize({"full": {1: _record(0.9, 0.5, 0.5, 0.5, 0.5, 0.8)}, "plain": {1: plain}})
    assert figures["steps_to_plain"]["by_seed"] == {"1": 0.3}


def test_an_evaluation_that_the_end_cut_off_reaches_no_level() -> None:
    full = _curve(0.2, 0.3, 0.3, 1.0)
    cut = replace(full, points=[*full.points[:-1], replace(full.points[-1], episodes=7)])
    assert steps_to_reach(full, 0.5, 0.4) == 400
    assert steps_to_reach(cut, 0.5, 0.4) is None


def test_a_level_that_one_seed_never_reaches_gives_no_share() -> None:
    figures = summarize({"full": {1: _record(0.2, 0.2, 0.1, 0.1, 0.2)}, "plain": {1: _record(0.6, 0.5, 0.3)}})
    assert figures["steps_share_to_plain"] is None
    found = figures["steps_to_plain"]
    assert (found["by_seed"], found["reached"], found["overall"], found["crossings"]) == ({"1": None}, 0, None, None)


def test_what_is_recorded_is_not_done_again_and_what_failed_is(tmp_path: Path) -> None:
    session = _session(tmp_path)
    session.open()

    def fail() -> dict[str, Any]:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        session.recorded(1, "full", fail)
    assert session.records("full") == {}
    session.recorded(1, "full", lambda: {"value": 1})
    assert session.recorded(1, "full", fail)["value"] == 1
    assert list(session.records("full")) == [1]


def test_an_arm_keeps_the_warm_start_that_it_began_with(tmp_path: Path) -> None:
    """Another group of the seed, which began with another warm start in another folder, does not replace it."""
    arms = {"full": {1: _record(0.8, 0.6, 0.5)}, "plain": {1: _record(0.6, 0.5, 0.3)}}
    groups = {"curation": ("full", "plain")}
    path = _write_earlier(tmp_path / "one.json", arms, {}, {"1": {"value": "a"}})
    once = read_earlier([path], {}, groups).arms
    again = read_earlier([_write_earlier(tmp_path / "two.json", once, {}, {"1": {"value": "b"}})], {}, groups).arms
    assert {name: found[1]["warm_start"]["value"] for name, found in again.items()} == {"full": "a", "plain": "a"}


def _write_earlier(path: Path, arms: dict[str, Any], settings: dict[str, Any], warm_starts: dict[str, Any]) -> Path:
    figures = {"settings": settings, "warm_starts": warm_starts, "hard_families": {}, **summarize(arms)}
    path.write_text(json.dumps({"benchmark": "ablation", "figures": figures}), encoding="utf-8")
    return path


def test_an_earlier_record_counts_where_it_has_all_arms_that_are_compared(tmp_path: Path) -> None:
    groups, settings = {"curation": ("full", "plain"), "stale": ("stale", "stale_uncorrected")}, {"minutes": 1.0}
    record = _record(0.8, 0.6, 0.5)
    one = {"full": {1: record, 2: record}, "plain": {1: record}, "stale": {1: record}}
    warm = {"1": {"value": 1}, "2": {"value": 2}}
    earlier = read_earlier([_write_earlier(tmp_path / "one.json", one, settings, warm)], settings, groups)
    assert [earlier.holds("full", seed) for seed in (1, 2, 3)] == [True, False, False]
    assert not earlier.holds("stale", 1)
    assert earlier.arms["full"][1]["warm_start"] == {"value": 1}
    assert summarize(earlier.arms)["full_minus_plain"]["validation"]["seeds"] == 1


def test_an_earlier_record_of_another_arm_or_of_other_hard_families_does_not_count(tmp_path: Path) -> None:
    record = _record(0.8, 0.6, 0.5)
    other = record | {"changes": {"train.tis_cap": 3.0}}
    groups = {"curation": ("full", "plain"), "hard": ("hard_pool",)}
    arms = {"full": {1: record, 2: record}, "plain": {1: record, 2: other}, "hard_pool": {1: record, 2: record}}
    path = _write_earlier(tmp_path / "one.json", arms, {}, {})
    told = json.loads(path.read_text(encoding="utf-8"))
    told["figures"]["hard_families"] = {
        "1": {"samples": dict.fromkeys(HARD, 0)},
        "2": {"samples": {"press_nine": 0}},
        "3": {"samples": dict.fromkeys(HARD, 0)},
    }
    path.write_text(json.dumps(told), encoding="utf-8")
    earlier = read_earlier([path], {}, groups)
    assert [earlier.holds("full", seed) for seed in (1, 2)] == [True, False]
    assert [earlier.holds("hard_pool", seed) for seed in (1, 2)] == [True, False]
    assert set(earlier.hard_families) == {1}


def test_a_work_folder_with_the_record_of_another_arm_is_told(tmp_path: Path) -> None:
    session = _session(tmp_path)
    session.open()
    session.recorded(1, "warm-start", dict)
    session.recorded(1, "plain", lambda: {"changes": {"train.tis_cap": 3.0}})
    with pytest.raises(
        UnsupportedCapabilityError, match=r"plain\.json was measured when the arm changed .*: remove it"
    ):
        run_arm(session, 1, ARMS["plain"])


def test_an_earlier_record_of_other_settings_is_refused(tmp_path: Path) -> None:
    written = _write_earlier(tmp_path / "one.json", {}, {"minutes": 1.0}, {})
    with pytest.raises(UnsupportedCapabilityError, match="other settings"):
        read_earlier([written], {"minutes": 2.0}, {})
    (tmp_path / "none.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UnsupportedCapabilityError, match="cannot be read"):
        read_earlier([tmp_path / "none.json"], {}, {})


def test_a_work_folder_refuses_other_settings_and_a_second_process(tmp_path: Path) -> None:
    first, other = _session(tmp_path), _session(tmp_path, **{"warmup.images": 10})
    with (
        work_folder(tmp_path, first.noted()),
        pytest.raises(UnsupportedCapabilityError, match="another process works on"),
        work_folder(tmp_path, first.noted()),
    ):
        pass
    with work_folder(tmp_path, first.noted()):
        pass
    with pytest.raises(UnsupportedCapabilityError, match=r"warmup\.images"), work_folder(tmp_path, other.noted()):
        pass
    (tmp_path / "settings.json").unlink()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UnsupportedCapabilityError, match="something else"), work_folder(tmp_path, first.noted()):
        pass


@pytest.mark.parametrize("override", ["warmup.images", "warmup.images=many", "warmup.pictures=10"])
def test_what_cannot_be_set_is_told_before_anything_starts(tmp_path: Path, override: str) -> None:
    arguments = argparse.ArgumentParser()
    bench_ablation.add_arguments(arguments)
    with pytest.raises(UnsupportedCapabilityError, match="--set"):
        bench_ablation.measure(
            arguments.parse_args(["--work", str(tmp_path / "work"), "--set", override, "--stop-after", "-1"])
        )
    assert not (tmp_path / "work").exists()


def test_a_job_that_fails_is_one_sentence_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "python"
    failing.write_text(
        "#!/bin/sh\necho a long traceback\necho RecipeError: give at most 101\nexit 1\n", encoding="utf-8"
    )
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(failing))
    session = _session(tmp_path / "work")
    job = Job(kind="run", recipe=session.recipe({}), folder=tmp_path / "run")
    with pytest.raises(UnsupportedCapabilityError, match=r"seed 1, full failed: RecipeError: give at most 101 \(log: "):
        session.do(1, "full", job)
