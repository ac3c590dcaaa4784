"""Stable-Baselines3 on `DartVectorEnv`: its VecEnv interface around ours. Needs the extra `rl`.

    envs = DartVectorEnv(4, task="basics", action_space="discrete-grid", autoreset_mode="SAME_STEP",
                         observation={"screenshot_wh": (160, 96), "instruction": False})
    PPO("CnnPolicy", StableBaselinesVecEnv(envs)).learn(10_000)

Role: `StableBaselinesVecEnv`. Rule: an observation of one part is handed out as that part's Box, which is what image
policies take; several parts stay a Dict. Texts have no form there and are refused at once. Non-goals: policies, other
libraries (`gym.make_vec` is for those).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from dart_envs.envs.vector import DartVectorEnv


class StableBaselinesVecEnv(VecEnv):  # type: ignore[misc]
    """`envs` in Stable-Baselines3's clothes; closing this closes it. Its autoreset mode must be SAME_STEP."""

    def __init__(self, envs: DartVectorEnv) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ValueError("Stable-Baselines3 wants autoreset_mode='SAME_STEP'.")
        whole = envs.single_observation_space
        assert isinstance(whole, spaces.Dict)
        parts = whole.spaces
        texts = sorted(name for name, space in parts.items() if not isinstance(space, spaces.Box))
        if texts:
            raise ValueError(f"Stable-Baselines3 takes no texts; leave {', '.join(texts)} out of the observation.")
        self.envs = envs
        self._only_part = next(iter(parts)) if len(parts) == 1 else None
        self.render_mode = envs.render_mode
        space = parts[self._only_part] if self._only_part is not None else whole
        super().__init__(envs.num_envs, space, envs.single_action_space)

    def reset(self) -> Any:
        """Observations of fresh episodes; seeds set by `seed` are used once."""
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        observations, infos = self.envs.reset(seed=seeds)
        self.reset_infos = self._infos(infos)
        self._reset_seeds()
        return self._unwrap(observations)

    def step_async(self, actions: NDArray[Any]) -> None:
        self.envs.step_async(list(actions))

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        observations, rewards, terminated, truncated, infos = self.envs.step_wait()
        dones = terminated | truncated
        each = self._infos(infos)
        for index in np.flatnonzero(dones):
            each[index]["TimeLimit.truncated"] = bool(truncated[index] and not terminated[index])
            each[index]["terminal_observation"] = self._unwrap(infos["final_obs"][index])
        return self._unwrap(observations), rewards.astype(np.float32), dones, each

    def _unwrap(self, observation: dict[str, Any]) -> Any:
        return observation if self._only_part is None else observation[self._only_part]

    def _infos(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """One dict for each desktop, of what it has."""
        names = [name for name in infos if not name.startswith("_") and not isinstance(infos[name], dict)]
        return [
            {name: infos[name][index] for name in names if name != "final_obs" and infos[f"_{name}"][index]}
            for index in range(self.num_envs)
        ]

    def close(self) -> None:
        self.envs.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        frames = self.envs.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The vector's attribute, once for each desktop asked for. Raises AttributeError."""
        return [getattr(self.envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(
            f"The desktops of a DartVectorEnv have no attributes of their own, so {attr_name!r} cannot be set."
        )

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """`evaluate`: the verdicts of now, a number for each desktop asked for, NaN where there is none. Raises AttributeError."""
        if method_name != "evaluate":
            raise AttributeError(f"The desktops of a DartVectorEnv have the method evaluate, and no {method_name!r}.")
        rewards, _ = self.envs.evaluate(list(self._get_indices(indices)))
        return list(rewards.tolist())

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))
