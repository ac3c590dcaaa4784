"""Steps in a storm on pretended desktops: no result is another step's, and a farm that does mix them up is caught."""

from __future__ import annotations

from benchmarks.farm.bench_storm import run_storm


def test_no_result_is_another_steps() -> None:
    figures = run_storm(1_000, envs=6, seed=3)
    assert figures["wrong_step_results"] == 0, figures["first_wrong"]
    assert figures["compared"] >= 1_000
    troubles = figures["deadlines"] + figures["faults"] + figures["broke_desktop"]
    assert troubles > 0, "the storm did not blow"
    assert figures["caller_time_outs"] > 0


def test_answers_that_are_mixed_up_are_seen() -> None:
    assert run_storm(400, envs=2, seed=5, faults="swapped")["wrong_step_results"] > 0
