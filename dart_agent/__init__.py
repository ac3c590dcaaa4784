"""A policy acting in an environment: prompts, parsing, episodes, vLLM workers, trajectories."""
