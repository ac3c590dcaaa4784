"""Registration of `DartOSWorld-v0` at Gymnasium.

`register_envs` is called when `dart_envs` is imported. It is idempotent. Entry points are strings, so that registering
imports no environment code. It registers no other id.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

ENV_ID = "DartOSWorld-v0"


def register_envs() -> None:
    """Register `DartOSWorld-v0` as nondeterministic (desktops have clocks) and without `max_episode_steps`.

    The environment ends its own episodes.
    """
    if ENV_ID not in registry:
        register(
            id=ENV_ID,
            entry_point="dart_envs.envs.env:DartOSWorldEnv",
            vector_entry_point="dart_envs.envs.vector:DartVectorEnv",
            nondeterministic=True,
            order_enforce=True,
        )
