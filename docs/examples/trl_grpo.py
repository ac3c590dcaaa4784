"""TRL: GRPO with live desktops as tools. `python trl_grpo.py MODEL [UPDATES]`, MODEL for example of `dart-train init-model`."""

import sys

import gymnasium as gym
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import dart_envs  # noqa: F401 - registers DartOSWorld-v0


class Desktop:
    """One desktop; TRL offers its public methods to the model as tools."""

    def __init__(self) -> None:
        self.env = gym.make(
            "DartOSWorld-v0", task="basics/press_nth", resolution=(640, 400), observation=("screenshot", "a11y_table")
        )

    def reset(self, **example) -> str:
        """Start an episode; TRL adds the text to the prompt."""
        self.ended, self.reward = False, 0.0
        return self.env.reset()[0]["instruction"]

    def click(self, x: int, y: int) -> str:
        """Click with the left mouse button.

        Args:
            x: Pixels from the left edge of the screen.
            y: Pixels from the top edge of the screen.
        """
        observation, self.reward, terminated, truncated, _ = self.env.step({"type": "click", "x": x, "y": y})
        self.ended = terminated or truncated
        return "\n".join(line for line in observation["a11y"].splitlines() if "button" in line)

    def get_reward(self) -> float:
        """End the episode; the verdict of the task's evaluator is the reward."""
        return float(self.reward if self.ended else self.env.step({"type": "done"})[1])


model, updates = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
prompts = Dataset.from_list([{"prompt": [{"role": "user", "content": "Use the desktop."}]}] * 64)
sizes = {
    "per_device_train_batch_size": 2,
    "num_generations": 2,
    "max_completion_length": 96,
    "max_tool_calling_iterations": 2,
}
config = GRPOConfig(output_dir="trl-grpo", max_steps=updates, logging_steps=1, report_to=[], use_cpu=True, **sizes)
tokenizer = AutoTokenizer.from_pretrained(model)
GRPOTrainer(model, args=config, train_dataset=prompts, processing_class=tokenizer, environment_factory=Desktop).train()
