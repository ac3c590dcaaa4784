"""`dart-train watch`: figures of the latest minutes, warnings, and runs that go on, have ended, or are away."""

from __future__ import annotations

import io
import json
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dart_agent.data_client.wire import DataManagerStats, EpisodeCounts
from dart_train.cli import app
from dart_train.config import Recipe
from dart_train.run.lock import is_locked, run_lock
from dart_train.run.paths import RunPaths
from dart_train.run.state import RunState, save_resolved_recipe
from dart_train.watch.command import ask_data_manager, watch
from dart_train.watch.page import render, warnings
from dart_train.watch.snapshot import RunSnapshot, take_snapshot
from tests.unit.dart_agent.fakes import FakeClock

NOW_S = 10_000.0
WINDOW_S = 300.0


def recipe() -> Recipe:
    return Recipe.model_validate(
        {
            "run": {"name": "watched"},
            "tasks": {"families": ["press_nth", "tick_nth"]},
            "model": {"preset": "tiny"},
            "desktops": {"count": 2},
            "train": {"updates": 20},
        }
    )


def episode(at_s: float, reward: float | None, family: str = "press_nth", phase: str = "train") -> dict[str, Any]:
    parts = {"reset_s": 2.0, "model_s": 3.0, "queue_s": 1.0, "env_s": 4.0}
    task = f"basics/{family}/0001"
    return {
        "kind": "episode",
        "time_s": at_s,
        "phase": phase,
        "task": task,
        "reward": reward,
        "duration_s": 10.0,
        "steps": 3,
        **parts,
    }


def update(at_s: float, version: int) -> dict[str, Any]:
    shares = {"step_s": 10.0, "publish_s": 5.0, "wait_s": 45.0}
    return {
        "kind": "update",
        "time_s": at_s,
        "version": version,
        "rows_trained": 8,
        "tokens": 80,
        "reward_mean": 0.5,
        **shares,
    }


def stats(**changes: Any) -> DataManagerStats:
    nothing: dict[str, Any] = {
        name: {}
        for name in (
            "episode_counts_by_version",
            "episode_counts_by_family",
            "dropped_groups",
            "batches",
            "rows_excluded",
            "success_rate",
        )
    }
    return DataManagerStats(
        trajectories=100,
        steps=300,
        episode_counts=EpisodeCounts(episodes=100, masked=3),
        masked_episodes=[],
        last_masked_cause="the desktop died",
        max_concurrent_episodes=2,
        groups={"open": 3, "ready": 1},
        rollouts={"assigned": 2, "queued": 5},
        rows_used=0,
        latest_version=4,
        **nothing,
        **changes,
    )


def snapshot_of(
    lines: list[dict[str, Any]], *, running: bool = True, known: DataManagerStats | None = None
) -> RunSnapshot:
    state = RunState(stages_s={"demos": 60.0, "warm-start": 120.0, "eval-before": 30.0})
    return take_snapshot(recipe(), state, lines, known, running=running, now_s=NOW_S, window_s=WINDOW_S)


def test_success_is_that_of_the_latest_minutes_beside_the_minutes_before() -> None:
    lines = [
        *(episode(NOW_S - 400 - number, float(number % 4 == 0)) for number in range(8)),
        *(episode(NOW_S - 100 - number, float(number % 2 == 0)) for number in range(6)),
        episode(NOW_S - 50, None),
        episode(NOW_S - 50, 1.0, "tick_nth", phase="train-2"),
        episode(NOW_S - 50, 0.0, "tick_nth", phase="eval-before"),
        episode(NOW_S - 900, 1.0, "tick_nth"),
    ]
    families = snapshot_of(lines).families
    assert (families["press_nth"].episodes, families["press_nth"].success, families["press_nth"].before) == (
        6,
        0.5,
        0.25,
    )
    assert (families["tick_nth"].episodes, families["tick_nth"].success, families["tick_nth"].before) == (1, 1.0, None)


