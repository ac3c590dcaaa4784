"""Measurements: `python -m benchmarks NAME --json FILE` produces every figure the project quotes."""
