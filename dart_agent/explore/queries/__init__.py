"""Transitions as grounding samples: queries by rules, and by a model."""
