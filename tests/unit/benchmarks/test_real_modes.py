"""The comparison of recorded runs with the simulator: with simulated inference workers in place of real ones, in virtual time."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.rollouts import real_modes
from benchmarks.rollouts.real_modes import COMPARED, MODES, PARTS, TRUTH, Part, compare, measure, read_figures
from dart_train.run.paths import RunPaths
from dart_train.simulation.components.activity import RequestLog, recorded_figures, whole_updates
from dart_train.simulation.components.system import ComponentSystem, for_minutes
from dart_train.simulation.components.virtual_time import VirtualClock, run_in_virtual_time
from dart_train.simulation.models import EngineModel, PublishModel

FEW = (Part("fit", "rollout-per-worker", 4, 1, fitted=True), Part("rollout-global", "rollout-global", 6, 2))
ENGINE = EngineModel(prefill_tokens_per_s=1e9, image_s=0.0, request_s=0.2, step_s=0.03, step_s_per_request=0.005)
SIMULATED = TRUTH.model_copy(update={"engine": ENGINE, "publish": PublishModel(weights_gib=0.01)})


def record_simulated(part: Part, paths: RunPaths, minutes: float) -> RequestLog:
    logs: list[RequestLog] = []

    async def body(clock: VirtualClock) -> None:
        system = ComponentSystem(for_minutes(part.recipe, minutes, part.seed), paths, SIMULATED, part.seed, clock)
        logs.append(system.log)
        await system.run()

    run_in_virtual_time(body)
    return logs[0]


def test_parts_are_recorded_once_and_compared_when_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_modes, "HOURS_OF_PREDICTION", 0.3)
    monkeypatch.setattr(real_modes, "SEEDS_OF_PREDICTION", 1)
    recorded: list[str] = []

    def record(part: Part, paths: RunPaths, minutes: float) -> RequestLog:
        recorded.append(part.name)
        return record_simulated(part, paths, minutes)

    args = Namespace(folder=tmp_path, minutes=3.0, parts="fit")
    assert measure(args, record, FEW) == {"missing": ["rollout-global"]}
    args.parts = ""
    figures = measure(args, record, FEW)
    assert recorded == ["fit", "rollout-global"], "what is recorded is not recorded again"
    assert figures["fitted_on"] == ["fit"]
    assert figures["modes"].keys() == {"rollout-global"}
    assert figures["sim_error_by_figure"].keys() == set(COMPARED), "no figure is left out"
    assert figures["sim_error"] == max(figures["sim_error_by_figure"].values())
    assert figures["modes"]["rollout-global"]["errors"]["actions_per_min"] < 0.3, "three minutes say no more"
    assert compare(tmp_path, FEW) == figures
    real = read_figures(tmp_path, FEW[1])
    assert real.env_util is not None
    assert 0.5 < real.env_util <= real.env_in_use <= 1


def test_the_fit_sees_other_runs_than_those_compared() -> None:
    fitted, compared = ([part for part in PARTS if part.fitted is given] for given in (True, False))
    assert [part.mode for part in compared] == list(MODES)
    assert not {(part.desktops, part.seed) for part in fitted} & {(part.desktops, part.seed) for part in compared}
    assert not {part.seed for part in fitted} & {part.seed for part in compared}


def test_a_run_that_was_cut_is_not_taken_for_a_recorded_one(tmp_path: Path) -> None:
    (tmp_path / "fit").mkdir()
    with pytest.raises(SystemExit, match="delete it and start again"):
        measure(Namespace(folder=tmp_path, minutes=1.0, parts="fit"), record_simulated, FEW)


def test_waiting_for_a_desktop_that_another_one_prepares_is_resetting() -> None:
    """Members of a group wait for the first one's snapshot; the simulator counts that, and so must a recorded run."""
    first = {"kind": "episode", "phase": "train", "time_s": 110.0, "duration_s": 10.0, "steps": 4, "tokens": 9}
    first |= {"reset_s": 3.0, "model_s": 2.0, "env_s": 4.0}
    updates = [{"kind": "update", "time_s": at_s, "step_s": 1.0, "rows_trained": 4} for at_s in (100.0, 110.0)]
    lines = [first, first | {"queue_s": 1.0}, *updates]
    figures = recorded_figures(lines, 0.5, 2, 1, whole_updates(lines))
    assert figures.resetting == pytest.approx(0.3)
    assert (figures.env_in_use, figures.actions_per_min) == pytest.approx((0.6, 48.0))
    assert figures.env_util is None, "one line does not say how long its requests were queued"
    told = recorded_figures([first | {"queue_s": 1.0}, *updates], 0.5, 1, 1, (100.0, 110.0))
    assert told.env_util == pytest.approx(0.5)
