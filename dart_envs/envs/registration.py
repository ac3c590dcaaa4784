"""Gymnasium's registry entries. Role: `register_envs`, called when `dart_envs` is imported. Rule: idempotent;
entry points are strings, so that registering imports no environment code. Non-goals: other ids than ours.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

ENV_ID = "DartOSWorld-v0"


def register_envs() -> None:
    """Register `DartOSWorld-v0`: no `max_episode_steps` (the env ends its own episodes), nondeterministic
    (desktops have clocks)."""
    if ENV_ID not in registry:
        register(
            id=ENV_ID,
            entry_point="dart_envs.envs.env:DartOSWorldEnv",
            vector_entry_point="dart_envs.envs.vector:DartVectorEnv",
            nondeterministic=True,
            order_enforce=True,
        )
