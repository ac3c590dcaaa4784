"""PufferLib: two desktops behind its own vectorisation, with random actions in place of a policy."""

import sys

import gymnasium as gym
import pufferlib.emulation
import pufferlib.vector

import dart_envs  # noqa: F401 - registers DartOSWorld-v0

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000


def make_desktop():
    """One desktop with stacked gray frames; PufferLib itself resets after a termination only, not after a truncation."""
    env = gym.make(
        "DartOSWorld-v0",
        task="basics/press_nth",
        resolution=(640, 400),
        max_episode_steps=10,
        action_space="discrete-grid",
        observation={"pixels": True, "screenshot_wh": (84, 84), "color_mode": "gray", "frames": 4, "layout": "CHW"},
    )
    return gym.wrappers.Autoreset(env)


def make_env(**buffers):
    """`buffers` are what PufferLib 3 hands to its environments; PufferLib 1 hands nothing."""
    return pufferlib.emulation.GymnasiumPufferEnv(env_creator=make_desktop, **buffers)


if __name__ == "__main__":
    for backend in (pufferlib.vector.Serial, pufferlib.vector.Multiprocessing):
        envs = pufferlib.vector.make(make_env, backend=backend, num_envs=2)
        observations, _ = envs.reset(seed=1)
        steps, episodes = 0, 0
        while steps < STEPS:
            observations, rewards, terminals, truncations, infos = envs.step(envs.action_space.sample())
            steps, episodes = steps + 2, episodes + int((terminals | truncations).sum())
        print(f"{backend.__name__}: steps {steps}, episodes {episodes}, observations {observations.shape}")
        envs.close()
