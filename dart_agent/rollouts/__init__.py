"""Rollouts: the episode loop, policies, where work comes from, and the rollout worker."""