def test_versions_that_were_trained_again_are_no_further_updates() -> None:
    """A trainer that was killed went on from update 2: its versions are new ones, its updates are not."""
    made = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 3), (6, 4)]
    lines = [update(NOW_S - 60 * (6 - version), version) | {"update": number} for version, number in made]
    snapshot = snapshot_of(lines)
    assert snapshot.updates == 4
    assert snapshot.remaining_s == pytest.approx(60 * (snapshot.wanted_updates - 4))


def test_progress_and_the_time_that_is_left_follow_the_pace_of_the_updates() -> None:
    snapshot = snapshot_of([update(NOW_S - 60 * (5 - version), version) for version in range(1, 6)])
    assert (snapshot.stage, snapshot.updates, snapshot.wanted_updates, snapshot.remaining_s) == (
        "train",
        5,
        20,
        15 * 60,
    )
    assert snapshot_of([update(NOW_S, 1)]).remaining_s is None


def test_the_time_that_is_left_ends_with_the_minutes_of_training() -> None:
    lines = [update(NOW_S - 60 * (6 - version), version) for version in range(1, 6)]
    state = RunState(stages_s={"demos": 60.0, "warm-start": 120.0, "eval-before": 30.0})
    base = recipe()
    limited = base.model_copy(update={"train": base.train.model_copy(update={"max_minutes": 10.0})})

    def left_s(trained_s: float, now_s: float = NOW_S) -> float | None:
        return take_snapshot(
            limited, state, lines, None, running=True, now_s=now_s, window_s=WINDOW_S, trained_s=trained_s
        ).remaining_s

    assert left_s(360.0) == 600 - 360
    assert left_s(360.0, NOW_S + 86_400) == 600 - 360, "a run that goes on after a day has not trained meanwhile"
    assert left_s(610.0) == 0.0


@pytest.mark.parametrize("images", [False, True])
def test_reading_shows_its_progress_until_the_images_begin(images: bool) -> None:
    reading = {"kind": "reading", "time_s": NOW_S - 200, "pages": 6400, "loss": 4.7, "reading_accuracy": 0.125}
    answering = {"kind": "warmup", "time_s": NOW_S - 100, "images": 4800, "loss": 0.9466, "grounding_accuracy": 0.194}
    chosen = recipe()
    chosen = chosen.model_copy(update={"warmup": chosen.warmup.model_copy(update={"pages": 20_000})})
    state = RunState(stages_s={"demos": 60.0})
    lines = [reading, *([answering] if images else [])]
    snapshot = take_snapshot(chosen, state, lines, stats(), running=True, now_s=NOW_S, window_s=WINDOW_S)
    shown = io.StringIO()
    Console(file=shown, width=120).print(render(snapshot))
    text = "pages 6400 of 20000, loss 4.70, reading accuracy 0.12"
    assert (text in shown.getvalue()) is not images
    assert ("images 4800 of" in shown.getvalue()) is images


def test_the_warm_start_shows_its_progress() -> None:
    line = {"kind": "warmup", "time_s": NOW_S - 100, "images": 4800, "loss": 0.9466, "grounding_accuracy": 0.194}
    lines = [episode(NOW_S - 600, 1.0, phase="demo"), line | {"imitation_accuracy": None}]
    state = RunState(stages_s={"demos": 60.0})
    snapshot = take_snapshot(recipe(), state, lines, stats(), running=True, now_s=NOW_S, window_s=WINDOW_S)
    shown = io.StringIO()
    Console(width=100, file=shown).print(render(snapshot))
    assert f"images 4800 of {recipe().warmup.images}, loss 0.95, grounding accuracy 0.19" in shown.getvalue()
    assert "nothing was measured" not in shown.getvalue()


