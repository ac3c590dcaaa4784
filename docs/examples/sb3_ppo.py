"""Stable-Baselines3: PPO with four stacked frames on two desktops."""

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor

from dart_envs.envs.sb3 import StableBaselinesVecEnv
from dart_envs.envs.vector import DartVectorEnv

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
model = PPO("CnnPolicy", envs, n_steps=min(128, steps // 2), batch_size=32, n_epochs=1, device="cpu")
model.learn(steps)
rewards = [episode["r"] for episode in model.ep_info_buffer or []]
print(f"steps {model.num_timesteps}, episodes {len(rewards)}, mean reward {sum(rewards) / max(len(rewards), 1):.2f}")
envs.close()
