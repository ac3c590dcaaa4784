"""The shape of OSWorld's `DesktopEnv` on our desktops, for agents and run scripts written for it.

    from dart_envs.osworld import DesktopEnv     # instead of: from desktop_env.desktop_env import DesktopEnv

Role: one import. Rule: the surface is OSWorld's (old 4-tuple, observation-only reset), the desktops and verdicts are ours.
Non-goals: the true Gymnasium environment (`dart_envs.envs.env`).
"""

from __future__ import annotations

from dart_envs.osworld.controllers import PythonController, SetupController
from dart_envs.osworld.desktop_env import DesktopEnv

__all__ = ["DesktopEnv", "PythonController", "SetupController"]
