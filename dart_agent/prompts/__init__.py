"""Prompts: chat messages, history, the model's picture, and token ids that are never sampled."""
