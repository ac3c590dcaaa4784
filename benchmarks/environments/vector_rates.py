"""Rates of vector environments whose steps take set times: ours, first come first served, and Gymnasium's in lock-step.

Role: rates of either kind, and of one environment, on live desktops. Rule: what a step of a vector takes is a wait inside the desktop,
drawn beforehand from a seed, the same for both kinds; rates count answers within a window of wall time, the first answers left out.
Non-goals: how fast a real step of a vector is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import gymnasium as gym
import numpy as np

from dart_envs.envs.vector import DartVectorEnv
from dart_envs.types import Action, ActionType, DecodedAction
from dart_server.wire import SettleSpec, WaitEvent

Seconds = Callable[[int], float]
"""Desktop -> how long its next step takes."""
AT_ONCE = SettleSpec(quiet_ms=0, cap_ms=0)
TASK = "basics/press_nth/0000"
STEPS = 1_000_000
"""Budget of an episode: none ends within a measurement."""
WARM_UP = 2
"""Steps of each desktop before the clock starts."""
OPTIONS: dict[str, Any] = {"task": TASK, "resolution": (1280, 800), "max_steps": STEPS, "settle": AT_ONCE}


def pause(seconds: float) -> DecodedAction:
    """A step that waits inside the desktop."""
    return DecodedAction((WaitEvent(ms=round(seconds * 1000)),))


def equal(seconds: float) -> Seconds:
    """Every step takes the same."""
    return lambda _index: seconds


def lognormal(median_s: float, sigma: float, seed: int) -> Seconds:
    """Step times median_s · exp(sigma · N(0, 1)), the same sequence for a desktop whoever drives it; cut at 50 medians."""
    drawn: dict[int, Iterator[float]] = {}

    def next_s(index: int) -> float:
        if index not in drawn:
            rng = np.random.default_rng([seed, index])
            drawn[index] = iter(lambda: float(min(50.0, np.exp(sigma * rng.standard_normal()))) * median_s, None)
        return next(drawn[index])

    return next_s


def ours(num_envs: int, seconds: Seconds, window_s: float) -> float:
    """Answers per second of `send`/`recv`."""
    envs = DartVectorEnv(num_envs, **OPTIONS)
    try:
        envs.reset(seed=0)
        for _ in range(WARM_UP):
            envs.step([pause(0.0)] * num_envs)
        envs.send([pause(seconds(index)) for index in range(num_envs)], range(num_envs))
        answers, start_s = 0, time.perf_counter()
        while (now_s := time.perf_counter()) - start_s < window_s:
            *_, ids = envs.recv()
            answers += len(ids)
            envs.send([pause(seconds(int(index))) for index in ids], ids.tolist())
        return answers / (now_s - start_s)
    finally:
        envs.close()


def gymnasiums(num_envs: int, seconds: Seconds, window_s: float) -> float:
    """Steps per second of Gymnasium's AsyncVectorEnv over the same environment, a process for each desktop."""
    envs = gym.make_vec(
        "DartOSWorld-v0",
        num_envs=num_envs,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": False},
        action_space="pyautogui",
        **OPTIONS,
    )
    try:
        envs.reset(seed=0)
        for _ in range(WARM_UP):
            envs.step(tuple("time.sleep(0)" for _ in range(num_envs)))
        answers, start_s = 0, time.perf_counter()
        while (now_s := time.perf_counter()) - start_s < window_s:
            envs.step(tuple(f"time.sleep({seconds(index):.3f})" for index in range(num_envs)))
            answers += num_envs
        return answers / (now_s - start_s)
    finally:
        envs.close()


def agent_rate(num_envs: int, window_s: float) -> float:
    """Steps per second of an agent that does not think: clicks, settled at the default, everywhere at once.

    No click is where the one before was, because the desktop keeps two such presses apart for as long as they would make a double
    click.
    """
    envs = DartVectorEnv(num_envs, **{**OPTIONS, "settle": None})
    clicks = cycle([Action(ActionType.CLICK, x=x, y=790) for x in (320, 640, 960)])
    try:
        envs.reset(seed=0)
        for _ in range(WARM_UP):
            envs.step([next(clicks)] * num_envs)
        steps, start_s = 0, time.perf_counter()
        while (now_s := time.perf_counter()) - start_s < window_s:
            envs.step([next(clicks)] * num_envs)
            steps += num_envs
        return steps / (now_s - start_s)
    finally:
        envs.close()


def grid_rate(window_s: float, seed: int) -> float:
    """Steps per second of a random agent of `discrete-grid` that sees pixels of 84x84, on one desktop and with the default settling."""
    env = gym.make(
        "DartOSWorld-v0",
        task="basics/press_nth",
        action_space="discrete-grid",
        observation={"pixels": True, "screenshot_wh": (84, 84), "color_mode": "gray", "frames": 4, "layout": "CHW"},
        max_steps=STEPS,
    )
    rng = np.random.default_rng(seed)
    assert isinstance(env.action_space, gym.spaces.Discrete)
    choices = int(env.action_space.n) - 1  # all but `done`, which is the last one
    try:
        env.reset(seed=seed)
        for _ in range(WARM_UP):
            env.step(int(rng.integers(choices)))
        steps, start_s = 0, time.perf_counter()
        while (now_s := time.perf_counter()) - start_s < window_s:
            env.step(int(rng.integers(choices)))
            steps += 1
        return steps / (now_s - start_s)
    finally:
        env.close()
