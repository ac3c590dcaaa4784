"""The frozen calibration of DART's coupled system: its two free numbers, and the two published figures that they give."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.rollouts import dart_setting as setting
from dart_train.scheduling.settings import SchedulingMode
from dart_train.simulation.outcome import simulate


def test_the_calibration_is_frozen() -> None:
    assert (setting.TRAINER_TOKENS_PER_S, setting.LENGTH_SIGMA) == (37_000.0, 0.6)
    coupled = setting.scenario()
    assert (coupled.desktops, coupled.workers, coupled.rollouts_per_task, coupled.max_steps) == (80, 4, 8, 30)
    assert coupled.scheduler.scheduling.mode is SchedulingMode.BATCH
    assert coupled.models.desktop.reset_s.mean_s == 22.5 + 60.0
    assert coupled.models.desktop.step_s.mean_s == 5.0 + 1.0
    assert coupled.models.episode.history_images == 5
    assert not coupled.models.publish.keeps_requests
    assert not coupled.routing.prefix_affinity


def test_the_coupled_system_has_the_published_utilisation() -> None:
    outcomes = [simulate(setting.scenario(seed=seed, hours=6.0)) for seed in range(4)]
    published = setting.PUBLISHED["coupled"]
    assert fmean(each.slots.utilisation for each in outcomes) == pytest.approx(published["env_util"], abs=0.005)
    assert fmean(each.workers.utilisation for each in outcomes) == pytest.approx(published["worker_util"], abs=0.01)
