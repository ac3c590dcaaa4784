"""TRL: GRPO with live desktops as tools. `python trl_grpo.py MODEL [UPDATES]`, MODEL for example of `dart-train init-model`."""

import sys

import gymnasium as gym
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import dart_envs  # noqa: F401 - registers DartOSWorld-v0

ATTEMPTS = 3
"""How often an episode is played that the farm has left without a verdict."""


class Desktop:
    """One desktop; TRL offers its public methods to the model as tools."""

    def __init__(self) -> None:
        self.env = gym.make(
            "DartOSWorld-v0", task="basics/press_nth", resolution=(640, 400), observation=("screenshot", "a11y_table")
        )

    def reset(self, **example) -> str:
        """Start an episode; TRL adds the text to the prompt. The seed chooses the task: all members of a group have that of their row."""
        observation, info = self.env.reset(seed=example["seed"])
        self.task, self.clicks = info["task_id"], []
        self.ended = self.masked = False
        return observation["instruction"]

    def click(self, x: int, y: int) -> str:
        """Click with the left mouse button.

        Args:
            x: Pixels from the left edge of the screen.
            y: Pixels from the top edge of the screen.
        """
        if self.ended:
            return "The episode has ended."
        self.clicks.append({"type": "click", "x": x, "y": y})
        observation = self._step(self.clicks[-1])
        return "\n".join(line for line in observation["a11y"].splitlines() if "button" in line)

    def get_reward(self) -> float:
        """End the episode; the verdict of the task's evaluator is the reward."""
        for _ in range(ATTEMPTS):
            if not self.ended:
                self._step({"type": "done"})
            if not self.masked:
                return float(self.reward)
            self._replay()
        raise RuntimeError(f"{self.task} had no verdict {ATTEMPTS} times: look at the farm, then resume the training")

    def _step(self, action):
        observation, self.reward, terminated, truncated, info = self.env.step(action)
        self.ended, self.masked = terminated or truncated, info.get("masked", False)
        return observation

    def _replay(self) -> None:
        """Do the same clicks again on a fresh desktop: TRL can leave no sample out, and a fault of the farm is no verdict."""
        self.env.reset(options={"task": self.task})
        self.ended = self.masked = False
        for click in self.clicks:
            if not self.ended:
                self._step(click)


model, updates = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
prompts = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": "Use the desktop."}], "seed": seed} for seed in range(64)]
)
sizes = {
    "per_device_train_batch_size": 2,
    "num_generations": 2,
    "max_completion_length": 96,
    "max_tool_calling_iterations": 2,
}
config = GRPOConfig(output_dir="trl-grpo", max_steps=updates, logging_steps=1, report_to=[], use_cpu=True, **sizes)
tokenizer = AutoTokenizer.from_pretrained(model)
GRPOTrainer(model, args=config, train_dataset=prompts, processing_class=tokenizer, environment_factory=Desktop).train()
