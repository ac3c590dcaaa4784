"""Logs, metrics and traces of the farm."""
