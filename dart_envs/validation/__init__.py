"""Validation of tasks on live desktops: oracle, near miss, exploits, and their records."""
