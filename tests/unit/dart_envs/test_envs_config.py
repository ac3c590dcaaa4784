"""`EnvConfig`: one set of options and one check for every environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import gymnasium as gym
import pytest
from toy_task import ToyTask

from dart_envs import AsyncDesktopEnv, EnvConfig, EpisodeConfig, EvaluatorError, FarmError, SettleSpec
from dart_envs.envs.config import EnvOptions, EpisodeOptions
from dart_envs.envs.env import DartOSWorldEnv
from dart_envs.envs.evaluation_target import EvaluateOn
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.observations.views import ObservationSpec
from dart_envs.testing.fake_farm import FakeFarm

SMALL = (80, 64)


def test_the_types_of_the_options_name_the_fields() -> None:
    assert set(EpisodeOptions.__annotations__) == {one.name for one in fields(EpisodeConfig)}
    assert set(EnvOptions.__annotations__) | {"task"} == {one.name for one in fields(EnvConfig)}


def test_loose_forms_are_converted() -> None:
    loose: dict[str, Any] = {"settle": {"quiet_ms": 5}, "evaluate_on": "copy", "labels": None, "resolution": [640, 400]}
    config = EnvConfig(**loose, observation=("screenshot", "marks"))  # type: ignore[arg-type]
    assert config.settle == SettleSpec(quiet_ms=5)
    assert config.evaluate_on is EvaluateOn.COPY
    assert config.labels == {}
    assert config.resolution == (640, 400)
    assert config.observation == ObservationSpec(marks=True)
    with pytest.raises(FrozenInstanceError):
        config.max_steps = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"max_steps": 0}, ValueError, "max_steps is a whole number"),
        ({"max_steps": 1.5}, ValueError, "max_steps is a whole number"),
        ({"settle": {"quiet_ms": -1}}, ValueError, r"settle\.quiet_ms"),
        ({"settle": 3}, ValueError, "settle is a SettleSpec"),
        ({"labels": "x"}, ValueError, "labels is a mapping"),
        ({"ttl_s": 0}, ValueError, "ttl_s is a number of seconds above 0"),
        ({"wait_s": -1}, ValueError, "wait_s is a number of seconds from 0 on"),
        ({"evaluate_timeout_s": "soon"}, ValueError, "evaluate_timeout_s is a number"),
        ({"evaluate_on": "nowhere"}, ValueError, "evaluate_on is desktop or copy"),
        ({"scorer": "mine"}, EvaluatorError, "auto, builtin or osworld"),
        ({"resolution": (10, 10)}, ValueError, "64×64"),
        ({"font_size": 1000}, ValueError, "font_size"),
        ({"farm": 3}, ValueError, "farm is the URL"),
        ({"farm": "ftp://x"}, FarmError, "ftp"),
    ],
)
def test_a_wrong_value_is_named(options: dict[str, Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        EnvConfig(**options)


@pytest.mark.parametrize("make", [DartOSWorldEnv, DartVectorEnv, lambda **given: gym.make("DartOSWorld-v0", **given)])
def test_an_unknown_name_lists_the_known_ones(make: Callable[..., object], farm: FakeFarm) -> None:
    with pytest.raises(
        ValueError, match=r"no option 'resolutoin'; the options are .*ttl_s.* Did you mean resolution\?"
    ):
        make(task=ToyTask(), resolutoin=SMALL, farm=farm)
    assert farm.leases == []


def test_an_option_of_another_environment_is_refused(farm: FakeFarm) -> None:
    with pytest.raises(ValueError, match="no option 'split'"):
        AsyncDesktopEnv(farm, split="train")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="no option 'autoreset_mode'"):
        DartOSWorldEnv(ToyTask(), farm=farm, autoreset_mode="DISABLED")  # type: ignore[call-arg]


@pytest.mark.parametrize("make", [DartOSWorldEnv, DartVectorEnv])
def test_options_replace_those_of_the_config(make: Callable[..., Any], farm: FakeFarm) -> None:
    config = EnvConfig(task=ToyTask(), resolution=SMALL, farm=farm, max_steps=7, labels={"run": "a"})
    env = make(config=config, max_steps=3)
    assert (env.config.max_steps, env.config.labels, env.shape.resolution) == (3, {"run": "a"}, SMALL)
    assert config.max_steps == 7
    env.reset()
    env.close()
    other = ToyTask(id="toy/other/0000")
    assert make(task=other, config=config).config.task is other
