"""Chaos: clients, desktops and the server are killed at random, and the history is judged."""
