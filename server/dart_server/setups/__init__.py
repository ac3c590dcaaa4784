"""Prepared states by key: one builder at a time, the others wait."""
