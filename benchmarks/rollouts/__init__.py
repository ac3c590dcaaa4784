"""Rollouts and decoupling: virtual time, and the real parts beside it."""
