"""RLlib: PPO with two env runners; Ray Tune tries two learning rates, and all share one farm."""

import os
import sys

import gymnasium as gym
import ray
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig

DESKTOP = {
    "task": "basics/press_nth",
    "resolution": (640, 400),
    "max_episode_steps": 10,
    "action_space": "discrete-grid",
    "observation": {"pixels": True, "screenshot_wh": (84, 84), "color_mode": "gray", "frames": 4, "dtype": "float32"},
}


class LeaveOutMasked(gym.Wrapper):
    """Ends a masked episode with an error: the env runner then drops what it has of it, and starts again."""

    def step(self, action):
        """Perform an action."""
        result = self.env.step(action)
        if result[4].get("masked"):
            raise RuntimeError(f"the episode has no verdict: {result[4]['cause']}")
        return result


def make_env(config):
    """One desktop, in the process of an env runner."""
    import dart_envs  # noqa: F401 - registers DartOSWorld-v0 in the env runner's process

    return LeaveOutMasked(gym.make("DartOSWorld-v0", **config))


if __name__ == "__main__":
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
    tune.register_env("dart", make_env)
    config = (
        PPOConfig()
        .environment("dart", env_config=DESKTOP)
        .env_runners(num_env_runners=2, rollout_fragment_length="auto")
        .fault_tolerance(restart_failed_sub_environments=True)
        .training(lr=tune.grid_search([1e-4, 3e-4]), train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    )
    tuner = tune.Tuner(
        "PPO",
        param_space=config,
        tune_config=tune.TuneConfig(max_concurrent_trials=int(os.environ.get("TRIALS", "1"))),
        run_config=tune.RunConfig(stop={"training_iteration": iterations}, verbose=0),
    )
    for result in tuner.fit():
        runners = result.metrics["env_runners"]
        print(
            f"lr {result.config['lr']:g}, steps {runners['num_env_steps_sampled_lifetime']:.0f}, error {result.error}"
        )
    ray.shutdown()
