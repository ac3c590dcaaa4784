"""Grounding: an action head against coordinates as text, verifier, second look, adaptation to an application."""
