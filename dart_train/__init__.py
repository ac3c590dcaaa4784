"""Decoupled GRPO on desktop trajectories: models, warm start, losses, the trainer and the run that holds them together."""
