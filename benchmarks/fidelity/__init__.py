"""Fidelity of resets: damage, digests, leaks, kinds of start."""
