"""Every wrapper of Gymnasium that makes sense around a desktop, by name: those of any observation, and those of images alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

WRAPPERS: dict[str, Callable[[Any], gym.Env[Any, Any]]] = {
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 3),
    "FrameStackObservation, zeros": lambda env: wrappers.FrameStackObservation(env, 3, padding_type="zero"),
    "FlattenObservation": wrappers.FlattenObservation,
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 1),
    "FilterObservation": lambda env: wrappers.FilterObservation(env, ["screenshot"]),
    "TimeAwareObservation": lambda env: wrappers.TimeAwareObservation(wrappers.TimeLimit(env, 2)),
    "AddRenderObservation": lambda env: wrappers.AddRenderObservation(env, render_only=False, render_key="pixels"),
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "NormalizeReward": wrappers.NormalizeReward,
    "ClipReward": lambda env: wrappers.ClipReward(env, 0, 1),
    "Autoreset": wrappers.Autoreset,
    "TimeLimit": lambda env: wrappers.TimeLimit(env, 2),
    "PassiveEnvChecker": wrappers.PassiveEnvChecker,
    "OrderEnforcing": wrappers.OrderEnforcing,
}

PIXEL_WRAPPERS: dict[str, Callable[[Any], gym.Env[Any, Any]]] = {
    "ResizeObservation": lambda env: wrappers.ResizeObservation(env, (40, 32)),
    "GrayscaleObservation": wrappers.GrayscaleObservation,
    "ReshapeObservation": lambda env: wrappers.ReshapeObservation(env, (math.prod(env.observation_space.shape[:2]), 3)),
    "RescaleObservation": lambda env: wrappers.RescaleObservation(env, np.float32(0), np.float32(1)),
    "DtypeObservation": lambda env: wrappers.DtypeObservation(env, np.float32),
    "MaxAndSkipObservation": lambda env: wrappers.MaxAndSkipObservation(env, 2),
    "FlattenObservation": wrappers.FlattenObservation,
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 4),
}
