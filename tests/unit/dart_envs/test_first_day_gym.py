"""What users of Gymnasium try first: wrappers, time limits, pixels, forks, pickles, malformed actions."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gym_wrappers import BOX_ACTION_WRAPPERS, LEFT_OUT, PIXEL_WRAPPERS, VECTOR_WRAPPERS, WRAPPERS
from gymnasium import wrappers
from toy_task import ToyTask

from dart_envs.action_spaces import ActionSpaceLike
from dart_envs.envs.env import DartOSWorldEnv
from dart_envs.envs.sb3 import StableBaselinesVecEnv
from dart_envs.envs.vector import DartVectorEnv
from dart_envs.errors import ActionError, DartEnvError
from dart_envs.farm.loop import EventLoopThread
from dart_envs.testing.fake_farm import FakeFarm
from dart_envs.types import Action, ActionType
from dart_server.wire import FaultOwner

SMALL = (80, 64)
DONE = Action(ActionType.DONE)
WAIT = Action(ActionType.WAIT)


def make_pixels(farm: FakeFarm, task: ToyTask) -> DartOSWorldEnv:
    return DartOSWorldEnv(task, resolution=SMALL, farm=farm, observation="pixels")


def make(farm: FakeFarm, max_steps: int = 3, **options: Any) -> DartOSWorldEnv:
    return DartOSWorldEnv(ToyTask(max_steps=max_steps), resolution=SMALL, farm=farm, **options)


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_take_the_default_observation(farm: FakeFarm, name: str) -> None:
    with WRAPPERS[name](make(farm, render_mode="rgb_array")) as env:
        observation, _ = env.reset(seed=1)
        assert observation in env.observation_space
        observation, *_ = env.step(WAIT)
        assert observation in env.observation_space


@pytest.mark.parametrize("name", PIXEL_WRAPPERS)
def test_wrappers_of_images_take_pixels(farm: FakeFarm, name: str) -> None:
    if name in ("ResizeObservation", "GrayscaleObservation"):
        pytest.importorskip("cv2")
    with PIXEL_WRAPPERS[name](make(farm, observation="pixels")) as env:
        assert env.reset(seed=1)[0] in env.observation_space
        assert env.step(WAIT)[0] in env.observation_space


@pytest.mark.parametrize("name", BOX_ACTION_WRAPPERS)
def test_wrappers_of_actions_in_a_box_take_the_normalized_space(farm: FakeFarm, name: str) -> None:
    with BOX_ACTION_WRAPPERS[name](make(farm, action_space="normalized")) as env:
        env.reset(seed=1)
        env.action_space.seed(1)
        assert env.step(env.action_space.sample())[0] in env.observation_space


@pytest.mark.parametrize("name", VECTOR_WRAPPERS)
def test_wrappers_of_vector_environments_take_the_default_observation(farm: FakeFarm, name: str) -> None:
    envs = VECTOR_WRAPPERS[name](DartVectorEnv(2, ToyTask(), resolution=SMALL, farm=farm))
    assert envs.reset(seed=1)[0] in envs.observation_space
    assert envs.step([WAIT, WAIT])[0] in envs.observation_space
    envs.close()


def test_every_wrapper_of_gymnasium_is_tried_or_left_out_for_a_reason() -> None:
    tried = {name.partition(",")[0] for name in (*WRAPPERS, *PIXEL_WRAPPERS, *BOX_ACTION_WRAPPERS)}
    assert set(wrappers.__all__) == tried | set(LEFT_OUT)


@pytest.mark.parametrize(
    ("spec", "shape", "dtype"),
    [
        ("pixels", (64, 80, 3), np.uint8),
        ({"pixels": True, "layout": "CHW", "color_mode": "gray", "frames": 4}, (4, 64, 80), np.uint8),
        ({"pixels": True, "dtype": "float32", "screenshot_wh": (40, 32)}, (32, 40, 3), np.float32),
    ],
)
def test_pixels_are_one_box(farm: FakeFarm, spec: Any, shape: tuple[int, ...], dtype: Any) -> None:
    with make(farm, observation=spec) as env:
        assert isinstance(env.observation_space, gym.spaces.Box)
        assert (env.observation_space.shape, env.observation_space.dtype) == (shape, dtype)
        assert env.reset()[0] in env.observation_space
    vector = DartVectorEnv(2, ToyTask(), resolution=SMALL, farm=farm, observation=spec, autoreset_mode="SAME_STEP")
    observations, _ = vector.reset()
    assert observations in vector.observation_space
    assert StableBaselinesVecEnv(vector).reset().shape == (2, *shape)
    vector.close()


def test_stacked_frames_begin_anew_with_each_episode(farm: FakeFarm) -> None:
    with make(farm, observation={"pixels": True, "color_mode": "gray", "frames": 2}) as env:
        first, _ = env.reset()
        assert np.array_equal(first[..., 0], first[..., 1])
        second, *_ = env.step(Action(ActionType.TYPE, text="hello"))
        assert np.array_equal(second[..., 0], first[..., 1])
        assert not np.array_equal(second[..., 1], second[..., 0])
        again, _ = env.reset()
        assert np.array_equal(again, first)


def test_the_pointer_is_in_info_and_can_be_drawn(farm: FakeFarm) -> None:
    with make(farm) as plain, make(farm, observation={"cursor": True}) as drawn:
        _, info = plain.reset()
        assert info["pointer"] == [0, 0]
        click = Action(ActionType.CLICK, x=30, y=20)
        drawn.reset()
        without, *_, info = plain.step(click)
        shown, *_ = drawn.step(click)
        assert info["pointer"] == [30, 20]
        changed = np.argwhere((without["screenshot"] != shown["screenshot"]).any(axis=2))
        assert tuple(changed.min(axis=0)) == (20, 30)


@pytest.mark.parametrize(("own", "asked", "budget"), [(1, 5, 5), (5, 2, 2), (5, None, 5)])
def test_max_episode_steps_is_the_budget_of_the_episode(
    farm: FakeFarm, own: int, asked: int | None, budget: int
) -> None:
    task = ToyTask(max_steps=own)
    with gym.make("DartOSWorld-v0", task=task, resolution=SMALL, farm=farm, max_episode_steps=asked) as env:
        assert env.reset()[1]["max_steps"] == budget
        ends = [env.step(WAIT)[2:4] for _ in range(budget)]
    assert ends == [(False, False)] * (budget - 1) + [(False, True)]
    envs = gym.make_vec(
        "DartOSWorld-v0",
        num_envs=1,
        task=task,
        resolution=SMALL,
        farm=farm,
        **({"max_episode_steps": asked} if asked else {}),
    )
    assert envs.reset()[1]["max_steps"].tolist() == [budget]
    envs.close()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda farm, task: wrappers.TimeLimit(DartOSWorldEnv(task, resolution=SMALL, farm=farm), 1),
        lambda farm, task: gym.make("DartOSWorld-v0", task=task, resolution=SMALL, farm=farm, max_episode_steps=1),
    ],
)
def test_a_time_limit_around_the_environment_ends_episodes_with_a_verdict(farm: FakeFarm, wrap: Any) -> None:
    with wrap(farm, ToyTask(max_steps=9)) as env:
        _, info = env.reset()
        assert info["max_steps"] == 1
        _, reward, terminated, truncated, info = env.step(env.unwrapped.oracle()[0])
        assert (reward, terminated, truncated, info["end"]) == (1.0, False, True, "max_steps")
        assert env.unwrapped.evaluate().reward == 1.0


def test_gymnasiums_name_of_the_budget_is_taken_by_the_vector_environment(farm: FakeFarm) -> None:
    options: dict[str, Any] = {"task": ToyTask(max_steps=9), "resolution": SMALL, "farm": farm}
    envs = gym.make_vec("DartOSWorld-v0", num_envs=1, max_episode_steps=1, **options)
    envs.reset()
    *_, truncated, _ = envs.step([WAIT])
    assert truncated.tolist() == [True]
    envs.close()


def test_a_limit_that_is_not_seen_is_reported_once(farm: FakeFarm, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), make(farm, max_steps=9) as env:
        for _ in range(3):
            env.reset()
            env.step(WAIT)
        vector = DartVectorEnv(2, ToyTask(max_steps=9), resolution=SMALL, farm=farm)
        for _ in range(3):
            vector.reset()
            vector.step([WAIT, WAIT])
            vector.step([WAIT, WAIT])
        vector.close()
    assert [sum(f"max_steps={limit} " in message for message in caplog.messages) for limit in (1, 2)] == [1, 1]


def test_a_time_limit_counts_the_steps_of_the_wrapper_that_repeats_actions(farm: FakeFarm) -> None:
    task = ToyTask(max_steps=1)
    with wrappers.TimeLimit(wrappers.MaxAndSkipObservation(make_pixels(farm, task), 3), 2) as env:
        env.reset()
        assert env.step(WAIT)[2:4] == (False, False)
        *_, truncated, info = env.step(WAIT)
    assert (truncated, info["end"], info["steps"]) == (True, "max_steps", 4)


def test_a_time_limit_holds_for_episodes_that_a_wrapper_began(farm: FakeFarm) -> None:
    """`Autoreset` resets without the wrapper outside it."""
    with wrappers.TimeLimit(wrappers.Autoreset(make(farm, max_steps=9)), 4) as env:
        env.reset()
        env.step(DONE)
        env.step(WAIT)
        env.step(WAIT)
        *_, truncated, info = env.step(env.unwrapped.oracle()[0])
    assert (truncated, info["end"]) == (True, "max_steps")


def test_the_verdict_can_be_read_after_the_end(farm: FakeFarm) -> None:
    with make(farm) as env:
        env.reset()
        env.step(DONE)
        assert env.evaluate().reward == 0.0
        env.reset()
        farm.leases[0].kill(FaultOwner.HOST, "chaos")
        env.step(WAIT)
        with pytest.raises(DartEnvError, match="without a verdict"):
            env.evaluate()


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_the_verdicts_of_a_vector_can_be_read_after_the_end(farm: FakeFarm, mode: str) -> None:
    vector = DartVectorEnv(3, ToyTask(), resolution=SMALL, farm=farm, autoreset_mode=mode)
    vector.reset()
    farm.leases[2].kill(FaultOwner.HOST, "chaos")
    vector.step([Action(ActionType.TYPE, text="hello"), DONE, WAIT])
    vector.send([DONE], [0])
    vector.recv()
    rewards, infos = vector.evaluate()
    assert rewards.tolist()[:2] == [1.0, 0.0]
    assert "without a verdict (chaos" in infos[2]["cause"]
    vector.close()


def test_pointers_of_a_vector_are_one_array(farm: FakeFarm) -> None:
    vector = DartVectorEnv(2, ToyTask(), resolution=SMALL, farm=farm)
    assert vector.reset()[1]["pointer"].shape == (2, 2)
    *_, infos = vector.step([Action(ActionType.CLICK, x=30, y=20), WAIT])
    assert infos["pointer"].tolist() == [[30, 20], [0, 0]]
    vector.close()


def test_a_fork_is_told_instead_of_hanging(farm: FakeFarm) -> None:
    env = make(farm)
    vector = DartVectorEnv(1, ToyTask(), resolution=SMALL, farm=farm)
    env.reset()
    vector.reset()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that hangs says nothing
        try:
            said = []
            for step in (lambda: env.step(WAIT), lambda: env.evaluate(), lambda: vector.step([WAIT])):
                try:
                    step()
                except DartEnvError as error:
                    said.append("in its fork" in str(error))
            env.close()
            vector.close()
            os.write(writer, repr(said).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert os.read(reader, 100) == b"[True, True, True]"
    os.close(reader)
    env.step(WAIT)
    env.close()
    vector.close()


def _make_in_worker() -> gym.Env[Any, Any]:
    return make(FakeFarm())


@pytest.mark.parametrize(
    "options", [{"shared_memory": True}, {"shared_memory": False}, {"observation_mode": "different"}], ids=str
)
def test_gymnasiums_worker_processes_play(options: dict[str, Any]) -> None:
    EventLoopThread.shared()  # the loop of this process, which its forks cannot use
    envs = gym.vector.AsyncVectorEnv([_make_in_worker] * 2, context="fork", **options)
    observations, _ = envs.reset(seed=1)
    assert observations["instruction"] == ("Type hello.", "Type hello.")
    envs.action_space.seed(1)
    observations, *_ = envs.step(envs.action_space.sample())
    assert observations["screenshot"].shape == (2, 64, 80, 3)
    envs.close()


def test_a_running_environment_says_why_it_cannot_be_pickled(farm: FakeFarm) -> None:
    env = DartOSWorldEnv("basics/press_button/0000", resolution=(640, 400), farm="http://127.0.0.1:9")
    assert pickle.loads(pickle.dumps(env)).observation_space == env.observation_space
    running = make(farm)
    running.reset()
    with pytest.raises(TypeError, match=r"before reset\(\) or after close\(\)"):
        pickle.dumps(running)
    running.close()


SPACES: tuple[ActionSpaceLike, ...] = ("uitars", "canonical")


@pytest.mark.parametrize("action_space", SPACES)
@pytest.mark.parametrize(("choice", "reward"), [("noop", 0.0), ("penalty", -0.5)])
def test_a_malformed_action_may_cost_a_step_instead_of_an_exception(
    farm: FakeFarm, action_space: ActionSpaceLike, choice: str, reward: float
) -> None:
    options: dict[str, Any] = {"on_action_error": choice, "action_error_penalty": 0.5, "action_space": action_space}
    with make(farm, max_steps=2, **options) as env:
        env.reset()
        _, given, _, truncated, info = env.step("no action")
        assert (given, truncated) == (reward, False)
        assert info["action_error"]
        assert env.step("no action")[3], "the step counts"
    vector = DartVectorEnv(2, ToyTask(), resolution=SMALL, farm=farm, **options)
    vector.reset()
    _, rewards, *_, infos = vector.step(["no action", DONE])
    assert rewards.tolist() == [reward, 0.0]
    assert infos["_action_error"].tolist() == [True, False]
    vector.close()


def test_a_malformed_action_of_a_batch_names_its_env(farm: FakeFarm) -> None:
    vector = DartVectorEnv(3, ToyTask(), resolution=SMALL, farm=farm, action_space="uitars")
    vector.reset()
    with pytest.raises(ActionError, match=r"^env 1: "):
        vector.step(["Action: wait()", "no action", "Action: wait()"])
    vector.close()


def test_a_full_farm_is_reported_while_reset_waits(
    farm: FakeFarm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dart_envs.envs.core.LEASE_NOTICE_S", 0.0)
    lease = farm.lease

    async def lease_later(*args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.05)
        return await lease(*args, **options)

    monkeypatch.setattr(farm, "lease", lease_later)
    with caplog.at_level(logging.WARNING), make(farm) as env:
        _, info = env.reset()
    assert info["waited_for_desktop"] is True
    assert "No desktop was ready" in caplog.text
    assert "this key holds as many as it may" in caplog.text
    assert "`dart-farm claims` shows which" in caplog.text


def test_the_screen_is_the_one_that_the_tasks_are_made_for(farm: FakeFarm) -> None:
    env = DartOSWorldEnv("basics", farm=farm)
    assert (env.shape.resolution, env.shape.font_size) == ((640, 400), 16)
    assert env.observation_space["screenshot"].shape == (400, 640, 3)  # type: ignore[index]
    wide = DartOSWorldEnv("basics", farm=farm, resolution=(1280, 800))
    assert (wide.shape.resolution, wide.shape.font_size) == ((1280, 800), None)
    assert DartOSWorldEnv("office", farm=farm).shape.resolution == (1920, 1080)
