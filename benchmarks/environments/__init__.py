"""Environments and task suites: vector rates, suites, OSWorld client, typing."""
