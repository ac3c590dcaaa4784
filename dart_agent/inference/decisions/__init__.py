"""What the inference workers' processes decide, without I/O and without a clock; production and simulation run the same code."""