def test_figures_of_several_optimiser_steps_are_left_out_where_there_is_one() -> None:
    def shown(steps: int) -> str:
        file = io.StringIO()
        lines = [update(NOW_S, 1) | {"optimizer_steps": steps, "clip_fraction": 0.0, "update_k3": 0.0}]
        Console(width=100, file=file).print(render(snapshot_of(lines)))
        return file.getvalue()

    assert "clipped tokens" in shown(4)
    assert "clipped tokens" not in shown(1)
    assert "KL of the update" not in shown(1)


def test_shares_and_rates_are_those_of_the_window() -> None:
    lines = [update(NOW_S - 60 * (5 - version), version) for version in range(1, 6)]
    lines += [episode(NOW_S - 10 * number, 1.0) for number in range(30)]
    lines += [episode(NOW_S - 3000 - number, 1.0) for number in range(1000)]
    snapshot = snapshot_of(lines)
    shares = {each.what: each.percent for each in snapshot.utilisation}
    assert shares["trainer: training"] == pytest.approx(100 / 6, abs=0.1)
    assert shares["environments: executing"] == pytest.approx(20.0, abs=0.5)
    assert snapshot.requests_per_worker == pytest.approx(30 * 2.0 / (WINDOW_S * 2))
    (train,) = snapshot.throughput
    assert train.episodes_per_min == pytest.approx(6.0, rel=0.05)


def test_a_phase_that_was_begun_anew_belongs_to_its_stage() -> None:
    lines = [update(NOW_S - 60 * (5 - version), version) for version in range(1, 6)]
    lines += [episode(NOW_S - 10 * number, 1.0, phase="train-2") for number in range(30)]
    lines += [episode(NOW_S - 20, 1.0, phase="eval-during-40"), episode(NOW_S - 5, 1.0, phase="eval-during-44")]
    snapshot = snapshot_of(lines)
    shares = {each.what: each.percent for each in snapshot.utilisation}
    assert shares["environments: executing"] == pytest.approx(20.0, abs=0.5)
    assert {each.stage for each in snapshot.throughput} == {"train", "eval-during"}


@pytest.mark.parametrize("since_s", [0.0, 30.0, 59.0])
def test_episodes_that_are_longer_than_the_window_count_with_all_of_their_time(since_s: float) -> None:
    """Eight desktops are always busy with episodes of ten minutes, of which one ends every 75 s; a train step ends every minute."""
    base = recipe()
    busy = base.model_copy(update={"desktops": base.desktops.model_copy(update={"count": 8})})
    long = {"duration_s": 600.0, "reset_s": 60.0, "model_s": 360.0, "queue_s": 0.0, "env_s": 180.0, "steps": 30}
    lines = [episode(NOW_S - since_s - 75 * number, 1.0) | long for number in range(20)]
    lines += [update(NOW_S - since_s - 60 * number, 30 - number) for number in range(20)]
    state = RunState(stages_s={"demos": 60.0, "warm-start": 120.0, "eval-before": 30.0})
    snapshot = take_snapshot(busy, state, lines, None, running=True, now_s=NOW_S, window_s=WINDOW_S)
    (train,) = snapshot.throughput
    assert (train.minutes, train.episodes_per_min, train.actions_per_min) == pytest.approx((5.0, 0.8, 24.0))
    assert train.trained_rows_per_min == pytest.approx(8.0)
    shares = {each.what: each.percent for each in snapshot.utilisation}
    assert shares["desktops in use"] == pytest.approx(100.0)
    assert shares["environments: executing"] == pytest.approx(30.0)
    assert shares["environments: idle"] == pytest.approx(0.0)
    assert shares["trainer: training"] == pytest.approx(100 / 6)


@pytest.mark.parametrize(("phase", "per_min"), [("train", 2.0), ("eval-before", 6.0)])
def test_a_stage_that_goes_on_is_active_until_now_and_one_that_has_ended_until_its_end(
    phase: str, per_min: float
) -> None:
    (stage,) = snapshot_of([episode(NOW_S - 200 - 10 * number, 1.0, phase=phase) for number in range(30)]).throughput
    assert stage.episodes_per_min == pytest.approx(per_min)


