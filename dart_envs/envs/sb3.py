"""The VecEnv interface of Stable-Baselines3 around `DartVectorEnv`; it needs the extra `rl`.

    envs = DartVectorEnv(4, task="basics", action_space="discrete-grid", autoreset_mode="SAME_STEP",
                         observation={"screenshot_wh": (160, 96), "instruction": False})
    PPO("CnnPolicy", StableBaselinesVecEnv(envs)).learn(10_000)

An observation of one part is returned as the Box of that part, which image policies take; several parts stay a Dict.
Stable-Baselines3 has no text spaces, so observations with texts are refused at once. This module has no policies, and
no adapters for other libraries (they use `gym.make_vec`).
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

ENDING = ("end", "masked", "cause")
"""What the info of a step says of the episode that it has ended."""


class StableBaselinesVecEnv(VecEnv):  # type: ignore[misc]
    """A `DartVectorEnv` with the interface of Stable-Baselines3; closing this closes it.

    Args:
        envs: The vector environment; its autoreset mode is SAME_STEP and its observation has no texts.

    Attributes:
        envs: The vector environment.

    Raises:
        ValueError: If the autoreset mode is another one, or the observation has texts.
    """

    def __init__(self, envs: DartVectorEnv) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ValueError("Stable-Baselines3 wants autoreset_mode='SAME_STEP'.")
        whole = envs.single_observation_space
        parts = whole.spaces if isinstance(whole, spaces.Dict) else {}
        texts = sorted(name for name, space in parts.items() if not isinstance(space, spaces.Box))
        if texts:
            raise ValueError(f"Stable-Baselines3 takes no texts; leave {', '.join(texts)} out of the observation.")
        self.envs = envs
        self._only_part = next(iter(parts)) if len(parts) == 1 else None
        self.render_mode = envs.render_mode
        space: Any = parts[self._only_part] if self._only_part is not None else whole
        super().__init__(envs.num_envs, space, envs.single_action_space)

    def reset(self) -> Any:
        """Start an episode on every desktop; seeds that were set by `seed` are used once.

        Returns:
            The observations, batched.
        """
        seeds = self._seeds if any(seed is not None for seed in self._seeds) else None
        observations, infos = self.envs.reset(seed=seeds)
        self.reset_infos = self._infos(infos)
        self._reset_seeds()
        return self._unwrap(observations)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Send one action to every desktop.

        Args:
            actions: The actions, batched.
        """
        self.envs.step_async(list(actions))

    def step_wait(self) -> tuple[Any, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Wait for the results of `step_async`.

        Returns:
            Observations, rewards float32 `[N]`, dones bool `[N]`, and one info dict for each desktop. Where an episode has ended, its
            `end`, `masked` and `cause` are in the info dict; a masked episode has no verdict to learn from.
        """
        observations, rewards, terminated, truncated, infos = self.envs.step_wait()
        dones = terminated | truncated
        each = self._infos(infos)
        final = self._infos(infos["final_info"]) if "final_info" in infos else [{}] * self.num_envs
        for index in np.flatnonzero(dones):
            each[index]["TimeLimit.truncated"] = bool(truncated[index] and not terminated[index])
            if final[index]:  # a reset that has failed again ends no episode: its own info says so
                each[index] |= {name: final[index][name] for name in ENDING}
                each[index]["terminal_observation"] = self._unwrap(infos["final_obs"][index])
        return self._unwrap(observations), rewards.astype(np.float32), dones, each

    def _unwrap(self, observation: Any) -> Any:
        return observation if self._only_part is None else observation[self._only_part]

    def _infos(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one dict for each desktop, with the entries that it has."""
        names = [name for name in infos if not name.startswith("_") and not isinstance(infos[name], dict)]
        return [
            {name: infos[name][index] for name in names if name != "final_obs" and infos[f"_{name}"][index]}
            for index in range(self.num_envs)
        ]

    def close(self) -> None:
        """Close the vector environment."""
        self.envs.close()

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return the last screenshot of every desktop, uint8 `[H, W, 3]`, or None without a render mode."""
        frames = self.envs.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the vector environment, once for each desktop that was asked for.

        Args:
            attr_name: Name of the attribute.
            indices: The desktops; None is all of them.

        Returns:
            The value, repeated.

        Raises:
            AttributeError: If the vector environment has no such attribute.
        """
        return [getattr(self.envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse to set an attribute: the desktops of a `DartVectorEnv` have none of their own.

        Args:
            attr_name: Name of the attribute.
            value: The value to set.
            indices: The desktops; None is all of them.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(
            f"The desktops of a DartVectorEnv have no attributes of their own, so {attr_name!r} cannot be set."
        )

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call `evaluate`, the only method that desktops have.

        Args:
            method_name: `evaluate`.
            *args: Not used.
            indices: The desktops; None is all of them.
            **kwargs: Not used.

        Returns:
            A reward for each desktop that was asked for; NaN where there is no verdict.

        Raises:
            AttributeError: If another method is called.
        """
        if method_name != "evaluate":
            raise AttributeError(f"The desktops of a DartVectorEnv have the method evaluate, and no {method_name!r}.")
        rewards, _ = self.envs.evaluate(list(self._get_indices(indices)))
        return list(rewards.tolist())

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Return False for each desktop that was asked for: the desktops have no wrappers.

        Args:
            wrapper_class: The class to look for.
            indices: The desktops; None is all of them.

        Returns:
            One False for each desktop.
        """
        return [False] * len(list(self._get_indices(indices)))


__all__ = ["StableBaselinesVecEnv"]
