"""Stable-Baselines3: PPO with four stacked frames on two desktops."""

import sys

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor

from dart_envs.envs.sb3 import StableBaselinesVecEnv
from dart_envs.envs.vector import DartVectorEnv


class LeaveOutMasked(BaseCallback):
    """Takes the steps of masked episodes out of a rollout: with advantage 0, and their own value as return, they move nothing."""

    def _on_rollout_start(self) -> None:
        buffer = self.model.rollout_buffer
        self.masked = np.zeros((buffer.buffer_size, buffer.n_envs), dtype=bool)
        self.starts = [0] * buffer.n_envs

    def _on_step(self) -> bool:
        now = self.model.rollout_buffer.pos
        for index in np.flatnonzero(self.locals["dones"]):
            self.masked[self.starts[index] : now + 1, index] = self.locals["infos"][index]["masked"]
            self.starts[index] = now + 1
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.model.rollout_buffer
        buffer.advantages[self.masked] = 0.0
        buffer.returns[self.masked] = buffer.values[self.masked]


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
desktops = DartVectorEnv(
    2,
    task="basics/press_nth",
    resolution=(640, 400),
    max_episode_steps=10,
    autoreset_mode="SAME_STEP",
    action_space="discrete-grid",
    observation={"pixels": True, "screenshot_wh": (84, 84), "color_mode": "gray"},
)
envs = VecMonitor(VecFrameStack(StableBaselinesVecEnv(desktops), n_stack=4))
model = PPO(
    "CnnPolicy", envs, n_steps=min(128, steps // 2), batch_size=32, n_epochs=1, normalize_advantage=False, device="cpu"
)
model.learn(steps, callback=LeaveOutMasked())
rewards = [episode["r"] for episode in model.ep_info_buffer or []]
print(f"steps {model.num_timesteps}, episodes {len(rewards)}, mean reward {sum(rewards) / max(len(rewards), 1):.2f}")
envs.close()