def test_a_stage_that_began_in_the_window_has_no_time_before() -> None:
    (train,) = snapshot_of([episode(NOW_S - 10 * number, 1.0) for number in range(6)]).throughput
    assert (train.minutes, train.episodes_per_min) == pytest.approx((1.0, 6.0))


def test_what_no_inference_worker_answered_is_no_request_of_one() -> None:
    lines = [episode(NOW_S - 10, 1.0, phase=phase) for phase in ("demo", "eval-random")]
    assert snapshot_of(lines).requests_per_worker is None
    assert snapshot_of([*lines, episode(NOW_S - 10, 1.0, phase="eval-before")]).requests_per_worker == 2 / (
        WINDOW_S * 2
    )


def test_the_page_shows_inference_workers_and_the_lag() -> None:
    lines = [update(NOW_S - 60, 1), update(NOW_S, 2) | {"lag_mean_s": 42.0}]
    worked = {"policy-0": {"serving": 5.0, "updating": 1.0, "down": 0.0}}
    lines.append({"kind": "workers", "time_s": NOW_S - 5, "window_s": 10.0, "workers": worked})
    shown = io.StringIO()
    Console(width=165, file=shown).print(render(snapshot_of(lines)))
    assert [line.split()[-2:] for line in shown.getvalue().splitlines() if "inference workers: serving" in line]
    assert "50 %" in shown.getvalue()
    assert "train: lag of a trajectory, s" in shown.getvalue()
    assert "42" in shown.getvalue()


@pytest.mark.parametrize(("down_s", "told"), [(0.4, None), (3.0, "for 30 % of their time: logs/policy-")])
def test_workers_that_fail_again_and_again_are_told(down_s: float, told: str | None) -> None:
    """Each is started again, so that nothing else shows it."""
    worked = {"policy-0": {"serving": 5.0, "updating": 1.0, "down": down_s}}
    line = {"kind": "workers", "time_s": NOW_S - 5, "window_s": 10.0, "workers": worked}
    failing = [each for each in warnings(snapshot_of([line], known=stats())) if "inference workers" in each]
    assert len(failing) == (told is not None)
    assert all(str(told) in each for each in failing)


def test_a_run_that_has_ended_shows_its_last_minutes() -> None:
    lines = [episode(500.0, 1.0), episode(900.0, 0.0)]
    ended = snapshot_of(lines, running=False)
    assert ended.families["press_nth"].episodes == 1
    assert snapshot_of(lines).families["press_nth"].episodes == 0


def test_what_a_person_should_look_at_is_told() -> None:
    failing = [episode(NOW_S - 100 - number, 0.0) for number in range(20)]
    told = warnings(snapshot_of(failing, known=stats()))
    assert "nothing was measured for 100 s" not in told[0]
    assert any("all rewards of the latest 20 training episodes are equal" in each for each in told)
    assert any("3.0 % of the episodes are masked, latest cause: the desktop died" in each for each in told)
    away = snapshot_of(failing)
    assert any("the data manager does not answer" in each for each in warnings(away))
    assert any("nothing was measured for 6 min" in each for each in warnings(replace(away, idle_s=360.0)))
    assert not any("nothing was measured" in each for each in warnings(replace(away, idle_s=140.0))), "an engine starts"
    learning = snapshot_of([*failing, episode(NOW_S, 1.0)], known=stats())
    assert not any("are equal" in each for each in warnings(learning))
    assert warnings(snapshot_of([], running=False)) == []


@pytest.mark.parametrize("width", [60, 80, 165])
def test_the_page_fits_the_terminal(width: int) -> None:
    lines = [update(NOW_S - 60 * (5 - version), version) for version in range(1, 6)]
    lines += [episode(NOW_S - 10 * number, 1.0) for number in range(30)]
    shown = io.StringIO()
    console = Console(width=width, file=shown)
    console.print(render(snapshot_of(lines, known=stats())))
    text = shown.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    for wanted in (
        "watched: running, stage train",
        "5 of 20",
        "3 open, 1 ready",
        "press_nth",
        "environments: executing",
    ):
        assert wanted in text


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "watched")
    found.make()
    save_resolved_recipe(recipe(), found)
    RunState(stages_s={"demos": 1.0}).save(found.state)
    found.metrics.write_text(
        "".join(json.dumps(line) + "\n" for line in [episode(1.0, 1.0), update(2.0, 1)]), encoding="utf-8"
    )
    return found


