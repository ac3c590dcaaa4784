"""The environments: single, vectorised, their configuration, and what they share with the rollout worker."""
