"""Whole runs: the demo, and a newcomer's first one."""
