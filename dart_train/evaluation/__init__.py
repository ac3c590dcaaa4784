"""Evaluation of stored policy versions: statistics, results, and the run of one evaluation in a folder of its own."""
