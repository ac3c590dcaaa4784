"""Every wrapper of Gymnasium that makes sense around a desktop, by name.

They are those of any observation, of images alone, of actions in a box, and of vector environments. `LEFT_OUT` says why the others
are not among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.wrappers import vector

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
    "RenderCollection": wrappers.RenderCollection,
    "RepeatAction": lambda env: wrappers.RepeatAction(env, 2),
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.5),
    "TransformAction": lambda env: wrappers.TransformAction(env, lambda action: action, None),
    "TransformObservation": lambda env: wrappers.TransformObservation(env, lambda observation: observation, None),
    "TransformReward": lambda env: wrappers.TransformReward(env, lambda reward: reward),
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
    "NormalizeObservation": wrappers.NormalizeObservation,
    "AddWhiteNoise": lambda env: wrappers.AddWhiteNoise(env, probability_of_noise_per_pixel=0.1),
    "ObstructView": lambda env: wrappers.ObstructView(env, 0.1, 3),
}

BOX_ACTION_WRAPPERS: dict[str, Callable[[Any], gym.Env[Any, Any]]] = {
    "ClipAction": wrappers.ClipAction,
    "RescaleAction": lambda env: wrappers.RescaleAction(env, np.float32(-2), np.float32(2)),
    "DiscretizeAction": lambda env: wrappers.DiscretizeAction(env, 2),
}

VECTOR_WRAPPERS: dict[str, Callable[[Any], gym.vector.VectorEnv[Any, Any, Any]]] = {
    "RecordEpisodeStatistics": vector.RecordEpisodeStatistics,
    "FilterObservation": lambda envs: vector.FilterObservation(envs, ["screenshot"]),
    "FlattenObservation": vector.FlattenObservation,
    "ClipReward": lambda envs: vector.ClipReward(envs, 0, 1),
    "NormalizeReward": vector.NormalizeReward,
    "TransformObservation": lambda envs: vector.TransformObservation(envs, lambda observation: observation),
    "TransformReward": lambda envs: vector.TransformReward(envs, lambda reward: reward),
}

LEFT_OUT = {
    "ArrayConversion": "arrays of other libraries",
    "AtariPreprocessing": "the console of an Atari",
    "DiscretizeObservation": "a table of all screens",
    "HumanRendering": "render_mode human has the live view",
    "JaxToNumpy": "arrays of other libraries",
    "JaxToTorch": "arrays of other libraries",
    "NumpyToTorch": "arrays of other libraries",
    "RecordVideo": "needs moviepy",
    "vector": "a package",
}
