"""Stable-Baselines3's own check and its PPO on a vector of scripted desktops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from toy_task import ToyTask

from dart_envs.envs.vector import DartVectorEnv
from dart_envs.errors import FarmError
from dart_envs.testing.fake_farm import FakeFarm

pytest.importorskip("stable_baselines3", reason="needs the extra rl")
SMALL = (80, 64)
PICTURE = {"screenshot_wh": (40, 36), "instruction": False}


def vector(farm: FakeFarm, **options: Any) -> DartVectorEnv:
    given: dict[str, Any] = {"autoreset_mode": "SAME_STEP", "action_space": "discrete-grid", "observation": PICTURE}
    return DartVectorEnv(2, task=ToyTask(max_steps=4), resolution=SMALL, farm=farm, **(given | options))


def test_ends_hand_out_the_last_observation_and_the_next_first(farm: FakeFarm) -> None:
    from dart_envs.envs.sb3 import StableBaselinesVecEnv

    envs = StableBaselinesVecEnv(vector(farm))
    envs.seed(3)
    first = envs.reset()
    assert first.shape == (2, 36, 40, 3)
    assert [info["seed"] for info in envs.reset_infos] == [3, 4]
    done = int(envs.action_space.n) - 1
    observations, rewards, dones, infos = envs.step(np.array([done, 0]))
    assert dones.tolist() == [True, False]
    assert rewards.dtype == np.float32
    assert infos[0]["terminal_observation"].shape == (36, 40, 3)
    assert infos[0]["TimeLimit.truncated"] is False
    assert "terminal_observation" not in infos[1]
    assert np.array_equal(observations[0], first[0])
    for _ in range(3):
        _, _, dones, infos = envs.step(np.array([0, 0]))
    assert dones.tolist() == [False, True]
    assert infos[1]["TimeLimit.truncated"] is True
    assert envs.env_is_wrapped(object) == [False, False]
    envs.close()
    assert all(lease.released for lease in farm.leases)


def test_the_last_info_of_an_episode_says_whether_it_is_masked(farm: FakeFarm) -> None:
    from dart_envs.envs.sb3 import StableBaselinesVecEnv

    envs = StableBaselinesVecEnv(vector(farm))
    envs.reset()
    done = int(envs.action_space.n) - 1
    victim = next(slot.index for slot in envs.envs._sub_envs if slot._core.lease is farm.leases[0])
    farm.leases[0].fail_next("step", FarmError("gone", code="unreachable"))
    actions = np.full(2, done)
    actions[victim] = 0
    _, _, dones, infos = envs.step(actions)
    assert dones.tolist() == [True, True]
    assert [infos[index]["masked"] for index in (victim, 1 - victim)] == [True, False]
    assert [infos[index]["end"] for index in (victim, 1 - victim)] == ["farm_fault", "done"]
    envs.close()


def test_verdicts_can_be_asked_for_at_any_step(farm: FakeFarm) -> None:
    from dart_envs.envs.sb3 import StableBaselinesVecEnv

    envs = StableBaselinesVecEnv(vector(farm))
    envs.reset()
    farm.leases[1].state.typed = "hello"
    right = envs.envs._sub_envs.index(next(slot for slot in envs.envs._sub_envs if slot._core.lease is farm.leases[1]))
    assert envs.env_method("evaluate")[right] == 1.0
    assert sum(envs.env_method("evaluate")) == 1.0
    assert envs.env_method("evaluate", indices=1 - right) == [0.0]
    with pytest.raises(AttributeError, match="method evaluate, and no 'render'"):
        envs.env_method("render")
    envs.close()


def test_what_it_cannot_take_is_refused_at_once(farm: FakeFarm) -> None:
    from dart_envs.envs.sb3 import StableBaselinesVecEnv

    with pytest.raises(ValueError, match="SAME_STEP"):
        StableBaselinesVecEnv(vector(farm, autoreset_mode="NEXT_STEP"))
    with pytest.raises(ValueError, match="leave instruction out"):
        StableBaselinesVecEnv(vector(farm, observation=("screenshot",)))
    assert farm.leases == []
