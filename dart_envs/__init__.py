"""Live desktops as reinforcement-learning environments.

    import dart_envs, gymnasium as gym
    env = gym.make("DartOSWorld-v0", task="basics", resolution=(640, 400))

Importing this package registers `DartOSWorld-v0`. It imports no torch, no vLLM and no FastAPI. Code without Gymnasium
uses `AsyncFarmClient` and `AsyncDesktopEnv` (async) or `FarmClient` (sync). Tests use `dart_envs.testing.fake_farm`
and `dart_envs.testing.conformance`.
"""

from dart_envs.envs.config import EnvConfig, EpisodeConfig
from dart_envs.envs.core import AsyncDesktopEnv
from dart_envs.envs.registration import ENV_ID, register_envs
from dart_envs.errors import (
    ActionError,
    DartEnvError,
    DesktopError,
    DesktopFailedError,
    EvaluatorError,
    FarmError,
    GuestError,
    LeaseLostError,
    SetupError,
    TaskError,
)
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.sync import FarmClient
from dart_envs.farm.sync_lease import Lease
from dart_envs.types import (
    Action,
    ActionType,
    Desktop,
    EndReason,
    Frame,
    Observation,
    Outcome,
    StepResult,
    TaskLike,
)
from dart_server.wire import DesktopShape, SettleSpec

register_envs()

__all__ = [
    "ENV_ID",
    "Action",
    "ActionError",
    "ActionType",
    "AsyncDesktopEnv",
    "AsyncFarmClient",
    "AsyncLease",
    "DartEnvError",
    "Desktop",
    "DesktopError",
    "DesktopFailedError",
    "DesktopShape",
    "EndReason",
    "EnvConfig",
    "EpisodeConfig",
    "EvaluatorError",
    "FarmClient",
    "FarmError",
    "Frame",
    "GuestError",
    "Lease",
    "LeaseLostError",
    "Observation",
    "Outcome",
    "SettleSpec",
    "SetupError",
    "StepResult",
    "TaskError",
    "TaskLike",
    "register_envs",
]
