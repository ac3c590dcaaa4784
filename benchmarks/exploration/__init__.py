"""Exploration of applications: what choosers find with equal numbers of steps."""
