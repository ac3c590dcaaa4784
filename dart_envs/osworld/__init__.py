"""OSWorld's `DesktopEnv` on leased desktops, for agents and run scripts that were written for it.

    from dart_envs.osworld import DesktopEnv     # instead of: from desktop_env.desktop_env import DesktopEnv

The interface is OSWorld's: `step` returns a 4-tuple and `reset` an observation only. The desktops and verdicts are
ours. The Gymnasium environment is in `dart_envs.envs.env`.
"""

from __future__ import annotations

from dart_envs.osworld.controllers import PythonController, SetupController
from dart_envs.osworld.desktop_env import DesktopEnv

__all__ = ["DesktopEnv", "PythonController", "SetupController"]
