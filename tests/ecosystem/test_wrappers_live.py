"""Every wrapper of Gymnasium that makes sense, and both kinds of its vector environments, on live desktops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from gym_wrappers import BOX_ACTION_WRAPPERS, PIXEL_WRAPPERS, VECTOR_WRAPPERS, WRAPPERS
from gymnasium.wrappers import vector as vector_wrappers
from served_farm import served_farm

import dart_envs  # noqa: F401 - registers DartOSWorld-v0

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow, pytest.mark.timeout(120)]
OPTIONS: dict[str, Any] = {
    "task": "basics/press_nth",
    "resolution": (640, 400),
    "max_episode_steps": 4,
    "action_space": "discrete-grid",
    "settle": {"quiet_ms": 30, "cap_ms": 500},
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_farm(tmp_path_factory.mktemp("farm"), max_desktops=2) as url:
        yield url


def play(env: gym.Env[Any, Any]) -> None:
    """Two episodes at most, each observation in the space."""
    with env:
        env.action_space.seed(1)
        observation, _ = env.reset(seed=1)
        assert observation in env.observation_space
        for _ in range(3):
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            assert observation in env.observation_space
            if terminated or truncated:
                env.reset()


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_take_the_default_observation(url: str, name: str) -> None:
    play(WRAPPERS[name](gym.make("DartOSWorld-v0", farm=url, render_mode="rgb_array", **OPTIONS)))


@pytest.mark.parametrize("name", PIXEL_WRAPPERS)
def test_wrappers_of_images_take_pixels(url: str, name: str) -> None:
    if name in ("ResizeObservation", "GrayscaleObservation"):
        pytest.importorskip("cv2")
    play(PIXEL_WRAPPERS[name](gym.make("DartOSWorld-v0", farm=url, observation="pixels", **OPTIONS)))


@pytest.mark.parametrize("name", BOX_ACTION_WRAPPERS)
def test_wrappers_of_actions_in_a_box_take_the_normalized_space(url: str, name: str) -> None:
    play(BOX_ACTION_WRAPPERS[name](gym.make("DartOSWorld-v0", farm=url, **{**OPTIONS, "action_space": "normalized"})))


@pytest.mark.parametrize("name", VECTOR_WRAPPERS)
def test_wrappers_of_vector_environments_take_the_default_observation(url: str, name: str) -> None:
    envs = VECTOR_WRAPPERS[name](gym.make_vec("DartOSWorld-v0", num_envs=2, farm=url, **OPTIONS))
    try:
        assert envs.reset(seed=1)[0] in envs.observation_space
        for _ in range(3):
            assert envs.step(envs.action_space.sample())[0] in envs.observation_space
    finally:
        envs.close()


@pytest.mark.parametrize("mode", ["sync", "async", "vector_entry_point"])
@pytest.mark.parametrize("observation", [("screenshot", "a11y"), "pixels"])
def test_vector_environments_of_every_kind(url: str, mode: str, observation: Any) -> None:
    envs = gym.make_vec(
        "DartOSWorld-v0", num_envs=2, vectorization_mode=mode, farm=url, observation=observation, **OPTIONS
    )
    envs = vector_wrappers.RecordEpisodeStatistics(envs)
    try:
        observations, _ = envs.reset(seed=1)
        assert observations in envs.observation_space
        ended = 0
        for _ in range(10):
            observations, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
            assert observations in envs.observation_space
            ended += int((terminated | truncated).sum())
        assert ended >= 2
    finally:
        envs.close()
