"""Tianshou: DQN from a collector with two desktops."""

import sys

import gymnasium as gym
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.torch_utils import policy_within_training_step
from torch import nn

import dart_envs  # noqa: F401 - registers DartOSWorld-v0

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000


class PixelNet(nn.Module):
    """Q values of frames in [0, 255], shape (batch, 4, 84, 84)."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 81, actions),
        )

    def forward(self, obs, state=None, info=None):
        """Q values of every action, shape (batch, actions), and the state as it was."""
        return self.layers(torch.as_tensor(obs, dtype=torch.float32) / 255.0), state


def make_env():
    """One desktop with stacked gray frames."""
    return gym.make(
        "DartOSWorld-v0",
        task="basics/press_nth",
        resolution=(640, 400),
        max_episode_steps=10,
        action_space="discrete-grid",
        observation={"pixels": True, "screenshot_wh": (84, 84), "color_mode": "gray", "frames": 4, "layout": "CHW"},
    )


envs = DummyVectorEnv([make_env, make_env])
space = envs.action_space[0]
policy = DiscreteQLearningPolicy(model=PixelNet(int(space.n)), action_space=space, eps_training=0.3)
algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-4), gamma=0.99, target_update_freq=200)
collector = Collector[CollectStats](algorithm, envs, VectorReplayBuffer(10_000, 2), exploration_noise=True)
collector.reset()
collected, episodes = 0, 0
while collected < STEPS:
    with policy_within_training_step(algorithm.policy):
        stats = collector.collect(n_step=40)
    collected, episodes = collected + stats.n_collected_steps, episodes + stats.n_collected_episodes
    with policy_within_training_step(algorithm.policy):
        update = algorithm.update(buffer=collector.buffer, sample_size=32)
print(f"steps {collected}, episodes {episodes}, loss {update.loss:.4f}")
envs.close()