def test_batches_that_were_not_trained_on_are_told_with_the_newest_cause() -> None:
    lines = [{"kind": "failed_batch", "time_s": 1.0, "version": 3, "cause": cause} for cause in ("an image", "a norm")]
    shown = take_snapshot(recipe(), RunState(), lines, None, running=False, now_s=NOW_S, window_s=WINDOW_S)
    assert "batches that were not trained on: 2, the latest because a norm" in warnings(shown)


def test_a_pause_and_an_alarm_are_told_until_they_are_over() -> None:
    alarm = {"kind": "alarm", "version": 3, "sentence": "the training reward rose alone"}
    lines = [{"kind": "evaluation", "version": 3}, alarm]

    def told(*later: dict[str, Any], paused: str | None = None) -> list[str]:
        state = RunState(paused=paused)
        shown = take_snapshot(recipe(), state, [*lines, *later], stats(), running=True, now_s=NOW_S, window_s=WINDOW_S)
        return [line for line in warnings(shown) if "masked" not in line]

    assert told(update(NOW_S, 4), paused="paused: no space") == ["paused: no space", "the training reward rose alone"]
    assert told(update(NOW_S, 4), {"kind": "evaluation", "version": 4}) == []


async def test_a_run_is_going_on_while_its_lock_is_held(paths: RunPaths) -> None:
    assert not is_locked(paths)
    with run_lock(paths):
        assert is_locked(paths)
        assert await ask_data_manager(paths) is None
    assert not is_locked(paths)


def test_to_look_at_a_run_takes_no_lock(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that begins in the middle of a look is not refused."""
    begun: list[str] = []
    close = os.close

    def begin_then_close(descriptor: int) -> None:
        monkeypatch.undo()
        with run_lock(paths):
            begun.append("a run")
        close(descriptor)

    with run_lock(paths):
        pass
    monkeypatch.setattr(os, "close", begin_then_close)
    assert not is_locked(paths)
    assert begun == ["a run"]


def test_the_command_looks_once_and_prints_tables_or_json(paths: RunPaths) -> None:
    shown = CliRunner().invoke(app, ["watch", str(paths.root), "--once"])
    assert shown.exit_code == 0, shown.output
    assert "watched: not running, stage warm-start is next" in shown.output
    printed = CliRunner().invoke(app, ["watch", str(paths.root), "--json"])
    found = json.loads(printed.output)
    assert (found["running"], found["updates"], found["answered"]) == (False, 1, False)


def test_a_folder_that_is_no_run_is_wrong_input(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert shown.exit_code == 2
    assert "is not a run directory" in shown.output


async def test_the_page_follows_the_run_until_it_ends(paths: RunPaths, tmp_path: Path) -> None:
    looks: list[float] = []

    class EndingClock(FakeClock):
        """After the third wait the run ends."""

        async def sleep(self, seconds: float) -> None:
            looks.append(seconds)
            with paths.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(update(2.0 + len(looks), 1 + len(looks))) + "\n")
            if len(looks) == 3:
                held.close()
            await super().sleep(0)

    held = ExitStack()
    held.enter_context(run_lock(paths))
    with (tmp_path / "shown").open("w", encoding="utf-8") as file:
        console = Console(file=file, force_terminal=True, width=100)
        last = await watch(paths, window_s=300.0, interval_s=2.0, console=console, clock=EndingClock())
    assert looks == [2.0, 2.0, 2.0]
    assert (last.running, last.updates) == (False, 4)
